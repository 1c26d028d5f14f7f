"""Reductions over axes, and the place of the largest element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuflow.lowering.grids import float_clamp
from tpuflow.lowering.layout import natural_order, runs
from tpuflow.lowering.nodes import attribute, constant, input_or_none, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.pool import Cells, average
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import FloatReductionFields, RequantFields, WindowFields
    from tpuflow.lowering.plan import Step

KINDS = {
    "ReduceMean": "sum",
    "ReduceSum": "sum",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceL1": "sum_abs",
    "ReduceL2": "norm",
    "ReduceSumSquare": "sum_square",
}
NORM_FRACTION = 256.0
"""The integer norm has eight fraction bits."""


@lowers(*KINDS)
def reduction(context: Lowering, step: Step) -> None:
    """Sums, extrema and norms; a mean over the whole image is an average pool."""
    node = step.node
    value = context.operand(node, 0)
    extents = shape_of(value)
    found = constant(input_or_none(node, 1))
    stated = attribute(node, "axes", ()) if found is None else tuple(int(a) for a in found.ravel())
    axes = sorted({axis % len(extents) for axis in stated} or set(range(len(extents))))
    stored = context.whole_tensor(value)
    order = stored.view.permutation(stored.elements) or natural_order(stored.view)
    places = _places(stored, order, axes)
    if places is None:
        stored = context.rearrange(value, order)
        places = sorted(order.index(axis) for axis in axes)
    reduced = tuple(1 if place in places else extent for place, extent in enumerate(stored.shape))
    view = View.dense([1 if axis in axes else extent for axis, extent in enumerate(extents)], order)
    if not attribute(node, "keepdims", 1):
        view = View(tuple(loops for axis, loops in enumerate(view.axes) if axis not in axes))
    kind = KINDS[node.op_type]
    if kind in {"max", "min"}:
        same: RequantFields | FloatReductionFields = {"float": {"divisor": 1.0}}
        if not stored.grid.is_float:
            same = context.requant([1.0], stored.grid, wide=False).fields()
        op = Op.reduce(input=stored.tensor, kind=kind, axes=places, requant=same)
        context.emit(step, op, reduced, view, stored.quant)
        return
    if node.op_type == "ReduceMean" and len(stored.shape) == 4 and places == [1, 2]:
        window: WindowFields = {
            "kernel": list(stored.shape[1:3]),
            "stride": [1, 1],
            "dilation": [1, 1],
            "pads": [0, 0, 0, 0],
        }
        average(context, step, stored, Cells(window), reduced, view)
        return
    target = context.grids.target(step)
    if target.is_float:
        count = math.prod(extents[axis] for axis in axes) if node.op_type == "ReduceMean" else 1
        finish = float_clamp(step.activation)
        op = Op.reduce(
            input=stored.tensor,
            kind=kind,
            axes=places,
            requant={"float": {"divisor": float(count), "finish": finish}},
        )
        context.emit(step, op, reduced, view, target)
        return
    scale = stored.grid.scale
    if kind == "sum_square":
        scale *= scale
    elif kind == "norm":
        scale /= NORM_FRACTION
    elif node.op_type == "ReduceMean":
        scale /= math.prod(extents[axis] for axis in axes)
    requant = context.requant(
        [scale / target.scale], target, step.activation, wide=_wide(kind, stored.grid.dtype)
    )
    op = Op.reduce(input=stored.tensor, kind=kind, axes=places, requant=requant.fields())
    context.emit(step, op, reduced, view, target)


def _places(stored: StoredValue, order: Sequence[int], axes: Sequence[int]) -> list[int] | None:
    """The tensor's axes that hold just the axes to be reduced; None if there are none such."""
    extents, places = stored.view.shape, []
    found = runs(stored, order)
    if found is None or stored.shape == tuple(extents[axis] for axis in order):
        return None
    for run in found:
        reduced = {axis in axes for axis in run.axes if extents[axis] > 1}
        if len(reduced) > 1:
            return None
        if True in reduced:
            places += [place for place in run.places if stored.shape[place] > 1]
    return places or None


def _wide(kind: str, dtype: str) -> bool:
    """Whether the factor may use the long shifts: sums of squares are wide, and their factors small."""
    return dtype == "int16" or kind in {"sum_square", "norm"}


@lowers("ArgMax", "ArgMin")
def arg_extremum(context: Lowering, step: Step) -> None:
    """Index of the largest or smallest element along one axis, int32."""
    node = step.node
    value = context.operand(node, 0)
    rank = len(shape_of(value))
    axis = attribute(node, "axis", 0) % rank
    stored = context.rows(value, axis)
    length = stored.shape[-1] if stored.shape else 1
    axes = [
        () if place == axis else tuple((extent, stride // length) for extent, stride in loops)
        for place, loops in enumerate(stored.view.axes)
    ]
    if not attribute(node, "keepdims", 1):
        del axes[axis]
    op = Op.arg_max(
        input=stored.tensor,
        largest=node.op_type == "ArgMax",
        select_last=bool(attribute(node, "select_last_index", 0)),
    )
    if step.output.dtype is not None and step.output.dtype.is_floating_point():
        raise UnsupportedNodeError("index of a floating type")
    context.emit(step, op, (*stored.shape[:-1], 1), View(tuple(axes)), None)
