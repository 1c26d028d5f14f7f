"""Convolutions and matrix products: where their operands lie, and how their weights are turned.

Sums, weights and biases are those of `sums`. A product with a flattened image is a convolution with one
window; a constant in front of a product goes behind it, both transposed. The views of operands and results
do all of these turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import steps_of
from tpuflow.lowering import scheme
from tpuflow.lowering.layout import StoredValue
from tpuflow.lowering.nodes import attribute, constant, float_constant, input_or_none, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.shape import slice_
from tpuflow.lowering.ops.wide_pixels import (
    WideWindow,
    is_pointwise,
    product_of_neighbors,
    shifted_kernels,
    wide_window,
)
from tpuflow.lowering.plan import CLAMPS
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.sums import (
    Array,
    Codes,
    LinearParameters,
    Weights,
    bits_before_bias,
    epilogue,
    is_by_block,
    linear,
    sums,
    weights_of,
    with_first_shift,
)
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import WindowFields
    from tpuflow.lowering.plan import Step


def stated_scales(value: ir.Value | None, axis: int) -> Array | None:
    """The scales of weights the model states as 8-bit integers, channels along `axis`; None for others."""
    weights, steps = constant(value), steps_of(value)
    return None if weights is None or steps is None else scheme.stated_steps(weights, steps, axis)


def weights_and_bias(step: Step, channels: int) -> tuple[Weights, Array]:
    """The constants of a convolution of so many output channels.

    Raises:
        UnsupportedNodeError: They are computed, or the weights are not two-dimensional.
    """
    node = step.node
    weights = weights_of(node.inputs[1])
    if weights is None:
        raise UnsupportedNodeError("weights must be constant", "W")
    if weights.ndim != 4:
        raise UnsupportedNodeError(f"weights of shape {list(weights.shape)} are not two-dimensional", "W")
    bias = float_constant(input_or_none(node, 2))
    if bias is None and input_or_none(node, 2) is not None:
        raise UnsupportedNodeError("bias must be constant", "B")
    return weights, np.zeros(channels) if bias is None else bias


def window(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], pads: Sequence[int]
) -> WindowFields:
    """A window as the graph takes it."""
    return {"kernel": list(kernel), "stride": list(stride), "dilation": list(dilation), "pads": list(pads)}


@lowers("Conv")
def convolution(context: Lowering, step: Step) -> None:
    """2-D convolution of any stride, dilation, padding and grouping."""
    node = step.node
    n, channels, height, width = shape_of(step.output)
    weights, bias = weights_and_bias(step, channels)
    if attribute(node, "auto_pad", "NOTSET") not in {"NOTSET", ""}:
        raise UnsupportedNodeError("padding must be explicit", "auto_pad")
    lies = context.stored[context.operand(node, 0)].view
    is_image = len(lies.shape) != 4 or lies == View.dense(lies.shape, (0, 2, 3, 1))
    if is_pointwise(node, weights) and not is_image:
        narrow = LinearParameters(weights[:, :, 0, 0].T, 1, bias, stated_scales(node.inputs[1], 0))
        if product_of_neighbors(context, step, 1, narrow, weight_name(step), is_moved=True):
            return
    terms = math.prod(weights.shape[1:])
    mean = context.mean(context.operand(node, 0), 1)
    picked = _places_of_channels(context, context.operand(node, 0)) if is_pointwise(node, weights) else None
    if picked is None:
        stored = context.images(context.operand(node, 0))
    else:
        stored, places = picked
        weights = _with_zeros(weights, places, stored.shape[-1])
        mean = (
            None if mean is None else np.asarray(_with_zeros(mean[np.newaxis], places, stored.shape[-1])[0])
        )
    strides, pads = attribute(node, "strides", (1, 1)), attribute(node, "pads", (0, 0, 0, 0))
    dilations, groups = attribute(node, "dilations", (1, 1)), attribute(node, "group", 1)
    kernel = weights.transpose(0, 2, 3, 1)
    stated = stated_scales(node.inputs[1], 0)
    if mean is not None:  # [o, 1, 1, c / groups], as the channels of a group meet its kernels
        mean = np.repeat(mean.reshape(groups, -1), channels // groups, axis=0)[:, np.newaxis, np.newaxis]
    real = LinearParameters(kernel, 0, bias, stated, mean=mean)
    made = sums(context, step, stored, real)
    wide = wide_window(context, step, stored, weights, made.target)
    count, is_wide = wide.count, wide != WideWindow()
    kernels = shifted_kernels(made.weights, wide, strides[1], made.zero_point)
    constants = made.constants(context, step, weight_name(step), kernels, times=count)
    # The last window ends where it did, but for zeros behind it.
    reach = (width - 1) * strides[1] + (weights.shape[3] - 1) * dilations[1] + 1 + wide.behind
    beside = (pads[0], pads[1] + wide.before, pads[2], max(reach - stored.shape[2] - pads[1], 0))
    op = Op.conv(
        input=stored.tensor,
        weights=constants.weights,
        bias=constants.bias,
        window=window(
            kernels.shape[1:3],
            (strides[0], strides[1] * count),
            dilations,
            beside if is_wide else pads,
        ),
        groups=groups,
        epilogue=constants.epilogue,
    )
    view = View.dense((n, channels, height, width), (0, 2, 3, 1))
    context.emit(step, op, (n, height, width // count, count * channels), view, constants.target)
    if is_wide or picked is not None:
        context.builder.terms(terms)


def _places_of_channels(
    context: Lowering, value: ir.Value
) -> tuple[StoredValue, npt.NDArray[np.int64]] | None:
    """The images that an image is some channels of, and which of theirs its channels are.

    Zeros in the place of the weights of all others cost the array nothing where they fill no further K block,
    and spare a move of the channels. None where they would, and of floats, of which zero times infinity is no
    zero.
    """
    stored = context.stored[value]
    if len(stored.shape) != 4 or len(stored.view.shape) != 4 or stored.quant is None or stored.quant.is_float:
        return None
    n, height, width, channels = stored.shape
    image = View.dense((n, channels, height, width), (0, 2, 3, 1))
    axes = stored.view.axes
    if (axes[0], *axes[2:]) != (image.axes[0], *image.axes[2:]):
        return None
    places = View((axes[1],), stored.view.offset).positions()
    inside = places.min() >= 0 and places.max() < channels
    if not inside or not len(np.unique(places)) == len(places) < channels:
        return None
    size = np.dtype(stored.quant.dtype).itemsize
    blocks = [-(-count * size // context.columns) for count in (len(places), channels)]
    if blocks[0] < blocks[1]:
        return None
    return replace(stored, view=image), places


def _with_zeros(array: Weights, places: npt.NDArray[np.int64], channels: int) -> Weights:
    """Weights `[o, c, ...]` of some of so many channels, zeros for all others."""
    found = np.zeros((array.shape[0], channels, *array.shape[2:]), array.dtype)
    found[:, places] = array
    return found


def weight_name(step: Step) -> str:
    """The name of the weights of a step."""
    value = step.node.inputs[1]
    return (value.name if value is not None else None) or f"{step.output.name}/weights"


@lowers("MatMul")
def matrix_product(context: Lowering, step: Step) -> None:
    """Product of matrices; either operand may be constant."""
    a, b = step.node.inputs[0], step.node.inputs[1]
    if a is None or b is None:
        raise UnsupportedNodeError("an operand is left out")
    if is_constant(a) and is_constant(b):
        raise UnsupportedNodeError("both operands are constant")
    if is_constant(b):
        _constant_right(context, step)
    elif is_constant(a):
        _constant_left_operand(context, step)
    else:
        _activation_product(context, step)


def _column_bias(step: Step, columns: int) -> Array:
    bias = float_constant(step.bias)
    return np.zeros(columns) if bias is None else np.broadcast_to(bias.ravel(), (columns,))


def _constant_right(context: Lowering, step: Step) -> None:
    value = context.operand(step.node, 0)
    weights = weights_of(step.node.inputs[1])
    if weights is None or weights.ndim < 2 or len(shape_of(value)) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    if weights.ndim > 2 and math.prod(weights.shape[:-2]) == 1:
        weights = weights.reshape(weights.shape[-2:])
    columns = weights.shape[-1]
    bias = _column_bias(step, columns)
    steps = steps_of(step.node.inputs[1]) if weights.ndim == 2 else None
    flat = weights.ndim == 2 and not is_by_block(context, step, weights, steps)
    if flat and _as_convolution(context, step, context.stored[value], weights, bias):
        return
    if flat:
        narrow = LinearParameters(weights, 1, bias, stated_scales(step.node.inputs[1], -1))
        is_moved = context.stored[value].shape[-1:] != weights.shape[:1]
        if product_of_neighbors(context, step, -1, narrow, weight_name(step), is_moved=is_moved):
            return
    if weights.ndim == 2:
        stored = context.rows(value, len(shape_of(value)) - 1)
        if len(stored.shape) < 2:  # a row that is stored without its other axes
            stored = context.rearrange(value)
        shape = (*stored.shape[:-1], columns)
        view = _with_last(stored, columns)
    else:
        lead = shape_of(step.node.outputs[0])[:-2]
        stored = _expand_lead(context, value, lead)
        weights = np.broadcast_to(weights, (*lead, *weights.shape[-2:]))
        shape = (*stored.shape[:-1], columns)
        view = View.dense(shape)
    stated = stated_scales(step.node.inputs[1], -1)
    mean = context.mean(value, -1) if weights.ndim == 2 else None
    real = LinearParameters(
        weights,
        weights.ndim - 1,
        bias,
        stated,
        steps=steps if stated is None else None,
        is_matrix=weights.ndim == 2,
        mean=None if mean is None else mean[:, np.newaxis],
    )
    constants = linear(context, step, stored, real, weight_name(step))
    op = Op.mat_mul(a=stored.tensor, b=constants.weights, bias=constants.bias, epilogue=constants.epilogue)
    context.emit(step, op, shape, view, constants.target)


def _with_last(stored: StoredValue, columns: int) -> View:
    """The view of a value whose innermost axis `k = stored.shape[-1]` (its last) has become `columns`."""
    k = stored.shape[-1]
    axes = [
        tuple((extent, stride // k * columns) for extent, stride in loops) for loops in stored.view.axes[:-1]
    ]
    return View((*axes, ((columns, 1),) if columns > 1 else ()))


def _as_convolution(
    context: Lowering, step: Step, stored: StoredValue, weights: Weights, bias: Array
) -> bool:
    """Lowers the product with a flattened image `[n, c*h*w]` as one window over the whole image.

    The image stays where it is; its order (channels last) is taken over by the rows of the weights.
    """
    if len(stored.shape) != 4 or math.prod(stored.shape[1:3]) == 1:
        return False
    n, h, w, c = stored.shape
    loops = stored.view.axes[-1]
    if not stored.view.covers(stored.elements) or math.prod(extent for extent, _ in loops) != h * w * c:
        return False
    by_stride = sorted(range(len(loops)), key=lambda i: -loops[i][1])
    step_in = 1
    for i in reversed(by_stride):
        if loops[i][1] != step_in:
            return False
        step_in *= loops[i][0]
    columns = weights.shape[1]
    split = [extent for extent, _ in loops]

    def as_kernel(codes: Codes) -> Codes:
        turned = codes.reshape(*split, columns).transpose(len(split), *by_stride)
        return turned.reshape(columns, h, w, c)

    stated = stated_scales(step.node.inputs[1], -1)
    mean = context.mean(context.operand(step.node, 0), -1)
    mean = None if mean is None else mean[:, np.newaxis]
    real = LinearParameters(weights, 1, bias, stated, mean=mean)
    constants = linear(context, step, stored, real, weight_name(step), as_kernel)
    op = Op.conv(
        input=stored.tensor,
        weights=constants.weights,
        bias=constants.bias,
        window=window((h, w), (1, 1), (1, 1), (0, 0, 0, 0)),
        groups=1,
        epilogue=constants.epilogue,
    )
    view = View(
        (
            *(tuple((e, s // (h * w * c) * columns) for e, s in axis) for axis in stored.view.axes[:-1]),
            ((columns, 1),) if columns > 1 else (),
        )
    )
    context.emit(step, op, (n, 1, 1, columns), view, constants.target)
    return True


def _constant_left_operand(context: Lowering, step: Step) -> None:
    """`A B` with constant `A` as `(B^T A^T)^T`: the views do the transpositions."""
    value = context.operand(step.node, 1)
    weights = weights_of(step.node.inputs[0])
    rank = len(shape_of(step.node.outputs[0]))
    if weights is None or weights.ndim < 2 or len(shape_of(value)) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    rows, depth = weights.shape[-2:]
    lead = tuple(range(rank - 2))
    if math.prod(weights.shape[:-2]) == 1:
        matrix = weights.reshape(rows, depth).T
    else:
        batch = shape_of(step.node.outputs[0])[:-2]
        matrix = np.broadcast_to(np.swapaxes(weights, -1, -2), (*batch, depth, rows))
    stored = _expand_lead(context, value, shape_of(step.node.outputs[0])[:-2], (*lead, rank - 1, rank - 2))
    name = (step.node.inputs[0].name if step.node.inputs[0] else None) or f"{step.output.name}/weights"
    stated = stated_scales(step.node.inputs[0], -2)
    real = LinearParameters(matrix, matrix.ndim - 1, np.zeros(rows), stated)
    constants = linear(context, step, stored, real, name)
    shape = (*stored.shape[:-1], rows)
    op = Op.mat_mul(a=stored.tensor, b=constants.weights, bias=constants.bias, epilogue=constants.epilogue)
    view = View.dense(shape).transpose((*lead, rank - 1, rank - 2))
    context.emit(step, op, shape, view, constants.target)


def _expand_lead(
    context: Lowering, value: ir.Value, lead: Sequence[int], order: Sequence[int] | None = None
) -> StoredValue:
    """Matrices repeated along the axes `lead`, as a tensor with its axes in `order`."""
    shape = shape_of(value)
    if len(shape) < 2:
        raise UnsupportedNodeError("operands must be matrices")
    wanted = (*lead, *shape[-2:])
    if shape == wanted:
        return context.rearrange(value, order)
    stored = context.stored[value]
    return context.rearrange(value, order, stored=replace(stored, view=stored.view.expand(wanted)))


def _activation_product(context: Lowering, step: Step) -> None:
    lead = shape_of(step.node.outputs[0])[:-2]
    turned = _is_column_of_turned(context, step)
    order = (*range(len(lead)), len(lead) + 1, len(lead)) if turned else None
    places = (1, 0) if turned else (0, 1)
    operands = [context.operand(step.node, place) for place in places]
    # First what others take as well.
    part = None if turned else _part_of_shared_columns(context, operands[1], lead)
    a = _expand_lead(context, operands[0], lead, order)
    b = part or _expand_lead(context, operands[1], lead, order)
    wide = "int16" in {a.grid.dtype, b.grid.dtype}
    target = context.grids.target(step)
    factor = np.array([a.grid.scale * b.grid.scale])
    finish = epilogue(context, step, factor, target, wide=wide)
    if wide and not target.is_float:
        fused = step.activation is not None and step.activation.op_type not in CLAMPS
        end = context.grids.intermediate(step) if fused else target
        finish = with_first_shift(finish, bits_before_bias(context, step, factor, end.scale))
    op = Op.mat_mul(a=a.tensor, b=b.tensor, epilogue=finish)
    shape = (*lead, a.shape[-2], b.shape[-1])
    view = View.dense(shape)
    context.emit(step, op, shape, view if order is None else view.transpose(order), target)


def _part_of_shared_columns(context: Lowering, value: ir.Value, lead: Sequence[int]) -> StoredValue | None:
    """Matrices `[*lead, k, n]` as columns of wider ones of which several products take some.

    What has to be moved for that, as the keys of a cache by head, is moved once for all of them.
    """
    part = value.producer()
    if part is None or part.op_type != "Slice":
        return None
    whole = part.inputs[0]
    if whole is None or whole not in context.stored or shape_of(whole)[:-1] != (*lead, shape_of(value)[-2]):
        return None
    is_moved = context.stored[whole].view.axes[-1] != ((shape_of(whole)[-1], 1),)
    takers = [use.node.op_type for use in whole.uses()]
    if not is_moved or len(takers) < 2 or set(takers) - {"Slice", "MatMul"}:
        return None
    moved = context.rearrange(whole)
    view = slice_(part, moved.view)
    return None if view is None else context.rearrange(value, stored=replace(moved, view=view))


def _is_column_of_turned(context: Lowering, step: Step) -> bool:
    """Whether `A b`, one column, is `(b' A')'` without moving A, whose columns are what lies together."""
    value = context.operand(step.node, 0)
    stored, rank = context.stored[value], len(shape_of(value))
    if shape_of(step.node.outputs[0])[-1:] != (1,) or shape_of(value)[-2] == 1:
        return False
    extents = stored.view.shape
    order = (*range(rank - 2), rank - 1, rank - 2)
    return stored.view == View.dense(extents, order) and stored.view != View.dense(extents)
