"""Pools over windows of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpuflow.lowering.fixed_point import approximate
from tpuflow.lowering.grids import float_clamp
from tpuflow.lowering.nodes import attribute, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import AverageFields, DivisorFields, FloatFields, WindowFields
    from tpuflow.lowering.plan import Step


def _window(step: Step, stored: StoredValue) -> tuple[WindowFields, list[int]]:
    """The window, and how far it reaches beyond the declared padding at bottom and right (ceil mode)."""
    node = step.node
    if attribute(node, "auto_pad", "NOTSET") not in {"NOTSET", ""}:
        raise UnsupportedNodeError("padding must be explicit", "auto_pad")
    kernel = list(attribute(node, "kernel_shape", (1, 1)))
    stride, dilation = list(attribute(node, "strides", (1, 1))), list(attribute(node, "dilations", (1, 1)))
    pads = list(attribute(node, "pads", (0, 0, 0, 0)))
    out = shape_of(node.outputs[0])[2:]
    beyond = []
    for axis in (0, 1):
        reach = (out[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
        beyond.append(max(0, reach - stored.shape[1 + axis] - pads[axis] - pads[2 + axis]))
        pads[2 + axis] += beyond[axis]
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "pads": pads}, beyond


def _result(step: Step) -> tuple[tuple[int, ...], View]:
    n, c, h, w = shape_of(step.node.outputs[0])
    return (n, h, w, c), View.dense((n, c, h, w), (0, 2, 3, 1))


@lowers("MaxPool", "GlobalMaxPool")
def max_pool(context: Lowering, step: Step) -> None:
    """Largest code of a window; the codes keep their meaning."""
    stored = context.images(context.operand(step.node, 0))
    if step.node.op_type == "GlobalMaxPool":
        window = _global_window(stored)
    else:
        window, _ = _window(step, stored)
    op = Op.max_pool(input=stored.tensor, window=window)
    shape, view = _result(step)
    if shape_of(step.output) != view.shape:
        raise UnsupportedNodeError("only the values of a pool can be used, not its indices")
    context.emit(step, op, shape, view, stored.quant)


def _global_window(stored: StoredValue) -> WindowFields:
    return {"kernel": list(stored.shape[1:3]), "stride": [1, 1], "dilation": [1, 1], "pads": [0, 0, 0, 0]}


@lowers("AveragePool")
def average_pool(context: Lowering, step: Step) -> None:
    """Mean of a window; padding counts or does not, cells beyond it never do."""
    stored = context.images(context.operand(step.node, 0))
    window, beyond = _window(step, stored)
    include = bool(attribute(step.node, "count_include_pad", 0))
    shape, view = _result(step)
    average(context, step, stored, Cells(window, beyond, include), shape, view)


@lowers("GlobalAveragePool")
def global_average_pool(context: Lowering, step: Step) -> None:
    """Mean of the whole image."""
    stored = context.images(context.operand(step.node, 0))
    shape, view = _result(step)
    average(context, step, stored, Cells(_global_window(stored)), shape, view)


class Cells(NamedTuple):
    """The cells an average is taken over.

    Attributes:
        window: Which lie under it.
        beyond: How far it reaches beyond the declared padding at bottom and right; those cells never count.
        include: Whether padding counts.
    """

    window: WindowFields
    beyond: Sequence[int] = (0, 0)
    include: bool = False


def average(
    context: Lowering, step: Step, stored: StoredValue, cells: Cells, shape: tuple[int, ...], view: View
) -> None:
    """Emits an average over windows, with a multiplier for every number of cells that occurs."""
    target = context.grids.target(step)

    def emit(average: AverageFields | FloatFields) -> None:
        op = Op.average_pool(
            input=stored.tensor,
            window=cells.window,
            count_include_pad=cells.include,
            beyond=cells.beyond,
            average=average,
        )
        context.emit(step, op, shape, view, target)

    if target.is_float:
        emit({"float": float_clamp(step.activation)})
        return
    wide = stored.grid.dtype == "int16"
    bits = context.rules.multiplier_bits
    counts = [_cell_counts(stored.shape[1 + axis], shape[1 + axis], axis, cells) for axis in (0, 1)]
    divisors: list[DivisorFields] = []
    for area in sorted({rows * columns for rows in counts[0] for columns in counts[1]}):
        factor = stored.grid.scale / (target.scale * max(1, area))
        multiplier, shift = approximate(factor, bits, 47 if wide else 31)
        divisors.append({"area": area, "multiplier": multiplier, "shift": shift})
    requant = context.requant([1.0], target, step.activation, wide=wide)
    emit({"divisors": divisors, "zero_point": target.zero_point, "lo": requant.lo, "hi": requant.hi})


def _cell_counts(size: int, outputs: int, axis: int, cells: Cells) -> set[int]:
    """How many cells along one axis count, over all output positions."""
    window = cells.window
    stride, dilation = window["stride"][axis], window["dilation"][axis]
    before, after = window["pads"][axis], window["pads"][axis + 2] - cells.beyond[axis]
    first, last = (-before, size + after) if cells.include else (0, size)
    starts = np.arange(outputs) * stride - before
    # Taps below a border: counted, not listed, because a kernel may be as long as a line.
    below = [np.clip(-((starts - border) // dilation), 0, window["kernel"][axis]) for border in (first, last)]
    return {int(count) for count in np.unique(below[1] - below[0])}
