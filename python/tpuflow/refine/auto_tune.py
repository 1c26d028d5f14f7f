"""Ranges of operands tuned on what their readers make of them.

`kld` looks at a tensor's own distribution alone, and extrema clip nothing. Between the range of the one and
that of the other lie candidates at even distances; taken is the one with which the sums of the readers,
computed with weights as they are stored, are nearest to those in float. Of several readers the furthest
counts, each in parts of its own sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpuflow.calibrate import Range, Ranges
from tpuflow.refine.easy_quant import rounded
from tpuflow.refine.operands import Operand, operand_grid, stored

if TYPE_CHECKING:
    from tpuflow.config import Config
    from tpuflow.quantize.scheme import Quant
    from tpuflow.refine.layers import LinearLayer

__all__ = ["Reader", "candidates", "distance", "reader", "tuned"]


def candidates(cut: Range, whole: Range, count: int) -> list[Range]:
    """So many ranges from one to the other, both among them.

    Args:
        cut: The narrower one.
        whole: The wider one.
        count: At least 2.
    """
    (low, high), (least, most) = cut.pairs[0], whole.pairs[0]
    shares = np.linspace(0, 1, count)
    return [Range(low + share * (least - low), high + share * (most - high)) for share in shares]


@dataclass(frozen=True)
class Reader:
    """A layer that reads an operand.

    Attributes:
        met: What its weights meet, `[groups, columns, k]`.
        weights: As they are stored, `[groups, k, rows]`.
        sums: What float weights make of it, `[groups, columns, rows]`.
    """

    met: NDArray[np.float32]
    weights: NDArray[np.float32]
    sums: NDArray[np.float32]


def reader(layer: LinearLayer, met: NDArray[np.float32], largest: int) -> Reader:
    """A layer whose weights have codes up to `largest`, rounded to the nearest."""
    weights = layer.weights
    reach = np.abs(weights).max(axis=2)
    steps = np.where(reach > 0, reach, 1.0) / largest
    kept = rounded(weights, steps, largest) * steps[..., np.newaxis]
    plain, codes = (each.transpose(0, 2, 1).astype(np.float32) for each in (weights, kept))
    return Reader(met, codes, met @ plain)


def distance(readers: Sequence[Reader], grid: Quant | None) -> float:
    """How far sums over an operand on a grid are from float, in parts of those: of the furthest reader."""
    found = 0.0
    for each in readers:
        norm = float(np.linalg.norm(each.sums)) or 1.0
        found = max(found, float(np.linalg.norm(stored(each.met, grid) @ each.weights - each.sums)) / norm)
    return found


def tuned(
    operand: Operand,
    layers: Mapping[LinearLayer, int],
    ranges: Ranges,
    config: Config,
    between: Sequence[Range],
) -> Ranges:
    """Ranges with that of an operand replaced by the one, of its own and some more, of the least distance.

    Args:
        operand: With its readers and what they meet.
        layers: The largest code of every layer.
        ranges: Of all values.
        config: How values are stored.
        between: What else the operand may have.
    """
    readers = [reader(layer, x, layers[layer]) for layer, x in operand.layers]
    tried = [ranges, *(replace(ranges, tensors={**ranges.tensors, operand.name: found}) for found in between)]
    return min(tried, key=lambda each: distance(readers, operand_grid(operand.name, each, config)))
