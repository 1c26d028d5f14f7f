"""Picking by index: constant indices along an axis, or rows of a constant table at run time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import bound_of
from tpuflow.lowering import scheme
from tpuflow.lowering.grids import grid_of
from tpuflow.lowering.layout import natural_order
from tpuflow.lowering.nodes import attribute, constant, is_constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.packed_tables import ELEMENTS, picked_columns, picked_matrices, tied_weights
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError, lowers
from tpuflow.lowering.settings import GRID, SCALE, WEIGHTS
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step


@lowers("Gather")
def gather(context: Lowering, step: Step) -> None:
    """Evenly spaced constant indices are a view; others are picked; run-time indices look rows up."""
    node = step.node
    indices = constant(node.inputs[1])
    if indices is None:
        _embedding(context, step)
        return
    value = context.operand(node, 0)
    extents = shape_of(value)
    axis = attribute(node, "axis", 0) % len(extents)
    picked = [int(i) % extents[axis] for i in indices.ravel()]
    stored = context.stored[value]
    stride = picked[1] - picked[0] if len(picked) > 1 else 1
    if picked == [picked[0] + i * stride for i in range(len(picked))]:
        view = stored.view.slice(axis, picked[0], stride, len(picked))
        shaped = None if view is None else view.reshape(shape_of(node.outputs[0]))
        if shaped is not None:
            context.alias(step, shaped)
            return
    order = natural_order(stored.view)
    stored = context.rearrange(value, order)
    place = order.index(axis)
    shape = (*stored.shape[:place], len(picked), *stored.shape[place + 1 :])
    op = Op.gather(input=stored.tensor, axis=place, indices=picked)
    gathered = [len(picked) if a == axis else extent for a, extent in enumerate(extents)]
    view = View.dense(gathered, order).reshape(shape_of(step.output))
    if view is None:
        raise UnsupportedNodeError("indices of several axes do not fit", "indices")
    context.emit(step, op, shape, view, stored.quant)


def _embedding(context: Lowering, step: Step) -> None:
    node = step.node
    table = constant(node.inputs[0])
    if table is None or node.inputs[1] is None or is_constant(node.inputs[1]):
        raise UnsupportedNodeError("indices computed at run time need a constant table")
    if table.ndim != 2 or attribute(node, "axis", 0) != 0:
        raise UnsupportedNodeError("run-time indices pick rows of a matrix", "axis")
    if not np.issubdtype(table.dtype, np.floating):
        table = table.astype(np.float64)
    config = context.config(step)
    low, high = float(table.min(initial=0.0)), float(table.max(initial=0.0))
    quant = scheme.floating(config.dtype)
    tied = matrices = None
    if not quant.is_float and _is_matrix(step.output):
        matrices = picked_matrices(context, step)
        quant = _weight_grid(context, step, max(-low, high))
        if matrices is not None:
            quant = replace(ELEMENTS, scale=float(matrices[0].columns.max()))
    elif not quant.is_float and (bound_of(node.inputs[1]) is not None or high - low < scheme.SMALLEST_SPAN):
        # By what reads it: angles are fine, masks reach as far as scores, zeros as what joins them.
        quant = context.grids.target(step)
    elif not quant.is_float:
        dtype = context.grids.dtype_of(step)
        tied = tied_weights(context, step)
        if tied is None and config.per_block and context.settings.explicit(step.names, "dtype") is None:
            dtype = (
                "int8"  # a table is weights: beside those of 4 bits, 8 are enough, whatever rows are added to
            )
        quant = grid_of(low, high, config.model_copy(update={"dtype": dtype}))
        context.settings.honors(step.names, GRID, SCALE)
    value = context.operand(node, 1)
    for each in _parts_beside(value):
        if each in context.stored and context.stored[each].quant is None:
            context.rearrange(each)
    stored = context.rearrange(value)
    if stored.quant is not None:
        raise UnsupportedNodeError("indices must be integers", "indices")
    if tied is not None:
        picked_columns(context, step, stored, tied, quant)
        return
    if matrices is not None:
        packed, rows = matrices
        weights = context.packed_weights(f"{step.output.name}/matrices", packed)
        op = Op.embedding(table=weights, indices=stored.tensor, entry={"rows": rows})
        context.emit(step, op, shape_of(step.output), View.dense(shape_of(step.output)), quant)
        return
    op = Op.embedding(table=context.picked_table(node.inputs[0], table, quant), indices=stored.tensor)
    shape = shape_of(step.output)
    context.emit(step, op, shape, View.dense(shape), quant)


def _parts_beside(indices: ir.Value) -> list[ir.Value]:
    """The other parts that are cut out of the same indices: moved together, none waits for another."""
    node = indices.producer()
    source = None if node is None or node.op_type != "Slice" else node.inputs[0]
    if source is None:
        return []
    return [user.outputs[0] for user, place in source.uses() if user.op_type == "Slice" and place == 0]


def _is_matrix(value: ir.Value) -> bool:
    """Whether a value, seen in another shape, is the right operand of products and nothing else."""
    uses = list(value.uses())
    return bool(uses) and all(
        (node.op_type == "MatMul" and index == 1)
        or (node.op_type in VIEWS and index == 0 and _is_matrix(node.outputs[0]))
        for node, index in uses
    )


def _weight_grid(context: Lowering, step: Step, magnitude: float) -> scheme.Quant:
    """The grid of matrices that are picked at run time: that of weights, with one scale."""
    config = context.config(step)
    width = 8 if config.per_block else config.weight_bits or scheme.bits(config.dtype)
    context.settings.honors(step.names, WEIGHTS, SCALE)
    form = scheme.Format(
        "int8" if width <= 8 else "int16", "symmetric_restricted", width, config.power_of_two
    )
    return scheme.symmetric(magnitude, form)
