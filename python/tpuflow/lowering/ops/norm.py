"""Softmax and normalisation over one axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.lowering import scheme
from tpuflow.lowering.fixed_point import MULTIPLIER_BITS, SHIFT_MAX, approximate
from tpuflow.lowering.grids import float_clamp
from tpuflow.lowering.layout import natural_order
from tpuflow.lowering.nodes import attribute, float_constant, input_or_none, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.elementwise import extents_in_order, is_in_order, laid_out, operand_in_order
from tpuflow.lowering.plan import MASKED
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import ExponentialFields, FloatFields, FloatNormFields, NormFields
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant

NORMALIZED = 32767
"""Steps of 16 bits from 0 to sqrt(n), which no normalised element exceeds."""

OFFSET_MAX = (1 << 46) - 1
"""Largest beta in steps of the products it is added to."""

WHOLE = 1e-6
"""A reciprocal scale this close to an integer (relative) is that integer."""


@lowers("Softmax")
def softmax(context: Lowering, step: Step) -> None:
    """Softmax along any axis, with the elements that a mask leaves out in front of it."""
    node = step.node
    value = context.operand(node, 0) if step.mask is None else _masked_operand(step.mask)
    axis = attribute(node, "axis", -1) % len(shape_of(value))
    stored = context.rows(value, axis)
    target = context.grids.target(step)
    mask = None
    if step.mask is not None and step.mask.op_type == "Where" and not is_constant(step.mask.inputs[0]):
        stored, mask = _computed_mask(context, value, stored, axis, step.mask.inputs[0])
    elif step.mask is not None:
        mask = _mask(context, step, stored)
    op = Op.softmax(input=stored.tensor, exponentials=_exponentials(stored.grid, target), mask=mask)
    context.emit(step, op, stored.shape, stored.view, target)


def _exponentials(source: Quant, target: Quant) -> ExponentialFields | FloatFields:
    if target.is_float:
        return {"float": {}}
    reciprocal = 1.0 / target.scale
    if abs(reciprocal - round(reciprocal)) <= WHOLE * reciprocal and round(reciprocal) < 1 << 15:
        multiplier, shift = round(reciprocal), 0
    else:
        multiplier, shift = approximate(reciprocal, 15)
    return {
        # Of steps of 31 powers of two and more only the largest element is left.
        "coefficient": int(np.rint(math.log2(math.e) * min(source.scale, 32.0) * 2.0**32)),
        "multiplier": multiplier,
        "shift": shift,
        "zero_point": target.zero_point,
        "lo": target.lo,
        "hi": target.hi,
    }


def _masked_operand(mask: ir.Node) -> ir.Value:
    operands = mask.inputs[1:2] if mask.op_type == "Where" else mask.inputs
    return next(value for value in operands if value is not None and not is_constant(value))


def _computed_mask(
    context: Lowering, value: ir.Value, stored: StoredValue, axis: int, condition: ir.Value | None
) -> tuple[StoredValue, int]:
    """The operand, dense with its axes in an order, and the truth values of a condition in that order.

    Raises:
        UnsupportedNodeError: If the condition is not stored as truth values.
    """
    truths = None if condition is None else context.stored[condition]
    if condition is None or truths is None or truths.quant is None or truths.quant.dtype != "int8":
        raise UnsupportedNodeError("truth values are computed elsewhere")
    out, order = shape_of(value), (*(a for a in natural_order(stored.view) if a != axis), axis)
    if not is_in_order(stored, order, tuple(out[axis] for axis in order)):
        stored = context.rearrange(value, order)
    # The operand may be stored without leading axes of extent 1, which the mask must not have then.
    extents = extents_in_order(condition, order)[-len(stored.shape) :]
    if is_in_order(truths, order, extents) and len(truths.shape) > len(stored.shape):
        missing = len(out) - len(truths.view.shape)
        own = [axis - missing for axis in order if axis >= missing]
        return stored, context.rearrange(condition, own, extents, stored=truths).tensor
    placed = operand_in_order(context, condition, truths, out, order, extents)
    return stored, placed.tensor


def _mask(context: Lowering, step: Step, stored: StoredValue) -> int:
    """One for elements that take part, in the operand's order."""
    node = step.mask
    if node is None:
        raise UnsupportedNodeError("no mask")
    if node.op_type == "Where":
        condition = float_constant(node.inputs[0])
        keep = np.ones(1) if condition is None else condition != 0
    else:
        added = next(array for array in map(float_constant, node.inputs) if array is not None)
        keep = added > MASKED
    placed = laid_out(keep.astype(np.float64), stored.shape, stored.view)
    return context.constant(f"{step.output.name}/mask", placed.astype(np.int8))


@lowers("LayerNormalization", "RMSNormalization")
def normalization(context: Lowering, step: Step) -> None:
    """Normalises the last axis to steps of up to 24 bits over `+-sqrt(n)`, then scales and shifts."""
    node = step.node
    value = context.operand(node, 0)
    rank = len(shape_of(value))
    if attribute(node, "axis", -1) % rank != rank - 1:
        raise UnsupportedNodeError("only the last axis can be normalised", "axis")
    stored, target = context.unordered_rows(value, rank - 1), context.grids.target(step)
    n = stored.shape[-1]
    places = View(stored.view.axes[-1:]).positions()
    gamma = _per_element(node, 1, "Scale", places, 1.0)
    beta = _per_element(node, 2, "B", places, 0.0)
    epsilon = float(attribute(node, "epsilon", 1e-5))
    center = node.op_type == "LayerNormalization"
    norm: NormFields | FloatNormFields
    if target.is_float:
        kept_gamma = context.constant(_name(node, 1, step, "gamma"), gamma.astype(np.float32))
        kept_beta = context.constant(_name(node, 2, step, "beta"), beta.astype(np.float32))
        norm = {"float": {"epsilon": float(np.float32(epsilon)), "finish": float_clamp(step.activation)}}
    else:
        added, halvings = _epsilon(epsilon / stored.grid.scale**2 * 65536.0 * n)
        offset = float(np.max(np.abs(beta)))
        # Beside large offsets small scales need no finer steps than leave the offsets below their limit.
        least = 1.001 * NORMALIZED**2 / OFFSET_MAX * offset / math.sqrt(n)
        grid = scheme.symmetric(max(least, float(np.max(np.abs(gamma)))), scheme.Format("int16"))
        coarsest = math.sqrt(n) / NORMALIZED * grid.scale
        bits = _fraction_bits(coarsest, target.scale, offset)
        product = coarsest / 2**bits
        shifted = scheme.codes(beta, product, 0, -OFFSET_MAX, OFFSET_MAX, "int64")
        kept_gamma = context.constant(_name(node, 1, step, "gamma"), grid.codes(gamma), grid)
        kept_beta = context.constant(_name(node, 2, step, "beta"), shifted)
        norm = {
            "epsilon": added,
            # sqrt(n) over the step of what is normalised is the number of steps itself.
            "multiplier": NORMALIZED,
            "shift": halvings - bits,
            "requant": context.requant([product / target.scale], target, step.activation, wide=True).fields(),
        }
    op = Op.layer_norm(input=stored.tensor, gamma=kept_gamma, beta=kept_beta, center=center, norm=norm)
    context.emit(step, op, stored.shape, stored.view, target)


def _epsilon(squares: float) -> tuple[int, int]:
    """The epsilon added to the sum of squares, below 2^63, and how often its root was halved for that.

    The squares, of rows far smaller than the root of epsilon, are not divided by four each time:
    together they are at most `n * 2^46` beside 2^61.
    """
    halvings = max(0, (math.frexp(squares)[1] - 62) // 2)
    return max(1, int(np.rint(squares / 4.0**halvings))), halvings


def _fraction_bits(product: float, scale: float, offset: float) -> int:
    """Bits of what is normalised beyond 16, for products with gamma in steps of `product` without them.

    As many as leave all bits of its multiplier to the factor from products to codes, in steps of `scale`, and
    fit the largest `offset`.
    """
    spare = [product / scale * 2.0 ** (SHIFT_MAX - MULTIPLIER_BITS)]
    if offset > 0.0:
        spare.append(OFFSET_MAX * product / offset)
    return max(0, min(8, *(math.frexp(ratio)[1] - 1 for ratio in spare)))


def _per_element(
    node: ir.Node, index: int, name: str, places: npt.NDArray[np.int64], default: float
) -> npt.NDArray[np.float64]:
    """A constant for every element of a row, where the element lies in it."""
    value = input_or_none(node, index)
    if value is None:
        return np.full(places.size, default)
    array = float_constant(value)
    if array is None:
        raise UnsupportedNodeError("must be constant", name)
    found = np.empty(places.size)
    found[places] = np.broadcast_to(array.ravel(), places.shape)
    return found


def _name(node: ir.Node, index: int, step: Step, kind: str) -> str:
    value = input_or_none(node, index)
    return (value.name if value is not None else None) or f"{step.output.name}/{kind}"
