"""Statistics of activations: per tensor the extrema of every batch and one histogram.

Both are mergeable. Statistics collected over shards of the samples and merged in the order of the shards
equal those of one pass, bit for bit: extrema are kept per batch, and the counts of a histogram depend on the
values only. Where a part of the values is enough, a quarter of those of tensors with more than 65536 a batch
stands for all but the largest: by its place in the tensor, which neither threads nor shards change. Extrema
are always those of all values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow import _core
from tpuflow.calibration.levels import Levels
from tpuflow.calibration.means import ChannelSums
from tpuflow.errors import RangesError, SampleError
from tpuflow.strategies import Moments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Histogram", "Moments", "Statistics", "TensorStatistics", "summarize_channels"]

Histogram = _core.Histogram
"""Counts of values by sign and magnitude."""


@dataclass
class TensorStatistics:
    """Statistics of one tensor.

    Attributes:
        batches: Smallest and largest value of every batch, in order.
        histogram: Counts of values by sign and magnitude; None if not collected.
        left_out: Number of values that are masks.
        stated_extrema: Smallest and largest value a file says, whatever its batches say.
        stated_moments: Moments a file says, whatever its histogram says.
        stated_range: The range the model itself states.
        levels: Distinct values, of network inputs alone.
        stated_step: The step of the grid a file says its values lie on.
        part: Whether the histogram counts a part of the values, which stands for all.
    """

    batches: list[tuple[float, float]]
    histogram: _core.Histogram | None
    left_out: int = 0
    stated_extrema: tuple[float, float] | None = None
    stated_moments: Moments | None = None
    stated_range: tuple[float, float] | None = None
    levels: Levels | None = None
    stated_step: float | None = None
    part: bool = False

    def __getstate__(self) -> dict[str, object]:
        own = self.histogram
        if own is None:
            return dict(self.__dict__)
        sides = {"negative": own.negative.tolist(), "positive": own.positive.tolist()}
        parts = {"bins": own.bins, "width": own.width, "zeros": own.zeros, "extrema": own.extrema}
        return self.__dict__ | {"histogram": parts | sides}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parts = state["histogram"]
        self.__dict__.update(state | {"histogram": None if parts is None else Histogram.of_counts(**parts)})

    @property
    def step(self) -> float | None:
        """The step all values are multiples of; None where there is none."""
        if self.stated_step is not None or self.levels is None:
            return self.stated_step
        return self.levels.step()

    @property
    def counts(self) -> _core.Histogram:
        """The histogram of a tensor known to have one."""
        if self.histogram is None:
            raise RangesError("its statistics have no histogram, which this strategy reads")
        return self.histogram


@dataclass
class Statistics:
    """Statistics of all tensors of a model; grows with every batch.

    Attributes:
        bins: Resolution of the histograms; None collects extrema only.
        tensors: By name, in the order of the graph.
        samples: Number of samples seen.
        sums: Sums by channel of the tensors that shall have them.
        own_bins: Resolution of the histograms that differ from the others, by name.
        inputs: Names of the network's inputs, whose distinct values are kept as well.
        whole: Histograms count every value, however many there are.
    """

    bins: int | None
    tensors: dict[str, TensorStatistics] = field(default_factory=dict)
    samples: int = 0
    sums: dict[str, ChannelSums] = field(default_factory=dict)
    own_bins: Mapping[str, int] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    whole: bool = True

    def _histogram(self, name: str) -> _core.Histogram | None:
        return None if self.bins is None else _core.Histogram(self.own_bins.get(name, self.bins))

    def observe(self, activations: Mapping[str, NDArray[np.float32]]) -> None:
        """Adds one batch of some of the tensors; arrays of any shape.

        Raises:
            SampleError: A tensor has values that are NaN or positive infinity.
        """
        arrays = {name: np.asarray(array, order="C") for name, array in activations.items() if array.size}
        for name in arrays:
            if name not in self.tensors:
                self.tensors[name] = TensorStatistics([], self._histogram(name))
        tensors = [self.tensors[name] for name in arrays]
        histograms = [tensor.histogram for tensor in tensors if tensor.histogram is not None]
        axes = [self.sums[name].axis if name in self.sums else None for name in arrays]
        found = _core.observe(list(arrays.values()), histograms, axes, whole=self.whole)
        for name, tensor, (extrema, left_out, refused, sums) in zip(arrays, tensors, found, strict=True):
            array = arrays[name]
            if refused:
                raise SampleError(
                    f'tensor "{name}": {refused} of {array.size} values are NaN or infinite '
                    f"at sample {self.samples}, no range holds them"
                )
            tensor.left_out += left_out
            tensor.part |= not self.whole and array.size > _core.MANY_VALUES
            if extrema is not None:
                tensor.batches.append(extrema)
            if name in self.sums:
                self.sums[name].add(sums, array.size // len(sums))
            if name in self.inputs:
                tensor.levels = tensor.levels or Levels()
                tensor.levels.observe(array)

    def merge(self, later: Statistics) -> None:
        """Appends statistics of the samples that follow.

        Raises:
            ValueError: The histograms differ in resolution, or only one side has them.
        """
        if (self.bins, self.own_bins) != (later.bins, later.own_bins):
            raise ValueError(f"statistics of {self.bins} and {later.bins} bins cannot be merged")
        for name, theirs in later.tensors.items():
            ours = self.tensors.get(name)
            if ours is None:
                ours = self.tensors[name] = TensorStatistics([], self._histogram(name))
            ours.batches += theirs.batches
            ours.left_out += theirs.left_out
            ours.part |= theirs.part
            if ours.histogram is not None and theirs.histogram is not None:
                ours.histogram.merge(theirs.histogram)
            if theirs.levels is not None:
                ours.levels = ours.levels or Levels()
                ours.levels.merge(theirs.levels)
        for name, sums in later.sums.items():
            self.sums.setdefault(name, ChannelSums(sums.axis)).merge(sums)
        self.samples += later.samples


def summarize_channels(
    arrays: Sequence[NDArray[np.float32]], kept: Sequence[Sequence[bool]]
) -> list[NDArray[np.float64]]:
    """Smallest and largest value and mean square of the channels of every array: `[3, channels]`.

    Args:
        arrays: Values, each array as a whole.
        kept: By array, for every axis whether it tells channels apart; they are in row-major order over
            those that do.

    Raises:
        ValueError: Axes do not fit an array.
    """
    return _core.by_channel([np.ascontiguousarray(array) for array in arrays], kept)
