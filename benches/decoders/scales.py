"""How wide the scale of a block of 4-bit weights must be: the table of docs/decoders.md.

python benches/decoders/scales.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WIDTHS = ((4, 0), (6, 2), (8, 4))
"""Bits of a scale, and how many of them are fraction bits."""


def sqnr(weights: Array, shown: Array) -> float:
    """Signal to quantisation noise in dB."""
    return float(10 * np.log10(np.square(weights).sum() / np.square(weights - shown).sum()))


def row(name: str, weights: Array, block: int) -> str:
    """A line of the table: the file's own scales, then for each width the file's codes and own codes."""
    cells = weights.reshape(-1, block, weights.shape[1])
    steps = np.abs(cells).max(axis=1, keepdims=True) / 7.5
    codes = np.clip(np.rint(cells / steps), -8, 7)
    found = [f"{sqnr(cells, codes * steps):.2f}"]
    for bits, fraction in WIDTHS:
        top = 2**bits - 1
        column = steps.max(axis=0, keepdims=True) / top
        scales = np.clip(np.rint(steps / column), 1, top)

        def shown(
            codes: Array, scales: Array = scales, column: Array = column, fraction: int = fraction
        ) -> Array:
            elements = np.clip(np.rint(codes * scales / 2**fraction), -128, 127)
            return np.asarray(elements * column * 2**fraction)

        own = np.clip(np.rint(cells / (scales * column)), -8, 7)
        found.append(f"{sqnr(cells, shown(codes)):.2f}, {sqnr(cells, shown(own)):.2f}")
    return f"| {name} | {block} | " + " | ".join(found) + " |"


def main() -> None:
    """Prints the table."""
    rng = np.random.default_rng(0)
    shape = (1024, 512)
    for name, weights in (("normal", rng.standard_normal(shape)), ("heavy tails", rng.standard_t(5, shape))):
        for block in (32, 64, 128):
            print(row(name, weights, block))


if __name__ == "__main__":
    main()
