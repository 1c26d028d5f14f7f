"""Weights of 4 bits in blocks of rows (docs/arithmetic.md, section 2)."""

from __future__ import annotations

import numpy as np

from tpuflow.reference.rounding import Integers, clamp, exact, round_shift


def expand(codes: Integers, scales: Integers, zero_points: Integers | None, block: int) -> Integers:
    """The int8 elements that codes `[rows, columns]` stand for.

    Args:
        codes: 0 to 15.
        scales: `[blocks, columns]`, 0 to 255.
        zero_points: As many, 0 to 15; None where all are 8.
        block: Rows of a block, the last may have fewer.
    """
    of_row = np.arange(len(codes)) // block
    zeros = exact(np.full(scales.shape, 8) if zero_points is None else zero_points)[of_row]
    return clamp(round_shift((exact(codes) - zeros) * exact(scales)[of_row], 4), -128, 127)
