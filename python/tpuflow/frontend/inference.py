"""Infers types and shapes of one node at a time, by ONNX's own inference.

Networks repeat themselves, and to hand a node over to ONNX costs more than all else about it: what was found
for an operator, its attributes and what is known of its inputs is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx
import onnx_ir as ir

from tpuflow.frontend.outside import OUTSIDE, infer_outside
from tpuflow.frontend.values import shape_of

__all__ = ["DOMAIN", "infer_output"]

DOMAIN = "tpuflow"
"""Domain of the model-local functions a normalised model may call."""

SMALL = 64  # constants up to this many elements are shown to shape inference

MOST_KEPT = 1 << 14
"""Calls whose results are kept."""

PLAIN = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.FLOAT,
        ir.AttributeType.STRING,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
    }
)
"""Attributes that are numbers and words."""

BY_SHAPES = frozenset(
    {"Add", "BatchNormalization", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul", "PRelu", "Sub"}
)
"""Operators of which no input's elements decide a shape."""

_cache: dict[Hashable, list[tuple[ir.DataType, tuple[int, ...]] | None]] = {}
"""By call the type and shape of every output; None for one left out."""


def infer_output(node: ir.Node, versions: Mapping[str, int]) -> str | None:
    """Sets type and shape of the outputs of `node` from those of its inputs.

    Where an input is not known yet, or the operator is, the outputs are left as they are.

    Returns:
        What ONNX objects to in the node, in one line; None if nothing.
    """
    if node.domain == OUTSIDE:
        return infer_outside(node)
    first = next((value for value in node.inputs if value is not None), None)
    if node.domain == DOMAIN and first is not None:  # every function of ours is elementwise
        node.outputs[0].shape, node.outputs[0].type = first.shape, first.type
        return None
    if any(value is not None and (value.type is None or value.name is None) for value in node.inputs):
        return None
    version = versions.get(node.domain, 1) if node.version is None else node.version
    call = _call(node, version)
    if call is None or call not in _cache:
        wrong = _infer(node, version)
        if wrong is None and call is not None:
            _remember(call, node)
        return wrong
    for output, found in zip(node.outputs, _cache[call], strict=True):
        if found is not None:
            output.type, output.shape = ir.TensorType(found[0]), ir.Shape(found[1])
    return None


def _call(node: ir.Node, version: int) -> Hashable | None:
    """All that inference looks at; None where that is more than numbers, words and whole shapes."""
    attributes = node.attributes.data.values()
    if any(each.type not in PLAIN or each.is_ref() for each in attributes):
        return None
    reads = node.op_type not in BY_SHAPES
    inputs = [None if value is None else _known(value, reads=reads) for value in node.inputs]
    if () in inputs:
        return None
    settings = tuple((each.name, each.type, each.value) for each in attributes)
    outputs = tuple(bool(value.name) for value in node.outputs)
    return (node.domain, node.op_type, version, settings, tuple(inputs), outputs)


def _known(value: ir.Value, *, reads: bool) -> tuple[Hashable, ...]:
    """The properties of an input that inference depends on, with its elements where it reads them."""
    shape = shape_of(value)
    if type(value.type) is not ir.TensorType or value.type.denotation or shape is None:
        return ()
    constant = value.const_value
    if constant is None or constant.size > SMALL or not reads:
        return value.dtype, shape
    if constant.dtype == ir.DataType.STRING:
        return ()
    return value.dtype, shape, constant.dtype, tuple(constant.shape), constant.tobytes()


def _remember(call: Hashable, node: ir.Node) -> None:
    """Notes what was found for a call, where all of it is."""
    found: list[tuple[ir.DataType, tuple[int, ...]] | None] = []
    for output in node.outputs:
        shape = shape_of(output)
        if output.name and (type(output.type) is not ir.TensorType or shape is None):
            return
        found.append(
            (output.type.dtype, shape) if output.name and output.type and shape is not None else None
        )
    if len(_cache) >= MOST_KEPT:
        _cache.clear()
    _cache[call] = found


def _infer(node: ir.Node, version: int) -> str | None:
    """As `infer_output`, by ONNX itself; types and names of inputs are known."""
    types: dict[str, onnx.TypeProto] = {}
    constants: dict[str, onnx.TensorProto] = {}
    try:
        for value in node.inputs:
            if value is None or value.type is None or value.name is None:
                continue
            types[value.name] = ir.serde.serialize_type(value.type)
            if value.shape is not None:
                ir.serde.serialize_shape_into(types[value.name], value.shape)
            if value.const_value is not None and value.const_value.size <= SMALL:
                constants[value.name] = ir.serde.serialize_tensor(value.const_value)
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, constants
        )
    except onnx.defs.SchemaError:
        return None
    except (ir.serde.SerdeError, ValueError):
        return "an attribute or constant of it cannot be written"
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).strip().splitlines()[0].rpartition("Error] ")[2]
    for output in node.outputs:
        if output.name in inferred:
            output.type = ir.serde.deserialize_type_proto_for_type(inferred[output.name])
            shape = ir.serde.deserialize_type_proto_for_shape(inferred[output.name])
            # As one that was kept, it may be changed.
            output.shape = None if shape is None else shape.copy(frozen=False)
    return None
