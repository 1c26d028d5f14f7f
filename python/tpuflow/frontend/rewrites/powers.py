"""Powers and limits that are not one number.

x ** c, c a constant of several values         ->  a choice among a few powers
x ** y, x known to be positive                 ->  exp(y log x)
Clip with limits known only at run time        ->  Max, Min
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.arithmetic import clip_bounds
from tpuflow.frontend.values import array_of, input_at, produced_by, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LATE"]

MOST_POWERS = 16


def _positive(value: ir.Value | None) -> bool:
    """Whether a tensor is known to hold positive numbers only."""
    constant = array_of(value)
    if constant is not None:
        return bool(np.all(constant > 0))
    if produced_by(value, "Exp", "Sigmoid", "Softplus", "Softmax") is not None:
        return True
    node = produced_by(value, "Clip")
    bounds = None if node is None else clip_bounds(node)
    return bounds is not None and bounds[0] > 0


def power(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Powers whose exponent is not one constant."""
    x, exponent, y = node.inputs[0], node.inputs[1], shape_of(node.outputs[0])
    constant = array_of(exponent)
    if x is None or exponent is None or y is None or x.dtype is None or not x.dtype.is_floating_point():
        return None
    if constant is not None:
        return _chosen_power(x, constant, emit) if array_of(x) is None else None
    if not _positive(x):
        return None
    if exponent.dtype != x.dtype:
        exponent = emit("Cast", exponent, attributes={"to": int(x.dtype)}, label="exponent")
    return emit("Exp", emit("Mul", exponent, emit("Log", x)))


def _chosen_power(x: ir.Value, exponents: np.ndarray, emit: Emitter) -> ir.Value | None:
    values = np.unique(exponents)
    if exponents.size < 2 or len(values) > MOST_POWERS:
        return None
    total = None
    for value in values.tolist():
        one = emit("Pow", x, emit.constant(np.array(value), "exponent", like=x), label="power")
        total = one if total is None else emit("Where", emit.constant(exponents == value, "here"), one, total)
    if total is None or len(values) > 1:
        return total
    return emit(
        "Expand", total, emit.integers(np.broadcast_shapes(shape_of(x) or (), exponents.shape), "shape")
    )


def run_time_limits(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Clip to what is computed at run time."""
    low, high = input_at(node, 1), input_at(node, 2)
    if all(value is None or array_of(value) is not None for value in (low, high)):
        return None
    result = node.inputs[0]
    if low is not None:
        result = emit("Max", result, low)
    return emit("Min", result, high) if high is not None else result


LATE: Rules = {"Pow": [power], "Clip": [run_time_limits]}
"""To be applied once no exponent or limit can become constant any more."""
