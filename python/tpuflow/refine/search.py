"""One search over ways to quantise, judged by the outputs of samples that were not calibrated with.

Every candidate is a whole configuration: a local strategy, then factors by channel, refined weights, 16
bits where norms read. What is kept at each step is what comes closest to float on the samples held
out; a step that does not help is undone. The result is calibrated anew with all samples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.config import Config, LayerConfig
from tpuflow.errors import SampleError
from tpuflow.refine.channels import NORMS
from tpuflow.refine.equalize import equalized
from tpuflow.refine.judge import SHOWN, Judge, calibrated_graph
from tpuflow.refine.weights import refine_weights
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuflow.calibrate import Ranges
    from tpuflow.frontend import FloatModel
    from tpuflow.store import AnyGraph

__all__ = ["Candidate", "Searched", "search"]

logger = logging.getLogger(__name__)

STRATEGIES = ("mse", "extrema", "pct[99.999]", "pct[99.99]", "aciq_laplace")
"""Local strategies tried."""

HELD_OUT = 4
"""One of so many samples is held out."""

MOST = 64
"""Samples held out at most."""


@dataclass(frozen=True)
class Candidate:
    """A configuration and how far from float it is.

    Attributes:
        name: What it does.
        config: All of it.
        equalized: Whether channels have factors.
        refined: Whether weights were refined.
        sqnr_db: Of the outputs of held-out samples, the mean over outputs.
        kept: Whether it was the best so far.
    """

    name: str
    config: Config
    equalized: bool
    refined: bool
    sqnr_db: float
    kept: bool


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        graph: The best graph, of all samples.
        config: Its configuration.
        ranges: Its ranges.
        candidates: Everything that was tried, in order.
    """

    graph: AnyGraph
    config: Config
    ranges: Ranges
    candidates: tuple[Candidate, ...]


def search(
    model: FloatModel,
    samples: Samples,
    config: Config | None = None,
    remark: Callable[[str], None] = logger.info,
) -> Searched:
    """The closest quantised form of a model among strategies, refined weights and wider norms.

    Args:
        model: A float model; nodes the machine cannot compute stay with the host.
        samples: Calibration samples; one in four is held out to judge by.
        config: Where the search starts.
        remark: Told about every candidate.

    Raises:
        SampleError: There are fewer than two samples.
    """
    config = config or Config()
    shown, judged = _divided(samples, model)
    judge = Judge(model, judged)
    sources = _Sources(model, shown)
    tried: list[Candidate] = []
    for name, wish, divided, weights in _steps(model, config, sources, tried):
        graph, _ = calibrated_graph(sources.of(wish, divided=divided, refined=weights), shown, wish)
        found = judge.sqnr_db(graph)
        kept = all(found > entry.sqnr_db for entry in tried)
        tried.append(Candidate(name, wish, divided, weights, found, kept))
        remark(f"{name}: {found:.1f} dB{', best so far' if kept else ''}")
    best = _best(tried)
    source = _Sources(model, samples).of(best.config, divided=best.equalized, refined=best.refined)
    graph, ranges = calibrated_graph(source, samples, best.config)
    return Searched(graph, best.config, ranges, tuple(tried))


class _Sources:
    """The float models candidates start from, each made once."""

    def __init__(self, model: FloatModel, samples: Samples) -> None:
        self._samples = samples
        self._made: dict[tuple[bool, bool], FloatModel] = {(False, False): model}

    def of(self, config: Config, *, divided: bool, refined: bool) -> FloatModel:
        """The model, with factors by channel and with weights rounded together where asked for."""
        if (divided, refined) not in self._made:
            if refined:
                source = self.of(config, divided=divided, refined=False)
                made, _ = refine_weights(source, self._samples, config)
            else:
                bits = min(config.quantize.weight_bits or 8, 8)
                made = equalized(self._made[False, False], self._samples.spread(SHOWN), bits).model
            self._made[divided, refined] = made
        return self._made[divided, refined]


def _steps(
    model: FloatModel, config: Config, sources: _Sources, tried: list[Candidate]
) -> Iterator[tuple[str, Config, bool, bool]]:
    """Name, configuration, factors and refinement of every candidate; later ones build on the best so far."""
    for strategy in STRATEGIES:
        yield strategy, _with_strategy(config, strategy), False, False
    first = _best(tried)
    if config.calibrate.equalize and sources.of(config, divided=True, refined=False) is not model:
        for strategy in dict.fromkeys([first.config.calibrate.strategy, *STRATEGIES[:3]]):
            yield f"channels equalized, {strategy}", _with_strategy(config, strategy), True, False
    chosen = _best(tried)
    yield "weights refined", chosen.config, chosen.equalized, True
    for strategy in STRATEGIES[:3]:
        if strategy != chosen.config.calibrate.strategy:
            yield f"weights refined, {strategy}", _with_strategy(config, strategy), chosen.equalized, True
    if chosen.equalized:
        yield "weights refined, channels as they were", first.config, False, True
    read = tuple(
        value.name
        for node in model.model.graph
        if node.op_type in NORMS and (value := node.inputs[0]) is not None and value.name
    )
    if read:
        chosen = _best(tried)
        entry = LayerConfig.model_validate({"names": read, "dtype": "int16"})
        wide = chosen.config.model_copy(update={"layers": (*chosen.config.layers, entry)})
        yield "16 bits in front of norms", wide, chosen.equalized, chosen.refined


def _best(tried: list[Candidate]) -> Candidate:
    return next(entry for entry in reversed(tried) if entry.kept)


def _with_strategy(config: Config, strategy: str) -> Config:
    calibration = config.calibrate.model_copy(update={"strategy": strategy})
    return config.model_copy(update={"calibrate": calibration})


def _divided(samples: Samples, model: FloatModel) -> tuple[Samples, Samples]:
    rows = list(samples.rows())
    if len(rows) < 2:
        raise SampleError(f"{len(rows)} sample: a search needs at least two, one to judge by")
    held = rows[HELD_OUT - 1 :: HELD_OUT] or rows[-1:]
    held = held[:: math.ceil(len(held) / MOST)]
    known = {id(row) for row in held}
    return (
        Samples.of(_stacked([row for row in rows if id(row) not in known]), model.inputs),
        Samples.of(_stacked(held), model.inputs),
    )


def _stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
