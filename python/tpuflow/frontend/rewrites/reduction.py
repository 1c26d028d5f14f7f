"""One form for operators that work along axes: axes stated and counted from the front.

    ReduceLogSum, ReduceLogSumExp             ->  [Exp] ReduceSum Log
    LogSoftmax                                ->  Softmax Log
    mean or maximum over both spatial axes    ->  GlobalAveragePool, GlobalMaxPool
    ReduceProd of up to 64 elements           ->  Slice and Mul, half by half

A reduction over axes of size 1 that leaves the values alone is a Reshape.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuflow.frontend.values import attributes_of, axes_of, input_at, integers_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["REDUCTIONS", "RULES"]

REDUCTIONS = (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
)
NEUTRAL = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
MOST_FACTORS = 64
"""Elements a ReduceProd may multiply: the range of a product grows with every factor."""


def stated_axes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States the axes in increasing order, and `keepdims`."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    given = integers_of(input_at(node, 1))
    if x is None or shape is None or y is None or (given is None and input_at(node, 1) is not None):
        return None
    if not given and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return x if node.op_type in NEUTRAL else None
    axes = axes_of(given or range(len(shape)), len(shape))
    if node.op_type in NEUTRAL and all(shape[axis] == 1 for axis in axes):
        return emit.reshape(x, y, "shape")
    keep = node.attributes.get_int("keepdims", 1)
    if given == list(axes) and set(node.attributes) == {"keepdims"}:
        return None
    return emit(node.op_type, x, emit.integers(axes, "axes"), attributes={"keepdims": keep})


def global_pool(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """A mean (or maximum) over both spatial axes of a feature map is a global pool."""
    shape, y, axes = shape_of(node.inputs[0]), shape_of(node.outputs[0]), integers_of(input_at(node, 1))
    if shape is None or y is None or len(shape) != 4 or axes != [2, 3]:
        return None
    pooled = emit("GlobalAveragePool" if node.op_type == "ReduceMean" else "GlobalMaxPool", node.inputs[0])
    return pooled if len(y) == 4 else emit.reshape(pooled, y, "shape")


def product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies halves of an axis until one element is left, so that every partial product has a range."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    axes = integers_of(input_at(node, 1))
    if x is None or shape is None or y is None or not axes:
        return None
    if not 0 < math.prod(shape[axis] for axis in axes) <= MOST_FACTORS:
        return None
    for axis in axes:
        size, odd = shape[axis], []
        while size > 1:
            half = size // 2
            if size % 2:
                odd.append(_part(x, axis, 2 * half, size, emit))
            x = emit("Mul", _part(x, axis, 0, half, emit), _part(x, axis, half, 2 * half, emit))
            size = half
        for rest in odd:
            x = emit("Mul", x, rest)
    return x if shape_of(x) == y else emit.reshape(x, y, "shape")


def _part(x: ir.Value, axis: int, start: int, end: int, emit: Emitter) -> ir.Value:
    bounds = [emit.integers([number], label) for number, label in ((start, "start"), (end, "end"))]
    return emit("Slice", x, *bounds, emit.integers([axis], "axis"), emit.integers([1], "step"))


def logarithmic(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes the reductions that end in a logarithm with ReduceSum."""
    x = node.inputs[0]
    if node.op_type == "ReduceLogSumExp":
        x = emit("Exp", x)
    attributes = attributes_of(node)
    return emit("Log", emit("ReduceSum", x, *node.inputs[1:], attributes=attributes))


def log_softmax(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes LogSoftmax as the logarithm of Softmax."""
    return emit(
        "Log", emit("Softmax", node.inputs[0], attributes={"axis": node.attributes.get_int("axis", -1)})
    )


def counted_axis(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Counts the axis of an operator along one axis from the front."""
    shape = shape_of(node.inputs[0])
    default = -1 if node.op_type == "Softmax" else 0
    axis = node.attributes.get_int("axis", default)
    if shape is None or (axis >= 0 and "axis" in node.attributes):
        return None
    attributes = attributes_of(node)
    return emit(node.op_type, node.inputs[0], attributes=attributes | {"axis": axis % len(shape)})


RULES: Rules = {
    **{name: [stated_axes] for name in REDUCTIONS},
    "ReduceMean": [stated_axes, global_pool],
    "ReduceMax": [stated_axes, global_pool],
    "ReduceProd": [stated_axes, product],
    "ReduceLogSum": [logarithmic],
    "ReduceLogSumExp": [logarithmic],
    "LogSoftmax": [log_softmax],
    "Softmax": [counted_axis],
    "ArgMax": [counted_axis],
    "ArgMin": [counted_axis],
}
