"""Operators that pick and place by index.

With constant indices, picking is Gather along one axis of a reshaped operand, and placing is picking from the
operand and the updates laid end to end, in runs:

    GatherElements, GatherND             ->  Reshape, Gather, Reshape
    ReverseSequence, Compress            ->  Gather
    ScatterND, ScatterElements           ->  Concat of slices of operand and updates, or Concat and Gather
    the same with a reduction            ->  likewise, of what was in those places (op) the updates;
                                             sums: operand + updates among zeros

With indices known only at run time, picking asks every place whether it is the one:

    GatherElements(x, i)[j]              ->  sum over k of where(i[j] = k, x[k], 0)
    ScatterElements(x, i, u)             ->  where(i[k] = (0, 1, ...), u[k], ..) for every k
    Gather(x, i)                         ->  (i = 0, 1, ...) @ x

and OneHot, Hardmax and Trilu are comparisons and choices.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.values import array_of, input_at, integers_of, scalar_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LATE", "RULES"]

Array = npt.NDArray[Any]
MOST_RUNS = 64
"""Slices a Concat may join; beyond that elements are picked one by one."""
MOST_ROUNDS = 16
"""Updates that may meet in one place."""
MOST_COMPARED = 1 << 24
"""Elements a choice by index may compare."""
NEUTRAL = {"add": 0.0, "mul": 1.0}
"""Neutral element; of maximum and minimum it is infinite, which no grid has."""
REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def _gather_rows(
    x: ir.Value, size: int, rest: Sequence[int], places: Array, emit: Emitter, label: str
) -> ir.Value:
    """Rows `places` of `x` seen as [size, rest]."""
    rows = emit.reshape(x, (size, *rest), f"{label}_rows")
    return emit(
        "Gather", rows, emit.integers(places.ravel().tolist(), f"{label}_places"), attributes={"axis": 0}
    )


def _valid(indices: Array, size: int | Array) -> Array | None:
    """Indices counted from the front; None where one lies outside, or there are more of them than axes."""
    if isinstance(size, np.ndarray) and size.shape != indices.shape[-1:]:
        return None
    if np.any(indices < -np.asarray(size)) or np.any(indices >= size):
        return None
    return np.where(indices < 0, indices + size, indices).astype(np.int64)


def gather_elements(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Constant indices for every element of the result."""
    x, shape, indices = node.inputs[0], shape_of(node.inputs[0]), array_of(node.inputs[1])
    if x is None or not shape or indices is None or indices.size == 0:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    along = _valid(indices, shape[axis])
    if along is None:
        return None
    line = np.moveaxis(along, axis, 0).reshape(along.shape[axis], -1)
    whole = all(a == b for k, (a, b) in enumerate(zip(shape, along.shape, strict=True)) if k != axis)
    if whole and np.all(line == line[:, :1]):
        return emit("Gather", x, emit.integers(line[:, 0].tolist(), "indices"), attributes={"axis": axis})
    grid: list[Array] = list(np.indices(along.shape))
    grid[axis] = along
    flat = np.ravel_multi_index(grid, shape)
    return emit.reshape(_gather_rows(x, math.prod(shape), (), flat, emit, "elements"), along.shape, "shape")


def gather_nd(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Constant indices of several axes are indices of those axes as one."""
    x, shape, indices = node.inputs[0], shape_of(node.inputs[0]), array_of(node.inputs[1])
    y = shape_of(node.outputs[0])
    if x is None or not shape or indices is None or y is None or indices.size == 0:
        return None
    batch, depth = node.attributes.get_int("batch_dims", 0), indices.shape[-1]
    places = _valid(indices, np.array(shape[batch : batch + depth]))
    if places is None:
        return None
    outer = np.indices(places.shape[:-1])[:batch]
    axes = [*outer, *np.moveaxis(places, -1, 0)]
    flat = np.ravel_multi_index(axes, shape[: batch + depth])
    size, rest = math.prod(shape[: batch + depth]), shape[batch + depth :]
    return emit.reshape(_gather_rows(x, size, rest, flat, emit, "rows"), y, "shape")


def gather_matrices(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Indices of the first axis alone, known at run time only."""
    x, indices, picked = node.inputs[0], node.inputs[1], shape_of(node.inputs[1])
    if x is None or indices is None or not picked or array_of(indices) is not None or array_of(x) is None:
        return None
    if picked[-1] != 1 or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    return emit("Gather", x, emit.reshape(indices, picked[:-1], "indices"), attributes={"axis": 0})


def scatter_elements(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Updates of single elements at constant places."""
    shape, indices = shape_of(node.inputs[0]), array_of(node.inputs[1])
    if not shape or indices is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    along = _valid(indices, shape[axis])
    if along is None or any(count > size for count, size in zip(along.shape, shape, strict=True)):
        return None
    grid: list[Array] = list(np.indices(along.shape))
    grid[axis] = along
    return _scatter_rows(node, np.ravel_multi_index(grid, shape).ravel(), math.prod(shape), (), emit)


def scatter_nd(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Updates of rows at constant places."""
    shape, indices = shape_of(node.inputs[0]), array_of(node.inputs[1])
    if not shape or indices is None:
        return None
    depth = indices.shape[-1]
    places = _valid(indices, np.array(shape[:depth]))
    if places is None:
        return None
    flat = np.ravel_multi_index(list(np.moveaxis(places, -1, 0)), shape[:depth]).ravel()
    return _scatter_rows(node, flat, math.prod(shape[:depth]), shape[depth:], emit)


def _scatter_rows(
    node: ir.Node, places: Array, size: int, rest: Sequence[int], emit: Emitter
) -> ir.Value | None:
    """`x` seen as [size, rest], with update k (reduced) into row places[k]."""
    x, updates, shape = node.inputs[0], input_at(node, 2), shape_of(node.inputs[0])
    if x is None or updates is None or shape is None:
        return None
    if places.size == 0:
        return x
    reduction = node.attributes.get_string("reduction", "none")
    rounds = [places] if reduction == "none" else []
    order = _occurrences(places)
    if reduction != "none":
        if reduction not in REDUCTIONS or order.max() >= MOST_ROUNDS:
            return None
        rounds = [np.where(order == k, places, -1) for k in range(int(order.max()) + 1)]
    rows = emit.reshape(x, (size, *rest), "rows")
    new = emit.reshape(updates, (places.size, *rest), "updates")
    # Zero lies on every grid; a one among updates known beforehand is folded into their constant.
    placed = reduction == "add" or (reduction == "mul" and updates.const_value is not None)
    for turn in rounds:
        kept = np.flatnonzero(turn >= 0)
        if placed:
            source = np.zeros(size, int)
            source[turn[kept]] = 1 + kept
            neutral = emit.constant(np.full((1, *rest), NEUTRAL[reduction]), "neutral", like=x)
            rows = emit(REDUCTIONS[reduction], rows, _join_rows(neutral, new, source, 1, emit))
            continue
        written = new
        if reduction != "none":
            before = _join_rows(rows, new, turn[kept], size, emit)
            written = emit(REDUCTIONS[reduction], before, _join_rows(new, rows, kept, places.size, emit))
        # Row k of the result is row k of what was, or of what is written: of several the last.
        source = np.arange(size)
        source[turn[kept]] = size + np.arange(len(kept))
        rows = _join_rows(rows, written, source, size, emit)
    return emit.reshape(rows, shape, "shape")


def _occurrences(places: Array) -> Array:
    """How many equal places come before each."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    counts = np.empty(len(places), np.int64)
    counts[order] = np.arange(len(ordered)) - starts
    return counts


def _join_rows(a: ir.Value, b: ir.Value, source: Array, size: int, emit: Emitter) -> ir.Value:
    """Rows `source` of `a` (below `size`) and `b` (from `size` on)."""
    breaks = np.flatnonzero((np.diff(source) != 1) | (source[1:] == size)) + 1
    bounds = [0, *breaks.tolist(), len(source)]
    if len(bounds) - 1 > MOST_RUNS:
        both = a if source.max() < size else emit("Concat", a, b, attributes={"axis": 0})
        return emit("Gather", both, emit.integers(source.tolist(), "sources"), attributes={"axis": 0})
    parts = []
    for start, end in pairwise(bounds):
        first = int(source[start])
        value, offset = (a, 0) if first < size else (b, size)
        parts.append(emit.slice(value, 0, range(first - offset, first - offset + end - start)))
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, attributes={"axis": 0})


def reversed_sequence(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The first elements of each sequence in reverse, for constant lengths."""
    x, shape, lengths = node.inputs[0], shape_of(node.inputs[0]), integers_of(input_at(node, 1))
    batch, time = node.attributes.get_int("batch_axis", 1), node.attributes.get_int("time_axis", 0)
    if x is None or shape is None or lengths is None or {batch, time} != {0, 1}:
        return None
    steps = np.tile(np.arange(shape[time]), (shape[batch], 1))
    for row, length in zip(steps, lengths, strict=True):
        row[:length] = row[:length][::-1]
    rows = np.arange(shape[batch])[:, np.newaxis]
    flat = rows * shape[time] + steps if batch == 0 else (steps * shape[batch] + rows).T
    picked = _gather_rows(x, shape[0] * shape[1], shape[2:], flat, emit, "steps")
    return emit.reshape(picked, shape, "shape")


def compress(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Indices a constant condition picks."""
    x, shape, condition = node.inputs[0], shape_of(node.inputs[0]), array_of(node.inputs[1])
    if x is None or shape is None or condition is None:
        return None
    places = np.flatnonzero(condition)
    if "axis" not in node.attributes:
        return _gather_rows(x, math.prod(shape), (), places, emit, "elements") if len(places) else None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if not len(places):
        return None
    return emit("Gather", x, emit.integers(places.tolist(), "places"), attributes={"axis": axis})


def triangle(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The upper or lower triangle is chosen, the rest 0."""
    x, shape, offset = node.inputs[0], shape_of(node.inputs[0]), input_at(node, 1)
    k = 0.0 if offset is None else scalar_of(offset)
    if x is None or shape is None or x.dtype is None or k is None:
        return None
    if array_of(x) is not None:
        return None
    ones = np.ones(shape[-2:], bool)
    k = min(max(k, -max(shape)), max(shape))  # further off is all or nothing as well
    keep = np.triu(ones, int(k)) if node.attributes.get_int("upper", 1) else np.tril(ones, int(k))
    zero = emit.constant(np.zeros(()), "zero", like=x)
    return emit("Where", emit.constant(keep, "triangle"), x, zero)


def one_hot(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Compares indices with 0, 1, ... and with -depth, ..., -1."""
    indices, depth, values = node.inputs[0], scalar_of(node.inputs[1]), node.inputs[2]
    shape, y = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if indices is None or depth is None or shape is None or values is None or indices.dtype is None:
        return None
    count = int(depth)
    axis = node.attributes.get_int("axis", -1) % (len(shape) + 1)
    column = emit.reshape(indices, (*shape[:axis], 1, *shape[axis:]), "column")
    halves = ((range(1), "off"), (range(1, 2), "on"))
    off, on = (emit.reshape(emit.slice(values, 0, half), (), label) for half, label in halves)
    chosen = emit("Where", _is_index(column, count, len(shape) - axis, emit), on, off)
    return chosen if y is None or shape_of(chosen) == y else emit.reshape(chosen, y, "shape")


def _is_index(column: ir.Value, count: int, behind: int, emit: Emitter) -> ir.Value:
    """Whether a number is the index along a new axis of `count`, which has `behind` axes behind it."""
    places = np.arange(count).reshape(-1, *(1,) * behind)
    forwards = emit("Equal", column, emit.constant(places, "places", like=column), label="is_place")
    backwards = emit("Equal", column, emit.constant(places - count, "back", like=column), label="is_back")
    return emit("Or", forwards, backwards)


def hardmax(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """1 at the first maximum, else 0."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if x is None or shape is None:
        return None
    axis = node.attributes.get_int("axis", -1) % len(shape)
    peak = emit("ArgMax", x, attributes={"axis": axis, "keepdims": 1})
    places = np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - 1 - axis))
    here = emit("Equal", peak, emit.constant(places, "places", like=peak))
    return emit("Cast", here, attributes={"to": int(x.dtype or ir.DataType.FLOAT)})


def chosen_elements(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """GatherElements with indices known at run time only: compares each with every place."""
    x, indices = node.inputs[0], node.inputs[1]
    shape, wanted = shape_of(x), shape_of(indices)
    if x is None or indices is None or not shape or wanted is None or x.dtype is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if math.prod(wanted) * shape[axis] > MOST_COMPARED or x.dtype == ir.DataType.BOOL:
        return None
    for k, (size, part) in enumerate(zip(shape, wanted, strict=True)):
        if k != axis and part != size:
            x = emit.slice(x, k, range(part), f"part{k}")
    column = emit.reshape(indices, (*wanted, 1), "column")
    here = _is_index(column, shape[axis], 0, emit)
    order = [*(k for k in range(len(shape)) if k != axis), axis]
    last = emit("Transpose", x, attributes={"perm": order}) if order != sorted(order) else x
    outer = [part for k, part in enumerate(wanted) if k != axis]
    lines = emit.reshape(last, (*outer[:axis], 1, *outer[axis:], shape[axis]), "lines")
    kept = emit("Where", here, lines, emit.constant(np.zeros(()), "zero", like=x))
    return emit("ReduceSum", kept, emit.integers([len(shape)], "axes"), attributes={"keepdims": 0})


def chosen_rows(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Gather with indices known at run time only, of other than table rows: a product with 0 and 1."""
    x, indices, y = node.inputs[0], node.inputs[1], shape_of(node.outputs[0])
    shape, wanted = shape_of(x), shape_of(indices)
    if (
        x is None
        or indices is None
        or not shape
        or wanted is None
        or y is None
        or array_of(indices) is not None
    ):
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if x.dtype != ir.DataType.FLOAT or not 0 < math.prod(wanted) * shape[axis] <= MOST_COMPARED:
        return None
    if array_of(x) is not None and axis == 0:
        if len(shape) == 2:
            return None  # an embedding
        table = emit.reshape(x, (shape[0], math.prod(shape[1:])), "table")
        return emit.reshape(
            emit("Gather", table, indices, attributes={"axis": 0}, label="picked"), y, "shape"
        )
    order = [axis, *(k for k in range(len(shape)) if k != axis)]
    first = emit("Transpose", x, attributes={"perm": order}) if order != sorted(order) else x
    rows = emit.reshape(first, (shape[axis], math.prod(shape) // shape[axis]), "rows")
    column = emit.reshape(indices, (math.prod(wanted), 1), "column")
    here = _is_index(column, shape[axis], 0, emit)
    taken = emit("MatMul", emit("Cast", here, attributes={"to": int(ir.DataType.FLOAT)}), rows)
    rest = [shape[k] for k in order[1:]]
    placed = emit.reshape(taken, (*wanted, *rest), "placed")
    count = len(wanted)
    # [wanted, before, after] -> [before, wanted, after]
    back = [*range(count, count + axis), *range(count), *range(count + axis, count + len(rest))]
    return emit("Transpose", placed, attributes={"perm": back}) if back != sorted(back) else placed


RULES: Rules = {
    "GatherElements": [gather_elements],
    "GatherND": [gather_nd, gather_matrices],
    "ScatterElements": [scatter_elements],
    "Scatter": [scatter_elements],
    "ScatterND": [scatter_nd],
    "ReverseSequence": [reversed_sequence],
    "Compress": [compress],
    "Trilu": [triangle],
    "OneHot": [one_hot],
    "Hardmax": [hardmax],
}


def placed_elements(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """ScatterElements with indices known at run time only: asks every place whether an update is for it."""
    x, indices, updates = node.inputs[0], node.inputs[1], input_at(node, 2)
    shape, wanted = shape_of(x), shape_of(indices)
    if x is None or indices is None or updates is None or not shape or not wanted or x.dtype is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    rest = [k for k in range(len(shape)) if k != axis]
    if (
        wanted[axis] > MOST_ROUNDS
        or any(shape[k] != wanted[k] for k in rest)
        or array_of(indices) is not None
    ):
        return None
    if node.attributes.get_string("reduction", "none") != "none" or x.dtype != ir.DataType.FLOAT:
        return None
    if math.prod(shape) * wanted[axis] > MOST_COMPARED:
        return None
    y = x
    for k in range(wanted[axis]):
        column = emit.slice(indices, axis, range(k, k + 1), f"index{k}")
        here = _is_index(column, shape[axis], len(shape) - 1 - axis, emit)
        update = emit.slice(updates, axis, range(k, k + 1), f"update{k}")
        y = emit("Where", here, update, y, label=f"placed{k}")
    return y


LATE: Rules = {
    "GatherElements": [chosen_elements],
    "Gather": [chosen_rows],
    "ScatterElements": [placed_elements],
}
"""To be applied once no index can become constant any more."""
