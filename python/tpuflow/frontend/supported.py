"""The closed set: every operator a normalised model may hold, and within which limits.

This table is the contract between the frontend and everything behind it. All shapes are static, all
constants are initialisers, float tensors are float32. Integers occur as indices of an embedding, as the
result of ArgMax or QuantizeLinear, and at graph inputs and outputs that are cast. What ONNX of the target
opset has no operator for (Silu, RMSNormalization) stands as a function of the domain "tpuflow", whose
definition the model carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.errors import Finding
from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.outside import OUTSIDE
from tpuflow.frontend.rewrites.logic import COMPARISONS, CONNECTIVES
from tpuflow.frontend.rewrites.reduction import REDUCTIONS
from tpuflow.frontend.validity import objection
from tpuflow.frontend.values import array_of, input_at, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPERATORS", "cut_points", "findings", "is_supported", "operator_name"]

Limit = Callable[[ir.Node], Iterable[tuple[str | None, str]]]
"""Yields (attribute or input, what is wrong with it)."""

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "MatMul")
MOVING = ("Concat", "Reshape", "Transpose", "Slice", "Expand", "Tile", "DepthToSpace", "SpaceToDepth")
"""Operators that only move elements, and so take any type."""


def _constant(*indices: int) -> Limit:
    """The inputs at these places must be constant."""

    def limit(node: ir.Node) -> Iterator[tuple[str, str]]:
        for index in indices:
            value = input_at(node, index)
            if value is not None and array_of(value) is None:
                yield f"input {index}", f'must be constant, but "{value.name}" is computed at run time'

    return limit


def _rank(*ranks: int) -> Limit:
    """Input 0 must have one of these numbers of axes."""

    def limit(node: ir.Node) -> Iterator[tuple[str, str]]:
        shape = shape_of(node.inputs[0])
        if shape is not None and len(shape) not in ranks:
            axes = " or ".join(map(str, ranks))
            yield "input 0", f"must have {axes} axes, has shape {list(shape)}"

    return limit


def _choice(attribute: str, default: str, *choices: str) -> Limit:
    """A string attribute must be one of `choices`."""

    def limit(node: ir.Node) -> Iterator[tuple[str, str]]:
        value = node.attributes.get_string(attribute, default)
        if value not in choices:
            yield attribute, f'"{value}" is not supported ({", ".join(choices)})'

    return limit


def _resize(node: ir.Node) -> Iterator[tuple[str, str]]:
    if node.attributes.get_int("antialias", 0):
        yield "antialias", "is not supported"
    shapes = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if shapes[0] is not None and shapes[1] is not None and shapes[0][:2] != shapes[1][:2]:
        yield "sizes", "batch and channels cannot be resized"


def _last_axis(node: ir.Node) -> Iterator[tuple[str, str]]:
    shape = shape_of(node.inputs[0])
    if shape is not None and node.attributes.get_int("axis", -1) % len(shape) != len(shape) - 1:
        yield "axis", "several axes are only normalised with constant scale and bias that fit them"


def _gather(node: ir.Node) -> Iterator[tuple[str, str]]:
    indices, shape = array_of(node.inputs[1]), shape_of(node.inputs[0])
    if indices is not None and shape is not None:
        size = shape[node.attributes.get_int("axis", 0) % len(shape)]
        if indices.size and not -size <= indices.min() <= indices.max() < size:
            yield "input 1", f"holds an index outside the axis of size {size}"
        return
    if array_of(node.inputs[0]) is None:
        yield "input 1", "indices computed at run time need a constant table"
    elif node.attributes.get_int("axis", 0) != 0:
        yield "axis", "indices computed at run time pick rows of a table: axis must be 0"


def _scalars(*indices: int) -> Limit:
    """The inputs at these places must be constants of one element."""

    def limit(node: ir.Node) -> Iterator[tuple[str | None, str]]:
        yield from _constant(*indices)(node)
        for index in indices:
            array = array_of(input_at(node, index))
            if array is not None and array.size != 1:
                yield f"input {index}", f"must be one number, has shape {list(array.shape)}"

    return limit


def _pow(node: ir.Node) -> Iterator[tuple[str, str]]:
    exponent = array_of(node.inputs[1])
    if exponent is None or exponent.size != 1:
        yield "input 1", "the exponent must be one constant"
    elif not np.all(np.isfinite(exponent)):
        yield "input 1", f"the exponent {exponent.item()} is not finite"


OPERATORS: Mapping[str, tuple[Limit, ...]] = {
    **dict.fromkeys([*UNARY, *BINARY, *MOVING], ()),
    "Conv": (_rank(4), _constant(1, 2)),
    "ConvTranspose": (_rank(4), _constant(1, 2)),
    "Clip": (_scalars(1, 2),),
    "PRelu": (_constant(1),),
    "Pow": (_pow,),
    "MaxPool": (_rank(4),),
    "AveragePool": (_rank(4),),
    "GlobalAveragePool": (_rank(4),),
    "GlobalMaxPool": (_rank(4),),
    "Pad": (_constant(1, 2), _choice("mode", "constant", "constant", "reflect", "edge")),
    "Reshape": (_constant(1),),
    "Slice": (_constant(1, 2, 3, 4),),
    "Expand": (_constant(1),),
    "Tile": (_constant(1),),
    "Gather": (_gather,),
    "Resize": (
        _rank(4),
        _constant(1, 2, 3),
        _choice("mode", "nearest", "nearest", "linear"),
        _choice(
            "coordinate_transformation_mode",
            "half_pixel",
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
        ),
        _resize,
    ),
    **dict.fromkeys(REDUCTIONS, (_constant(1),)),
    "Softmax": (),
    "LayerNormalization": (_constant(1, 2), _last_axis),
    "ArgMax": (),
    "ArgMin": (),
    "Where": (),
    **dict.fromkeys([*COMPARISONS, *CONNECTIVES, "Not"], ()),
    "QuantizeLinear": (_constant(1, 2),),
    "DequantizeLinear": (_constant(1, 2),),
    "Cast": (),
}

REWRITTEN = {
    "BatchNormalization": "it is in training mode, or its statistics are not constant or do not fit",
    "InstanceNormalization": "scale or bias is not constant or does not fit",
    "GroupNormalization": "scale or bias is not constant or does not fit",
    "Einsum": "the equation is not a product of matrices",
    "ReduceProd": "it multiplies more than 64 elements, whose product has no useful range",
    "Split": "its sizes are not constant, or do not add up",
    "Upsample": "its scales are not constant",
    "Dropout": "its mask is used, or it is in training mode",
}
"""Operators that normalisation replaces, and why it may have failed to."""

SHAPE_ONLY = {"Shape", "Size", "ConstantOfShape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Gemm"}
"""Operators that always disappear once shapes are known."""

NUMBERS = {ir.DataType.FLOAT}
KNOWN = {
    ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.BOOL,
    ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
    ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
}  # fmt: skip
"""Types a tensor may have."""


def operator_name(node: ir.Node) -> str:
    """The operator with its domain, unless that is ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def findings(model: ir.Model) -> list[Finding]:
    """Lists every node outside the closed set, in graph order.

    A node whose input shapes are unknown because of another node is not blamed for what follows from that.
    """
    found: list[Finding] = []
    versions = model.graph.opset_imports
    for node in model.graph:
        name = node.name or node.outputs[0].name or ""
        found += [Finding(name, operator_name(node), *problem) for problem in _problems(node, versions)]
    return found


def is_supported(node: ir.Node, versions: Mapping[str, int]) -> bool:
    """Whether a node is within the closed set."""
    return next(_problems(node, versions), None) is None


def _problems(node: ir.Node, versions: Mapping[str, int]) -> Iterator[tuple[str | None, str]]:
    if (wrong := objection(node, versions)) is not None:
        attribute, reason = wrong
        yield attribute, f"is not valid: {reason}"
        return
    known = all(value is None or shape_of(value) is not None for value in node.inputs)
    if node.domain == OUTSIDE:
        yield None, "operator of a plugin"
        return
    if node.domain == DOMAIN:
        if known and shape_of(node.outputs[0]) is None:
            yield None, "the shape of its output is not known"
        return
    if node.domain or node.op_type not in OPERATORS:
        if not node.domain and node.op_type in REWRITTEN:
            if known:
                yield None, REWRITTEN[node.op_type]
        elif node.domain or node.op_type not in SHAPE_ONLY or known:
            constant = node.op_type == "Constant" and not node.domain
            yield None, "it computes a constant" if constant else "operator is not supported"
        return
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        yield "outputs", "only the first output may be used"
    if not known:
        return
    for value in (*node.inputs, *node.outputs[:1]):
        if value is not None and array_of(value) is None and 0 in (shape_of(value) or ()):
            yield f'tensor "{value.name}"', "no elements"
            return
    for limit in OPERATORS[node.op_type]:
        yield from limit(node)
    yield from _types(node)
    if shape_of(node.outputs[0]) is None:
        yield None, "the shape of its output depends on values known only at run time"


def _types(node: ir.Node) -> Iterator[tuple[str, str]]:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype not in KNOWN:
            yield "type", f"{value.dtype.name.lower()} is not supported"
            return
    if node.op_type in {*MOVING, "Cast", "Gather", "QuantizeLinear", "DequantizeLinear", "Not", *CONNECTIVES}:
        return
    first = 1 if node.op_type == "Where" else 0
    for index, value in enumerate(node.inputs[first:2], start=first):
        integers = index == 1 and (node.op_type in {*REDUCTIONS, "Pad", "Pow"})
        if value is not None and not integers and value.dtype not in NUMBERS:
            kind = "unknown type" if value.dtype is None else f"type {value.dtype.name.lower()}"
            yield f"input {index}", f"{kind} is not supported (float)"
            return


def cut_points(model: ir.Model, found: Iterable[Finding]) -> list[str]:
    """Tensors at which the model can be cut so that only supported nodes remain before them."""
    bad = {finding.node for finding in found}
    tainted: set[ir.Value] = set()
    points: dict[str, None] = {}
    for node in model.graph:
        if (node.name or node.outputs[0].name) in bad or any(value in tainted for value in node.inputs):
            tainted.update(node.outputs)
            for value in node.inputs:
                if value is not None and value not in tainted and value.producer() is not None and value.name:
                    points[value.name] = None
    return list(points)
