"""Constants the model itself states as integers: they become numbers that remember the steps they lie on.

    DequantizeLinear(q, s, z), q constant       ->  s (q - z), with the step s
    QuantizeLinear of a constant                ->  the integers
    Transpose or Reshape of such numbers        ->  numbers and steps moved alike

The steps let whoever quantises the numbers find the integers again; what computes with the numbers need not
care, and what changes them makes a constant without steps.

Source: DequantizeLinear and QuantizeLinear of https://onnx.ai/onnx/operators/ (opset 21).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.values import array_of, input_at, shape_of, steps_of

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES", "keeps_integers"]

Array = npt.NDArray[Any]

UNITS = {ir.DataType.FLOAT4E2M1: 0.5}
"""What all codes of a float type are multiples of, where they are few multiples."""


def keeps_integers(node: ir.Node) -> bool:
    """Whether this node is to be evaluated here, not by constant folding, which would lose the steps."""
    if node.domain:
        return False
    moves = node.op_type in {"Transpose", "Reshape"} and steps_of(input_at(node, 0)) is not None
    return moves or node.op_type in {"DequantizeLinear", "QuantizeLinear"}


def _per_element(parameter: Array, node: ir.Node, shape: tuple[int, ...]) -> Array:
    """A scale or zero point of a node, for every element: one in all, one per index, or by block."""
    if parameter.size == 1:
        return np.broadcast_to(parameter.reshape(()), shape)
    axis, block = node.attributes.get_int("axis", 1) % len(shape), node.attributes.get_int("block_size", 0)
    if block and parameter.ndim == len(shape):
        parameter = np.repeat(parameter, block, axis).take(range(shape[axis]), axis)
    elif parameter.ndim == 1:
        parameter = parameter.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return np.broadcast_to(parameter, shape)


def _parameters(node: ir.Node, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
    scale, zero = array_of(input_at(node, 1)), array_of(input_at(node, 2))
    if scale is None or (zero is None and input_at(node, 2) is not None):
        return None
    zeros = np.zeros(1, np.int64) if zero is None else zero
    return _per_element(scale, node, shape), _per_element(zeros, node, shape)


def dequantize_constant(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The numbers constant codes stand for, integers or floats of 4 or 8 bits."""
    x, codes = node.inputs[0], array_of(node.inputs[0])
    parameters = None if codes is None else _parameters(node, codes.shape)
    if x is None or x.dtype is None or codes is None or parameters is None:
        return None
    scale, zero = parameters[0].astype(np.float32), parameters[1]
    is_float = x.dtype.is_floating_point()
    exact = np.float32 if is_float else np.int64
    numbers = (codes.astype(exact) - zero.astype(exact)).astype(np.float32) * scale
    unit = UNITS.get(x.dtype) if is_float else 1.0
    return emit.constant(numbers, "numbers", steps=None if unit is None else scale * np.float32(unit))


def quantize_constant(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The codes of constant numbers."""
    numbers, y = array_of(node.inputs[0]), node.outputs[0]
    parameters = None if numbers is None else _parameters(node, numbers.shape)
    if numbers is None or parameters is None or y.dtype is None:
        return None
    kind = y.dtype.numpy()
    if not np.issubdtype(kind, np.integer):
        return None
    scale, zero = parameters
    codes = np.rint(numbers.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)
    codes += zero.astype(np.int64)
    return emit.constant(np.clip(codes, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind), "codes")


def move_steps(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves steps along with their numbers."""
    numbers, steps, y = array_of(node.inputs[0]), steps_of(input_at(node, 0)), shape_of(node.outputs[0])
    if numbers is None or steps is None:
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(reversed(range(numbers.ndim))))
        return emit.constant(numbers.transpose(perm), "moved", steps=steps.transpose(perm))
    if y is None or math.prod(y) != numbers.size:
        return None
    return emit.constant(numbers.reshape(y), "moved", steps=steps.reshape(y))


RULES: Rules = {
    "DequantizeLinear": [dequantize_constant],
    "QuantizeLinear": [quantize_constant],
    "Transpose": [move_steps],
    "Reshape": [move_steps],
}
