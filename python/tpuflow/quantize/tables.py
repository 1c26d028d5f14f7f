"""Lookup tables: functions sampled exactly at the codes where the lookup has its knots.

For codes of b bits and `2^k + 1` entries, entry i is the output code at the input code `-2^(b-1) + (i <<
(b-k))`; the last entry lies one step beyond the largest code. Entries are int32 and not clamped to the
output codes, so that interpolation next to a bound stays exact; the clamp follows the interpolation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpuflow.quantize.functions import Function
from tpuflow.quantize.scheme import Quant, bits

__all__ = ["sample"]

SNAP = 2.0**20
"""Values are first rounded to this fraction of a code, so that what is a tie on paper is one here."""
LIMIT = 1 << 24
"""Entries further out are never told apart by an output of 16 bits."""


def sample(function: Function, source: Quant, target: Quant, table_bits: int) -> npt.NDArray[np.int32]:
    """Entries of the table that maps codes of `source` to codes of `target`.

    Args:
        function: In real numbers.
        source: Quantisation of the operand; 8-bit codes get one entry each.
        target: Quantisation of the result.
        table_bits: k for 16-bit operands.

    Returns:
        `2^k + 1` int32 values.
    """
    width = bits(source.dtype)
    k = min(width, table_bits) if width > 8 else 8
    knots = (np.arange((1 << k) + 1, dtype=np.int64) << (width - k)) - (1 << (width - 1))
    with np.errstate(all="ignore"):
        values = function((knots - source.zero_point).astype(np.float64) * source.scale) / target.scale
    values = np.clip(np.nan_to_num(values, nan=0.0, posinf=LIMIT, neginf=-LIMIT), -LIMIT, LIMIT)
    snapped = np.rint(values * SNAP) / SNAP
    return (np.rint(snapped) + target.zero_point).astype(np.int32)
