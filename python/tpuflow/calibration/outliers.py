"""Values far from the mean left out before a range is chosen.

What a file states stays as it is. What is left reaches less far, and bins are as fine as follows from how
far values reach: each of the old ones becomes so many new ones, over which its values are spread evenly.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration.statistics import Histogram
from tpuflow.errors import RangesError
from tpuflow.strategies import moments_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.calibration.statistics import TensorStatistics

__all__ = ["without_outliers"]


def without_outliers(tensor: TensorStatistics, deviations: float) -> TensorStatistics:
    """Statistics within so many standard deviations of the mean; counts leave by whole bins.

    Raises:
        RangesError: The statistics have no histogram.
    """
    if tensor.histogram is None:
        raise RangesError(
            "z_threshold needs a histogram, which its statistics lack: leave it out for this tensor"
        )
    counts = tensor.counts
    if counts.extrema is None or counts.width == 0:
        return tensor
    found = moments_of(tensor)
    low = min(found.mean - deviations * found.deviation, 0.0)
    high = max(found.mean + deviations * found.deviation, 0.0)
    if low <= counts.extrema[0] and counts.extrema[1] <= high:
        return tensor

    def within(pair: tuple[float, float]) -> tuple[float, float]:
        return min(max(pair[0], low), high), min(max(pair[1], low), high)

    batches = [within(pair) for pair in tensor.batches]
    return replace(tensor, batches=batches, histogram=_cut(counts, low, high))


def _cut(counts: Histogram, low: float, high: float) -> Histogram:
    """The bins whose middles lie between two bounds."""
    middles = (np.arange(len(counts.positive)) + 0.5) * counts.width
    above = np.where(middles <= high, counts.positive, 0)
    below = np.where(-middles >= low, counts.negative, 0)
    assert counts.extrema is not None, "there are values"
    # The ends of the last bins, or what was seen short of them.
    reach = [float(np.max(np.flatnonzero(side), initial=-1) + 1) * counts.width for side in (below, above)]
    if not any(reach):
        return Histogram.of_counts(
            counts.bins,
            width=0.0,
            zeros=max(1, counts.zeros),
            negative=[0] * len(below),
            positive=[0] * len(above),
            extrema=(0.0, 0.0),
        )
    extrema = max(counts.extrema[0], -reach[0]), min(counts.extrema[1], reach[1])
    width = 2.0 ** max(math.frexp(max(-extrema[0], extrema[1]))[1] - 1 - counts.bins.bit_length() + 1, -126)
    parts = round(counts.width / width)
    return Histogram.of_counts(
        counts.bins,
        width=width,
        zeros=counts.zeros,
        negative=_finer(below, parts).tolist(),
        positive=_finer(above, parts).tolist(),
        extrema=extrema,
    )


def _finer(counts: NDArray[Any], parts: int) -> NDArray[Any]:
    """As many bins, each so many times finer: the others are empty."""
    kept = counts[: len(counts) // parts]
    spread = np.repeat(kept // parts, parts)
    spread[parts // 2 :: parts] += kept % parts
    return np.concatenate([spread, np.zeros(len(counts) - len(spread), counts.dtype)])
