"""Caches of a fixed length, of which a row is written at a place that is known at run time.

    TensorScatter(cache, rows, w), w constant     ->  Concat(cache before, rows, cache behind)
    TensorScatter(cache, row, w)                  ->  Where(place = w, row, cache)
    ScatterElements, ScatterND of one row         ->  likewise

`w` must be computed of an input of a known bound (`state_bound`) alone: which places it stands for is a row
of a table then. Several rows at once are placed by a product with ones and zeros.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.rewrites.tables import LARGEST_TABLE, function_rows
from tpuflow.frontend.values import array_of, input_at, shape_of

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

Array = npt.NDArray[Any]


def _rows(table: Array, source: ir.Value, shape: tuple[int, ...], emit: Emitter, label: str) -> ir.Value:
    """The row of a table an input of one element picks, in a shape."""
    picked = emit("Gather", emit.constant(table.astype(np.float32), label), source, attributes={"axis": 0})
    return emit.reshape(picked, shape, f"{label}_shape")


def _write_rows(
    cache: ir.Value, rows: ir.Value, axis: int, source: ir.Value, first: Array, emit: Emitter
) -> ir.Value | None:
    """A cache with rows from the place on that `first` holds for every value of the input."""
    shape, new = shape_of(cache) or (), shape_of(rows) or ()
    size, count = shape[axis], new[axis]
    if len(first) * size * count > LARGEST_TABLE or math.prod(shape_of(source) or (0,)) != 1:
        return None
    places = np.arange(size)[np.newaxis, :, np.newaxis] - first[:, np.newaxis, np.newaxis]
    hits = places == np.arange(count)[np.newaxis, np.newaxis]  # [values, size, count]
    spread = tuple(size if at == axis else 1 for at in range(len(shape)))
    inside = _rows(hits.any(axis=2), source, spread, emit, "written")
    if count > 1:
        if axis != len(shape) - 2:
            return None
        ones = (*[1] * (len(shape) - 2), size, count)
        table = hits.reshape(len(first), -1)
        rows = emit("MatMul", _rows(table, source, ones, emit, "placing"), rows, label="placed")
    truth = emit("Less", emit.constant(np.float32(0.5), "half"), inside, label="truth")
    return emit("Where", truth, rows, cache, label="cache")


def tensor_scatter(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """TensorScatter of one sequence."""
    cache, rows, first = node.inputs[0], node.inputs[1], input_at(node, 2)
    shape, new = shape_of(cache), shape_of(rows)
    if cache is None or rows is None or not shape or not new or shape[0] != 1:
        return None
    axis = node.attributes.get_int("axis", -2) % len(shape)
    circular = node.attributes.get_string("mode", "linear") == "circular"
    size, count = shape[axis], new[axis]
    known = np.zeros(1, np.int64) if first is None else array_of(first)
    if known is not None:
        start = int(known.ravel()[0]) % size if circular else int(known.ravel()[0])
        if start < 0 or start + count > size:
            return None
        parts = [_part(cache, axis, 0, start, emit), rows, _part(cache, axis, start + count, size, emit)]
        return emit("Concat", *[part for part in parts if part is not None], attributes={"axis": axis})
    found = None if first is None else function_rows(first)
    if found is None:
        return None
    source, table = found
    places = np.rint(table[:, 0]).astype(np.int64)
    if circular:
        if count > 1:
            return None
        places = places % size
    return _write_rows(cache, rows, axis, source, places, emit)


def _part(x: ir.Value, axis: int, first: int, last: int, emit: Emitter) -> ir.Value | None:
    return emit.slice(x, axis, range(first, last), "part") if first < last else None


def scatter_one_row(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """ScatterElements and ScatterND of one whole row, without a reduction."""
    data, indices, rows = node.inputs[:3]
    shape, new = shape_of(data), shape_of(rows)
    if (
        data is None
        or indices is None
        or rows is None
        or not shape
        or not new
        or array_of(indices) is not None
    ):
        return None
    if node.attributes.get_string("reduction", "none") != "none" or len(new) != len(shape):
        return None
    elements = node.op_type == "ScatterElements"
    axis = node.attributes.get_int("axis", 0) % len(shape) if elements else 0
    if new != tuple(1 if at == axis else size for at, size in enumerate(shape)):
        return None
    if not elements and shape_of(indices) != (1, 1):
        return None
    found = function_rows(indices)
    if found is None or not np.all(found[1] == found[1][:, :1]):
        return None
    places = np.rint(found[1][:, 0]).astype(np.int64)
    return _write_rows(data, rows, axis, found[0], np.where(places < 0, places + shape[axis], places), emit)


RULES: Rules = {
    "TensorScatter": [tensor_scatter],
    "ScatterElements": [scatter_one_row],
    "ScatterND": [scatter_one_row],
}
