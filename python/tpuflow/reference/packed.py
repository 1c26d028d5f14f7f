"""Weights of 4 bits in blocks of rows (docs/arithmetic.md, section 2)."""

from __future__ import annotations

import numpy as np

from tpuflow.reference.rounding import Integers, clamp, exact, round_shift

FLOATS = (np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]) * 2).astype(np.int64)
"""What floats of 4 bits stand for, in halves (OCP Microscaling Formats 1.0, section 5.3.3)."""


def expand(
    codes: Integers, scales: Integers, zero_points: Integers | None, block: int, *, is_float: bool = False
) -> Integers:
    """The int8 elements that codes `[rows, columns]` stand for.

    Args:
        codes: 0 to 15.
        scales: `[blocks, columns]`, 0 to 255.
        zero_points: As many, 0 to 15; None where all are 8.
        block: Rows of a block, the last may have fewer.
        is_float: Whether codes are floats E2M1, which have no zero points.
    """
    of_row = np.arange(len(codes)) // block
    zeros = exact(np.full(scales.shape, 8) if zero_points is None else zero_points)[of_row]
    numbers = exact(FLOATS)[codes.astype(np.int64)] if is_float else exact(codes) - zeros
    return clamp(round_shift(numbers * exact(scales)[of_row], 4), -128, 127)
