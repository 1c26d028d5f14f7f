"""Thresholds by divergence, in NumPy: all of them, so that the widest of the best can be taken.

The divergence of a threshold is that of `crates/statistics/src/kld.rs`, which finds the single best one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow._core import Histogram

__all__ = ["divergences", "widest_of_best"]


def widest_of_best(histogram: Histogram, levels: int, top: int) -> tuple[float, float]:
    """The observed range, clipped at the largest of the `top` magnitudes of least divergence."""
    low, high = histogram.range
    counts = magnitudes(histogram)
    if len(counts) <= levels:
        return low, high
    found = divergences(counts, levels)
    best = np.argsort(found[::-1], kind="stable")[:top]  # of equals the widest first
    bins = len(counts) - int(best.min())
    if bins == len(counts):
        return low, high
    threshold = bins * histogram.width
    return max(low, -threshold), min(high, threshold)


def magnitudes(histogram: Histogram) -> NDArray[np.float64]:
    """Counts by magnitude up to the last one in use; the first counts no more than the second."""
    negative, positive = histogram.negative, histogram.positive
    counts = np.zeros(max(len(negative), len(positive)))
    counts[: len(negative)] += negative
    counts[: len(positive)] += positive
    used = np.flatnonzero(counts)
    counts = counts[: used[-1] + 1] if len(used) else counts[:0]
    if len(counts) > 1:
        counts[0] = min(counts[0], counts[1])
    return counts


def divergences(counts: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """The divergence of keeping `levels`, `levels + 1`, ... all bins."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts), 0.0)
    mass, entropy, occupied = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (counts, terms, (counts > 0) * 1.0)
    )
    total = mass[-1]
    found = []
    for bins in range(levels, len(counts) + 1):
        kept, last = mass[bins], counts[bins - 1]
        tail = total - kept
        if kept == 0:
            found.append(np.inf)
            continue
        edges = np.arange(levels + 1) * bins // levels
        group, used = np.diff(mass[edges]), np.diff(occupied[edges])
        reference = group.copy()
        reference[-1] += tail
        used[-1] += float(last == 0 and tail > 0)
        closing = last + tail
        spread = entropy[bins - 1] + (closing * np.log(closing) if closing > 0 else 0.0)
        meant = reference > 0
        with np.errstate(divide="ignore"):
            spread -= float(reference[meant] @ np.log(group[meant] / used[meant]))
        found.append(spread / total + np.log(kept / total))
    return np.array(found)
