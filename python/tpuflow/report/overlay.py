"""A tensor's distribution before and after quantisation: float and dequantised values over the same bins.

    overlay = Overlay("conv1_out", thresholds=(-2.0, 1.98))
    overlay.add(floating, dequantised)      # as often as there are samples
    overlay.picture()                       # float filled, dequantised as a line, thresholds in red

Bins are fixed by the thresholds, between which codes can stand, and reach a quarter of their span beyond;
what lies further out is counted in the outermost bins, so that every value is in one. Outliers are counted
apart, exactly: elements of float strictly beyond a threshold, which quantisation cut.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.io.files import file_stem, make_folder, write_json, write_text

__all__ = ["Overlay", "save_overlays"]

Array = NDArray[Any]

INSIDE, OUTSIDE = 128, 32
"""Bins between the thresholds, and beyond each of them."""

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 300, 16, 44, 42


class Overlay:
    """Counts of one tensor before and after quantisation.

    Args:
        name: Of the tensor.
        thresholds: Smallest and largest number a code stands for.

    Attributes:
        edges: float64 [bins + 1], of the bins.
        floating: int64 [bins], counts of float values.
        quantized: int64 [bins], counts of dequantised values.
        below: Float values below the lower threshold.
        above: Float values above the upper one.
        nonfinite: NaN and infinities in either, which no bin holds.
    """

    def __init__(self, name: str, thresholds: tuple[float, float]) -> None:
        low, high = thresholds
        step = (high - low) / INSIDE if high > low else 1.0
        self.name = name
        self.thresholds = (low, high)
        self.edges = low + step * np.arange(-OUTSIDE, INSIDE + OUTSIDE + 1)
        self.floating = np.zeros(len(self.edges) - 1, np.int64)
        self.quantized = np.zeros(len(self.edges) - 1, np.int64)
        self.below = self.above = self.nonfinite = 0

    def add(self, floating: Array, quantized: Array) -> None:
        """Counts the values of one more sample."""
        low, high = self.thresholds
        for values, counts in ((floating, self.floating), (quantized, self.quantized)):
            numbers = np.asarray(values, np.float64).ravel()
            finite = numbers[np.isfinite(numbers)]
            self.nonfinite += numbers.size - finite.size
            places = np.searchsorted(self.edges, finite, side="right") - 1
            np.add.at(counts, np.clip(places, 0, len(counts) - 1), 1)
        with np.errstate(invalid="ignore"):
            self.below += int(np.count_nonzero(np.asarray(floating, np.float64) < low))
            self.above += int(np.count_nonzero(np.asarray(floating, np.float64) > high))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "name": self.name,
            "thresholds": list(self.thresholds),
            "edges": self.edges.tolist(),
            "floating": self.floating.tolist(),
            "quantised": self.quantized.tolist(),
            "below": self.below,
            "above": self.above,
            "nonfinite": self.nonfinite,
        }

    def picture(self) -> str:
        """Both distributions as an SVG document, as high as the logarithm of their counts."""
        wide, high = WIDTH - 2 * LEFT, HEIGHT - TOP - BOTTOM
        peak = max(float(np.log1p(max(self.floating.max(), self.quantized.max()))), 1e-9)
        count = len(self.floating)

        def height(value: int) -> float:
            return float(1 - np.log1p(value) / peak)

        bars = "".join(
            f"M{place / count:.4g} 1V{height(int(self.floating[place])):.3g}h{1 / count:.3g}V1"
            for place in np.flatnonzero(self.floating)
        )
        line = "M0 1" + "".join(
            f"V{height(int(value)):.3g}H{(place + 1) / count:.4g}"
            for place, value in enumerate(self.quantized)
        )
        marks = "".join(
            f'<path d="M{at:.1f} {TOP}v{high}" stroke="#b3261e" stroke-width="1.5"/>'
            f'<text x="{at:.1f}" y="{TOP + high + 16}" text-anchor="middle">{threshold:.4g}</text>'
            for threshold, bin_ in zip(self.thresholds, (OUTSIDE, count - OUTSIDE), strict=True)
            if (at := LEFT + bin_ / count * wide)
        )
        said = (
            f"{int(self.floating.sum()):,} values; {self.below:,} below and {self.above:,} above the "
            "thresholds; float filled, dequantised as a line; height: logarithm of counts"
        )
        place = f'transform="translate({LEFT} {TOP}) scale({wide} {high})"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(self.name)}</text>'
            f'<text x="{LEFT}" y="36" fill="#5d6878">{said}</text>'
            f'<path {place} d="{bars}" fill="#a9c5f2"/>'
            f'<path {place} d="{line}" fill="none" stroke="#1b2330" vector-effect="non-scaling-stroke"/>'
            f'<line x1="{LEFT}" x2="{LEFT + wide}" y1="{TOP + high}" y2="{TOP + high}" stroke="#1b2330"/>'
            f"{marks}</svg>\n"
        )


def save_overlays(overlays: list[Overlay], folder: Path) -> Path:
    """Writes `overlays.json` and a picture of every tensor, `0000_name.svg`, into a folder.

    Returns:
        The file of counts.

    Raises:
        FileError: The folder cannot be written.
    """
    make_folder(folder)
    for number, overlay in enumerate(overlays):
        write_text(folder / f"{number:04}_{file_stem(overlay.name, set())}.svg", overlay.picture())
    counts = folder / "overlays.json"
    write_json(counts, [overlay.to_json() for overlay in overlays])
    return counts
