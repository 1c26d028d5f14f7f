"""One form for comparisons and logic: Less, LessOrEqual, Equal of numbers; Not, And, Or of truths; Where.

a > b, a >= b                      ->  b < a, b <= a
a xor b                            ->  (a and not b) or (not a and b)
Equal of truth values              ->  not xor
Where of truth values              ->  (c and a) or (not c and b)
Where(not c, a, b)                 ->  Where(c, b, a)
Cast to bool                       ->  not (x = 0)
IsNaN, IsInf                       ->  not (x = x), |x| = inf (or x = inf, x = -inf)
maximum, minimum of truth values   ->  of 0 and 1
not not a, a and a, a or true      ->  a, a, true
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, input_at, leaves_out, produced_by, shape_of

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["COMPARISONS", "CONNECTIVES", "RULES"]

COMPARISONS = ("Less", "LessOrEqual", "Equal")
CONNECTIVES = ("And", "Or")
SWAPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def _is_truth(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.BOOL


def swap_operands(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes a comparison with its operands exchanged."""
    return emit(SWAPPED[node.op_type], node.inputs[1], node.inputs[0])


def exclusive_or(node: ir.Node, emit: Emitter) -> ir.Value:
    """Writes Xor with And, Or and Not."""
    a, b = node.inputs[0], node.inputs[1]
    return _xor(a, b, emit)


def _xor(a: ir.Value | None, b: ir.Value | None, emit: Emitter) -> ir.Value:
    only_a = emit("And", a, emit("Not", b, label="not_b"), label="only_a")
    only_b = emit("And", emit("Not", a, label="not_a"), b, label="only_b")
    return emit("Or", only_a, only_b)


def equal_truths(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes Equal of truth values with Xor."""
    if not _is_truth(node.inputs[0]):
        return None
    return emit("Not", _xor(node.inputs[0], node.inputs[1], emit))


def negation(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops two negations in a row."""
    del emit
    inner = produced_by(node.inputs[0], "Not")
    return None if inner is None else inner.inputs[0]


def simplify_logic(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops And and Or whose result one operand, or one constant, decides."""
    del emit
    a, b, y = node.inputs[0], node.inputs[1], shape_of(node.outputs[0])
    if a is b:
        return a
    for value, other in ((a, b), (b, a)):
        constant = array_of(value)
        if constant is None or value is None or other is None or y is None:
            continue
        neutral = node.op_type == "And"
        if np.all(constant == neutral) and shape_of(other) == y:
            return other
        if np.all(constant != neutral) and shape_of(value) == y:
            return value
    return None


def choice(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Simplifies Where: conditions that are constant all over or negated, truth values to choose from."""
    condition, a, b = node.inputs[0], node.inputs[1], node.inputs[2]
    y, known = shape_of(node.outputs[0]), array_of(condition)
    if known is not None and known.size and y is not None and (np.all(known) or not np.any(known)):
        chosen = a if np.all(known) else b
        if shape_of(chosen) == y:
            return chosen
        return emit("Expand", chosen, emit.integers(y, "shape"))
    if _is_truth(a):
        return emit(
            "Or",
            emit("And", condition, a, label="chosen"),
            emit("And", emit("Not", condition), b, label="else"),
        )
    inner = produced_by(condition, "Not")
    if inner is None or leaves_out(b):  # masks come last
        return None
    return emit("Where", inner.inputs[0], b, a)


def truth(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes a Cast to bool as a comparison with 0."""
    x = node.inputs[0]
    if x is None or x.dtype is None or node.attributes.get_int("to", 0) != ir.DataType.BOOL:
        return None
    if x.dtype in {ir.DataType.BOOL, ir.DataType.STRING} or array_of(x) is not None:
        return None
    return emit("Not", emit("Equal", x, emit.constant(0, "zero", like=x)))


def not_a_number(node: ir.Node, emit: Emitter) -> ir.Value:
    """A number that does not equal itself."""
    return emit("Not", emit("Equal", node.inputs[0], node.inputs[0]))


def infinite(node: ir.Node, emit: Emitter) -> ir.Value:
    """A number that equals an infinity."""
    x = node.inputs[0]
    negative = node.attributes.get_int("detect_negative", 1)
    positive = node.attributes.get_int("detect_positive", 1)
    if negative and positive:
        x = emit("Abs", x)
    limit = math.inf if positive else -math.inf
    if not negative and not positive:
        return emit("Less", emit("Abs", x), emit.constant(0, "zero", like=x))
    return emit("Equal", x, emit.constant(limit, "infinity", like=x))


def extremum_of_truths(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Reduces truth values as numbers."""
    if not _is_truth(node.inputs[0]) or array_of(node.inputs[0]) is not None:
        return None
    numbers = emit("Cast", node.inputs[0], attributes={"to": int(ir.DataType.FLOAT)}, label="numbers")
    reduced = emit(node.op_type, numbers, *node.inputs[1:], attributes=attributes_of(node), label="reduced")
    return emit("Cast", reduced, attributes={"to": int(ir.DataType.BOOL)})


def both_ways(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops a Cast from bool to numbers and back."""
    del emit
    inner = produced_by(input_at(node, 0), "Cast")
    source = None if inner is None else inner.inputs[0]
    return source if _is_truth(source) and node.attributes.get_int("to", 0) == ir.DataType.BOOL else None


RULES: Rules = {
    "Greater": [swap_operands],
    "GreaterOrEqual": [swap_operands],
    "Xor": [exclusive_or],
    "Equal": [equal_truths],
    "Not": [negation],
    "And": [simplify_logic],
    "Or": [simplify_logic],
    "Where": [choice],
    "Cast": [both_ways, truth],
    "IsNaN": [not_a_number],
    "IsInf": [infinite],
    "ReduceMax": [extremum_of_truths],
    "ReduceMin": [extremum_of_truths],
}
