"""Choices made of samples, evaluated by samples they were not made of.

What is chosen by samples fits these samples best, and the fewer they are the less it says of others: channels
scaled by eight samples may come 5 dB closer on them and stay 10 dB behind on all others. So the recipe runs
beside itself on two halves of the samples, its folds. A change is made of one half and measured on the other,
both ways; only what gains on both is made of all samples. Below `LEAST` samples nothing is held out and
nothing is chosen.

At the end of the recipe each fold has a network that never saw the samples it is measured with: they state
what outputs of the user's are to be expected, as an interval (`HeldOut.estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibration import calibrate
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.ptq.confirmation import graph_of, parts_of
from tpuflow.ptq.kept_statistics import KeptStatistics

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.evaluation.fidelity import Outputs
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["LEAST", "Estimate", "HeldOut", "Interval", "interval"]

LEAST = 8
"""Of fewer samples none are held out."""

MOST = 128
"""Samples of which one half is evaluated by what is made of the other."""

SHOWN = 32
"""Samples of a half that ranges are found with, and that it evaluates with."""

DEVIATIONS = 1.645
"""Standard errors to either side of a normal figure within which it is 90 % of the time."""

BELOW = 1.5
"""Share of the half width that an interval reaches below its middle; above it is the rest of 2: most samples
have little noise and a few have much, so that of some samples the noise is mostly less than of all."""

WIDEST_DB = 4.0
"""Width of an interval where there are `MANY` samples, at most."""

MANY = 32
"""Samples of calibration."""

DRAW_DB = 32.0
"""So many decibels over the number of samples, where there are fewer than `MANY`, an interval reaches further
down: ranges of few samples are a draw themselves, of which two halves tell little."""

Change = Callable[["FloatModel", "Ranges", "Samples"], "tuple[FloatModel, Ranges]"]
"""A model and its ranges after a change, made of some samples."""


@dataclass(frozen=True)
class Interval:
    """Where a figure is expected for samples like those of calibration, with a confidence of 90 %.

    Attributes:
        low_db: Its lower end; infinite where there is no noise.
        high_db: Its upper end.
    """

    low_db: float
    high_db: float


@dataclass(frozen=True)
class Estimate:
    """The expected signal-to-noise ratio of the outputs of a quantised network.

    Attributes:
        outputs: By name of an output.
        samples: How many it is measured with.
    """

    outputs: Mapping[str, Interval]
    samples: int


@dataclass(frozen=True)
class Fold:
    """The recipe on one half of the samples, as far as it has come.

    Attributes:
        shown: What everything is made of.
        evaluator: Runs the other half.
        model: The float model.
        ranges: Of its values.
        config: How they are stored.
    """

    shown: Samples
    evaluator: Evaluator
    model: FloatModel
    ranges: Ranges
    config: Config

    @cached_property
    def outputs(self) -> Outputs:
        """Outputs of the integer network for the other half."""
        return self.evaluator.outputs(graph_of(self.model, self.ranges, self.config))

    @cached_property
    def sqnr_db(self) -> float:
        """Their signal to noise, the mean over the outputs."""
        return self.evaluator.of_outputs(self.outputs).mean_db

    def after(self, change: Change) -> Fold:
        """The fold with a change made of what it is shown; itself where nothing changed."""
        model, ranges = change(self.model, self.ranges, self.shown)
        same = model is self.model and ranges is self.ranges
        return self if same else replace(self, model=model, ranges=ranges)


class HeldOut:
    """Two halves of the samples, each evaluating what is made of the other.

    Args:
        model: The float model before any stage.
        samples: Those of calibration.
        config: How values are stored.

    Attributes:
        statistics: What was counted of models with the samples of folds.
    """

    def __init__(self, model: FloatModel, samples: Samples, config: Config) -> None:
        self._model, self._samples, self._config = model, samples, config
        self._few: list[tuple[Samples, Samples]] = []
        self.statistics = KeptStatistics()

    @property
    def enough(self) -> bool:
        """Whether there are samples to hold out."""
        return self._samples.count >= LEAST

    @cached_property
    def folds(self) -> list[Fold]:
        """Both ways of holding out one half; none where there are too few samples."""
        if not self.enough:
            return []
        rows = list(self._samples.spread(MOST).rows())
        halves = [self._samples.of_rows(rows[at::2]) for at in (0, 1)]
        return [
            Fold(
                shown,
                Evaluator(self._model, held.spread(SHOWN)),
                self._model,
                self.ranges(self._model, shown),
                self._config,
            )
            for shown, held in (halves, halves[::-1])
        ]

    def ranges(self, model: FloatModel, shown: Samples) -> Ranges:
        """Ranges of a model by the samples of a fold."""
        if self._config.tunes:  # further strategies will choose by the same statistics
            return self.statistics.ranges(model, self.few(shown), self._config)
        return calibrate(parts_of(model), self.few(shown), self._config)

    def few(self, shown: Samples) -> Samples:
        """Those of a fold's samples that ranges are found with, the same object each time."""
        for whole, part in self._few:
            if whole is shown:
                return part
        self._few.append((shown, shown.spread(SHOWN)))
        return self._few[-1][1]

    def gained_db(self, change: Change, margin_db: float) -> float | None:
        """The gain of a change on the fold that gains least; None where nothing changes or is held out.

        The folds have the change afterwards if that is more than the margin.
        """
        least, changed = math.inf, []
        for fold in self.folds:
            found = fold.after(change)
            if found is fold:
                return None
            gain = found.sqnr_db - fold.sqnr_db
            # Not a number where both are infinite: outputs are integers, or without noise.
            least = min(least, 0.0 if math.isnan(gain) else gain)
            changed.append(found)
            if not least > margin_db:
                return least
        if not changed:
            return None
        self.__dict__["folds"] = changed
        return least

    def estimate(self) -> Estimate | None:
        """Intervals of the outputs' signal to noise; None where there are too few samples."""
        if not self.enough:
            return None
        parts = [fold.evaluator.by_sample(fold.outputs) for fold in self.folds]
        found = {}
        for name in parts[0]:
            noise, signal = (np.concatenate([part[name][side] for part in parts]) for side in (0, 1))
            found[name] = interval(noise, signal, self._samples.count)
        evaluated = sum(fold.evaluator.count for fold in self.folds)
        return Estimate(found, evaluated) if found else None


def interval(noise: np.ndarray, signal: np.ndarray, calibrated: int) -> Interval:
    """The interval of a ratio of sums, by the deviation of what each sample adds to it.

    Args:
        noise: Power by sample.
        signal: The same of what is exact.
        calibrated: Samples that the network is calibrated with.
    """
    total, power = float(noise.sum()), float(signal.sum())
    if not total:
        return Interval(math.inf, math.inf)
    if not power:
        return Interval(-math.inf, -math.inf)
    count = len(noise)
    off = noise - signal * (total / power)
    deviation = math.sqrt(float(off @ off) * count / (count - 1)) / total
    half = DEVIATIONS * 10 / math.log(10) * deviation
    if calibrated >= MANY:
        half = min(half, WIDEST_DB / 2)
    middle = 10 * math.log10(power / total)
    drawn = DRAW_DB / calibrated if calibrated < MANY else 0.0
    return Interval(middle - BELOW * half - drawn, middle + (2 - BELOW) * half)
