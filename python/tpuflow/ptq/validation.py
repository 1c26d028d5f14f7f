"""The result of a search beside the default recipe, on samples that no choice was made by.

A search takes the best of many candidates by the samples it holds out, and the best of many is partly the
luckiest. So some samples are kept from the whole of it (`kept_apart`). On them what was found must be as
close to float as what the default recipe makes of the same samples, and no more of its decisions may differ
than chance explains; they also state what outputs are to be expected (`Validation.estimate`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.ptq.held_out import LEAST, Estimate, interval

if TYPE_CHECKING:
    from tpuflow.evaluation.fidelity import Evaluator
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["Validation", "kept_apart", "validate_graph"]

FEW = 64
"""Of fewer samples one half is kept apart, of more a quarter."""

MOST = 128
"""Samples that are kept apart, at most."""


@dataclass(frozen=True)
class Validation:
    """A graph beside that of the default recipe, both made of the same samples and evaluated by others.

    Attributes:
        found_db: Signal to noise, the mean over the outputs.
        default_db: The same of the default recipe.
        more_flips: Decisions by which the graph differs from float more often than the default, by sample.
        standard_error: That of this mean of paired differences.
        samples: How many it is evaluated by.
        found: What outputs are to be expected of the graph.
        default: The same of the default recipe.
    """

    found_db: float
    default_db: float
    more_flips: float
    standard_error: float
    samples: int
    found: Estimate
    default: Estimate

    @property
    def holds(self) -> bool:
        """Whether the graph is no further from float, and its decisions do not differ more often."""
        return self.found_db >= self.default_db and self.more_flips <= self.standard_error

    @property
    def estimate(self) -> Estimate:
        """The expected signal-to-noise ratio of the graph that is taken."""
        return self.found if self.holds else self.default


def kept_apart(samples: Samples) -> tuple[Samples, Samples] | None:
    """Samples to choose with and those kept apart; None where there are too few for either."""
    if samples.count < LEAST:
        return None
    step = 2 if samples.count < FEW else 4
    rows = list(samples.rows())
    chosen = [row for at, row in enumerate(rows) if at % step != step - 1]
    return samples.of_rows(chosen), samples.of_rows(rows[step - 1 :: step]).spread(MOST)


def validate_graph(evaluator: Evaluator, found: AnyGraph, default: AnyGraph, calibrated: int) -> Validation:
    """Holds a graph against the default's.

    Args:
        evaluator: Runs the samples that were kept apart.
        found: What was chosen.
        default: What the default recipe makes.
        calibrated: Samples that both are made of.
    """
    outputs = [evaluator.outputs(graph) for graph in (found, default)]
    own, other = (evaluator.of_outputs(each).mean_db for each in outputs)
    flips, default_flips = (evaluator.flips_by_sample(each) for each in outputs)
    more = flips - default_flips
    estimates = [
        Estimate(
            {
                name: interval(noise, signal, calibrated)
                for name, (noise, signal) in evaluator.by_sample(each).items()
            },
            evaluator.count,
        )
        for each in outputs
    ]
    error = float(more.std(ddof=1)) / math.sqrt(len(more))
    # Rounding must not tell one more decision from its standard error, which is the same number.
    return Validation(own, other, float(np.mean(more)), error * (1 + 1e-9), evaluator.count, *estimates)
