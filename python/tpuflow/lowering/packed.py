"""Weights of 4 bits in blocks of rows, for layers in integers: scales in two levels.

    w' = S * e,   e = clamp(RNE((q - z) * s / 16), -128, 127)          q, z: 4 bits; s: 8 bits

`q` is the code of a weight, `z` and `s` zero point and scale of its column's block, `S` the scale of the
whole column: `e` are the int8 elements that the array sums over all blocks (docs/arithmetic.md, section 2;
why in two levels and what it costs: docs/decoders.md). Weights the model states as integers, or as floats of
4 bits, in blocks keep their codes; others get the codes and block scales, of those near the extrema's, that
leave the smallest squared error.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpuflow.io.threads import threads

__all__ = ["BLOCKS", "Packed", "common_scale", "pack", "packed_codes"]

BLOCKS = (16, 32, 64, 128)
"""Rows a block may have."""
FRACTION = 16.0
"""A block's scale is in so many parts of its column's."""
LARGEST = 255.0
PART = 1 << 18
"""Weights quantised at a time."""
SYMMETRIC = 8
POWER = 128.0
"""The largest block scale of a column whose scales are powers of two apart: so all of them are exact."""
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12])
"""What floats of 4 bits (E2M1) stand for, in halves, less the sign, which adds 8 to the code."""
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
        is_float: Whether codes are floats E2M1, in halves.
    """

    block: int
    codes: Bytes
    scales: Bytes
    zero_points: Bytes | None
    columns: Array
    is_float: bool = False

    def elements(self) -> npt.NDArray[np.int8]:
        """The int8 elements the codes stand for."""
        rows, columns = self.codes.shape
        elements = np.empty((rows, columns), np.int8)
        zero_points = np.full_like(self.scales, SYMMETRIC) if self.zero_points is None else self.zero_points

        def fill(part: slice) -> None:
            numbers = _cells(self.codes[:, part], self.block)
            if self.is_float:
                numbers = (
                    np.where(numbers < SYMMETRIC, 1.0, -1.0) * HALVES[numbers.astype(np.int64) % SYMMETRIC]
                )
            else:
                numbers -= zero_points[:, np.newaxis, part].astype(np.float64)
            found = _elements(numbers, self.scales[:, np.newaxis, part])
            elements[:, part] = found.reshape(-1, found.shape[-1])[:rows]

        _by_columns(fill, rows, columns)
        return elements


def pack(weights: npt.NDArray[np.floating[Any]], block: int, floor: Array) -> Packed:
    """Quantises a matrix; no column's scale is below `floor`."""
    rows, columns = weights.shape
    floors = np.broadcast_to(floor, columns)
    blocks = -(-rows // block)
    codes, scales = np.empty((rows, columns), np.uint8), np.empty((blocks, columns), np.uint8)
    of_columns = np.empty(columns)

    def fill(part: slice) -> None:
        found = _pack_columns(weights[:, part].astype(np.float64), block, floors[part])
        codes[:, part] = found[0].reshape(-1, found[0].shape[-1])[:rows]
        scales[:, part], of_columns[part] = found[1:]

    _by_columns(fill, rows, columns)
    return Packed(block, codes, scales, None, of_columns)


def common_scale(weights: npt.NDArray[np.floating[Any]], steps: npt.NDArray[Any] | None) -> float:
    """The smallest scale that all columns of a matrix may have, whose steps are these if they are stated."""
    largest = float(np.abs(weights).max(initial=0.0))
    reach = largest / (SYMMETRIC - 1) if steps is None else float(steps.max(initial=0.0))
    return max(reach * FRACTION / LARGEST, largest / 127.0)


def _by_columns(fill: Callable[[slice], None], rows: int, columns: int) -> None:
    """Fills all columns, so many at a time that they stay in the processor's cache."""
    step = max(1, PART // max(1, rows))
    parts = [slice(start, start + step) for start in range(0, columns, step)]
    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(fill, parts))


def _pack_columns(weights: Array, block: int, floor: Array) -> tuple[Bytes, Bytes, Array]:
    """Codes by block, row and column, scales by block and column, scales by column."""
    cells = _cells(weights, block)
    largest = np.abs(cells).max(axis=1)
    reach = largest / (SYMMETRIC - 1)
    columns = _column_scales(reach, largest, floor)
    best = np.full(reach.shape, np.inf)
    codes, scales = np.zeros(cells.shape, np.uint8), np.zeros(reach.shape, np.uint8)
    for share in TRIED:
        tried = np.clip(np.rint(reach * share * FRACTION / columns), 0, LARGEST)
        step = np.maximum(tried, 1.0) * columns / FRACTION
        numbers = cells / step[:, np.newaxis]
        np.clip(np.rint(numbers, out=numbers), -SYMMETRIC, SYMMETRIC - 1, out=numbers)
        shown = _elements(numbers, tried[:, np.newaxis])
        shown *= columns
        shown -= cells
        error = np.square(shown, out=shown).sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, tried, scales).astype(np.uint8)
        numbers += SYMMETRIC
        np.copyto(codes, numbers, where=better[:, np.newaxis], casting="unsafe")
    return codes, scales, columns


def packed_codes(
    weights: npt.NDArray[np.floating[Any]], steps: npt.NDArray[Any] | None, floor: Array | float = 0.0
) -> Packed | None:
    """The codes of weights that are integers or floats of 4 bits in blocks of one step; None of others."""
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
        return _float_codes(numbers, steps, block, floor)
    zeros = None
    if low.min() < -SYMMETRIC or high.max() >= SYMMETRIC:
        zeros = np.clip(SYMMETRIC, -low, 15 - high)
    if zeros is not None and (zeros.min() < 0 or zeros.max() > 15):
        return _float_codes(numbers, steps, block, floor)
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


def _float_codes(numbers: Array, steps: npt.NDArray[Any], block: int, floor: Array | float) -> Packed | None:
    """The codes of multiples of halves that floats of 4 bits stand for; None of others."""
    places = np.minimum(np.searchsorted(HALVES, np.abs(numbers)), len(HALVES) - 1)
    if np.any(HALVES[places] != np.abs(numbers)):
        return None
    of_block = steps[::block].astype(np.float64)
    largest = of_block.max(axis=0)
    powers = np.frexp(of_block / largest)[0] == 0.5
    exact = np.maximum(largest * (FRACTION / POWER), floor).astype(np.float32).astype(np.float64)
    columns = np.where(powers.all(axis=0), exact, _column_scales(of_block, of_block * HALVES[-1], floor))
    scales = np.clip(np.rint(of_block * FRACTION / columns), 0, LARGEST).astype(np.uint8)
    codes = (places + SYMMETRIC * (numbers < 0)).astype(np.uint8)
    return Packed(block, codes, scales, None, columns, is_float=True)


def _column_scales(steps: Array, largest: Array, floor: Array | float) -> Array:
    """The smallest scales at which neither a block's scale nor an element overflows, float32 values."""
    needed = np.maximum(steps * (FRACTION / LARGEST), largest / 127.0).max(axis=0)
    scales = np.maximum(needed, floor)
    return np.where(scales > 0, scales, 1.0).astype(np.float32).astype(np.float64)


def _elements(numbers: Array, scales: npt.NDArray[Any]) -> Array:
    """The elements, exact in float64, of codes less their zero points."""
    elements: Array = numbers * scales
    elements /= FRACTION
    return np.clip(np.rint(elements, out=elements), -128, 127, out=elements)


def _cells(matrix: npt.NDArray[Any], block: int) -> Array:
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
