"""Products with matrices that are chosen at run time, as those of a mixture of experts are.

    MatMul(x[B, M, K], Gather(W[E, K, N], i[B]))  ->  by row:     Concat of x[b] @ row i[b] of a table
                                                      by matrix:  Where(i = e, x @ W[e], ..)

By row, only the matrices that are chosen leave the memory, each by itself, so a token of a decoder moves the
bytes of its own experts however many there are. Where there are more rows than matrices, as in a prompt, this
would load most of them many times: then all are multiplied, each once, and what was chosen is kept.

The columns of a table's matrices are divided by their largest magnitudes first, which are picked and
multiplied behind the product: matrices picked at run time have one step, so each column has all its codes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, produced_by, shape_of, sole_user, steps_of

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES", "chosen_products"]

Array = npt.NDArray[Any]
LARGE = 1 << 15
"""Elements of a matrix that are loaded in more time than starting a second load takes."""
STEPS = 127 * 16 / 255
"""Largest magnitude over largest step above which elements, not scales in blocks, bind that of a column."""
TILE = 128
"""Columns of the array."""


def _chosen(value: ir.Value | None) -> tuple[Array, Array | None, ir.Value] | None:
    """Matrices `[E, .., ..]`, their steps if any, and the indices by which a value is picked of them."""
    node = produced_by(value, "Gather")
    if node is None or attributes_of(node).get("axis", 0) != 0 or value is None or not sole_user(value):
        return None
    matrices, indices = array_of(node.inputs[0]), node.inputs[1]
    if matrices is None or matrices.ndim != 3 or indices is None or array_of(indices) is not None:
        return None
    return matrices, steps_of(node.inputs[0]), indices


def _turned(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """What a value is the transpose of in its last two axes, and whether it is."""
    node, shape = produced_by(value, "Transpose"), shape_of(value)
    if node is None or shape is None or not sole_user(node.outputs[0]):
        return value, False
    rank = len(shape)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return (node.inputs[0], True) if attributes_of(node).get("perm") == swapped else (value, False)


def chosen_products(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """A batch of products of which one operand is a batch of matrices picked of a constant."""
    shape = shape_of(node.outputs[0])
    for place in (1, 0):
        matrices, turned = _turned(node.inputs[place])
        found, x = _chosen(matrices), node.inputs[1 - place]
        rows = shape_of(x)
        if found is None or x is None or rows is None or shape is None or len(rows) != len(shape):
            continue
        weights, steps, indices = found
        batch = math.prod(shape_of(indices) or ())
        if batch != math.prod(rows[:-2]) or not batch or x.dtype != ir.DataType.FLOAT:
            return None
        # y = x w; with the matrices on the left y' = x' w'.
        if turned != (place == 0):
            weights = weights.swapaxes(1, 2)
            steps = None if steps is None else steps.swapaxes(1, 2)
        if place == 0:
            x = _swapped(x, rows, emit)
            rows = (*rows[:-2], rows[-1], rows[-2])
        flat = emit.reshape(x, (batch, *rows[-2:]), "rows")
        index = emit.reshape(indices, (batch,), "indices")
        many = batch > weights.shape[0]
        by = _by_matrix if many else _by_row
        y = by(flat, index, weights, steps, emit)
        if place == 0:
            y = _swapped(y, shape_of(y) or (), emit)
        return emit.reshape(y, shape, "chosen")
    return None


def _swapped(x: ir.Value, shape: tuple[int, ...], emit: Emitter) -> ir.Value:
    """The transpose in the last two axes, which moves nothing where one of them has the size 1."""
    *outer, rows, columns = shape
    if 1 in (rows, columns):
        return emit.reshape(x, (*outer, columns, rows), "turned")
    rank = len(shape)
    return emit("Transpose", x, attributes={"perm": [*range(rank - 2), rank - 1, rank - 2]}, label="turned")


def _by_row(x: ir.Value, index: ir.Value, weights: Array, steps: Array | None, emit: Emitter) -> ir.Value:
    """`x[b] @ weights[index[b]]` for every b, one after the other: `[B, M, K]` to `[B, M, N]`."""
    batch, rows, inner = shape_of(x) or ()
    count, _, columns = weights.shape
    largest = np.abs(weights).max(axis=1, keepdims=True)
    if steps is not None:
        # Codes of 4 bits, whose scales in blocks are whole parts of that of all columns.
        largest = np.maximum(largest, steps.max(axis=1, keepdims=True) * STEPS)
    largest[largest == 0] = 1
    numbers = (weights / largest).astype(np.float32)
    parts = _parts(inner, columns)
    stacks = [np.ascontiguousarray(numbers[:, :, part.start : part.stop]) for part in parts]
    shares = None if steps is None else steps / largest
    tables = []
    for stack, part in zip(stacks, parts, strict=True):
        own = None if shares is None else np.ascontiguousarray(shares[:, :, part.start : part.stop])
        own = None if own is None else own.reshape(count, -1)
        tables.append(emit.constant(stack.reshape(count, -1), "matrices", steps=own))
    factors = emit.constant(largest.reshape(count, columns).astype(np.float32), "factors")
    # All indices first: what is loaded by them need not wait for the products before.
    ones = (
        [index] if batch == 1 else [emit.slice(index, 0, range(b, b + 1), f"index{b}") for b in range(batch)]
    )
    made = []
    for b, one in enumerate(ones):
        row = emit.slice(x, 0, range(b, b + 1), f"part{b}") if batch > 1 else x
        row = emit.reshape(row, (rows, inner), f"row{b}")
        products = []
        for table, part in zip(tables, parts, strict=True):
            matrix = emit("Gather", table, one, attributes={"axis": 0}, label=f"picked{b}")
            matrix = emit.reshape(matrix, (inner, len(part)), f"matrix{b}")
            products.append(emit("MatMul", row, matrix, label=f"product{b}"))
        whole = products[0]
        if len(parts) > 1:
            whole = emit("Concat", *products, attributes={"axis": 1}, label=f"joined{b}")
        made.append(emit.reshape(whole, (1, rows, columns), f"products{b}"))
    every = emit("Concat", *made, attributes={"axis": 0}, label="products") if batch > 1 else made[0]
    picked = emit("Gather", factors, index, attributes={"axis": 0}, label="picked_factors")
    return emit("Mul", every, emit.reshape(picked, (batch, 1, columns), "by_row"), label="scaled")


def _parts(inner: int, columns: int) -> list[range]:
    """The columns of each table: two of large matrices, for a table lies in one channel of memory."""
    half = -(-columns // (2 * TILE)) * TILE
    if columns <= TILE or inner * columns < LARGE:
        return [range(columns)]
    return [range(half), range(half, columns)]


def _by_matrix(x: ir.Value, index: ir.Value, weights: Array, steps: Array | None, emit: Emitter) -> ir.Value:
    """As `_by_row`, but with every matrix once for all rows."""
    batch, rows, inner = shape_of(x) or ()
    count, _, columns = weights.shape
    repeated = _repeated(x)
    source, times = repeated if repeated is not None else (x, 1)
    flat = emit.reshape(source, (batch // times * rows, inner), "all_rows")
    truths = emit.constant(np.eye(count, dtype=np.float32), "truths")
    is_chosen = emit("Gather", truths, index, attributes={"axis": 0}, label="is_chosen")
    half = emit.constant(np.full((), 0.5, np.float32), "half")
    y: ir.Value | None = None
    for e in range(count):
        own = None if steps is None else np.ascontiguousarray(steps[e])
        matrix = emit.constant(np.ascontiguousarray(weights[e]), f"matrix{e}", steps=own)
        product = emit("MatMul", flat, matrix, label=f"product{e}")
        product = emit.reshape(product, (batch // times, 1, rows, columns), f"products{e}")
        if y is None:
            y = (
                product
                if times == 1
                else emit(
                    "Expand",
                    product,
                    emit.integers([batch // times, times, rows, columns], "all"),
                    label="first",
                )
            )
            continue
        column = emit.slice(is_chosen, 1, range(e, e + 1), f"column{e}")
        condition = emit(
            "Less", half, emit.reshape(column, (batch // times, times, 1, 1), f"by_row{e}"), label=f"is{e}"
        )
        y = emit("Where", condition, product, y, label=f"kept{e}")
    assert y is not None, "there is a matrix to choose"
    return emit.reshape(y, (batch, rows, columns), "by_row")


def _repeated(x: ir.Value) -> tuple[ir.Value, int] | None:
    """What `[B, M, K]` repeats row by row so many times in a row; None where it does not."""
    value: ir.Value | None = x
    while (node := produced_by(value, "Reshape")) is not None:
        value = node.inputs[0]
    node = produced_by(value, "Expand")
    _, rows, inner = shape_of(x) or ()
    before, after = (None, None) if node is None else (shape_of(node.inputs[0]), shape_of(node.outputs[0]))
    if node is None or before is None or after is None or len(before) != len(after) or rows != 1:
        return None
    changed = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(changed) != 1 or math.prod(after[changed[0] + 1 :]) != inner:
        return None
    return node.inputs[0], after[changed[0]]  # type: ignore[return-value]


RULES: Rules = {"MatMul": [chosen_products]}
"""To be applied once no index can become constant, and before matrices are picked in any other way."""
