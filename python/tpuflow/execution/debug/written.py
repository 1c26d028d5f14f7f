"""Which elements of its layer's tensor an instruction writes, and at which bytes.

Worked out from the instruction's own fields with NumPy, by the rules of docs/machine.md; nothing is shared
with the simulator. Results that are not yet the layer's, such as the running sums of a reduction, and
operands that are copied on the way to another operator give nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOVEMENT", "Written", "written_elements"]

Numbers = NDArray[np.int64]
MOVEMENT = frozenset({"concat", "embedding", "gather", "insert_zeros", "pad", "rearrange", "rescale"})
"""Operators that may be copies, element by element."""

CARRIED = frozenset({"Move", "Gather", "Fill", "Constant"})
"""Elementwise operations that may write an element which a later one of the same layer replaces."""


@dataclass(frozen=True)
class Written:
    """The elements that an instruction writes.

    Attributes:
        elements: Of the layer's tensor, row-major.
        addresses: Their first bytes in the cache.
        final: Whether no later instruction may replace them.
    """

    elements: Numbers
    addresses: Numbers
    final: bool


def written_elements(
    entry: Mapping[str, Any],
    descriptors: Sequence[Mapping[str, Any]],
    shape: Sequence[int],
    op: str,
    word: int,
) -> Written | None:
    """Elements that an instruction writes of its layer's tensor, and their places in the cache.

    Args:
        entry: The instruction.
        descriptors: Those of the program.
        shape: Of the layer's tensor.
        op: The layer's operator.
        word: Bytes of a cache word.
    """
    (kind, work), *_ = entry["work"].items()
    name = ""
    if kind == "Matrix":
        elements = _tile(work)
    elif kind == "Pool":
        elements = _rows(work)
    elif kind in {"Lookup", "PackedLookup"}:
        first, channels = work["first"], work["output"]["channels"]
        elements = _stretch(first * channels, (first + work["count"]) * channels)
    elif kind == "Vector":
        name, fields = _operation(descriptors[work["descriptor"]]["Vector"])
        if fields.get("partial") or (name in CARRIED and op not in MOVEMENT):
            return None
        elements = _of_vector(name, fields, work)
    else:
        return None
    return Written(*_element_addresses(elements, work["output"], shape, word), name not in CARRIED)


def _operation(descriptor: Any) -> tuple[str, Mapping[str, Any]]:
    """Name and fields of what an elementwise instruction computes, of integers or floats."""
    if isinstance(descriptor, str):
        return descriptor, {}
    ((name, fields),) = descriptor.items()
    if name == "Float":
        return _operation(fields["function"])
    return name, fields if isinstance(fields, Mapping) else {}


def _of_vector(name: str, fields: Mapping[str, Any], work: Mapping[str, Any]) -> Numbers:
    """Row-major elements of its view that an elementwise instruction writes."""
    first, count, view = work["first_row"], work["rows"], work["output"]
    if name == "Move":
        extents = [count, *fields["dims"][1:]]
        loops = np.indices(extents, np.int64).reshape(len(extents), -1)
        loops[0] += first
        moved: Numbers = np.array(fields["output_strides"], np.int64) @ loops + fields["output_offset"]
        return moved
    if name == "Gather":
        return _stretch(first * fields["inner"], (first + count) * fields["inner"])
    if name == "Reduce":
        return _stretch(0, view["rows"] * view["width"] * view["channels"])
    return _rows(work)


def _tile(work: Mapping[str, Any]) -> Numbers:
    """Elements of a column tile."""
    pixels = _stretch(work["first_pixel"], work["first_pixel"] + work["pixels"])
    columns = _stretch(work["output_channel"], work["output_channel"] + work["columns"])
    tile: Numbers = pixels[:, None] * work["output"]["channels"] + columns
    return tile.ravel()


def _rows(work: Mapping[str, Any]) -> Numbers:
    """Elements of whole rows."""
    row = work["output"]["width"] * work["output"]["channels"]
    return _stretch(work["first_row"] * row, (work["first_row"] + work["rows"]) * row)


def _stretch(first: int, end: int) -> Numbers:
    return np.arange(first, end, dtype=np.int64)


def _element_addresses(
    elements: Numbers, view: Mapping[str, Any], shape: Sequence[int], word: int
) -> tuple[Numbers, Numbers]:
    """Row-major elements of a view as those of the tensor, and their addresses."""
    channels, width = view["channels"], view["width"]
    pixels, channel = np.divmod(elements, channels)
    rows, columns = np.divmod(pixels, width)
    row_bytes = -(-width * view["pixel_bytes"] // word) * word
    slots = (rows - view["first_row"]) % max(1, view["stored_rows"])
    size = np.dtype("uint16" if view["dtype"] == "bfloat16" else view["dtype"]).itemsize
    addresses = view["address"] + slots * row_bytes + columns * view["pixel_bytes"]
    addresses += view["channel_offset"] + channel * size
    first_pixel, first_channel = view["origin"]
    if not first_pixel and not first_channel and view["rows"] * width * channels == math.prod(shape):
        return elements, addresses  # all of the tensor, which may have another shape
    whole = shape[-1] if shape else 1
    return (first_pixel + pixels) * whole + first_channel + channel, addresses
