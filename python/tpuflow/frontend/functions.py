"""Replaces operators that ONNX itself defines by others with what defines them.

ONNX gives many of its operators a body in simpler ones: losses, Attention, RotaryEmbedding, windows,
LayerNormalization with all its outputs. Where nothing better is known of a node, that body takes its place;
what is known better has been rewritten before. The body of some operators depends on the types, ranks and
attributes of a node.

Source: https://onnx.ai/onnx/api/defs.html (functions of OpSchema).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from tpuflow.frontend.precision import weights_to_float32
from tpuflow.frontend.rewrites import opset
from tpuflow.frontend.supported import is_supported
from tpuflow.frontend.validity import objection
from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["expand_functions"]

DOMAIN = "tpuflow.expanded"
"""Domain of the functions between their making and their inlining."""


def expand_functions(model: ir.Model) -> bool:
    """Inlines the body of every node that is not supported as it is and has one; True if there was any."""
    found = 0
    for node in list(model.graph):
        versions = model.graph.opset_imports
        if (
            node.domain
            or _empty(node)
            or objection(node, versions) is not None
            or is_supported(node, versions)
        ):
            continue
        body = _body(node, opset.TARGET if node.version is None else node.version)
        if body is None:
            continue
        body.domain, body.name = DOMAIN, f"{node.op_type}{found}"
        used = opset.TARGET
        for imported in body.opset_import:
            if not imported.domain:
                used, imported.version = imported.version, opset.TARGET
        function = ir.serde.deserialize_function(body)
        for inner in function.all_nodes():
            if not inner.domain:
                inner.version = used
        model.functions[function.identifier()] = function
        node.domain, node.op_type, node.version = DOMAIN, body.name, None
        found += 1
    if not found:
        return False
    model.graph.opset_imports[DOMAIN] = 1
    common.InlinePass(criteria=lambda function: function.domain == DOMAIN)(model)
    model.graph.opset_imports.pop(DOMAIN, None)
    model.graph.opset_imports[""] = opset.TARGET
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.NameFixPass()(model)  # outputs that nothing reads have no name, and constants need one
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    weights_to_float32(model)
    return True


def _empty(node: ir.Node) -> bool:
    """Whether a node makes no elements: its body would not be supported either."""
    return 0 in (shape_of(node.outputs[0]) or ())


def _body(node: ir.Node, version: int) -> onnx.FunctionProto | None:
    """The definition of `node`, with its attributes' defaults stated at the node; None without one."""
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        return None  # a body cannot be handed on to the body of a function
    inputs = [value for value in node.inputs if value is not None]
    if any(shape_of(value) is None or value.type is None for value in inputs):
        return None
    try:
        # Its type declarations leave the functions of a schema out.
        schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return None
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)
    text = b""
    if schema.has_function:
        text = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, version))
    elif schema.has_context_dependent_function:
        text = schema.get_context_dependent_function_with_opset_version(
            _newest(schema.context_dependent_function_opset_versions, version),
            ir.serde.serialize_node(node).SerializeToString(),
            [_type(value).SerializeToString() for value in node.inputs],
        )
    if not text:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    del body.output[len(node.outputs) :]
    computed = {*body.input, *(name for inner in body.node for name in inner.output)}
    read = {name for inner in body.node for name in inner.input if name}
    if len(body.input) < len(node.inputs) or not read <= computed:
        return None  # what it is made from is not as the schema says
    for name, output in zip(body.output, node.outputs, strict=False):
        if name not in computed:  # optional ones need not be
            if output.uses() or output.is_graph_output():
                return None
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))
    return body


def _newest(versions: Sequence[int], version: int) -> int:
    return max((each for each in versions if each <= version), default=min(versions))


def _type(value: ir.Value | None) -> onnx.TypeProto:
    if value is None or value.type is None:
        return onnx.TypeProto()
    made = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(made, value.shape)
    return made
