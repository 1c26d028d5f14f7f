"""One search over ways to quantise, judged by the outputs of samples that were not calibrated with.

Every candidate is a whole configuration: a local strategy, then the best of them with weights refined, then
with 16 bits where norms read. What is kept at each step is what comes closest to float on the samples held
out; a step that does not help is undone. The result is calibrated anew with all samples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibrate import calibrate
from tpuflow.config import Config, LayerConfig
from tpuflow.errors import SampleError
from tpuflow.frontend import FloatModel, FloatSession
from tpuflow.partition import PartitionedModel, partition
from tpuflow.quantize import quantize
from tpuflow.refine.weights import refine_weights
from tpuflow.run import graph_level
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuflow.calibrate import Ranges
    from tpuflow.store import AnyGraph

__all__ = ["Candidate", "Searched", "search"]

logger = logging.getLogger(__name__)

STRATEGIES = ("mse", "extrema", "pct[99.999]", "pct[99.99]", "aciq_laplace")
"""Local strategies tried."""

HELD_OUT = 4
"""One of so many samples is held out."""

MOST = 64
"""Samples held out at most."""

NORMS = frozenset({"LayerNormalization", "RMSNormalization"})


@dataclass(frozen=True)
class Candidate:
    """A configuration and how far from float it is.

    Attributes:
        name: What it does.
        config: All of it.
        refined: Whether weights were refined.
        sqnr_db: Of the outputs of held-out samples, the mean over outputs.
        kept: Whether it was the best so far.
    """

    name: str
    config: Config
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
    judge = _Judge(model, judged)
    tried: list[Candidate] = []
    refined = model
    for name, wish, weights in _steps(model, config, tried):
        if weights and refined is model:
            refined, _ = refine_weights(model, shown, wish)
        source = refined if weights else model
        graph, _ = _graph(source, shown, wish)
        found = judge.sqnr_db(graph)
        kept = all(found > entry.sqnr_db for entry in tried)
        tried.append(Candidate(name, wish, weights, found, kept))
        remark(f"{name}: {found:.1f} dB{', best so far' if kept else ''}")
    best = _best(tried)
    source = refine_weights(model, samples, best.config)[0] if best.refined else model
    graph, ranges = _graph(source, samples, best.config)
    return Searched(graph, best.config, ranges, tuple(tried))


def _steps(model: FloatModel, config: Config, tried: list[Candidate]) -> Iterator[tuple[str, Config, bool]]:
    """Name, configuration and refinement of every candidate; later ones build on the best so far."""
    for strategy in STRATEGIES:
        yield strategy, _with_strategy(config, strategy), False
    chosen = _best(tried)
    yield "weights refined", chosen.config, True
    for strategy in STRATEGIES[:3]:
        if strategy != chosen.config.calibrate.strategy:
            yield f"weights refined, {strategy}", _with_strategy(config, strategy), True
    read = tuple(
        value.name
        for node in model.model.graph
        if node.op_type in NORMS and (value := node.inputs[0]) is not None and value.name
    )
    if read:
        chosen = _best(tried)
        entry = LayerConfig.model_validate({"names": read, "dtype": "int16"})
        wide = chosen.config.model_copy(update={"layers": (*chosen.config.layers, entry)})
        yield "16 bits in front of norms", wide, chosen.refined


def _best(tried: list[Candidate]) -> Candidate:
    return next(entry for entry in reversed(tried) if entry.kept)


def _with_strategy(config: Config, strategy: str) -> Config:
    calibration = config.calibrate.model_copy(update={"strategy": strategy})
    return config.model_copy(update={"calibrate": calibration})


def _graph(model: FloatModel, samples: Samples, config: Config) -> tuple[AnyGraph, Ranges]:
    parts: FloatModel | PartitionedModel = partition(model) if model.findings else model
    ranges = calibrate(parts, samples, config)
    if isinstance(parts, FloatModel):
        return quantize(parts, ranges, config), ranges
    graphs = quantize(parts, ranges, config)
    return graphs.whole or graphs, ranges


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


class _Judge:
    """Compares graphs with float on the same samples."""

    def __init__(self, model: FloatModel, samples: Samples) -> None:
        session = FloatSession(model.original)
        self._batches = [batch.arrays for batch in samples.batches()]
        self._outputs = [session.run(arrays) for arrays in self._batches]

    def sqnr_db(self, graph: AnyGraph) -> float:
        """Signal to noise of the outputs, the mean over them."""
        level = graph_level(graph)
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        for arrays, expected in zip(self._batches, self._outputs, strict=True):
            found = level.run(arrays)
            for name, value in expected.items():
                if name in found and value.dtype.kind == "f":
                    off = found[name].astype(np.float64) - value
                    noise[name] = noise.get(name, 0.0) + float(np.sum(off**2))
                    signal[name] = signal.get(name, 0.0) + float(np.sum(value.astype(np.float64) ** 2))
        ratios = [signal[name] / max(noise[name], 1e-30) for name in noise if signal[name] > 0]
        return float(np.mean(10 * np.log10(ratios))) if ratios else math.inf
