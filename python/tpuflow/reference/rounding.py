"""Rounding half to even, multipliers and requantisation (docs/arithmetic.md, sections 1, 3 and 4)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Integers = NDArray[Any]
"""An array of integers: of an integer type, or of Python integers (dtype object)."""


def exact(values: Integers) -> Integers:
    """The same numbers as Python integers, which have no width."""
    return np.asarray(values).astype(object)


def round_divide(numerator: Integers, denominator: Integers | int) -> Integers:
    """`RNE(numerator / denominator)` for positive denominators, elementwise."""
    p, q = exact(numerator), exact(np.asarray(denominator))
    quotient = p // q
    twice = 2 * (p - quotient * q)
    up = (twice > q) | ((twice == q) & (quotient % 2 == 1))
    return np.asarray(quotient + np.asarray(up).astype(object))


def round_shift(value: Integers, shift: Integers | int) -> Integers:
    """`RNE(value * 2^-shift)`; a negative shift is an exact multiplication."""
    n = exact(np.asarray(shift))
    raised = exact(value) * 2 ** np.maximum(-n, 0)
    return round_divide(raised, 2 ** np.maximum(n, 0))


def clamp(value: Integers, lo: int, hi: int) -> Integers:
    """`min(max(value, lo), hi)`."""
    return np.minimum(np.maximum(value, lo), hi)


def requantize(
    value: Integers, *, multiplier: Sequence[int], shift: Sequence[int], zero_point: int, lo: int, hi: int
) -> Integers:
    """`clamp(RNE(value * M * 2^-N) + Z, lo, hi)`.

    Args:
        value: Accumulators of any shape.
        multiplier: M, one entry or one per index of the last axis.
        shift: N, as many.
        zero_point: Z.
        lo: Lower clamp.
        hi: Upper clamp.

    Returns:
        Codes as Python integers, of the shape of `value`.
    """
    product = exact(value) * exact(np.asarray(multiplier))
    return clamp(round_shift(product, np.asarray(shift)) + zero_point, lo, hi).reshape(np.shape(value))


def approximate(factor: float, bits: int = 15, max_shift: int = 31) -> tuple[int, int] | None:
    """`(M, N)` with `factor ~ M * 2^-N`, None where there is no such pair; in rational arithmetic."""
    if not (math.isfinite(factor) and factor > 0):
        return None
    real = Fraction(factor)
    fitting = [n for n in range(-15, min(max_shift, 47) + 1) if real * Fraction(2) ** n <= 2**bits - 1]
    if not fitting:
        return None
    n = fitting[-1]
    m = math.floor(real * Fraction(2) ** n + Fraction(1, 2))
    if m > 0 and m & (m - 1) == 0:
        while m > 1 and n > 0:
            m, n = m // 2, n - 1
    return m, n
