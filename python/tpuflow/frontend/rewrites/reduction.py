"""One form for operators that work along axes: axes stated and counted from the front.

    ReduceLogSum                              ->  ReduceSum Log
    ReduceLogSumExp                           ->  of x less its maximum: Exp ReduceSum Log, plus the maximum
    Log of ReduceSum of Exp                   ->  ReduceLogSumExp, unless its operand is less its maximum
    LogSoftmax                                ->  x less its maximum, less ReduceLogSum of Exp of that
    mean or maximum over both spatial axes    ->  GlobalAveragePool, GlobalMaxPool
    ReduceProd of up to 64 elements           ->  Slice and Mul, half by half

A reduction over axes of size 1 that leaves the values alone is a Reshape.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import attributes_of, axes_of, input_at, integers_of, produced_by, shape_of

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


def state_axes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States the axes in increasing order, and `keepdims`."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    given = integers_of(input_at(node, 1))
    if x is None or shape is None or y is None or (given is None and input_at(node, 1) is not None):
        return None
    if _reduces_nothing(node):
        return _unreduced(node.op_type, x, emit)
    axes = axes_of(given or range(len(shape)), len(shape))
    if node.op_type in NEUTRAL and all(shape[axis] == 1 for axis in axes):
        return emit.reshape(x, y, "shape")
    keep = node.attributes.get_int("keepdims", 1)
    if given == list(axes) and set(node.attributes) == {"keepdims"}:
        return None
    return emit(node.op_type, x, emit.integers(axes, "axes"), attributes={"keepdims": keep})


def _reduces_nothing(node: ir.Node) -> bool:
    """Whether a reduction runs over no axis at all."""
    given = input_at(node, 1)
    none = given is None or integers_of(given) == []
    return none and node.attributes.get_int("noop_with_empty_axes", 0) != 0


def _unreduced(operator: str, x: ir.Value, emit: Emitter) -> ir.Value:
    """What is left of a reduction over no axis: its function of each element."""
    if operator in {"ReduceL1", "ReduceL2"}:
        return emit("Abs", x)
    if operator == "ReduceSumSquare":
        return emit("Mul", x, x)
    return emit("Log", x) if operator == "ReduceLogSum" else x


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
                odd.append(emit.slice(x, axis, range(2 * half, size)))
            x = emit("Mul", emit.slice(x, axis, range(half)), emit.slice(x, axis, range(half, 2 * half)))
            size = half
        for rest in odd:
            x = emit("Mul", x, rest)
    return x if shape_of(x) == y else emit.reshape(x, y, "shape")


LARGEST = float(np.finfo(np.float32).max)


def log_sum(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes ReduceLogSum with ReduceSum."""
    if node.inputs[0] is not None and _reduces_nothing(node):
        return _unreduced(node.op_type, node.inputs[0], emit)
    return emit("Log", emit("ReduceSum", *node.inputs, attributes=attributes_of(node)))


def log_sum_exp(node: ir.Node, emit: Emitter) -> ir.Value:
    """Takes exponentials of what is at most 0: they neither overflow nor leave their sum without bits.

    Infinities are no maxima to subtract; the largest finite numbers do as well.
    """
    x, axes, attributes = node.inputs[0], node.inputs[1:], attributes_of(node)
    if x is not None and _reduces_nothing(node):
        return _unreduced(node.op_type, x, emit)
    largest = emit("ReduceMax", x, *axes, attributes=attributes | {"keepdims": 1})
    limits = [emit.constant(np.float32(limit), name) for limit, name in ((-LARGEST, "min"), (LARGEST, "max"))]
    largest = emit("Clip", largest, *limits)
    total = emit("ReduceSum", emit("Exp", emit("Sub", x, largest)), *axes, attributes=attributes)
    if not node.attributes.get_int("keepdims", 1):
        largest = emit("ReduceMax", largest, *axes, attributes=attributes)
    return emit("Add", emit("Log", total), largest)


def summed_exponentials(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises ReduceLogSumExp written out, whose exponentials have no common grid."""
    total = produced_by(node.inputs[0], "ReduceSum")
    power = None if total is None else produced_by(total.inputs[0], "Exp")
    if total is None or power is None or any(len(each.outputs[0].uses()) > 1 for each in (total, power)):
        return None
    less = produced_by(power.inputs[0], "Sub")
    largest = None if less is None else less.inputs[1]
    while (held := produced_by(largest, "Clip", "Reshape")) is not None:
        largest = held.inputs[0]
    if produced_by(largest, "ReduceMax", "GlobalMaxPool") is not None:
        return None
    return emit("ReduceLogSumExp", power.inputs[0], *total.inputs[1:], attributes=attributes_of(total))


def log_softmax(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes LogSoftmax without Softmax, whose small results have no bits to take logarithms of."""
    x, axis = node.inputs[0], emit.constant(np.array([node.attributes.get_int("axis", -1)]), "axis")
    below = emit("Sub", x, emit("ReduceMax", x, axis))
    return emit("Sub", below, emit("Log", emit("ReduceSum", emit("Exp", below), axis)))


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
    **{name: [state_axes] for name in REDUCTIONS},
    "ReduceMean": [state_axes, global_pool],
    "ReduceMax": [state_axes, global_pool],
    "ReduceProd": [state_axes, product],
    "ReduceLogSum": [log_sum],
    "ReduceLogSumExp": [log_sum_exp],
    "Log": [summed_exponentials],
    "LogSoftmax": [log_softmax],
    "Softmax": [counted_axis],
    "ArgMax": [counted_axis],
    "ArgMin": [counted_axis],
}
