"""Recognises normalisation an exporter has decomposed into elementary operators.

    d = x - mean(x);  d / sqrt(mean(d^2) + eps)               ->  LayerNormalization(x, ones)
    s = g / sqrt(var(x) + eps);  x s + (b - mean(x) s)        ->  LayerNormalization(x, ones) * g + b
    x / sqrt(mean(x^2) + eps)                                 ->  RMSNormalization(x, ones)

The parts have several forms each, which are read here and nowhere else:

    mean            ReduceMean, GlobalAveragePool, ReduceSum * 1/n
    square          x * x, x ** 2, ReduceSumSquare * 1/n for its mean
    variance        mean((x - mean(x))^2), mean(x^2) - mean(x)^2, either one kept from falling below 0
    1 / sqrt(u)     Reciprocal(Sqrt(u)), Sqrt(Reciprocal(u)), 1 / Sqrt(u), u ** -0.5, each times a constant

Constant factors are multiplied behind the normalisation, which takes them in (`normalisation.layer_scale`).

Sources: Ba, Kiros, Hinton, "Layer Normalization" (arXiv:1607.06450); Zhang, Sennrich, "Root Mean Square Layer
Normalization" (arXiv:1910.07467).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuflow.frontend.rewrites.arithmetic import clip_bounds
from tpuflow.frontend.rewrites.normalization import normalized
from tpuflow.frontend.values import (
    array_of,
    axes_of,
    input_at,
    integers_of,
    produced_by,
    scalar_of,
    shape_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

Over = tuple["ir.Value", tuple[int, ...]]
"""A value and the axes something is taken over."""


@dataclass(frozen=True)
class ReciprocalRoot:
    """1 / sqrt(u + epsilon), times a constant factor where there is one."""

    under: ir.Value
    epsilon: float
    factor: ir.Value | None = None


def _reduction_of(node: ir.Node | None) -> Over | None:
    """(x, axes) of a reduction that keeps its axes."""
    shape = None if node is None else shape_of(node.inputs[0])
    if node is None or shape is None or node.inputs[0] is None:
        return None
    if node.op_type == "GlobalAveragePool":
        return node.inputs[0], tuple(range(2, len(shape)))
    axes = integers_of(input_at(node, 1))
    if not axes or not node.attributes.get_int("keepdims", 1):
        return None
    return node.inputs[0], axes_of(axes, len(shape))


def _mean_of(value: ir.Value | None, mean: tuple[str, ...], total: str) -> Over | None:
    """(x, axes) of a mean, or of a sum multiplied by one over how many numbers it adds."""
    found = _reduction_of(produced_by(value, *mean)) if mean else None
    scaled = produced_by(value, "Mul")
    if found is not None or scaled is None:
        return found
    found, share = _reduction_of(produced_by(scaled.inputs[0], total)), scalar_of(scaled.inputs[1])
    shape = None if found is None else shape_of(found[0])
    if found is None or share is None or shape is None:
        return None
    count = math.prod(shape[axis] for axis in found[1])
    return found if math.isclose(share * count, 1.0, rel_tol=1e-6) else None


def _mean(value: ir.Value | None) -> Over | None:
    return _mean_of(value, ("ReduceMean", "GlobalAveragePool"), "ReduceSum")


def _square(value: ir.Value | None) -> ir.Value | None:
    """X of x^2."""
    node = produced_by(value, "Mul", "Pow")
    if node is None:
        return None
    twice = scalar_of(node.inputs[1]) == 2.0 if node.op_type == "Pow" else node.inputs[1] is node.inputs[0]
    return node.inputs[0] if twice else None


def _mean_square(value: ir.Value | None) -> Over | None:
    """(x, axes) of mean(x^2)."""
    found = _mean_of(value, (), "ReduceSumSquare")
    if found is not None:
        return found
    mean = _mean(value)
    x = None if mean is None else _square(mean[0])
    return None if mean is None or x is None else (x, mean[1])


def _deviation(value: ir.Value | None) -> Over | None:
    """(x, axes) of x - mean(x)."""
    node = produced_by(value, "Sub")
    mean = None if node is None else _mean(node.inputs[1])
    return mean if node is not None and mean is not None and node.inputs[0] is mean[0] else None


def _variance(value: ir.Value | None) -> Over | None:
    """(x, axes) of the variance of x."""
    limit = produced_by(value, "Relu", "Clip")
    if limit is not None and clip_bounds(limit) == (0.0, math.inf):
        value = limit.inputs[0]
    square = _mean_square(value)
    if square is not None:
        found = _deviation(square[0])
        return found if found is not None and found[1] == square[1] else None
    node = produced_by(value, "Sub")
    if node is None:
        return None
    found, mean = _mean_square(node.inputs[0]), _mean(_square(node.inputs[1]))
    return found if found is not None and mean is not None and found == mean else None


def _reciprocal_root_of(value: ir.Value | None) -> ReciprocalRoot | None:
    """The operand of the reciprocal square root that computes `value`, if one does."""
    node = produced_by(value, "Mul", "Reciprocal", "Sqrt", "Div", "Pow")
    if node is None:
        return None
    if node.op_type == "Mul":
        inner = _reciprocal_root_of(node.inputs[0]) if array_of(node.inputs[1]) is not None else None
        if inner is None or inner.factor is not None:
            return None
        return ReciprocalRoot(inner.under, inner.epsilon, node.inputs[1])
    below = node.inputs[0]
    if node.op_type == "Pow":
        return _with_epsilon(below) if scalar_of(node.inputs[1]) == -0.5 else None
    if node.op_type == "Div":  # 1 / sqrt(u), and c / sqrt(u)
        root = produced_by(node.inputs[1], "Sqrt")
        inner = None if root is None else _with_epsilon(root.inputs[0])
        if inner is None or array_of(below) is None:
            return None
        return inner if scalar_of(below) == 1.0 else ReciprocalRoot(inner.under, inner.epsilon, below)
    other = produced_by(below, "Sqrt" if node.op_type == "Reciprocal" else "Reciprocal")
    return None if other is None else _with_epsilon(other.inputs[0])


def _with_epsilon(value: ir.Value | None) -> ReciprocalRoot | None:
    add = produced_by(value, "Add")
    epsilon = None if add is None else scalar_of(add.inputs[1])
    if add is None or add.inputs[0] is None or epsilon is None or not 0 <= epsilon < math.inf:
        return None
    return ReciprocalRoot(add.inputs[0], epsilon)


def fuse_normalization(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises n / sqrt(...) and n * (1 / sqrt(...)) for n = x - mean(x) or the x of the mean square."""
    if node.op_type == "Div":
        root = produced_by(node.inputs[1], "Sqrt")
        pairs = [(node.inputs[0], None if root is None else _with_epsilon(root.inputs[0]))]
    else:
        a, b = node.inputs[0], node.inputs[1]
        pairs = [(a, _reciprocal_root_of(b)), (b, _reciprocal_root_of(a))]
    for numerator, spread in pairs:
        if numerator is None or spread is None:
            continue
        y = _normal(numerator, spread, emit)
        if y is not None:
            return y if spread.factor is None else emit("Mul", y, spread.factor, label="scaled")
    return None


def _normal(numerator: ir.Value, spread: ReciprocalRoot, emit: Emitter) -> ir.Value | None:
    centered, variance = _deviation(numerator), _variance(spread.under)
    if centered is not None and centered == variance:
        return normalized(*centered, spread.epsilon, emit)
    square = _mean_square(spread.under)
    if square is None or square[0] is not numerator:
        return None
    return normalized(*square, spread.epsilon, emit, center=False)


def affine_form(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Recognises x s + (b - mean(x) s), x s - mean(x) s, and x s - (mean(x) s - b)."""
    for scaled, rest in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        shift, negative, mean_part = _shift(rest, subtracted=node.op_type == "Sub")
        product, offset = produced_by(scaled, "Mul"), produced_by(mean_part, "Mul")
        if product is None or offset is None:
            continue
        for x, s in ((product.inputs[0], product.inputs[1]), (product.inputs[1], product.inputs[0])):
            spread = _reciprocal_root_of(s)
            variance = None if spread is None else _variance(spread.under)
            mean = next((value for value in offset.inputs if value is not s), None)
            if s not in offset.inputs or spread is None or variance is None or variance[0] is not x:
                continue
            if _mean(mean) != variance:
                continue
            y = normalized(*variance, spread.epsilon, emit)
            if y is None:
                return None
            if spread.factor is not None:
                y = emit("Mul", y, spread.factor, label="scaled")
            if shift is not None:
                y = emit("Sub" if negative else "Add", y, shift, label="shifted")
            return y
        if node.op_type == "Sub":
            break
    return None


def _shift(value: ir.Value | None, *, subtracted: bool) -> tuple[ir.Value | None, bool, ir.Value | None]:
    """(b, whether it is negative, m) where `value` adds b - m, or m is subtracted with it."""
    if subtracted:
        shifted = produced_by(value, "Add")
        if shifted is not None and array_of(shifted.inputs[1]) is not None:
            return shifted.inputs[1], True, shifted.inputs[0]
        return None, False, value
    less = produced_by(value, "Sub", "Neg")
    if less is None:
        return None, False, None
    return (None, False, less.inputs[0]) if less.op_type == "Neg" else (less.inputs[0], False, less.inputs[1])


RULES: Rules = {
    "Div": [fuse_normalization],
    "Mul": [fuse_normalization],
    "Add": [affine_form],
    "Sub": [affine_form],
}
