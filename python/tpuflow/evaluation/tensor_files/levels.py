"""How alike two arrays are, in five levels, each tried only when the one before fails.

EQUAL        every bit is the same (NaN equals NaN)
CLOSE        |x - y| <= 10^-k |x| + 1e-8 for every element, with k of at least 3; `digits` says k
SIMILAR      cosine and Euclidean similarity (and the signal to noise ratio) reach a tolerance
NOT_SIMILAR  they do not; so are arrays of which only one has a NaN or infinity at some place
NOT_MATCH    the shapes differ, or one is no array of numbers
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import TpuflowError
from tpuflow.evaluation.similarity import Similarity, similarity

__all__ = ["STAGES", "Level", "Tolerance", "ToleranceError", "Verdict", "classify"]

Array = NDArray[Any]
MOST_DIGITS = 8
LEAST_DIGITS = 3
NEAR_ZERO = 1e-8


class ToleranceError(TpuflowError):
    """A tolerance makes no sense."""


class Level(StrEnum):
    """See the module."""

    EQUAL = "EQUAL"
    CLOSE = "CLOSE"
    SIMILAR = "SIMILAR"
    NOT_SIMILAR = "NOT_SIMILAR"
    NOT_MATCH = "NOT_MATCH"

    @property
    def passed(self) -> bool:
        """Whether two arrays of this level are alike enough."""
        return self in (Level.EQUAL, Level.CLOSE, Level.SIMILAR)


@dataclass(frozen=True)
class Tolerance:
    """The least similarities of arrays that count as similar.

    Attributes:
        cosine: Least cosine similarity.
        euclid: Least Euclidean similarity.
        sqnr: Least signal to noise ratio in decibels; None asks for none.
    """

    cosine: float = 0.99
    euclid: float = 0.99
    sqnr: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("cosine", self.cosine), ("euclid", self.euclid)):
            if not value <= 1:
                raise ToleranceError(f"tolerance: {name} {value:g} is above 1, which nothing reaches")
        if self.sqnr is not None and math.isnan(self.sqnr):
            raise ToleranceError("tolerance: sqnr is not a number")

    @classmethod
    def parse(cls, text: str) -> Tolerance:
        """From `COS,EUCLID` or `COS,EUCLID,SQNR`.

        Raises:
            ToleranceError: The text is no such thing.
        """
        try:
            cosine, euclid, *rest = (float(word) for word in text.split(","))
            sqnr: float | None = None
            if rest:
                (sqnr,) = rest
        except ValueError:
            raise ToleranceError(
                f'tolerance "{text}": write two or three numbers, such as 0.99,0.90'
            ) from None
        return cls(cosine, euclid, sqnr)

    def holds(self, found: Similarity) -> bool:
        """Whether measures reach it; NaN never does."""
        return found.reaches((self.cosine, self.euclid)) and (self.sqnr is None or found.sqnr >= self.sqnr)


STAGES: Mapping[str, Tolerance] = MappingProxyType(
    {"import": Tolerance(0.99, 0.99), "quantize": Tolerance(0.8, 0.5), "program": Tolerance(0.99, 0.90)}
)
"""Usual differences between two stages: original and normalised, float and integer, graph and program."""


@dataclass(frozen=True)
class Verdict:
    """How alike two arrays are.

    Attributes:
        level: In a word.
        measures: In numbers; None where they cannot be taken.
        digits: Significant decimal digits in which all elements agree, 3 to 8; None below CLOSE.
        nan: Elements that are NaN: of the reference, of the other.
        inf: Elements that are infinite, likewise.
        first: Index of the first element that differs.
        saturated: Share of elements at the ends of their integer type, likewise; None for floats.
    """

    level: Level
    measures: Similarity | None = None
    digits: int | None = None
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    first: tuple[int, ...] | None = None
    saturated: tuple[float | None, float | None] = (None, None)


def classify(reference: Array, other: Array, tolerance: Tolerance) -> Verdict:
    """Compares an array with its reference."""
    if reference.shape != other.shape or reference.dtype.kind not in "biuf" or other.dtype.kind not in "biuf":
        return Verdict(Level.NOT_MATCH)
    nan = (_count(reference, np.isnan), _count(other, np.isnan))
    inf = (_count(reference, np.isinf), _count(other, np.isinf))
    ends = (saturation(reference), saturation(other))
    measures = similarity(reference, other)
    if np.array_equal(reference, other, equal_nan=True):
        return Verdict(Level.EQUAL, measures, MOST_DIGITS, nan, inf, None, ends)
    first = first_difference(reference, other)
    digits = agreeing_digits(reference, other)
    if digits is not None:
        return Verdict(Level.CLOSE, measures, digits, nan, inf, first, ends)
    level = Level.SIMILAR if tolerance.holds(measures) else Level.NOT_SIMILAR
    return Verdict(level, measures, None, nan, inf, first, ends)


def agreeing_digits(reference: Array, other: Array) -> int | None:
    """The largest k of 3 to 8 for which arrays agree to `10^-k`; None if they do not even to `10^-3`."""
    x, y = reference.astype(np.float64), other.astype(np.float64)
    for digits in range(MOST_DIGITS, LEAST_DIGITS - 1, -1):
        if np.allclose(y, x, rtol=10.0**-digits, atol=NEAR_ZERO, equal_nan=True):
            return digits
    return None


def first_difference(reference: Array, other: Array) -> tuple[int, ...] | None:
    """Index of the first element that differs; NaN equals NaN."""
    x, y = reference.astype(np.float64), other.astype(np.float64)
    different = (x != y) & ~(np.isnan(x) & np.isnan(y))
    if not different.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(different)), reference.shape))


def saturation(array: Array) -> float | None:
    """Share of elements at the ends of their integer type; None for floats and truth values."""
    if array.dtype.kind not in "iu" or not array.size:
        return None
    limits = np.iinfo(array.dtype)
    low = np.count_nonzero(array == limits.min) if array.dtype.kind == "i" else 0
    return float(low + np.count_nonzero(array == limits.max)) / array.size


def _count(array: Array, test: Any) -> int:
    return int(np.count_nonzero(test(array))) if array.dtype.kind == "f" else 0
