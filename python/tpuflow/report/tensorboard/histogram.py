"""Distributions of activations, gathered sample by sample on buckets that do not depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChannelStatistics", "Histogram"]

_POSITIVE = np.geomspace(1e-12, 1e20, 33 * 20)  # a twentieth of a decade each
EDGES = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])
"""Upper ends of the buckets, as fine relative to their numbers for small ones as for large ones."""


class Histogram:
    """Count, sum, extremes and buckets of all values seen."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.count, self.total, self.squares = 0, 0.0, 0.0
        self._counts = np.zeros(len(EDGES) + 1, np.int64)

    def observe(self, array: NDArray[Any]) -> None:
        """Counts the finite values of an array."""
        values = array[np.isfinite(array)].astype(np.float64, copy=False)
        if not values.size:
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.count += values.size
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())
        self._counts += np.bincount(np.searchsorted(EDGES, values), minlength=len(self._counts))

    def buckets(self) -> tuple[list[float], list[float]]:
        """Upper limits and counts, without the empty ends."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return [0.0], [0.0]
        kept = slice(max(0, filled[0] - 1), filled[-1] + 1)
        limits = np.append(EDGES, max(self.high, EDGES[-1]))[kept]
        return limits.tolist(), self._counts[kept].astype(float).tolist()


class ChannelStatistics:
    """Least, largest and mean value of every channel."""

    def __init__(self) -> None:
        self.low = self.high = self._sum = np.zeros(0)
        self._count = 0

    def observe(self, array: NDArray[Any]) -> None:
        """Takes `[batch, channels, ...]` of rank 4 or more, `[batch, ..., channels]` below."""
        axis = 1 if array.ndim >= 4 else -1
        rows = (
            np.moveaxis(array, axis, 0).reshape(array.shape[axis] if array.ndim else 1, -1).astype(np.float64)
        )
        if not rows.size:
            return
        low, high, total = rows.min(axis=1), rows.max(axis=1), rows.sum(axis=1)
        if self._count:
            low, high = np.minimum(low, self.low), np.maximum(high, self.high)
            total = total + self._sum
        self.low, self.high, self._sum = low, high, total
        self._count += rows.shape[1]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of all values of a channel."""
        mean: NDArray[np.float64] = self._sum / max(1, self._count)
        return mean
