"""One search over ways to quantise, judged by the outputs of samples that were not calibrated with.

Every candidate is a whole configuration: a local strategy, then factors by channel, 16 bits inside norms and
softmax (where they have 8) and for means over whole images, refined weights. What is kept at each step is
what comes closest to float on the samples held out, in decibels and decisions (`Seen.beats`); a step that
does not help is undone. The result is calibrated anew with all samples. A model is run once for all
strategies: they choose by the same counts.

Inside a norm is what it reads and all that is added up to that: the stream that runs through a transformer,
which every block adds to and every rounding of which stays. Inside a softmax are the scores it reads and the
shares it makes, most of which are far below the largest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibrate import calibrate, ranges_of
from tpuflow.config import Config, LayerConfig
from tpuflow.errors import SampleError
from tpuflow.frontend.values import array_of, shape_of
from tpuflow.quantize import wide_values
from tpuflow.refine.channels import NORMS
from tpuflow.refine.equalize import equalized
from tpuflow.refine.judge import SHOWN, Judge, Seen, calibrated_graph, graph_of, parts_of
from tpuflow.refine.layers import linear_layers
from tpuflow.refine.weights import refine_weights
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

    from tpuflow.calibrate import Ranges, Statistics
    from tpuflow.frontend import FloatModel
    from tpuflow.store import AnyGraph

__all__ = ["Candidate", "Searched", "search"]

logger = logging.getLogger(__name__)

STRATEGIES = (
    ("mse", 16.0),
    ("mse", 64.0),
    ("mse", 4.0),
    ("mse", 2.0),
    ("extrema", 16.0),
    ("pct[99.999]", 16.0),
    ("pct[99.99]", 16.0),
    ("aciq_laplace", 16.0),
)
"""Local strategies tried, each with the weight of what it clips."""

AGAIN = 3
"""So many of them, the first and the best others, are tried anew after a step that moves values."""

PASSED = frozenset({"Reshape", "Transpose", "Identity", "Dropout", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that round nothing."""

SUMS = PASSED | {"Add", "Sub"}
"""Operators between a norm and what is added up for it."""

SCORES = PASSED | {"Add", "Sub", "Mul", "Div"}
"""Operators between a softmax and the products it weighs."""

MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})

MANY = 16
"""Numbers a mean is made of, at least, to be worth more bits."""

MARGIN_DB = 0.25
"""What a candidate must come closer by: of two that are nearly alike the one tried first."""

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
        seen: What it makes of the held-out samples.
        kept: Whether it was clearly the best so far.
    """

    name: str
    config: Config
    equalized: bool
    refined: bool
    seen: Seen
    kept: bool

    @property
    def sqnr_db(self) -> float:
        """Of the outputs of held-out samples, the mean over outputs."""
        return self.seen.mean_db


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
    """The closest quantised form of a model among strategies, scaled channels, refined weights, wider norms.

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
        found = judge.seen(sources.graph(wish, divided=divided, refined=weights))
        kept = not tried or found.beats(_best(tried).seen, MARGIN_DB)
        tried.append(Candidate(name, wish, divided, weights, found, kept))
        flips = f", {found.flips:.1%} of decisions differ" if found.flips else ""
        remark(f"{name}: {found.mean_db:.1f} dB{flips}{', best so far' if kept else ''}")
    best = _best(tried)
    source = _Sources(model, samples).of(best.config, divided=best.equalized, refined=best.refined)
    graph, ranges = calibrated_graph(source, samples, best.config)
    return Searched(graph, best.config, ranges, tuple(tried))


class _Sources:
    """The float models candidates start from, each made once."""

    def __init__(self, model: FloatModel, samples: Samples) -> None:
        self._samples = samples
        self._made: dict[tuple[bool, bool], FloatModel] = {(False, False): model}
        self._counts: dict[tuple[bool, bool], Statistics] = {}

    def graph(self, config: Config, *, divided: bool, refined: bool) -> AnyGraph:
        """The graph of a configuration, by what was counted of its model."""
        model, key = self.of(config, divided=divided, refined=refined), (divided, refined)
        if key not in self._counts:
            calibrate(parts_of(model), self._samples, config, counted=lambda found: self._keep(key, found))
        return graph_of(model, ranges_of(parts_of(model), self._counts[key], config), config)

    def _keep(self, key: tuple[bool, bool], found: Statistics) -> None:
        self._counts[key] = found

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
        yield _told(strategy), _with_strategy(config, strategy), False, False
    first = _best(tried)
    ranked = sorted(range(1, len(STRATEGIES)), key=lambda at: -tried[at].sqnr_db)
    likely = [0, *ranked[: AGAIN - 1]]
    if config.calibrate.equalize and sources.of(config, divided=True, refined=False) is not model:
        for at in likely:
            strategy = STRATEGIES[at]
            yield f"channels equalized, {_told(strategy)}", _with_strategy(config, strategy), True, False
    own = config.quantize
    wide = wide_values(model.model.graph, norms=own.wide_norms, softmax=own.wide_softmax)
    for name, values in (
        ("inside norms", _inside(model, NORMS, SUMS)),
        ("inside softmax", _softmax(model)),
        ("for means", _means(model)),
    ):
        chosen = _best(tried)
        widened = _widened(chosen.config, model, values - wide)
        if widened is not None:
            yield f"16 bits {name}", widened, chosen.equalized, False
    chosen = _best(tried)
    yield "weights refined", chosen.config, chosen.equalized, True
    for at in likely:
        again = _with_strategy(chosen.config, STRATEGIES[at])
        if again != chosen.config:
            yield f"weights refined, {_told(STRATEGIES[at])}", again, chosen.equalized, True
    if chosen.equalized:
        yield "weights refined, channels as they were", first.config, False, True


def _inside(model: FloatModel, operators: Collection[str], through: Collection[str]) -> set[ir.Value]:
    """What operators read, and what that is made of by others that only join values."""
    found: set[ir.Value] = set()
    waiting = [node.inputs[0] for node in model.model.graph if node.op_type in operators]
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if value is None or node is None or value in found:
            continue
        found.add(value)
        if node.op_type in through:
            waiting += [operand for operand in node.inputs if array_of(operand) is None]
    return found


def _softmax(model: FloatModel) -> set[ir.Value]:
    """Scores and shares, but not those that are the network's own output."""
    made = {node.outputs[0] for node in model.model.graph if node.op_type == "Softmax"}
    shares = {value for value in made if not value.is_graph_output() and value.uses()}
    return _inside(model, {"Softmax"}, SCORES) | shares if shares else set()


def _means(model: FloatModel) -> set[ir.Value]:
    """Means over whole images or sequences: a few numbers that are finer than what they are made of."""
    found = set()
    for node in model.model.graph:
        made, read = (
            shape_of(value) if value is not None else None for value in (node.outputs[0], node.inputs[0])
        )
        if node.op_type not in MEANS or made is None or read is None or node.outputs[0].is_graph_output():
            continue
        if math.prod(read) >= MANY * math.prod(made):
            found.add(node.outputs[0])
    return found


def _widened(config: Config, model: FloatModel, values: Collection[ir.Value]) -> Config | None:
    """A configuration in which values have 16 bits, weights of layers that make them no more than before."""
    entries: list[LayerConfig] = []
    layers = {name for layer in linear_layers(model.model.graph) for name in layer.names}
    names = [
        value.name for node in model.model.graph for value in node.outputs if value in values and value.name
    ]
    bits = config.quantize.weight_bits or 8
    for own, change in (
        ([name for name in names if name in layers], {"dtype": "int16", "weight_bits": bits}),
        ([name for name in names if name not in layers], {"dtype": "int16"}),
    ):
        if own:
            entries.append(LayerConfig.model_validate({"names": tuple(own), **change}))
    if not entries or config.quantize.dtype != "int8":
        return None
    return config.model_copy(update={"layers": (*config.layers, *entries)})


def _best(tried: list[Candidate]) -> Candidate:
    return next(entry for entry in reversed(tried) if entry.kept)


def _told(strategy: tuple[str, float]) -> str:
    name, weight = strategy
    return f"{name}, clip_weight {weight:g}" if name == "mse" else name


def _with_strategy(config: Config, strategy: tuple[str, float]) -> Config:
    update = dict(zip(("strategy", "clip_weight"), strategy, strict=True))
    return config.model_copy(update={"calibrate": config.calibrate.model_copy(update=update)})


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
