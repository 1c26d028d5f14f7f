"""Ranges of least error where errors count by another power than the second.

`mae` sums magnitudes of errors, `lp[p]` their p-th powers: a low power clips more of a few large values than
`mse` does, a high one less. Values stand in the middle of their bins; where a bin is wider than a step, they
are spread over whole steps, whose mean error is known. The search is that of `mse`: both ends together, then
one after the other, the whole range among what is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["power_range"]

COARSE, FINE = 64, 16
"""Fractions of a range that are tried, and how finely the best one's surroundings are then divided."""

ROUNDS = 4
"""Rounds over both ends."""

Range = tuple[float, float]


def _quantizer(low: float, high: float, codes: tuple[int, int], *, symmetric: bool) -> tuple[float, int]:
    """Scale and zero point of a range; scale 0 of an empty one."""
    qmin, qmax = codes
    if symmetric:
        return 2 * max(high, -low) / (qmax - qmin), 0
    scale = (high - low) / (qmax - qmin)
    return scale, round(min(max(qmin - low / scale, qmin), qmax)) if scale > 0 else 0


def power_range(
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    width: float,
    seen: Range,
    *,
    power: float,
    codes: tuple[int, int],
    symmetric: bool,
) -> Range:
    """The range within the seen one whose grid has the least sum of powers of errors.

    Args:
        values: Middles of bins.
        counts: Values in them.
        width: Of a bin.
        seen: Smallest and largest value, zero within.
        power: Above 0.
        codes: Smallest and largest code.
        symmetric: The zero point is 0.
    """
    used = counts > 0
    values, counts = values[used], counts[used]

    def error(found: Range) -> float:
        scale, zero = _quantizer(*found, codes, symmetric=symmetric)
        if scale <= 0:
            return float("inf")
        nearest = np.clip(np.rint(values / scale) + zero, *codes) - zero
        off = np.abs(values - nearest * scale)
        if width > scale:
            inside = off <= scale / 2
            mean = (scale / 2) ** power / (power + 1)
            return float(np.where(inside, mean, off**power) @ counts)
        return float((off if power == 1 else off**power) @ counts)

    low, high = seen
    share = _best(lambda each: error((low * each, high * each)))
    best = low * share, high * share
    if symmetric or low == 0 or high == 0:
        return best
    for _ in range(ROUNDS):
        before = best
        best = _one_end(error, best, seen, upper=True)
        best = _one_end(error, best, seen, upper=False)
        if best == before:
            break
    return best


def _one_end(error: Callable[[Range], float], kept: Range, seen: Range, *, upper: bool) -> Range:
    """The range with another upper or lower end, or the same."""

    def at(share: float) -> Range:
        return (kept[0], seen[1] * share) if upper else (seen[0] * share, kept[1])

    return min((kept, at(_best(lambda share: error(at(share))))), key=error)


def _best(error: Callable[[float], float]) -> float:
    """The share of least error, of equals the largest."""
    shares = np.arange(COARSE, 0, -1) / COARSE
    coarse = shares[int(np.argmin([error(float(each)) for each in shares]))]
    near = coarse + np.arange(FINE - 1, -FINE, -1) / (FINE * COARSE)
    shares = np.concatenate([[coarse], near[(near <= 1) & (near > 0)]])
    return float(shares[int(np.argmin([error(float(each)) for each in shares]))])
