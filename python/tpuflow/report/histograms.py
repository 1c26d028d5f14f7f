"""Distributions of calibrated tensors with the thresholds chosen for them: kept in a file, drawn as pictures.

A tensor's values are counted by sign and magnitude, exact zeros apart, as calibration does. `histograms.npz`
holds the counts of all tensors, one row each:

    names       text     [tensors]           in the order of the network
    width       float64  [tensors]           of a bin
    zeros       uint64   [tensors]           values that are exactly zero
    negative    uint64   [tensors, bins]     bin i: -(i + 1) width < x <= -i width, without zero
    positive    uint64   [tensors, bins]     bin i: i width <= x < (i + 1) width, without zero
    extrema     float64  [tensors, 2]        smallest and largest value seen, or 0
    thresholds  float64  [tensors, 2]        the chosen range; of ranges by channel, what spans them

The pictures are SVG: bars as high as the logarithm of their counts, so that tails can be seen, and a line at
either threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import FileError, SampleError
from tpuflow.io.arrays import read_arrays
from tpuflow.io.files import file_stem, make_folder, replace_atomically, write_text

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges, Statistics

__all__ = ["TensorHistogram", "load_histograms", "save_histograms", "tensor_histograms"]

Counts = NDArray[np.uint64]
KEYS = ("names", "width", "zeros", "negative", "positive", "extrema", "thresholds")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 300, 16, 44, 42


@dataclass(frozen=True)
class TensorHistogram:
    """Counts of one tensor's values, and the range chosen for them.

    Attributes:
        name: Of the tensor.
        width: Of a bin.
        zeros: Values that are exactly zero.
        negative: uint64, counts below zero by magnitude.
        positive: uint64, counts above zero by magnitude.
        extrema: Smallest and largest value seen, zero among them.
        thresholds: Lower and upper end of the chosen range.
    """

    name: str
    width: float
    zeros: int
    negative: Counts
    positive: Counts
    extrema: tuple[float, float]
    thresholds: tuple[float, float]

    @property
    def count(self) -> int:
        """Number of values."""
        return int(self.zeros + self.negative.sum() + self.positive.sum())

    @property
    def beyond(self) -> int:
        """Values in bins wholly outside the thresholds: those in a threshold's own bin are not told apart."""
        low, high = (abs(threshold) for threshold in self.thresholds)
        if not self.width:
            return 0
        below = self.negative[int(np.floor(low / self.width)) + 1 :].sum()
        above = self.positive[int(np.floor(high / self.width)) + 1 :].sum()
        return int(below + above)

    @property
    def span(self) -> tuple[float, float]:
        """The span of a picture: all values and both thresholds."""
        low, high = min(self.extrema[0], self.thresholds[0]), max(self.extrema[1], self.thresholds[1])
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def bars(self, count: int) -> Counts:
        """Counts in `count` bars of equal width over `span`; nothing is lost.

        Returns:
            uint64 [count].
        """
        steps = np.arange(len(self.positive)) + 0.5
        centers = np.concatenate([-steps[: len(self.negative)] * self.width, [0.0], steps * self.width])
        counts = np.concatenate([self.negative, np.array([self.zeros], np.uint64), self.positive])
        low, high = self.span
        places = np.clip(((centers - low) / (high - low) * count).astype(np.int64), 0, count - 1)
        found = np.zeros(count, np.uint64)
        np.add.at(found, places, counts)
        return found

    def path(self, count: int) -> str:
        """The bars as an SVG path in the unit square, as high as the logarithms of their counts."""
        heights = np.log1p(self.bars(count).astype(np.float64))
        heights /= max(float(heights.max()), 1e-9)
        return "".join(
            f"M{place / count:.4g} 1V{1 - heights[place]:.3g}h{1 / count:.3g}V1"
            for place in np.flatnonzero(heights)
        )

    def place(self, value: float) -> float:
        """Where a value stands in `span`, 0 to 1."""
        low, high = self.span
        return (value - low) / (high - low)

    def picture(self) -> str:
        """A picture of its own, as an SVG document."""
        wide, high = WIDTH - 2 * LEFT, HEIGHT - TOP - BOTTOM
        low, top = self.thresholds
        marks = "".join(
            f'<line x1="{LEFT + self.place(value) * wide:.1f}" x2="{LEFT + self.place(value) * wide:.1f}" '
            f'y1="{TOP}" y2="{TOP + high}" stroke="#b3261e" stroke-width="1.5"/>'
            for value in self.thresholds
        )
        ticks = "".join(
            f'<text x="{LEFT + share * wide:.1f}" y="{TOP + high + 16}" text-anchor="{anchor}">'
            f"{self.span[0] + share * (self.span[1] - self.span[0]):.4g}</text>"
            for share, anchor in (
                (0.0, "start"),
                (0.25, "middle"),
                (0.5, "middle"),
                (0.75, "middle"),
                (1.0, "end"),
            )
        )
        said = (
            f"{self.count:,} values from {self.extrema[0]:.5g} to {self.extrema[1]:.5g}; "
            f"thresholds {low:.5g} and {top:.5g}, {self.beyond:,} values beyond; height: logarithm of counts"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(self.name)}</text>'
            f'<text x="{LEFT}" y="36" fill="#5d6878">{said}</text>'
            f'<path transform="translate({LEFT} {TOP}) scale({wide} {high})" d="{self.path(256)}" '
            'fill="#2f6fd6"/>'
            f'<line x1="{LEFT}" x2="{LEFT + wide}" y1="{TOP + high}" y2="{TOP + high}" stroke="#1b2330"/>'
            f"{marks}{ticks}</svg>\n"
        )


def tensor_histograms(statistics: Statistics, ranges: Ranges) -> list[TensorHistogram]:
    """Histograms of a calibration, with the ranges it chose; tensors without values are left out.

    Args:
        statistics: Collected with histograms.
        ranges: Of the same tensors.
    """
    found = []
    for name, tensor in statistics.tensors.items():
        if not tensor.batches or name not in ranges.tensors:
            continue
        counts, pairs = tensor.counts, ranges.tensors[name].pairs
        thresholds = min(low for low, _ in pairs), max(high for _, high in pairs)
        found.append(
            TensorHistogram(
                name, counts.width, counts.zeros, counts.negative, counts.positive, counts.range, thresholds
            )
        )
    return found


def save_histograms(histograms: list[TensorHistogram], folder: Path) -> list[Path]:
    """Writes `histograms.npz` and a picture of every tensor, `0000_name.svg`, into a folder.

    Returns:
        The files, the counts first.

    Raises:
        FileError: The folder cannot be written.
    """
    make_folder(folder)
    bins = max((len(each.positive) for each in histograms), default=0)

    def rows(key: str) -> Counts:
        found = np.zeros((len(histograms), bins), np.uint64)
        for row, each in zip(found, histograms, strict=True):
            counts: Counts = getattr(each, key)
            row[: len(counts)] = counts
        return found

    arrays: dict[str, Any] = {
        "names": np.array([each.name for each in histograms], dtype=np.str_),
        "width": np.array([each.width for each in histograms], np.float64),
        "zeros": np.array([each.zeros for each in histograms], np.uint64),
        "negative": rows("negative"),
        "positive": rows("positive"),
        "extrema": np.array([each.extrema for each in histograms], np.float64).reshape(-1, 2),
        "thresholds": np.array([each.thresholds for each in histograms], np.float64).reshape(-1, 2),
    }
    written = [folder / "histograms.npz"]
    with replace_atomically(written[0]) as beside, beside.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)
    for number, each in enumerate(histograms):
        written.append(folder / f"{number:04}_{file_stem(each.name, set())}.svg")
        write_text(written[-1], each.picture())
    return written


def load_histograms(path: Path) -> list[TensorHistogram]:
    """Reads `histograms.npz`, or the one in a folder.

    Raises:
        FileError: It cannot be read, or is no such file.
    """
    path = path / "histograms.npz" if path.is_dir() else path
    try:
        stored = read_arrays(path)
    except SampleError as error:
        raise FileError(str(error)) from None
    missing = [key for key in KEYS if key not in stored]
    if missing:
        raise FileError(f"{path}: no histograms of a calibration: {', '.join(missing)} missing")
    arrays = {key: stored[key] for key in KEYS}
    if len({len(array) for array in arrays.values()}) != 1:
        raise FileError(f"{path}: no histograms of a calibration: its arrays have unlike lengths")
    return [
        TensorHistogram(
            str(name),
            float(width),
            int(zeros),
            negative,
            positive,
            (float(extrema[0]), float(extrema[1])),
            (float(thresholds[0]), float(thresholds[1])),
        )
        for name, width, zeros, negative, positive, extrema, thresholds in zip(
            *(arrays[key] for key in KEYS), strict=True
        )
    ]
