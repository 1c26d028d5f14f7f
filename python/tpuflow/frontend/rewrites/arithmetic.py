"""One form for arithmetic: two operands, the constant second, and no operation without effect.

    Sum(a, b, c), Max(a, b, c), ...  ->  Add(Add(a, b), c)        Mean  ->  sum, then Mul by 1/n
    c + x  ->  x + c                 c * x  ->  x * c
    x - c  ->  x + (-c)              x / c  ->  x * (1/c)         c a constant
    x - y * c  ->  x + y * (-c)      where -c masks a softmax, as in s - (1 - keep) * 10000
    (x + c) + d  ->  x + (c + d)     (x * c) * d  ->  x * (c d)   where the inner one has no other user
    Max(x, c), Min(x, c), Relu6      ->  Clip, c a scalar         Clip(Clip), Relu(Clip), ...  ->  Clip
    x ** 1, 0.5, -1  ->  x, Sqrt, Reciprocal

Constants are combined in float64 and rounded once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import (
    array_of,
    constant_and_other,
    input_at,
    is_mask,
    produced_by,
    scalar_of,
    shape_of,
    sole_user,
)

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

SPECIAL_POWERS = {0.5: "Sqrt", -1.0: "Reciprocal"}


def variadic(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes an operator of any number of operands apart into operators of two."""
    binary = {"Sum": "Add", "Mean": "Add"}.get(node.op_type, node.op_type)
    operands = [value for value in node.inputs if value is not None]
    if len(operands) == 2 and binary == node.op_type:
        return None
    total = operands[0]
    for index, operand in enumerate(operands[1:], start=1):
        total = emit(binary, total, operand, label=f"{binary.lower()}{index}")
    if node.op_type == "Mean" and len(operands) > 1:
        total = emit("Mul", total, emit.constant(1.0 / len(operands), "share", like=total))
    return total


def constant_second(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a constant first operand of a commutative operator to the second place."""
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or a.const_value is None or b.const_value is not None:
        return None
    return emit(node.op_type, b, a)


def subtraction_of_constant(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Replaces x - c by x + (-c)."""
    c = array_of(node.inputs[1])
    if c is None or array_of(node.inputs[0]) is not None or not np.issubdtype(c.dtype, np.floating):
        return None
    return emit("Add", node.inputs[0], emit.constant(-c, "minus"))


def subtraction_of_mask(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Replaces x - y * c by x + y * (-c) where -c is a mask: one form for what masks scores."""
    product = produced_by(node.inputs[1], "Mul")
    c = None if product is None else array_of(input_at(product, 1))
    if product is None or c is None or not np.issubdtype(c.dtype, np.floating) or not is_mask(-c):
        return None
    masking = emit("Mul", product.inputs[0], emit.constant(-c, "minus"), label="mask")
    return emit("Add", node.inputs[0], masking)


def division_by_constant(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Replaces x / c by x * (1/c), unless that overflows."""
    c = array_of(node.inputs[1])
    if c is None or array_of(node.inputs[0]) is not None or not np.issubdtype(c.dtype, np.floating):
        return None
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (1.0 / c.astype(np.float64)).astype(c.dtype)
    if not np.all(np.isfinite(inverse)):
        return None
    return emit("Mul", node.inputs[0], emit.constant(inverse, "inverse"))


def without_effect(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops x + 0 and x * 1 where they do not broadcast x."""
    del emit
    c, x = array_of(node.inputs[1]), node.inputs[0]
    neutral = 1.0 if node.op_type in {"Mul", "Div"} else 0.0
    if c is None or x is None or shape_of(x) is None or not np.all(c == neutral):
        return None
    return x if shape_of(x) == shape_of(node.outputs[0]) else None


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes broadcast; those of nodes whose shapes are not known yet may not."""
    return all(1 in pair or pair[0] == pair[1] for pair in zip(a[::-1], b[::-1], strict=False))


def chained_constants(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Merges two additions, or two multiplications, by constants."""
    inner = produced_by(node.inputs[0], node.op_type)
    if inner is None or node.inputs[0] is None or not sole_user(node.inputs[0]):
        return None
    c, d = array_of(input_at(inner, 1)), array_of(input_at(node, 1))
    if c is None or d is None or not np.issubdtype(c.dtype, np.floating) or d.dtype != c.dtype:
        return None
    # What masks a softmax stays apart, so that its numbers count for no range.
    if node.op_type == "Add" and is_mask(c) != is_mask(d):
        return None
    if not _broadcast(c.shape, d.shape):
        return None
    operation = np.add if node.op_type == "Add" else np.multiply
    with np.errstate(over="ignore"):
        both = operation(c.astype(np.float64), d.astype(np.float64)).astype(c.dtype)
    # Broadcasting two constants against each other may make a much larger one; that is no gain.
    if both.size > max(c.size, d.size) or not np.all(np.isfinite(both)):
        return None
    return emit(node.op_type, inner.inputs[0], emit.constant(both, "constant"))


def bound(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Replaces Max(x, c) and Min(x, c) by Clip for a finite scalar c."""
    split = constant_and_other(node)
    if split is None:
        return None
    constant, x = split
    limit = scalar_of(constant)
    if limit is None or not math.isfinite(limit) or shape_of(x) != shape_of(node.outputs[0]):
        return None
    return _clip(x, *((limit, math.inf) if node.op_type == "Max" else (-math.inf, limit)), emit)


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Lower and upper bound of a Clip, Relu or Relu6-like node; None when a bound is not constant."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    bounds = []
    for index, missing in ((1, -math.inf), (2, math.inf)):
        value = input_at(node, index)
        limit = missing if value is None else scalar_of(value)
        if limit is None:
            return None
        bounds.append(limit)
    return bounds[0], bounds[1]


def plain_clip(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops infinite bounds, and a Clip that has no other; Clip to [0, inf) is Relu."""
    bounds = clip_bounds(node)
    x = node.inputs[0]
    if bounds is None or x is None:
        return None
    bounds = _finite(bounds, x)
    if bounds == (-math.inf, math.inf):
        return x
    if bounds == (0.0, math.inf):
        return emit("Relu", x)
    stated = [input_at(node, index) is not None for index in (1, 2)]
    if stated == [math.isfinite(bounds[0]), math.isfinite(bounds[1])]:
        return None
    return _clip(x, *bounds, emit)


def nested_clips(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Merges two successive limits into one."""
    inner = produced_by(node.inputs[0], "Clip", "Relu")
    if inner is None or inner.inputs[0] is None:
        return None
    first, second = clip_bounds(inner), clip_bounds(node)
    if first is None or second is None:
        return None
    # The outer limits apply to the inner ones too, which also covers ranges that do not overlap.
    low, high = (min(max(limit, second[0]), second[1]) for limit in first)
    if node.op_type == "Relu" and (low, high) == (0.0, math.inf) and inner.op_type == "Relu":
        return node.inputs[0]
    return _clip(inner.inputs[0], low, high, emit)


def _finite(bounds: tuple[float, float], x: ir.Value) -> tuple[float, float]:
    """Exporters write the extreme finite numbers where they mean no bound."""
    limit = float(np.finfo(np.float32).max) if x.dtype == ir.DataType.FLOAT else math.inf
    low, high = bounds
    return (-math.inf if low <= -limit else low), (math.inf if high >= limit else high)


def _clip(x: ir.Value, low: float, high: float, emit: Emitter) -> ir.Value:
    if (low, high) == (0.0, math.inf):
        return emit("Relu", x)
    bounds = [
        emit.constant(np.array(limit), label, like=x) if math.isfinite(limit) else None
        for limit, label in ((low, "min"), (high, "max"))
    ]
    return emit("Clip", x, *(bounds if bounds[1] is not None else bounds[:1]))


def special_power(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Replaces powers that have an operator of their own."""
    exponent = scalar_of(node.inputs[1])
    x = node.inputs[0]
    if exponent is None or x is None or shape_of(x) != shape_of(node.outputs[0]):
        return None
    if exponent == 1.0:
        return x
    if exponent in SPECIAL_POWERS and x.dtype == node.outputs[0].dtype:
        return emit(SPECIAL_POWERS[exponent], x)
    exponent_type = None if node.inputs[1] is None else node.inputs[1].dtype
    if x.dtype is not None and (exponent_type != x.dtype or shape_of(node.inputs[1]) != ()):
        return emit("Pow", x, emit.constant(np.array(exponent), "exponent", like=x))
    return None


def thresholded_relu(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """ThresholdedRelu with threshold 0 is Relu."""
    return emit("Relu", node.inputs[0]) if node.attributes.get_float("alpha", 1.0) == 0.0 else None


RULES: Rules = {
    "Sum": [variadic],
    "Mean": [variadic],
    "Max": [variadic, bound, constant_second],
    "Min": [variadic, bound, constant_second],
    "Add": [constant_second, without_effect, chained_constants],
    "Mul": [constant_second, without_effect, chained_constants],
    "Sub": [subtraction_of_constant, subtraction_of_mask],
    "Div": [division_by_constant],
    "Clip": [nested_clips, plain_clip],
    "Relu": [nested_clips],
    "Pow": [special_power],
    "ThresholdedRelu": [thresholded_relu],
}
