"""Lookup tables: functions sampled exactly at the codes where the lookup has its knots.

A function of an 8-bit operand has an entry for every code. A function of a 16-bit operand has `2^k + 1`
entries at equal steps where the error of these, measured at all 65 536 codes, is that of the output's
rounding; else its steps differ by segment, and a periodic function is reduced to one period first
(`segments`). Entries are int32 and not clamped to the output codes, so that interpolation next to a bound
stays exact; the clamp follows the interpolation. The forms are those of docs/arithmetic.md, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpuflow.lowering.functions import Function
from tpuflow.lowering.scheme import Quant, bits

__all__ = ["SampledFunction", "sample"]

Array = npt.NDArray[np.float64]
Words = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int16]
Lookup = Callable[[Words, Codes, int, int], Codes]
"""A table's value at codes, between two clamps."""

SNAP = 2.0**20
"""Values are first rounded to this fraction of a code, so that what is a tie on paper is one here."""
LIMIT = 1 << 22
"""Values further out are never told apart by an output of 16 bits."""
FRACTION_BITS = 8
"""Of entries by segment: their own rounding then adds nothing that counts to the output's."""
EVERY_CODE = np.arange(-32768, 32768).astype(np.int16)
SUFFICES = {"int8": 1.25, "int16": 0.75}
"""Largest error, in codes of the output, of a table that suffices; the output's rounding alone is 0.5, and 1
with that of entries without fraction bits."""
MOST = 4
"""A table has at most so many times `2^table_bits` words."""

SEGMENT_BITS = 6
POSITION_BITS = 24
PHASE_BITS = 40
FINEST, COARSEST = POSITION_BITS - 16, POSITION_BITS - SEGMENT_BITS
"""Bits of the smallest and largest steps: one code without a period, one segment."""


@dataclass(frozen=True)
class SampledFunction:
    """A function between codes of two grids.

    Attributes:
        function: In real numbers.
        source: Quantisation of the operand.
        target: Quantisation of the result.
        period: Of the function, where it has one.
    """

    function: Function
    source: Quant
    target: Quant
    period: float | None = None

    def at(self, real: Array) -> Array:
        """Codes of the result, neither rounded nor clamped."""
        with np.errstate(all="ignore"):
            values = self.function(real) / self.target.scale
        values = np.nan_to_num(values, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
        return np.clip(values, -LIMIT, LIMIT) + self.target.zero_point

    def real(self, codes: npt.NDArray[np.signedinteger[Any]]) -> Array:
        """Real numbers of codes of the operand."""
        return (codes.astype(np.float64) - self.source.zero_point) * self.source.scale


@dataclass(frozen=True)
class Positions:
    """Where codes of 16 bits lie among the 2^24 positions of a table.

    Attributes:
        multiplier: Positions, and 16 bits below them, per code.
        offset: Of code 0, likewise.
        real: Real number of every 2^FINEST-th position, and of the end.
    """

    multiplier: int
    offset: int
    real: Array

    def segments(self) -> npt.NDArray[np.int64]:
        """The segment, of 2^SEGMENT_BITS, in which each code lies."""
        phase = EVERY_CODE.astype(np.int64) * self.multiplier + self.offset
        return (phase & ((1 << PHASE_BITS) - 1)) >> (PHASE_BITS - SEGMENT_BITS)

    def words(self, steps: list[int], entries: npt.NDArray[np.int64]) -> Words:
        """A table of segments with these bits of their steps, of entries at every 2^FINEST-th position."""
        head = [len(steps).bit_length() - 1 | FRACTION_BITS << 8]
        for value in (self.multiplier, self.offset):
            head += [value & 0xFFFFFFFF, value >> 32]
        extent = (len(entries) - 1) // len(steps)
        knots = [
            np.arange(number * extent, (number + 1) * extent, 1 << (step - FINEST))
            for number, step in enumerate(steps)
        ]
        chosen = entries[np.concatenate([*knots, [len(entries) - 1]])]
        words = np.concatenate([head, steps, chosen])
        return np.pad(words, (0, len(words) % 2)).astype(np.uint32).view(np.int32)

    def fewest(self, fits: npt.NDArray[np.bool_], entries: npt.NDArray[np.int64]) -> Words:
        """The shortest table: of the widest steps that fit all of a segment, by step and smallest segment."""
        steps: list[list[int]] = []
        for segments in (1 << p for p in range(SEGMENT_BITS + 1)):
            joined = np.logical_and.reduce(fits.reshape(len(fits), segments, -1), axis=2)
            steps.append([FINEST + int(np.flatnonzero(each).max(initial=0)) for each in joined.T])
        return min((self.words(each, entries) for each in steps), key=len)


def sample(sampled: SampledFunction, table_bits: int, lookup: Lookup) -> Words:
    """The table of a function.

    Args:
        sampled: The function; 8-bit operands get one entry for each code.
        table_bits: k of equal steps for 16-bit operands.
        lookup: The arithmetic whose errors are measured.
    """
    if bits(sampled.source.dtype) == 8:
        return _equal(sampled, 8)
    lo, hi = sampled.target.lo, sampled.target.hi
    exact = np.clip(sampled.at(sampled.real(EVERY_CODE)), lo, hi)
    suffices = SUFFICES[sampled.target.dtype]

    def errors(words: Words) -> Array:
        return np.abs(lookup(words, EVERY_CODE, lo, hi) - exact)

    def rank(words: Words) -> tuple[float, int]:
        found = errors(words)
        return 0.0 if found.max() <= suffices else float(np.square(found).mean()), len(words)

    equal = _equal(sampled, table_bits)
    if errors(equal).max() <= suffices:
        return equal
    most = MOST << table_bits
    found = (_segments(sampled, positions, errors, suffices, most) for positions in _positions(sampled))
    return min([equal, *found], key=rank)


def _equal(sampled: SampledFunction, k: int) -> Words:
    """`2^k + 1` entries at equal steps."""
    width = bits(sampled.source.dtype)
    knots = (np.arange((1 << k) + 1, dtype=np.int64) << (width - k)) - (1 << (width - 1))
    values = sampled.at(sampled.real(knots)) - sampled.target.zero_point
    snapped = np.rint(values * SNAP) / SNAP
    return (np.rint(snapped) + sampled.target.zero_point).astype(np.int32)


def _positions(sampled: SampledFunction) -> list[Positions]:
    """The ways in which codes may lie among positions: in order; where they span periods, by their phase."""
    source = sampled.source
    knots = np.arange(-32768, 32769)
    found = [Positions(1 << (PHASE_BITS - 16), 1 << (PHASE_BITS - 1), sampled.real(knots))]
    if sampled.period is not None and source.scale * len(EVERY_CODE) > sampled.period:
        multiplier = round(source.scale / sampled.period * 2.0**PHASE_BITS)
        # Half a position more, so that cutting off what lies below positions rounds.
        offset = -source.zero_point * multiplier + (1 << (PHASE_BITS - POSITION_BITS - 1))
        phases = np.arange((1 << 16) + 1) / (1 << 16) * sampled.period
        modulus = 1 << PHASE_BITS
        found.append(Positions(multiplier % modulus, offset % modulus, phases))
    return found


def _segments(
    sampled: SampledFunction,
    positions: Positions,
    errors: Callable[[Words], Array],
    suffices: float,
    most: int,
) -> Words:
    """The fewest words whose error suffices, or the least error that as many as `most` give."""
    scaled = sampled.at(positions.real) * (1 << FRACTION_BITS)
    snap = SNAP / (1 << FRACTION_BITS)
    entries = np.rint(np.rint(scaled * snap) / snap).astype(np.int64)
    segment = positions.segments()
    largest, squares = np.zeros((2, COARSEST + 1 - FINEST, 1 << SEGMENT_BITS))
    for row in range(len(largest)):
        found = errors(positions.words([FINEST + row], entries))
        np.maximum.at(largest[row], segment, found)
        squares[row] = np.bincount(segment, np.square(found), 1 << SEGMENT_BITS)
    words = positions.fewest(largest <= np.maximum(suffices, largest[0]), entries)
    # What a word must save of the sum of squared errors to be worth it.
    worth = 1.0
    while len(words) > most:
        counts = 1 << (COARSEST - FINEST - np.arange(len(largest)))
        price = squares + worth * counts[:, None]
        words = positions.fewest(price <= price.min(axis=0), entries)
        worth *= 2
    return words
