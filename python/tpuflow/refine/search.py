"""One search over ways to quantise, judged by the outputs of samples that were not calibrated with.

Every candidate is a whole configuration: a local strategy, then factors by channel (where layers read each
other, then behind norms as well), 16 bits inside norms and softmax where they have 8, refined weights. What
is kept at each step is what comes closest to float on the samples held out, in decibels and decisions
(`Seen.beats`); a step that does not help is undone. The result is calibrated anew with all samples. A model
is run once for all strategies: they choose by the same counts.

Two kinds of samples are held out. Typical ones tell how finely what is usual is stored. Every other of those
whose values reach furthest stands for what a network meets later and was not calibrated with; without them
the narrowest ranges that hold the bulk would always win. Of both kinds the one that comes out worse counts.
All of this is done in `FOLDS` ways of holding out, of which the mean decides: one way alone moves decibels by
about as much as what is tried.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibrate import calibrate, collect, ranges_of
from tpuflow.config import Config
from tpuflow.errors import SampleError
from tpuflow.judge import Judge, Seen
from tpuflow.refine.better import SCALED, calibrated_graph, graph_of, parts_of
from tpuflow.refine.equalize import MILD, equalized, noted_factors
from tpuflow.refine.weights import refine_weights
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from tpuflow.calibrate import Ranges, Statistics
    from tpuflow.frontend import FloatModel
    from tpuflow.store import AnyGraph

__all__ = ["Candidate", "Searched", "divided", "search"]

logger = logging.getLogger(__name__)

STRATEGIES = (
    ("mse", 16.0),
    ("mse", 64.0),
    ("mse", 4.0),
    ("mse", 2.0),
    ("mse", 256.0),
    ("extrema", 16.0),
    ("pct[99.999]", 16.0),
    ("pct[99.99]", 16.0),
)
"""Local strategies tried, each with the weight of what it clips."""

AGAIN = 4
"""So many of them, the first and the best others, are tried anew after a step that moves values."""

FACTORS: Mapping[str, tuple[bool, float]] = {
    "channels": (False, MILD),
    "channels mildly": (False, 0.5),
    "channels and norms": (True, MILD),
}
"""Ways to scale channels: whether those that norms make are, and how mildly (see `equalized`)."""

MARGIN_DB = 0.25
"""Within this two candidates are alike. Then the one with more done to it is taken, which lowers the error of
every layer by itself, and of equals the one tried first.
"""

FOLDS = 2
"""Ways to hold out samples."""

HELD_OUT = 8
"""One of so many samples is held out for being typical, and as many for reaching far."""

MOST = 32
"""Samples of each kind that are judged by, at most."""


@dataclass(frozen=True)
class Candidate:
    """A configuration and how far from float it is.

    Attributes:
        name: What it does.
        config: All of it.
        scaled: How channels were scaled, one of `FACTORS`, or empty.
        refined: Whether weights were refined.
        seen: What it makes of the held-out samples.
        kept: Whether it was taken for the best so far.
    """

    name: str
    config: Config
    scaled: str
    refined: bool
    seen: Seen
    kept: bool

    @property
    def sqnr_db(self) -> float:
        """Of the outputs of held-out samples, the mean over outputs."""
        return self.seen.mean_db

    @property
    def steps(self) -> int:
        """How much was done to the network before it was quantised."""
        return bool(self.scaled) + self.refined

    def beats(self, best: Candidate) -> bool:
        """Whether this is to be taken rather than the best so far."""
        return self.seen.beats(best.seen, -MARGIN_DB if self.steps > best.steps else MARGIN_DB)


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
    """The closest quantised form of a model among strategies, scaled channels, refined weights.

    Args:
        model: A float model; nodes the machine cannot compute stay with the host.
        samples: Calibration samples; in turn one in four is held out to judge by.
        config: Where the search starts.
        remark: Told about every candidate.

    Raises:
        SampleError: There are fewer than two samples.
    """
    config = config or Config()
    folds = [
        (_Sources(model, shown), Judge(model, *judged)) for shown, judged in divided(model, samples, config)
    ]
    tried: list[Candidate] = []
    for name, wish, scaled, refined in _steps(config, folds[0][0], tried):
        found = Seen.mean(
            [judge.seen(sources.graph(wish, scaled, refined=refined)) for sources, judge in folds]
        )
        candidate = Candidate(name, wish, scaled, refined, found, kept=True)
        kept = not tried or candidate.beats(_best(tried))
        tried.append(replace(candidate, kept=kept))
        flips = f", {found.flips:.1%} of decisions differ" if found.flips else ""
        remark(f"{name}: {found.mean_db:.1f} dB{flips}{', best so far' if kept else ''}")
    best = _best(tried)
    source = _Sources(model, samples).of(best.config, best.scaled, refined=best.refined)
    graph, ranges = calibrated_graph(source, samples, best.config)
    return Searched(graph, best.config, ranges, tuple(tried))


class _Sources:
    """The float models candidates start from, each made once."""

    def __init__(self, model: FloatModel, samples: Samples) -> None:
        self._samples = samples
        self._made: dict[tuple[str, bool], FloatModel] = {("", False): model}
        self._counts: dict[tuple[str, bool], Statistics] = {}

    def graph(self, config: Config, scaled: str, *, refined: bool) -> AnyGraph:
        """The graph of a configuration, by what was counted of its model."""
        model, key = self.of(config, scaled, refined=refined), (scaled, refined)
        if key not in self._counts:
            calibrate(parts_of(model), self._samples, config, counted=lambda found: self._keep(key, found))
        return graph_of(model, ranges_of(parts_of(model), self._counts[key], config), config)

    def _keep(self, key: tuple[str, bool], found: Statistics) -> None:
        self._counts[key] = found

    def of(self, config: Config, scaled: str, *, refined: bool) -> FloatModel:
        """The model, with factors by channel and with weights rounded together where asked for."""
        if (scaled, refined) not in self._made:
            if refined:
                source = self.of(config, scaled, refined=False)
                made, _ = refine_weights(source, self._samples, config)
            else:
                bits = min(config.quantize.weight_bits or 8, 8)
                made = self._scaled(scaled, bits)
            self._made[scaled, refined] = made
        return self._made[scaled, refined]

    def _scaled(self, scaled: str, bits: int) -> FloatModel:
        norms, mild = FACTORS[scaled]
        samples = self._samples.spread(SCALED)
        return equalized(self._made["", False], samples, bits, norms=norms, mild=mild).model

    def differs(self, config: Config, scaled: str) -> bool:
        """Whether channels are scaled otherwise than by the ways tried before."""
        ways = ["", *FACTORS]
        own, *others = (
            noted_factors(self.of(config, each, refined=False))
            for each in reversed(ways[: ways.index(scaled) + 1])
        )
        return own not in others


def _steps(
    config: Config, sources: _Sources, tried: list[Candidate]
) -> Iterator[tuple[str, Config, str, bool]]:
    """Name, configuration, factors and refinement of every candidate; later ones build on the best so far."""
    for strategy in STRATEGIES:
        yield _told(strategy), _with_strategy(config, strategy), "", False
    first = _best(tried)
    ranked = sorted(range(1, len(STRATEGIES)), key=lambda at: -tried[at].sqnr_db)
    likely = [STRATEGIES[at] for at in (0, *ranked[: AGAIN - 1])]
    for scaled in FACTORS if config.calibrate.equalize else ():
        if sources.differs(config, scaled):
            for strategy in likely:
                name = f"{scaled} equalized, {_told(strategy)}"
                yield name, _with_strategy(config, strategy), scaled, False
    for key, name in (("wide_norms", "norms"), ("wide_softmax", "softmax")):
        chosen = _best(tried)
        if config.quantize.dtype == "int8" and not getattr(chosen.config.quantize, key):
            wide = chosen.config.quantize.model_copy(update={key: True})
            widened = chosen.config.model_copy(update={"quantize": wide})
            yield f"16 bits inside {name}", widened, chosen.scaled, False
    chosen = _best(tried)
    yield "weights refined", chosen.config, chosen.scaled, True
    for strategy in likely:
        again = _with_strategy(chosen.config, strategy)
        if again != chosen.config:
            yield f"weights refined, {_told(strategy)}", again, chosen.scaled, True
    if chosen.scaled:
        yield "weights refined, channels as they were", first.config, "", True


def _best(tried: list[Candidate]) -> Candidate:
    return next(entry for entry in reversed(tried) if entry.kept)


def _told(strategy: tuple[str, float]) -> str:
    name, weight = strategy
    return f"{name}, clip_weight {weight:g}" if name == "mse" else name


def _with_strategy(config: Config, strategy: tuple[str, float]) -> Config:
    update = dict(zip(("strategy", "clip_weight"), strategy, strict=True))
    return config.model_copy(update={"calibrate": config.calibrate.model_copy(update=update)})


def divided(model: FloatModel, samples: Samples, config: Config) -> list[tuple[Samples, tuple[Samples, ...]]]:
    """By fold what is calibrated with, and groups to judge by: typical samples, some that reach furthest."""
    count = samples.count
    if count < 2:
        raise SampleError(f"{count} sample: a search needs at least two, one to judge by")
    order = np.argsort(-_reach(model, samples, config), kind="stable").tolist()
    rows = list(samples.rows())

    def chosen(places: Iterable[int]) -> Samples:
        return Samples.of(_stacked([rows[at] for at in places]), model.inputs)

    found = []
    for fold in range(min(FOLDS, count // HELD_OUT) or 1):
        far = sorted(order[fold : FOLDS * (count // HELD_OUT) : FOLDS])
        near = sorted(set(range(count)).difference(far))
        typical = near[HELD_OUT - 2 - fold * HELD_OUT // FOLDS :: HELD_OUT - 1] or near[-1:]
        shown = chosen(sorted(set(near).difference(typical)))
        found.append((shown, tuple(chosen(places).spread(MOST) for places in (typical, far) if places)))
    return found


def _reach(model: FloatModel, samples: Samples, config: Config) -> NDArray[np.float64]:
    """How far the values of each sample reach, `[samples]`: the mean over tensors of a logarithm."""
    tensors = collect(parts_of(model), samples, config.calibration()).tensors.values()
    batches = math.ceil(samples.count / samples.batch)
    total = np.zeros(batches)
    for tensor in tensors:
        if len(tensor.batches) == batches:
            reach = np.abs(np.array(tensor.batches)).max(axis=1)
            total += np.log(np.maximum(reach, 1e-30) / max(float(np.median(reach)), 1e-30))
    return np.repeat(total / max(1, len(tensors)), samples.batch)[: samples.count]


def _stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
