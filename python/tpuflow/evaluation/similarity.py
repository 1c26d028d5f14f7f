"""How alike two tensors are: the measures every comparison of this package holds.

All are computed in float64 on the flattened arrays, whatever the types of the inputs:

    cosine = <x, y> / (|x| |y|)             1 when both are zero, 0 when exactly one is
    euclid = 1 - |x - y| / |(x + y) / 2|    1 when equal, 0 when only the denominator vanishes; may be below 0
    sqnr   = 20 log10(|x| / |x - y|)        decibels; +inf when equal
    error  = max |x - y|
    rmse   = sqrt(mean (x - y)^2)
    psnr   = 20 log10((max x - min x) / rmse)   decibels; +inf when equal, -inf of a constant

Non-finite values match only where both arrays hold the same one (NaN with NaN, +inf with +inf); those
positions are left out of the sums and counted in `nonfinite`. One unmatched non-finite value makes every
measure NaN, which fails any threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Similarity", "cosine", "euclid", "max_error", "similarity", "sqnr"]

Array = npt.NDArray[np.float64]

BLOCK = 1 << 16
"""Elements that are compared at a time."""


@dataclass(frozen=True)
class Similarity:
    """All measures of one pair of tensors.

    Attributes:
        cosine: Cosine similarity, -1 to 1.
        euclid: Euclidean similarity, at most 1.
        sqnr: Signal to quantisation noise ratio in decibels; the first tensor is the signal.
        max_error: Largest absolute difference.
        nonfinite: Positions at which either tensor is NaN or infinite.
        rmse: Root of the mean squared difference.
        psnr: Span of the first tensor over `rmse`, in decibels.
    """

    cosine: float
    euclid: float
    sqnr: float
    max_error: float
    nonfinite: int = 0
    rmse: float = math.nan
    psnr: float = math.nan

    def to_json(self) -> dict[str, float]:
        """All measures by name."""
        return {**self.__dict__, "mse": self.mse}

    @property
    def mse(self) -> float:
        """Mean squared difference."""
        return self.rmse * self.rmse

    def reaches(self, tolerance: tuple[float, float]) -> bool:
        """Whether cosine and Euclidean similarity are at least `tolerance`; NaN never is."""
        return self.cosine >= tolerance[0] and self.euclid >= tolerance[1]


def similarity(reference: npt.ArrayLike, test: npt.ArrayLike) -> Similarity:
    """Compares `test` with `reference` (same shape, any numeric type).

    Raises:
        ValueError: If the shapes differ.
    """
    x, y = np.asarray(reference), np.asarray(test)
    if x.shape != y.shape:
        raise ValueError(f"shapes differ: {x.shape} and {y.shape}")
    x, y = x.ravel(), y.ravel()
    nonfinite, alike, peak, low, high = 0, True, 0.0, math.inf, -math.inf
    for finite, left, right in _blocks(x, y):
        if finite is not None:
            nonfinite += left.size - int(np.count_nonzero(finite))
            alike = alike and np.array_equal(left[~finite], right[~finite], equal_nan=True)
        held = _some(left, finite)
        peak = max(peak, *(float(np.max(np.abs(each), initial=0.0)) for each in (held, _some(right, finite))))
        low, high = float(np.min(held, initial=low)), float(np.max(held, initial=high))
    if not alike:
        return Similarity(math.nan, math.nan, math.nan, math.nan, nonfinite)
    # Dividing by a power of two is exact and keeps the squares of very large or small values in range.
    unit = math.ldexp(1.0, math.frexp(peak)[1]) if peak else 1.0
    sums, error = np.zeros(5), 0.0
    for finite, left, right in _blocks(x, y):
        a, b = _some(left, finite) / unit, _some(right, finite) / unit
        difference, half = a - b, (a + b) / 2
        sums += [a @ a, b @ b, difference @ difference, half @ half, a @ b]
        error = max(error, float(np.max(np.abs(difference), initial=0.0)))
    signal, other, noise, middle = (math.sqrt(float(each)) for each in sums[:4])
    if signal and other:
        angle = max(-1.0, min(1.0, float(sums[4]) / (signal * other)))
    else:
        angle = float(signal == other)
    span = (high - low) / unit if high >= low else 0.0
    distance = 1.0 - noise / middle if middle else float(noise == 0.0)
    if noise == 0.0:
        decibels = math.inf
    else:
        decibels = 20.0 * math.log10(signal / noise) if signal else -math.inf
    count = x.size - nonfinite
    root = noise / math.sqrt(count) if count else 0.0
    peaks = math.inf if root == 0.0 else 20.0 * math.log10(span / root) if span else -math.inf
    return Similarity(angle, distance, decibels, error * unit, nonfinite, root * unit, peaks)


def _blocks(
    x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> Iterator[tuple[npt.NDArray[np.bool_] | None, Array, Array]]:
    """Flat arrays in float64, a part that fits a cache at a time; where both are finite, None everywhere."""
    for at in range(0, x.size, BLOCK):
        left, right = (each[at : at + BLOCK].astype(np.float64) for each in (x, y))
        finite = np.isfinite(left) & np.isfinite(right)
        yield None if finite.all() else finite, left, right


def _some(array: Array, chosen: npt.NDArray[np.bool_] | None) -> Array:
    """Chosen elements; all of them are no copy, which takes most of the time otherwise."""
    return array if chosen is None else array[chosen]


def cosine(reference: npt.ArrayLike, test: npt.ArrayLike) -> float:
    """Cosine similarity of two tensors of one shape."""
    return similarity(reference, test).cosine


def euclid(reference: npt.ArrayLike, test: npt.ArrayLike) -> float:
    """Euclidean similarity of two tensors of one shape."""
    return similarity(reference, test).euclid


def sqnr(reference: npt.ArrayLike, test: npt.ArrayLike) -> float:
    """Signal to noise ratio of `test` against `reference`, in decibels."""
    return similarity(reference, test).sqnr


def max_error(reference: npt.ArrayLike, test: npt.ArrayLike) -> float:
    """Largest absolute difference of two tensors of one shape."""
    return similarity(reference, test).max_error
