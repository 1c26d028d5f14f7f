"""Functions of one tensor: tables, change of scale, PRelu, softmax (docs/arithmetic.md, sections 5, 7, 9)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference.rounding import Integers, clamp, exact, requantize, round_divide, round_shift

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def lookup(entries: Integers, codes: Integers, *, bits: int, lo: int, hi: int) -> Integers:
    """The table's value at codes of `bits` bits: `2^k + 1` entries, or a header and entries by segment."""
    table = exact(entries).ravel()
    if len(table) % 2 == 0:
        return clamp(_by_segment(table, codes), lo, hi)
    step_bits = bits - (len(table) - 1).bit_length() + 1
    position = codes.astype(np.int64) + 2 ** (bits - 1)
    index, fraction = position >> step_bits, position & (2**step_bits - 1)
    # The last entry is only ever the end of a step, so `index + 1` exists.
    rise = (table[index + 1] - table[index]) * exact(fraction)
    return clamp(table[index] + round_shift(rise, step_bits), lo, hi)


def _by_segment(table: Integers, codes: Integers) -> Integers:
    """Values of a table whose steps differ by segment, reduced to one period."""
    segments, fraction_bits = 2 ** (table[0] & 255), table[0] >> 8
    multiplier, offset = (table[i] % 2**32 + table[i + 1] * 2**32 for i in (1, 3))
    sizes = 2 ** table[5 : 5 + segments]
    extent = 2**24 // segments
    starts = 5 + segments + np.concatenate([[0], np.cumsum(extent // sizes)[:-1]])

    position = (exact(codes) * multiplier + offset) % 2**40 // 2**16
    segment = (position // extent).astype(np.int64)
    size, rest = sizes[segment], position % extent
    index = (starts[segment] + rest // size).astype(np.int64)
    rise = (table[np.minimum(index + 1, len(table) - 1)] - table[index]) * (rest % size)
    return round_shift(table[index] + round_divide(rise, size), fraction_bits)


def unary(x: Integers, entries: Integers, *, lo: int, hi: int) -> Integers:
    """A table over the stored codes of an int8 or int16 tensor."""
    return lookup(entries, x, bits=8 * x.dtype.itemsize, lo=lo, hi=hi)


def rescale(x: Integers, *, zero_point: int, requant: Mapping[str, Any]) -> Integers:
    """`requant(x - Zx)`."""
    return requantize(exact(x) - zero_point, **requant)


def p_relu(
    x: Integers,
    *,
    zero_point: int,
    positive: Mapping[str, Any],
    negative_multiplier: Sequence[int],
    negative_shift: Sequence[int],
) -> Integers:
    """Two slopes, the one below the zero point possibly per channel."""
    value = exact(x) - zero_point
    below = {**positive, "multiplier": negative_multiplier, "shift": negative_shift}
    return np.where(value >= 0, requantize(value, **positive), requantize(value, **below))


@cache
def _power_table() -> tuple[int, ...]:
    """`RNE(2^(30 - i/256))` for i = 0..256, by comparing 256th powers of integers.

    `r` is nearest to `v = 2^(30 - i/256)` when `2r - 1 < 2v < 2r + 1`, and `(2v)^256 = 2^(256 * 31 - i)`; no
    `v` lies halfway, since a 256th root of a power of two is a power of two or irrational.
    """
    table = []
    for i in range(257):
        power = 2 ** (256 * 31 - i)
        low, high = 2**28, 2**31
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if (2 * middle - 1) ** 256 <= power else (low, middle)
        table.append(low)
    return tuple(table)


def softmax(x: Integers, mask: Integers | None, exponentials: Mapping[str, int]) -> Integers:
    """Softmax over the last axis; elements whose mask is 0 are left out and give real zero."""
    taken = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask != 0, x.shape)
    zero_point, lo, hi = (exponentials[name] for name in ("zero_point", "lo", "hi"))
    shift, zero = exponentials["shift"], min(max(zero_point, lo), hi)
    result = np.full(x.shape, zero, object)
    for row in np.ndindex(x.shape[:-1]):
        chosen = np.flatnonzero(taken[row])
        if len(chosen) == 0:
            continue
        codes = exact(x[row][chosen])
        powers = np.array(
            [_exponential(max(codes) - code, exponentials["coefficient"]) for code in codes], object
        )
        numerator = powers * exponentials["multiplier"] * 2 ** max(-shift, 0)
        quotient = round_divide(numerator, sum(powers) * 2 ** max(shift, 0))
        result[row][chosen] = clamp(quotient + zero_point, lo, hi)
    return result


def _exponential(distance: int, coefficient: int) -> int:
    table = _power_table()
    u = distance * coefficient
    k, i, f = u >> 32, (u >> 24) & 255, (u >> 16) & 255
    step = round_shift(np.array((table[i + 1] - table[i]) * f, object), 8)
    return int(round_shift(table[i] + step, k).item()) if k < 64 else 0
