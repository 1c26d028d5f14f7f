"""Weights of 4 bits in blocks of rows, for layers in integers: scales in two levels.

    w' = S * e,   e = clamp(RNE((q - z) * s / 16), -128, 127)          q, z: 4 bits; s: 8 bits

`q` is the code of a weight, `z` and `s` zero point and scale of its column's block, `S` the scale of the
whole column: `e` are the int8 elements that the array sums over all blocks (docs/arithmetic.md, section 2;
why in two levels and what it costs: docs/decoders.md). Weights the model states as integers in blocks
keep their codes; others get the codes and block scales, of those near the extrema's, that leave the smallest
squared error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCKS", "Packed", "pack", "packed_codes"]

BLOCKS = (32, 64, 128)
"""Rows a block may have."""
FRACTION = 16.0
"""A block's scale is in so many parts of its column's."""
LARGEST = 255.0
SYMMETRIC = 8
NEAR = 0.02
"""How far stated weights may lie from whole multiples of their steps, in steps: those are often float16."""
TRIED = (1.0, 0.94, 0.88, 0.83, 0.78)
"""Shares of the extrema that block scales are tried for."""

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """Codes of a matrix by block and column.

    Attributes:
        block: Rows of a block; the last may have fewer.
        codes: `[rows, columns]`, 0 to 15.
        scales: `[blocks, columns]`.
        zero_points: As many, 0 to 15; None where all are 8.
        columns: The scale of every column, float32 values.
    """

    block: int
    codes: Bytes
    scales: Bytes
    zero_points: Bytes | None
    columns: Array

    def elements(self) -> npt.NDArray[np.int8]:
        """The int8 elements the codes stand for."""
        zero_points = np.full_like(self.scales, SYMMETRIC) if self.zero_points is None else self.zero_points
        return _elements(
            self.codes.astype(np.int64) - _by_row(zero_points, self.block, len(self.codes)),
            _by_row(self.scales, self.block, len(self.codes)),
        )


def pack(weights: npt.NDArray[np.floating[Any]], block: int, floor: Array) -> Packed:
    """Quantises a matrix; no column's scale is below `floor`."""
    rows = weights.shape[0]
    cells = _cells(weights.astype(np.float64), block)
    reach = np.abs(cells).max(axis=1) / (SYMMETRIC - 1)
    columns = _column_scales(reach, np.abs(cells).max(axis=1), floor)
    best = np.full(reach.shape, np.inf)
    codes, scales = np.zeros(cells.shape, np.uint8), np.zeros(reach.shape, np.uint8)
    for share in TRIED:
        tried = np.clip(np.rint(reach * share * FRACTION / columns), 0, LARGEST)
        step = np.maximum(tried, 1.0) * columns / FRACTION
        numbers = np.clip(np.rint(cells / step[:, np.newaxis]), -SYMMETRIC, SYMMETRIC - 1)
        shown = _elements(numbers.astype(np.int64), tried.astype(np.int64)[:, np.newaxis]) * columns
        error = np.square(shown - cells).sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, tried, scales).astype(np.uint8)
        codes = np.where(better[:, np.newaxis], numbers + SYMMETRIC, codes).astype(np.uint8)
    return Packed(block, codes.reshape(-1, weights.shape[1])[:rows], scales, None, columns)


def packed_codes(
    weights: npt.NDArray[np.floating[Any]], steps: npt.NDArray[Any] | None, floor: Array | float = 0.0
) -> Packed | None:
    """The codes of weights that are integers of 4 bits in blocks of one step each; None of others."""
    if steps is None or weights.ndim != 2 or not np.all(steps > 0):
        return None
    sizes = (size for size in BLOCKS if _is_by_block(steps, size))
    block = max(sizes, default=None)
    if block is None or np.all(steps == steps[:1]):
        return None
    rows = weights.shape[0]
    multiples = weights.astype(np.float64) / steps.astype(np.float64)
    numbers = np.rint(multiples)
    if np.abs(multiples - numbers).max(initial=0.0) > NEAR:
        return None
    cells = _cells(numbers, block)
    low, high = cells.min(axis=1), cells.max(axis=1)
    if np.any(high - low > 15):
        return None
    zeros = None
    if low.min() < -SYMMETRIC or high.max() >= SYMMETRIC:
        zeros = np.clip(SYMMETRIC, -low, 15 - high)
    if zeros is not None and (zeros.min() < 0 or zeros.max() > 15):
        return None
    of_block = steps[::block].astype(np.float64)
    columns = _column_scales(of_block, of_block * np.maximum(-low, high), floor)
    scales = np.clip(np.rint(of_block * FRACTION / columns), 0, LARGEST)
    shift = np.asarray(SYMMETRIC if zeros is None else _by_row(zeros, block, rows))
    return Packed(
        block,
        (numbers + shift).astype(np.uint8),
        scales.astype(np.uint8),
        None if zeros is None else zeros.astype(np.uint8),
        columns,
    )


def _column_scales(steps: Array, largest: Array, floor: Array | float) -> Array:
    """The smallest scales at which neither a block's scale nor an element overflows, float32 values."""
    needed = np.maximum(steps * (FRACTION / LARGEST), largest / 127.0).max(axis=0)
    scales = np.maximum(needed, floor)
    return np.where(scales > 0, scales, 1.0).astype(np.float32).astype(np.float64)


def _elements(numbers: npt.NDArray[np.int64], scales: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    elements: npt.NDArray[np.int8] = np.clip(np.rint(numbers * scales / FRACTION), -128, 127).astype(np.int8)
    return elements


def _cells(matrix: Array, block: int) -> Array:
    """`[blocks, rows of a block, columns]`, filled up with zeros."""
    rows, columns = matrix.shape
    padded = np.zeros((-(-rows // block) * block, columns))
    padded[:rows] = matrix
    return padded.reshape(-1, block, columns)


def _by_row(cells: npt.NDArray[Any], block: int, rows: int) -> npt.NDArray[np.int64]:
    return np.repeat(cells.astype(np.int64), block, axis=0)[:rows]


def _is_by_block(steps: npt.NDArray[Any], size: int) -> bool:
    """Whether all steps of a column's block are the same."""
    return bool(np.all(_by_row_of(steps, size) == steps))


def _by_row_of(steps: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    return np.repeat(steps[::size], size, axis=0)[: len(steps)]
