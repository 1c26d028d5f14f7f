"""Weights of layers in floats that stand for integer codes: weight-only quantisation.

    w' = round(S * (q - Z)),   q = clamp(RNE(w / S) + Z)        S, Z: of a block of one channel's weights

A block is `size` neighbours along what a sum of the layer runs over, the last one of a channel as long as
what is left; without a size a block is the whole channel, or all weights. `w'` is what `dequantize` makes of
codes (docs/arithmetic.md, section 16): one product in float32, rounded once to the layer's type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpuflow.lowering import scheme

__all__ = ["Blocks", "in_blocks"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Codes of weights by channel and block.

    Attributes:
        codes: `[channels, terms]`, int32; `terms` are those of one sum.
        scales: `[channels, blocks]`, float32 values.
        zero_points: As many, 0 on symmetric grids.
        size: Weights in a block, but for the last one of a channel.
    """

    codes: npt.NDArray[np.int32]
    scales: Array
    zero_points: npt.NDArray[np.int32]
    size: int

    def floats(self) -> npt.NDArray[np.float32]:
        """The numbers that the codes stand for, in float32."""
        terms = self.codes.shape[1]
        scales = np.repeat(self.scales, self.size, axis=1)[:, :terms].astype(np.float32)
        zeros = np.repeat(self.zero_points, self.size, axis=1)[:, :terms]
        shown: npt.NDArray[np.float32] = scales * (self.codes - zeros).astype(np.float32)
        return shown


def in_blocks(
    rows: npt.NDArray[np.floating[Any]],
    mode: str,
    width: int,
    size: int | None = None,
    *,
    power_of_two: bool = False,
) -> Blocks:
    """Quantises weights `[channels, terms]`.

    Args:
        rows: The weights.
        mode: The grid: `symmetric_restricted`, `symmetric_full` or `asymmetric`.
        width: Bits of a code.
        size: Weights in a block; None for all of a channel.
        power_of_two: Scales are the next powers of two.
    """
    channels, terms = rows.shape
    size = max(1, min(terms, size or terms))
    count = math.ceil(terms / size)
    padded = np.zeros((channels, count * size))
    padded[:, :terms] = rows
    blocks = padded.reshape(channels, count, size)
    low, high = blocks.min(axis=2, initial=0.0), blocks.max(axis=2, initial=0.0)
    half = 1 << (width - 1)
    lo, hi = (1 - half if mode == "symmetric_restricted" else -half), half - 1
    if mode == "asymmetric":
        scales = scheme.step_sizes(high - low, hi - lo)
    else:
        magnitude = np.maximum(high, -low) * (2 if mode == "symmetric_full" else 1)
        scales = scheme.step_sizes(magnitude, hi - lo if mode == "symmetric_full" else hi)
    if power_of_two:
        scales = np.vectorize(scheme.power_above, otypes=[np.float64])(scales)
    zeros = np.clip(lo - np.rint(low / scales), lo, hi) if mode == "asymmetric" else np.zeros_like(scales)
    quotients = np.rint(blocks / scales[..., np.newaxis]) + zeros[..., np.newaxis]
    codes = np.clip(quotients, lo, hi).reshape(channels, -1)[:, :terms]
    return Blocks(codes.astype(np.int32), scales, zeros.astype(np.int32), size)
