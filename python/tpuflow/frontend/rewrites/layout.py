"""Moves transposes towards the outputs, so that the pairs a change of layout leaves behind meet and cancel.

Exporters of channels-last frameworks wrap every convolution in a pair of transposes, with the batch
normalisation and the activation between one pair and the next:

    Conv -> T -> Mul -> Add -> Clip -> T' -> Conv     becomes     Conv -> Mul -> Add -> Clip -> Conv

A transpose passes an elementwise operator, a Pad, a reduction or a Concat only where nothing else reads it;
of two operands both must be transposed alike, or the other be constant or no more than a row of channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.reduction import REDUCTIONS
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    input_at,
    integers_of,
    produced_by,
    shape_of,
    sole_user,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

UNARY = (
    "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Mish", "Elu", "Selu",
    "Softplus", "Softsign", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Pow", "Silu",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")


def _transpose_of(value: ir.Value | None, *, shared: bool = False) -> tuple[ir.Value, list[int]] | None:
    """(x, perm) of a Transpose, unless others read it too and it is not to be `shared`.

    Its shape is known: without it nothing says that axes and pads of what reads it fit the permutation.
    """
    node = produced_by(value, "Transpose")
    if node is None or value is None or node.inputs[0] is None or not (shared or sole_user(value)):
        return None
    if shape_of(value) is None:
        return None
    perm = list(node.attributes.get_ints("perm", []))
    return (node.inputs[0], perm) if perm else None


def _back(value: ir.Value, perm: list[int], emit: Emitter) -> ir.Value:
    return emit("Transpose", value, attributes={"perm": perm})


def _order_of_ones(shape: tuple[int, ...] | None, perm: list[int]) -> list[int] | None:
    """The shape before `perm` led to `shape`, if that moved axes of size 1 only: then it was a Reshape."""
    if shape is None or len(shape) != len(perm):
        return None
    back = [int(axis) for axis in np.argsort(perm)]
    moving = [axis for axis in back if shape[axis] != 1]
    return [shape[axis] for axis in back] if moving == sorted(moving) else None


def past_unary(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a transpose behind an elementwise operator of one tensor."""
    found = _transpose_of(node.inputs[0])
    if found is None or len(node.outputs) > 1:
        return None
    x, perm = found
    inner = emit(node.op_type, x, *node.inputs[1:], attributes=attributes_of(node), domain=node.domain)
    return _back(inner, perm, emit)


def past_binary(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a transpose behind an elementwise operator of two, the other constant or turned alike."""
    found = [_transpose_of(value) for value in node.inputs]
    perm = next((pair[1] for pair in found if pair is not None), None)
    if perm is None or (node.op_type == "PRelu" and found[0] is None):
        return None
    operands: list[ir.Value] = []
    for index, (value, pair) in enumerate(zip(node.inputs, found, strict=True)):
        array = array_of(value)
        if pair is not None and pair[1] == perm:
            operands.append(pair[0])
        elif array is not None and array.ndim <= len(perm):
            full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            turned = full.transpose(np.argsort(perm)) if array.size > 1 else array
            operands.append(emit.constant(turned, f"operand{index}"))
        elif value is not None and (order := _order_of_ones(shape_of(value), perm)) is not None:
            operands.append(emit.reshape(value, order, f"operand{index}"))
        else:
            return None
    return _back(emit(node.op_type, *operands, attributes=attributes_of(node)), perm, emit)


def past_pad(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a transpose behind a Pad."""
    found, pads = _transpose_of(node.inputs[0]), integers_of(input_at(node, 1))
    if found is None or pads is None or input_at(node, 3) is not None:
        return None
    x, perm = found
    order = np.argsort(perm)
    turned = [pads[axis] for axis in order] + [pads[axis + len(perm)] for axis in order]
    inner = emit("Pad", x, emit.integers(turned, "pads"), *node.inputs[2:], attributes=attributes_of(node))
    return _back(inner, perm, emit)


def past_concat(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a transpose all operands have behind a Concat."""
    found = [_transpose_of(value) for value in node.inputs]
    pairs = [pair for pair in found if pair is not None]
    if len(pairs) < len(found) or any(pair[1] != pairs[0][1] for pair in pairs):
        return None
    perm = pairs[0][1]
    axis = perm[node.attributes.get_int("axis", 0) % len(perm)]
    return _back(emit("Concat", *(pair[0] for pair in pairs), attributes={"axis": axis}), perm, emit)


def past_reduction(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves a transpose behind a reduction, or drops it where the order of what is left does not change.

    What is left to transpose is small, so others may go on reading the transpose in front.
    """
    found, axes = _transpose_of(node.inputs[0], shared=True), integers_of(input_at(node, 1))
    if found is None or not axes or min(axes) < 0:
        return None
    x, perm = found
    reduced = sorted(perm[axis] for axis in axes)
    keep = node.attributes.get_int("keepdims", 1)
    inner = emit(node.op_type, x, emit.integers(reduced, "axes"), attributes={"keepdims": keep})
    if keep:
        return _back(inner, perm, emit)
    left = [axis for axis in perm if axis not in reduced]
    order = [sorted(left).index(axis) for axis in left]
    return inner if order == sorted(order) else _back(inner, order, emit)


RULES: Rules = {
    **{name: [past_unary] for name in UNARY},
    **{name: [past_binary] for name in BINARY},
    **{name: [past_reduction] for name in REDUCTIONS},
    "Pad": [past_pad],
    "Concat": [past_concat],
}
