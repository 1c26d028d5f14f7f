"""Tables of 4-bit weights of which entries are picked at run time.

    Gather(E[v, d], i), .., MatMul(x, E')          ->  columns of the product's weights, times their scales
    MatMul(x, Reshape(Gather(W[e, k n], i), k, n)) ->  groups of k rows of one constant

An embedding that is tied to the last product of a decoder is the transpose of its weights. Packed, these have
a scale for every column, so what is looked up are int8 elements, and their scales from a small table of
16 bits. Matrices that are picked are right operands of products, which have one scale: so have their columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from tpuflow.frontend.values import steps_of
from tpuflow.lowering.layout import StoredValue
from tpuflow.lowering.nodes import constant, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.packed import Packed, common_scale, pack, packed_codes
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.settings import BLOCKS, WEIGHTS
from tpuflow.lowering.sums import is_by_block
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.sums import Weights

__all__ = ["picked_columns", "picked_matrices", "tied_weights"]

ELEMENTS = Quant("int8", 1.0, 0, -128, 127)
LARGEST = 32767
UNMOVED = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that keep the order of elements."""


def tied_weights(context: Lowering, step: Step) -> Packed | None:
    """The packed weights of a product whose transpose a table is, which that product will have as well."""
    table = _finite(step.node.inputs[0])
    if table is None or table.ndim != 2 or context.grids.target(step).is_float:
        return None
    for other in context.steps:
        value = other.node.inputs[1] if other.node.op_type == "MatMul" else None
        if value is None or shape_of(value) != table.shape[::-1]:
            continue
        weights = _finite(value)
        if weights is None:
            continue
        steps = steps_of(value)
        context.settings.honors(step.names, BLOCKS, WEIGHTS)
        packs = all(is_by_block(context, each, weights, steps) for each in (step, other))
        if not packs or not np.array_equal(weights, table.T):
            continue
        if value not in context.tables:
            config = context.config(other)
            found = packed_codes(weights, steps)
            if found is None:
                found = pack(weights, config.weight_block_size, np.zeros(()))
            context.tables[value] = found
        return context.tables[value]
    return None


def picked_columns(context: Lowering, step: Step, indices: StoredValue, packed: Packed, grid: Quant) -> None:
    """Columns of packed weights by index, on a grid."""
    depth = packed.codes.shape[0]
    some = packed.scales.any(axis=0)
    largest = float(packed.columns.max(where=some, initial=0.0)) or 1.0
    scale = Quant("int16", float(np.float32(largest / LARGEST)), 0, -LARGEST, LARGEST)
    # Columns of zeros have a scale that says nothing.
    factors = scale.codes(np.where(some, packed.columns, 0.0)[:, np.newaxis])
    name = step.output.name or "embedding"
    table = context.packed_weights(f"{name}/table", packed)
    elements = context.hidden_layer(
        f"{name}/columns",
        Op.embedding(table=table, indices=indices.tensor, entry="column"),
        (*indices.shape, depth),
        ELEMENTS,
    )
    scales = context.hidden_layer(
        f"{name}/scales",
        Op.embedding(table=context.constant(f"{name}/scale_table", factors, scale), indices=indices.tensor),
        (*indices.shape, 1),
        scale,
    )
    op = Op.binary(
        kind="mul",
        a=elements,
        b=scales,
        ka=1,
        kb=1,
        requant=context.rounding([scale.scale / grid.scale], grid, wide=True),
    )
    context.emit(step, op, (*indices.shape, depth), View.dense(shape_of(step.output)), grid)


def picked_matrices(context: Lowering, step: Step) -> tuple[Packed, int] | None:
    """The rows of a table as packed matrices one below the other, and the rows of each."""
    value = step.node.inputs[0]
    table, shape = _finite(value), _matrix_shape(step.output)
    if value is None or table is None or shape is None or table.shape[1:] != (shape[0] * shape[1],):
        return None
    if value in context.tables:
        return context.tables[value], shape[0]
    whole = (table.shape[0] * shape[0], shape[1])
    weights, steps, config = table.reshape(whole), steps_of(value), context.config(step)
    steps = None if steps is None else steps.reshape(whole)
    floor = np.asarray(common_scale(weights, steps))
    found = packed_codes(weights, steps, floor)
    if found is None and config.per_block:
        found = pack(weights, config.weight_block_size, floor)
    if found is None or shape[0] % found.block:
        return None
    context.tables[value] = found
    return found, shape[0]


def _finite(value: ir.Value | None) -> Weights | None:
    """The elements of a constant, if they are finite floats."""
    array = constant(value)
    usable = (
        array is not None and np.issubdtype(array.dtype, np.floating) and bool(np.all(np.isfinite(array)))
    )
    return cast("Weights", array) if usable else None


def _matrix_shape(value: ir.Value) -> tuple[int, int] | None:
    """Rows and columns of the right operand that a value is of all products that read it."""
    found: set[tuple[int, int] | None] = set()
    for node, place in value.uses():
        if node.op_type == "MatMul" and place == 1 and len(shape_of(value)) >= 2:
            *_, rows, columns = shape_of(value)
            found.add((rows, columns))
        else:
            kept = node.op_type in UNMOVED and place == 0
            found.add(_matrix_shape(node.outputs[0]) if kept else None)
    return found.pop() if len(found) == 1 else None
