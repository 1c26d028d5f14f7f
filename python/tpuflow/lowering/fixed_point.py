"""Real factors as integer multiplier and shift, and the rounding everything uses.

The arithmetic is that of `docs/arithmetic.md`; `approximate` is the twin of `tpuflow_ir::quant::approximate`
and a test holds them equal. All derivations are float64 from the float32 scales that are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tpuflow.lowering.operators import RequantFields

__all__ = [
    "MULTIPLIER_BITS",
    "SHIFT_MAX",
    "SHIFT_MIN",
    "FactorError",
    "Requant",
    "approximate",
    "approximations",
    "saturating",
    "without_left_shift",
]

MULTIPLIER_BITS = 15
"""Width of M by default, and the widest the machine holds."""
SHIFT_MIN, SHIFT_MAX = -15, 47
"""Smallest and largest N; operators whose operands are all 8 bits wide stop at 31."""


LARGEST = math.ldexp((1 << MULTIPLIER_BITS) - 1, -SHIFT_MIN)
"""The largest factor there is."""


class FactorError(ValueError):
    """A real factor that no multiplier and shift of the machine represent."""


def saturating(factor: float) -> float:
    """A factor of whole numbers that the machine has: beyond the largest all but 0 saturate by either."""
    return min(factor, LARGEST)


def approximate(factor: float, bits: int = MULTIPLIER_BITS, max_shift: int = SHIFT_MAX) -> tuple[int, int]:
    """The pair (M, N) with `M * 2^-N` closest to `factor` from N as large as `M < 2^bits` allows.

    N is the largest integer with `factor * 2^N <= 2^bits - 1`, capped at `max_shift`; `M = floor(factor *
    2^N + 0.5)`. A power of two collapses to M = 1 where N stays positive. Scaling by powers of two is exact
    in float64.

    Raises:
        FactorError: If `factor` is not positive and finite, or needs a shift below `SHIFT_MIN`.
    """
    return approximations([factor], bits, max_shift)[0]


def approximations(
    factors: Sequence[float], bits: int = MULTIPLIER_BITS, max_shift: int = SHIFT_MAX
) -> list[tuple[int, int]]:
    """`approximate` of every factor.

    Raises:
        FactorError: As there, of the first factor it happens to.
    """
    exact = np.asarray(factors, np.float64)
    for factor in exact[~(np.isfinite(exact) & (exact > 0.0))][:1]:
        raise FactorError(f"factor {factor} is not positive and finite")
    top = float((1 << min(bits, MULTIPLIER_BITS)) - 1)
    # factor = m * 2^e with 0.5 <= m < 1 gives the answer within one step.
    shift = np.minimum(min(max_shift, SHIFT_MAX), min(bits, MULTIPLIER_BITS) - np.frexp(exact)[1] + 1)
    while (over := np.ldexp(exact, shift) > top).any():
        shift = shift - over
    for factor, left in zip(exact[shift < SHIFT_MIN][:1], -shift[shift < SHIFT_MIN][:1], strict=True):
        raise FactorError(f"factor {factor:g} needs a left shift by {left}, the machine has {-SHIFT_MIN}")
    # Adding one half before taking the floor would itself round, just below 1/2.
    fraction, whole = np.modf(np.ldexp(exact, shift))
    multiplier = whole.astype(np.int64) + (fraction >= 0.5)
    while (even := (multiplier > 1) & (multiplier & (multiplier - 1) == 0) & (shift > 0)).any():
        multiplier, shift = multiplier >> even, shift - even
    return list(zip(multiplier.tolist(), shift.tolist(), strict=True))


def without_left_shift(factor: float, bits: int, max_shift: int) -> tuple[int, int]:
    """As `approximate`, but a factor that needs a left shift becomes the largest multiplier, unshifted.

    Raises:
        FactorError: If `factor` is not positive and finite.
    """
    top = (1 << min(bits, MULTIPLIER_BITS)) - 1
    if math.isfinite(factor) and factor > top:
        return top, 0
    return approximate(factor, bits, max_shift)


def _with_one_shift(factors: Sequence[float], bits: int, max_shift: int) -> list[tuple[int, int]]:
    """Multipliers of a common shift, the largest that all of them fit their width with."""
    top = (1 << min(bits, MULTIPLIER_BITS)) - 1
    largest, shift = max(factors), min(max_shift, SHIFT_MAX)
    while shift > SHIFT_MIN and math.floor(math.ldexp(largest, shift) + 0.5) > top:
        shift -= 1
    multipliers = [math.floor(min(math.ldexp(factor, shift), top) + 0.5) for factor in factors]
    if 0 in multipliers:
        raise FactorError("channels differ by too much for one shift, leave out unify_shifts")
    return [(multiplier, shift) for multiplier in multipliers]


@dataclass(frozen=True)
class Requant:
    """`y = clamp(RNE(x * M * 2^-N) + zero_point, lo, hi)`, one (M, N) or one per output channel."""

    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    zero_point: int
    lo: int
    hi: int

    @classmethod
    def of(
        cls,
        factors: Sequence[float],
        zero_point: int,
        lo: int,
        hi: int,
        bits: int = MULTIPLIER_BITS,
        max_shift: int = SHIFT_MAX,
        *,
        one_shift: bool = False,
        positive: bool = False,
    ) -> Requant:
        """The requantisation by the real `factors`.

        With `one_shift` all share a shift, that of the largest; with `positive` there are no shifts to the
        left, see `without_left_shift`.

        Raises:
            FactorError: If one of them cannot be represented.
        """
        if positive:
            pairs = [without_left_shift(factor, bits, max_shift) for factor in factors]
        else:
            pairs = approximations(factors, bits, max_shift)
        if one_shift and len({shift for _, shift in pairs}) > 1:
            pairs = _with_one_shift(factors, bits, max_shift)
        return cls(tuple(m for m, _ in pairs), tuple(n for _, n in pairs), zero_point, lo, hi)

    def fields(self) -> RequantFields:
        """The form the graph takes."""
        return {
            "multiplier": list(self.multiplier),
            "shift": list(self.shift),
            "zero_point": self.zero_point,
            "lo": self.lo,
            "hi": self.hi,
        }
