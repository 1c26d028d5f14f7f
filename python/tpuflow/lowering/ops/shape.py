"""Operators that move elements: most are views and emit nothing; the others keep their operand's codes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from tpuflow.lowering.grids import CODES, integer_grid, is_number, padding
from tpuflow.lowering.layout import StoredValue, input_order, natural_order
from tpuflow.lowering.nodes import attribute, constant, index_bound, input_or_none, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError, lowers, views
from tpuflow.lowering.states import ROW_ORDER, ROWS, row_shape
from tpuflow.lowering.tables import SampledFunction
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.lowering.layout import Shape
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import RequantFields, StepFields
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant

WIDE = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64})
"""Types of indices, which are stored in 32 bits with a sign."""


def _integers(value: ir.Value | None) -> list[int] | None:
    array = constant(value)
    return None if array is None else [int(v) for v in array.ravel()]


@views("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(node: ir.Node, view: View) -> View | None:
    """Another shape of the same elements."""
    return view.reshape(shape_of(node.outputs[0]))


@views("Identity", "Dropout")
def identity(_node: ir.Node, view: View) -> View:
    """The same."""
    return view


@views("Transpose")
def transpose(node: ir.Node, view: View) -> View:
    """Axes permuted; reversed where the node does not say how."""
    return view.transpose(attribute(node, "perm", tuple(reversed(range(len(view.axes))))))


@views("Slice")
def slice_(node: ir.Node, view: View) -> View | None:
    """Every `step`-th index between constant bounds, forwards or backwards."""
    starts, ends = _integers(input_or_none(node, 1)), _integers(input_or_none(node, 2))
    if starts is None or ends is None:
        raise UnsupportedNodeError("bounds must be constant")
    axes = _integers(input_or_none(node, 3)) or list(range(len(starts)))
    steps = _integers(input_or_none(node, 4)) or [1] * len(starts)
    result: View | None = view
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(view.axes)
        first, last, stride = slice(start, end, step).indices(view.shape[place])
        count = len(range(first, last, stride))
        result = None if result is None else result.slice(place, first, stride, count)
    return result


@views("Expand")
def expand(node: ir.Node, view: View) -> View:
    """Broadcast to the output's shape."""
    return view.expand(shape_of(node.outputs[0]))


@views("Tile")
def tile(node: ir.Node, view: View) -> View:
    """Repeated along axes."""
    for axis, count in enumerate(_integers(input_or_none(node, 1)) or []):
        if count > 1:
            view = view.tile(axis, count)
    return view


@views("DepthToSpace")
def depth_to_space(node: ir.Node, view: View) -> View | None:
    """Channels become `block` x `block` neighbours; DCR or CRD order."""
    n, c, h, w = view.shape
    b = attribute(node, "blocksize", 1)
    if attribute(node, "mode", "DCR") == "DCR":
        split, order = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    grouped = view.reshape(split)
    return None if grouped is None else grouped.transpose(order).reshape((n, c // (b * b), h * b, w * b))


@views("SpaceToDepth")
def space_to_depth(node: ir.Node, view: View) -> View | None:
    """`block` x `block` neighbours become channels."""
    n, c, h, w = view.shape
    b = attribute(node, "blocksize", 1)
    grouped = view.reshape((n, c, h // b, b, w // b, b))
    return (
        None
        if grouped is None
        else grouped.transpose((0, 3, 5, 1, 2, 4)).reshape((n, c * b * b, h // b, w // b))
    )


@lowers("Cast")
def cast(context: Lowering, step: Step) -> None:
    """Between types of one kind nothing happens to the codes; integers of 8 or 16 bits are numbers.

    Numbers become integers by truncation, saturated. Integers become narrower ones by their low bits, as ONNX
    has it: what may not fit is looked up where it has 8 bits, and is the host's where it has more.
    """
    value = context.operand(step.node, 0)
    stored = context.stored[value]
    if not is_number(value) and not is_number(step.output) and not _fits(value, step.output):
        _wrap_to_int8(context, step, value)
        return
    if is_number(value) and not is_number(step.output):
        source = context.whole_tensor(value)
        if source.grid.is_float:
            _truncate(context, step, source)
            return
        target = integer_grid(step.output)
        table = context.table(step, SampledFunction(np.trunc, source.grid, target))
        op = Op.unary(input=source.tensor, function=table)
        context.emit(step, op, source.shape, source.view, target)
        return
    if stored.quant is None and is_number(step.output):
        target = context.grids.target(step)
        if not target.is_float:
            _numbers(context, step, value, target)
            return
        source = context.whole_tensor(value)
        op = Op.dequantize(input=source.tensor, scale=1.0, finish={})
        context.emit(step, op, source.shape, source.view, target)
        return
    if stored.quant is not None and value.dtype in CODES and is_number(step.output):
        stored = replace(stored, quant=integer_grid(value))  # codes, read as the integers they are
    context.stored[step.output] = stored
    if is_number(step.output) and context.grids.target(step).is_float:
        context.stored[step.output] = context.requantize(step.output, context.grids.target(step))


def _numbers(context: Lowering, step: Step, value: ir.Value, target: Quant) -> None:
    """Looks the numbers of indices up, if these have a bound."""
    bound = index_bound(value)
    if bound is None:
        raise UnsupportedNodeError("indices cannot become numbers", "to")
    stored = context.rearrange(value)
    codes = target.codes(np.arange(bound, dtype=np.float64)[:, np.newaxis])
    table = context.shared_constant(f"{step.output.name}/numbers", codes, [target.scale], target.zero_point)
    op = Op.embedding(table=table, indices=stored.tensor)
    context.emit(step, op, (*stored.shape, 1), View.dense(shape_of(value)), target)


def _fits(value: ir.Value, target: ir.Value) -> bool:
    """Whether a type holds all that integers, or conditions, may be; indices of 32 and 64 bits are alike."""
    if value.dtype in WIDE and target.dtype in WIDE:
        return True
    if value.dtype is None or target.dtype is None or ir.DataType.BOOL in {value.dtype, target.dtype}:
        return True
    limits = np.iinfo(target.dtype.numpy())
    low, high = _bounds(value)
    return bool(limits.min <= low and high <= limits.max)


def _bounds(value: ir.Value) -> tuple[int, int]:
    """The least and largest that integers may be: of their type, or of places along an axis."""
    node = value.producer()
    while node is not None and node.inputs[0] is not None and (node.op_type in VIEWS or _is_between(node)):
        node = node.inputs[0].producer()
    if node is not None and node.op_type in {"ArgMax", "ArgMin"} and node.inputs[0] is not None:
        return 0, shape_of(node.inputs[0])[attribute(node, "axis", 0)] - 1
    assert value.dtype is not None
    limits = np.iinfo(value.dtype.numpy())
    return int(limits.min), int(limits.max)


def _is_between(node: ir.Node) -> bool:
    """Whether a node turns wide integers into wide ones."""
    wide = all(each is not None and each.dtype in WIDE for each in (node.inputs[0], node.outputs[0]))
    return node.op_type == "Cast" and wide


def _wrap_to_int8(context: Lowering, step: Step, value: ir.Value) -> None:
    """Integers of 8 bits by the low bits of their type."""
    if value.dtype not in {ir.DataType.INT8, ir.DataType.UINT8}:
        raise UnsupportedNodeError("integers that may not fit lose their high bits", "to")
    assert step.output.dtype is not None
    limits = np.iinfo(step.output.dtype.numpy())
    low, span = int(limits.min), int(limits.max) - int(limits.min) + 1
    source, target = context.whole_tensor(value), integer_grid(step.output)
    table = context.table(
        step, SampledFunction(lambda x: (x - low) % span + low, integer_grid(value), target)
    )
    op = Op.unary(input=source.tensor, function=table)
    context.emit(step, op, source.shape, source.view, target)


def _truncate(context: Lowering, step: Step, source: StoredValue) -> None:
    """Floats become integers: the part before the point, saturated to the stored type.

    Integers of 32 and 64 bits, which are indices, are stored in 32 with a sign.
    """
    kind = "" if step.output.dtype is None else step.output.dtype.name
    indices = kind in {"INT32", "INT64", "UINT32", "UINT64"}
    target = None if indices else integer_grid(step.output)
    limits = np.iinfo(np.int32)
    toward_zero: list[StepFields] = [
        {"floor": 0}, {"ceil": 0}, {"choose": [0, 2, 1]},
    ]  # fmt: skip
    op = Op.unary(input=source.tensor, function={"float": {"function": toward_zero}})
    whole = context.hidden_layer(f"{step.output.name}/whole", op, source.shape, source.grid)
    zero_point, low, high = 0, 0 if kind.startswith("U") else int(limits.min), int(limits.max)
    if target is not None:
        zero_point, low, high = target.zero_point, target.lo, target.hi
    op = Op.quantize(input=whole, scale=1.0, zero_point=zero_point, lo=low, hi=high)
    context.emit(step, op, source.shape, source.view, target)


def _joined_indices(context: Lowering, step: Step, values: Sequence[ir.Value], axis: int) -> None:
    """Indices end to end."""
    inputs = [context.rearrange(value).tensor for value in values]
    shape = shape_of(step.output)
    op = Op.concat(inputs=inputs, axis=axis % len(shape), requants=[None] * len(inputs))
    context.emit(step, op, shape, View.dense(shape), None)


@lowers("Concat")
def concat(context: Lowering, step: Step) -> None:
    """Operands end to end; each that is quantised otherwise is requantised on the way."""
    node = step.node
    axis = attribute(node, "axis", 0)
    values = list(node.inputs)
    computed = [value for value in values if value is not None and not is_constant(value)]
    if len(computed) == len(values) and all(context.stored[value].quant is None for value in computed):
        _joined_indices(context, step, computed, axis)
        return
    target = context.grids.target(step)
    largest = max(computed, key=lambda value: math.prod(shape_of(value)))
    order = _channels_last_order(context.stored[largest])
    if _is_free_to_choose(step, [context.stored[value] for value in computed], order):
        order = input_order(step.output)
    place, form = order.index(axis % len(order)), None
    if any(context.is_state(value) for value in computed) and axis % len(order) == ROW_ORDER[1]:
        order, place, form = ROW_ORDER, ROWS, row_shape
    inputs: list[int] = []
    requants: list[RequantFields | None] = []
    extents: list[int] = []
    shape: list[int] = []
    for value in values:
        if value is None:
            raise UnsupportedNodeError("an operand is left out")
        if is_constant(value):
            array = np.asarray(constant(value), np.float64).transpose(order)
            array = array if form is None else array.reshape(form(shape_of(value)))
            index = context.constant(value.name or "constant", target.codes(array), target)
            inputs.append(index)
            requants.append(None)
            extents.append(array.shape[place])
            continue
        form_of = None if form is None else form(shape_of(value))
        seen = context.stored[value]
        same = seen.quant == target
        wide = seen.grid.dtype == "int16"
        # Of an image that is enlarged fewer elements are rescaled before than on the way.
        is_small = 2 * seen.elements <= math.prod(shape_of(value))
        if not same and (is_small or target.is_float or seen.grid.is_float):
            moved = context.requantize(value, target)
            stored, same = context.rearrange(value, order, form_of, stored=moved), True
        else:
            stored = context.rearrange(value, order, form_of)
        requants.append(
            None if same else context.requant([stored.grid.scale / target.scale], target, wide=wide).fields()
        )
        inputs.append(stored.tensor)
        extents.append(stored.shape[place])
        shape = list(stored.shape)
    shape[place] = sum(extents)
    op = Op.concat(inputs=inputs, axis=place, requants=requants)
    context.emit(step, op, tuple(shape), View.dense(shape_of(step.output), order), target)


def _is_free_to_choose(step: Step, operands: Sequence[StoredValue], order: Shape) -> bool:
    """Whether a joined value may as well be stored in the order its readers want as in `order`.

    Its operands are moved for either, in runs along the same axis, and who reads it would move it again.
    """
    wanted = input_order(step.output)
    readers = [use.node.op_type for use in step.output.uses()]
    if readers and {*readers} == {"MatMul"}:
        # A product reads rows as they are; the natural order of what must be moved is as good as any other.
        return all(stored.view.permutation(stored.elements) is None for stored in operands)
    if not readers or not {*readers} <= {"Flatten", "Reshape", "Transpose"} or wanted[-1:] != order[-1:]:
        return False
    return not any(_has_pixels(stored, order) for stored in operands)


def _has_pixels(stored: StoredValue, order: Shape) -> bool:
    """Whether a value lies in `order` already, in pixels of its last axis: its shape alone may change."""
    loops = stored.view.transpose(order).loops
    extent = stored.view.shape[order[-1]]
    return tuple(loops) in ((), ((math.prod(stored.view.shape), 1),)) and stored.shape[-1:] == (extent,)


def _channels_last_order(stored: StoredValue) -> tuple[int, ...]:
    order = stored.view.permutation(stored.elements)
    return natural_order(stored.view) if order is None else order


def _can_represent(grid: Quant, number: float) -> bool:
    """Whether a grid has a place for a number; infinity is held as far as any grid goes."""
    if grid.is_float or not math.isfinite(number):
        return True
    code = number / grid.scale + grid.zero_point
    return grid.lo - 0.5 <= code <= grid.hi + 0.5


@lowers("Pad")
def pad(context: Lowering, step: Step) -> None:
    """Constant (as a code), reflecting or edge padding; negative padding cuts first."""
    node = step.node
    value = context.operand(node, 0)
    rank = len(shape_of(value))
    pads = _integers(input_or_none(node, 1))
    if pads is None:
        raise UnsupportedNodeError("padding must be constant", "pads")
    axes = [axis % rank for axis in _integers(input_or_none(node, 3)) or range(rank)]
    if any(amount < 0 for amount in pads):
        raise UnsupportedNodeError("negative padding", "pads")
    mode: Any = attribute(node, "mode", "constant")
    number = padding(node) or 0.0
    stored = context.whole_tensor(value)
    order = _channels_last_order(stored)
    if mode == "constant" and not _can_represent(stored.grid, number):
        # What is padded with has a place on the grid of the result: that of the operand is too narrow.
        stored = context.requantize(value, context.grids.target(step))
        stored = context.rearrange(value, order, stored=stored)
    else:
        stored = context.rearrange(value, order)
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[order.index(axis)], after[order.index(axis)] = pads[i], pads[i + len(axes)]
    if mode == "constant":
        mode = {"value": number} if stored.grid.is_float else {"constant": stored.grid.code(number)}
    shape = tuple(b + n + a for b, n, a in zip(before, stored.shape, after, strict=True))
    op = Op.pad(input=stored.tensor, before=before, after=after, mode=mode)
    context.emit(step, op, shape, View.dense(shape_of(step.output), order), stored.quant)
