"""Functions of two operands with broadcasting, and choices by a constant condition.

The larger operand's tensor sets the order; the other operand follows it, and a constant is laid out in it
when the graph is built. Multiplication by a positive constant changes the scale only and emits nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.values import sliced
from tpuflow.lowering import scheme
from tpuflow.lowering.fixed_point import saturating
from tpuflow.lowering.grids import FURTHER
from tpuflow.lowering.layout import StoredValue, input_order, natural_order, runs
from tpuflow.lowering.nodes import float_constant, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.lowering.layout import Shape
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant

__all__ = [
    "alignment",
    "extents_in_order",
    "is_in_order",
    "laid_out",
    "operand_in_order",
    "placed_operands",
]

Array = npt.NDArray[np.float64]

TOP = 32767
"""Largest operand multiplier."""

ALIGNED = frozenset({"add", "sub", "max", "min"})
"""Kinds whose operands are brought to one scale; of one grid they are as they are."""

EXACT = 2.0**-10
"""A constant so near to steps of the other operand's grid is meant to be on it: `1 - x` is 0 where x is 1."""


def alignment(a: float, b: float, out: float) -> tuple[int, int, float]:
    """Integers ka, kb and a factor with `ka ~ a / u`, `kb ~ b / u`, `factor = u / out` for a common unit u.

    The larger scale gets the largest multiplier; scales of a whole ratio need no other than that.

    Args:
        a: Scale of the left operand.
        b: Scale of the right operand.
        out: Scale of the result.

    Source: docs/arithmetic.md, binary operators.
    """
    ratio = max(a, b) / min(a, b)
    if ratio == round(ratio) <= TOP:
        return round(a / min(a, b)), round(b / min(a, b)), min(a, b) / out
    unit = max(a, b) / TOP
    return round(a / unit), round(b / unit), unit / out


@lowers("Add", "Sub", "Mul", "Div", "Max", "Min")
def binary(context: Lowering, step: Step) -> None:
    """Sum, difference, product, quotient, larger or smaller of two operands."""
    node = step.node
    kind = node.op_type.lower()
    if len(node.inputs) != 2:
        raise UnsupportedNodeError(f"{len(node.inputs)} operands")
    if _lower_positive_scaling(context, step):
        return
    a, b, shape, view = placed_operands(context, step, slack=EXACT if kind in ALIGNED else 0.0)
    target = context.grids.target(step)
    wide = "int16" in {a.grid.dtype, b.grid.dtype}
    ka = kb = 1
    if target.is_float:
        factor = 1.0
    elif kind == "mul":
        factor = a.grid.scale * b.grid.scale / target.scale
    elif kind == "div":
        factor = a.grid.scale / (b.grid.scale * target.scale)
    else:
        ka, kb, factor = alignment(a.grid.scale, b.grid.scale, target.scale)
    if kind != "div":  # whose quotients are no whole numbers
        factor = saturating(factor)
    op = Op.binary(
        kind=kind,
        a=a.tensor,
        b=b.tensor,
        ka=ka,
        kb=kb,
        requant=context.rounding([factor], target, step.activation, wide=wide),
    )
    context.emit(step, op, shape, view, target)


def _lower_positive_scaling(context: Lowering, step: Step) -> bool:
    """Handles a product with (or quotient by) one positive constant: the same codes at another scale."""
    node = step.node
    if node.op_type not in {"Mul", "Div"} or scheme.is_float(context.grids.dtype_of(step)):
        return False
    constants = [float_constant(value) for value in node.inputs]
    place = 1 if constants[1] is not None else 0
    array = constants[place]
    if array is None or array.size != 1 or (node.op_type == "Div" and place == 0):
        return False
    value = context.operand(node, 1 - place)
    if shape_of(value) != shape_of(node.outputs[0]):
        return False
    factor = float(array.item())
    factor = 1.0 / factor if node.op_type == "Div" and factor else factor
    if not (math.isfinite(factor) and factor > 0.0):
        return False
    stored = context.stored[value]
    grid = stored.grid.scale_by(factor)
    if not grid.scale > 0.0:
        return False
    wanted = context.settings.explicit(step.names, "dtype")
    target = context.grids.target(step)
    fits = math.isfinite(grid.scale) and _largest_magnitude(grid) <= FURTHER * _largest_magnitude(target)
    if step.activation is None and wanted in {None, grid.dtype} and fits:
        context.stored[step.output] = StoredValue(stored.tensor, stored.shape, stored.view, grid)
        return True
    stored = context.whole_tensor(value)
    ratio = saturating(stored.grid.scale * factor / target.scale)
    requant = context.requant([ratio], target, step.activation, wide=grid.dtype == "int16")
    op = Op.rescale(input=stored.tensor, requant=requant.fields())
    context.emit(step, op, stored.shape, stored.view, target)
    return True


def _largest_magnitude(grid: Quant) -> float:
    return grid.scale * max(grid.hi - grid.zero_point, grid.zero_point - grid.lo)


def placed_operands(
    context: Lowering, step: Step, *, slack: float = 0.0
) -> tuple[StoredValue, StoredValue, tuple[int, ...], View]:
    """Both operands as tensors that broadcast, and how the result lies in its own tensor.

    A constant whose elements are less than `slack` from steps of the other operand's grid lies on these: what
    is equal then has equal codes.
    """
    values = [step.node.inputs[0], step.node.inputs[1]]
    out = shape_of(step.node.outputs[0])
    computed = [value for value in values if value is not None and not is_constant(value)]
    if not computed:
        raise UnsupportedNodeError("all operands are constant")
    anchor_value = max(computed, key=lambda value: math.prod(shape_of(value)))
    anchor = context.whole_tensor(anchor_value)
    whole = math.prod(anchor.view.shape) == math.prod(out)
    if (
        len(computed) == 2
        and (values[0] is not values[1])
        and not (whole and _same_layout(context, computed, anchor))
    ):
        return _broadcast(context, values, step.output, out, anchor)
    if not whole:
        spread = replace(anchor, view=anchor.view.expand(out))
        order = _cut_axis_first(step.output, natural_order(spread.view))
        if len(computed) == 1 and _spread_each_other(values, out, order):
            shape, view = tuple(out[axis] for axis in order), View.dense(out, order)
            grid = anchor.quant if slack else None
            a, b = (
                operand_in_order(context, value, anchor, out, order, extents_in_order(value, order))
                if value is anchor_value
                else _constant(context, step, value, shape, view, grid, slack)
                for value in values
            )
            return a, b, shape, view
        anchor = context.rearrange(anchor_value, order, stored=spread)
    view = anchor.view.expand(out)
    placed = []
    for value in values:
        if value is anchor_value:
            placed.append(anchor)
        elif value is not None and not is_constant(value):
            placed.append(context.stored[value])
        else:
            grid = anchor.quant if slack else None
            placed.append(_constant(context, step, value, anchor.shape, view, grid, slack))
    return placed[0], placed[1], anchor.shape, view


def _spread_each_other(values: Sequence[ir.Value | None], out: Shape, order: Shape) -> bool:
    """Whether a computed operand and a constant repeat along other axes, so that neither need be spread."""
    shape, view = tuple(out[axis] for axis in order), View.dense(out, order)
    extents = []
    for value in values:
        array = float_constant(value)
        if array is not None:
            extents.append(laid_out(array, shape, view).shape)
        elif value is not None:
            extents.append(extents_in_order(value, order))
    return np.broadcast_shapes(*extents) == shape


def _same_layout(context: Lowering, computed: list[ir.Value], anchor: StoredValue) -> bool:
    """Whether both operands lie in their tensors in the same way."""
    stored = [context.stored[value] for value in computed]
    return all(
        s.shape == anchor.shape and s.view.axes == anchor.view.axes and not s.view.offset for s in stored
    )


def _broadcast(
    context: Lowering,
    values: list[ir.Value | None],
    result: ir.Value,
    out: tuple[int, ...],
    anchor: StoredValue,
) -> tuple[StoredValue, StoredValue, tuple[int, ...], View]:
    """Operands of different shape or order, both in the order of the larger one."""
    lead = len(out) - len(anchor.view.shape)
    order = (*range(lead), *(axis + lead for axis in natural_order(anchor.view)))
    if math.prod(anchor.view.shape) < math.prod(out):
        order = _cut_axis_first(result, order)
    operands = [value for value in values if value is not None]
    if len(operands) < len(values):
        raise UnsupportedNodeError("an operand is left out")
    shape = tuple(out[axis] for axis in order)
    own = [extents_in_order(value, order) for value in operands]
    as_stored = _as_stored([shape_of(value) for value in operands], out, anchor, order)
    if as_stored is not None:
        stored = [context.stored[value] for value in operands]
        if _elements_to_move(stored, order, as_stored) < _elements_to_move(stored, order, own):
            shape, own = anchor.shape, as_stored
    placed = [
        operand_in_order(context, value, context.stored[value], out, order, extents)
        for value, extents in zip(operands, own, strict=True)
    ]
    return placed[0], placed[1], shape, View.dense(out, order)


def _cut_axis_first(value: ir.Value, order: Shape) -> Shape:
    """An order in which what Slices take of a new value, one after the other as steps do, lies together."""
    axes, met, waiting = set(), {value}, [value]
    while waiting:
        for node in (use.node for use in waiting.pop().uses()):
            found = sliced(node)
            if found is not None:
                axes.add(found[1])
            elif (
                node.op_type not in VIEWS
                and node.outputs[0] not in met
                and shape_of(node.outputs[0]) == shape_of(value)
            ):
                met.add(node.outputs[0])
                waiting.append(node.outputs[0])
    if len(axes) != 1:
        return order
    (cut,) = axes
    return (cut, *(axis for axis in order if axis != cut))


def _as_stored(
    shapes: Sequence[Shape], out: Shape, anchor: StoredValue, order: Sequence[int]
) -> list[Shape] | None:
    """The shapes of operands that broadcast to the tensor of the larger one as it is.

    None where one of them is broadcast along some of the axes alone that lie together in that tensor.
    """
    found = runs(anchor, order) if anchor.view.shape == out else None
    if found is None:
        return None
    operands: list[Shape] = []
    for shape in shapes:
        padded = (1,) * (len(out) - len(shape)) + tuple(shape)
        own = list(anchor.shape)
        for run in found:
            whole = {padded[axis] == out[axis] for axis in run.axes if out[axis] > 1}
            if len(whole) > 1:
                return None
            if False in whole:
                for place in run.places:
                    own[place] = 1
        operands.append(tuple(own))
    return operands


def operand_in_order(
    context: Lowering,
    value: ir.Value,
    stored: StoredValue,
    out: Shape,
    order: Sequence[int],
    shape: Shape,
) -> StoredValue:
    """A value as a tensor of `shape`, the axes of `out` in an order, of extent 1 where it is broadcast."""
    missing = len(out) - len(stored.view.shape)
    padded = View(((),) * missing + stored.view.axes, stored.view.offset)
    if not is_in_order(stored, order, shape):
        own = [axis - missing for axis in order if axis >= missing]
        stored = context.rearrange(value, own, shape, stored=stored)
    return StoredValue(stored.tensor, shape, padded, stored.quant)


WORD = 128
"""Channels whose pixels are whole words of the cache: an image and its tokens are then the same bytes."""


def _elements_to_move(operands: Sequence[StoredValue], order: Sequence[int], shapes: Sequence[Shape]) -> int:
    """How many elements of operands are moved for tensors of some shapes with the axes in an order."""
    moved = 0
    for stored, shape in zip(operands, shapes, strict=True):
        same_pixels = stored.shape[-1:] == shape[-1:] and math.prod(shape[-1:]) >= WORD
        if not is_in_order(stored, order, stored.shape if same_pixels else shape):
            moved += math.prod(shape)
    return moved


def is_in_order(stored: StoredValue, order: Sequence[int], shape: Shape) -> bool:
    """Whether a value, with axes of extent 1 in front, is dense in an order and its tensor has a shape."""
    missing = len(order) - len(stored.view.shape)
    padded = View(((),) * missing + stored.view.axes, stored.view.offset)
    is_dense = padded == View.dense(padded.shape, order)
    return is_dense and _without_leading_ones(stored.shape) == _without_leading_ones(shape)


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading ones, which broadcasting adds by itself."""
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


MOST_SPREAD = 1 << 24
"""Elements over which a constant is spread whose operand lies in no order of its axes."""


def laid_out(array: Array, shape: tuple[int, ...], view: View) -> Array:
    """A constant in the order of a value's tensor; axes along which it does not change have extent 1."""
    if array.size and np.all(array == array.flat[0]):  # which need not be spread to be found out
        return np.full(1, array.flat[0], np.float64)
    array = array.reshape((1,) * (len(view.axes) - array.ndim) + array.shape)
    order = view.permutation(math.prod(shape))
    kept = [axis for axis in order or () if view.shape[axis] != 1]
    if order is not None and [view.shape[axis] for axis in kept] == [size for size in shape if size != 1]:
        extents = iter([array.shape[axis] for axis in kept])
        ordered = array.transpose(order).astype(np.float64)
        return _shrunk(ordered.reshape([1 if size == 1 else next(extents) for size in shape]))
    # Nor along the outermost axes: batches may be large.
    shape = _without_leading_ones(shape)
    for axis, loops in enumerate(view.axes):
        if not loops:
            continue
        if array.shape[axis] > 1 or loops != ((shape[0], math.prod(shape[1:])),):
            break
        shape = _without_leading_ones(shape[1:])
        view = View((*view.axes[:axis], (), *view.axes[axis + 1 :]), view.offset)
    if math.prod(shape) > MOST_SPREAD:
        raise UnsupportedNodeError(
            f"a constant would be spread over {math.prod(shape)} elements in the order of its other operand"
        )
    flat = np.empty(math.prod(shape))
    flat[view.positions()] = np.broadcast_to(array, view.shape)
    return _shrunk(flat.reshape(shape))


def _shrunk(placed: Array) -> Array:
    """Without what repeats along an axis, and without leading axes of extent 1."""
    for axis in range(placed.ndim):
        first = placed.take([0], axis)
        if np.all(placed == first):
            placed = first
    return placed.reshape(_without_leading_ones(placed.shape) or (1,))


def _constant(
    context: Lowering,
    step: Step,
    value: ir.Value | None,
    shape: tuple[int, ...],
    view: View,
    grid: Quant | None = None,
    slack: float = 0.0,
) -> StoredValue:
    """A constant operand, on the steps of `grid` if it is so near, otherwise on a grid of its own.

    One number is exact on any grid of its own. Beside 16 bits it has 16 too, for what is aligned with a
    coarser grid is rounded to a 32767th of that one's steps.
    """
    array = float_constant(value)
    if array is None or value is None:
        raise UnsupportedNodeError("an operand is left out")
    if not np.all(np.isfinite(array)) and not scheme.is_float(context.grids.dtype_of(step)):
        raise UnsupportedNodeError(f'constant "{value.name}" is not finite')
    placed = laid_out(array, shape, view)
    if scheme.is_float(context.grids.dtype_of(step)):
        # As precise as the arithmetic is, whatever the result is rounded to.
        single = scheme.floating("float32")
        index = context.constant(value.name or f"{step.output.name}/constant", single.codes(placed), single)
        return StoredValue(index, placed.shape, View.dense(placed.shape), single)
    narrow = placed.size == 1 and (grid is None or grid.dtype == "int8")
    quant = scheme.symmetric(float(np.max(np.abs(placed))), scheme.Format("int8" if narrow else "int16"))
    if grid is not None and not grid.is_float:
        quant = scheme.on_steps(placed, grid, slack) or quant
    index = context.constant(value.name or f"{step.output.name}/constant", quant.codes(placed), quant)
    return StoredValue(index, placed.shape, View.dense(placed.shape), quant)


@lowers("Where")
def select(context: Lowering, step: Step) -> None:
    """`condition ? a : b`; both choices take the output's quantisation."""
    node = step.node
    condition = float_constant(node.inputs[0])
    out = shape_of(step.output)
    target = context.grids.target(step)
    computed = [value for value in node.inputs if value is not None and not is_constant(value)]
    anchor_value = max(computed, key=lambda value: math.prod(shape_of(value)))
    order = _spread_order(step.output, context.stored[anchor_value].view.expand(out))
    shape = tuple(out[axis] for axis in order)
    view = View.dense(out, order)
    choices = [value for value in node.inputs[1:] if value is not None]
    if node.inputs[0] is None or len(choices) < len(node.inputs) - 1:
        raise UnsupportedNodeError("an operand is left out")
    constants = {
        index: laid_out(array, shape, view)
        for index, array in enumerate(float_constant(value) for value in choices)
        if array is not None
    }
    if condition is not None:
        mask = laid_out((condition != 0).astype(np.float64), shape, view)
        chosen, extents = context.constant(f"{step.output.name}/condition", mask.astype(np.int8)), mask.shape
    else:
        chosen, extents = context.truths(node.inputs[0], order, out), shape
    # Constants do not show the axes along which they repeat: then some other operand has to.
    operands = [
        constants[n].shape if n in constants else extents_in_order(v, order) for n, v in enumerate(choices)
    ]
    whole = _without_leading_ones(np.broadcast_shapes(extents, *operands)) == _without_leading_ones(shape)
    tensors: list[int] = []
    for index, value in enumerate(choices):
        if index in constants:
            codes = target.codes(constants[index])
            tensors.append(context.constant(value.name or "choice", codes, target))
            continue
        stored = context.requantize(value, target)
        if whole:
            tensors.append(
                operand_in_order(context, value, stored, out, order, extents_in_order(value, order)).tensor
            )
            continue
        spread = replace(stored, view=stored.view.expand(out))
        tensors.append(context.rearrange(value, order, stored=spread).tensor)
    op = Op.select(condition=chosen, a=tensors[0], b=tensors[1])
    context.emit(step, op, shape, view, target)


def _spread_order(value: ir.Value, view: View) -> Shape:
    """The axis order of a result whose largest operand lies as `view`.

    A repeated operand is smaller than the result: to put it in the order that a reader wants takes less than
    to rearrange the result.
    """
    wanted = input_order(value)
    repeated = any(extent > 1 and step == 0 for loops in view.axes for extent, step in loops)
    return wanted if repeated and wanted != tuple(range(len(wanted))) else natural_order(view)


def extents_in_order(value: ir.Value, order: Sequence[int]) -> Shape:
    """Extents of a value along the axes of a result in an order, 1 where it is broadcast."""
    own = shape_of(value)
    own = (1,) * (len(order) - len(own)) + own
    return tuple(own[axis] for axis in order)
