"""Which elements of its layer's tensor an instruction writes, and at which bytes.

Worked out from the instruction's own fields with NumPy, by the rules of docs/machine.md; nothing is shared
with the simulator. What only moves data, and partial results that are not the layer's yet, give nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["written"]

Numbers = NDArray[np.int64]
PARTIAL = frozenset({"Move", "Gather", "Fill", "Constant", "Reduce", "ArgMax"})


def written(
    entry: Mapping[str, Any], descriptors: Sequence[Mapping[str, Any]], channels: int, word: int
) -> tuple[Numbers, Numbers] | None:
    """Elements of the tensor (row-major) and their byte addresses in the cache.

    Args:
        entry: The instruction.
        descriptors: Those of the program.
        channels: Of the layer's tensor.
        word: Bytes of a cache word.
    """
    (kind, work), *_ = entry["work"].items()
    if kind not in ("Matrix", "Pool", "Vector"):
        return None
    view = work["output"]
    width = view["width"]
    first, count = 0, view["channels"]
    if kind == "Matrix":
        pixels = np.arange(work["first_pixel"], work["first_pixel"] + work["pixels"], dtype=np.int64)
        first, count = work["output_channel"], work["columns"]
    else:
        if kind == "Vector" and not _final(descriptors[work["descriptor"]]["Vector"]):
            return None
        rows = np.arange(work["first_row"], work["first_row"] + work["rows"], dtype=np.int64)
        pixels = (rows[:, None] * width + np.arange(width, dtype=np.int64)).ravel()
    rows, columns = pixels // width, pixels % width
    row_bytes = -(-width * view["pixel_bytes"] // word) * word
    slots = (rows - view["first_row"]) % max(1, view["stored_rows"])
    start = view["address"] + slots * row_bytes + columns * view["pixel_bytes"] + view["channel_offset"]
    each = np.arange(first, first + count, dtype=np.int64)
    size = np.dtype(_numpy(view["dtype"])).itemsize
    addresses = start[:, None] + each * size
    elements = (view["origin"][0] + pixels)[:, None] * channels + view["origin"][1] + each
    return elements.ravel(), addresses.ravel()


def _names(value: Any) -> list[str]:
    """The name of a variant, with or without fields."""
    return [value] if isinstance(value, str) else list(value)


def _final(descriptor: Any) -> bool:
    """Whether an elementwise instruction computes elements of its layer, complete ones."""
    names = _names(descriptor)
    fields = descriptor[names[0]] if isinstance(descriptor, Mapping) else None
    if isinstance(fields, Mapping) and "function" in fields:
        names += _names(fields["function"])
    return PARTIAL.isdisjoint(names)


def _numpy(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype
