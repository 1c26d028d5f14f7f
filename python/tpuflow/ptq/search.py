"""One search over ways to quantise, evaluated by the outputs of samples that were not calibrated with.

Every candidate is a whole plan: a calibration strategy, pooling commuted behind the classifier, cross-layer
equalization (where layers read each other, then behind norms as well), 16 bits for what no layer reads
(`WIDER`), refined weights, outlier channel splitting as far as the network may grow, output bias correction.
What is kept at each step is what comes closest to float on held-out samples, in decibels and in expected
top-1 disagreement (`Fidelity.beats`); a step that does not help is undone. The result is calibrated anew with
all samples. A model is run once for all strategies: they choose by the same counts, of every value unless the
configuration says otherwise.

Samples are held out in several folds (`folds.py`), each a group of typical samples and a group of samples
with the largest values; the worse result of the two groups counts. A candidate that is far behind in the
first fold is not tried in the others.

Some samples are kept from all of that (`validation.py`): where the best is not as good as the default recipe
on them, that is taken. Of fewer than eight samples nothing is chosen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tpuflow.calibration import calibrate, without_warnings
from tpuflow.config import Config, resolve_layers
from tpuflow.evaluation.fidelity import Evaluator, Fidelity
from tpuflow.io.samples import Samples
from tpuflow.lowering import added_values
from tpuflow.ptq.channel_splitting import multiplications, split_channels
from tpuflow.ptq.confirmation import parts_of
from tpuflow.ptq.equalization import MILD, SCALED, equalize_channels, noted_factors
from tpuflow.ptq.folds import sample_folds
from tpuflow.ptq.layers import linear_layers
from tpuflow.ptq.pooling_commutation import commute_pooling
from tpuflow.ptq.recipe import CalibratedModel, CalibrationData, Recipe
from tpuflow.ptq.validation import Validation, kept_apart, validate_graph
from tpuflow.ptq.weights import refine_weights

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from tpuflow.calibration import Ranges, Statistics
    from tpuflow.frontend import FloatModel
    from tpuflow.io.journal import Journal
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.ptq.held_out import Estimate

__all__ = ["Candidate", "Plan", "SearchResult", "search"]

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

AGAIN = 3
"""So many of them, the first and the best others, are tried anew after a step that moves values."""

FACTORS: Mapping[str, tuple[bool, float]] = {
    "channels": (False, MILD),
    "channels mildly": (False, 0.5),
    "channels and norms": (True, MILD),
}
"""Ways to scale channels: whether those that norms make are, and how mildly (see `equalize_channels`)."""

WIDER = {
    "int16_normalization": "16 bits inside norms",
    "int16_softmax": "16 bits inside softmax",
    "int16_heads": "16 bits behind last layers",
    "int16_residual_additions": "16 bits for sums that are added",
}
"""Keys of values that have 16 bits although layers have 8, and what trying them is called."""

MARGIN_DB = 0.25
"""Within this two candidates are alike. Then the one with more done to it is taken, which lowers the error of
every layer by itself, and of equals the one tried first.
"""

DEFAULT = "default recipe"
"""Name of the result of a search that takes no candidate."""

LOST_DB = 1.5
"""So far behind the best with the first samples held out, a candidate is out."""

REFINED = 64
"""Samples that weights are refined by in the search, at most; the result is refined by all."""

NEAR_DB = 1.0
"""Where scaled channels gained less than that, refined weights are tried without them as well."""

GROWTH = 2.0
"""How many times as many multiplications a network may take at most, by all that is done to it together."""


@dataclass(frozen=True)
class Plan:
    """A plan: the methods applied to a network.

    Attributes:
        config: All of its configuration.
        commute_pooling: Whether averages stand behind the last layers that read them.
        scaled: How channels are scaled, one of `FACTORS`, or empty.
        refined: Whether weights are refined.
        split_channels: Whether channels are stored twice.
        correct_output_bias: Whether mean errors of outputs are corrected.
    """

    config: Config
    commute_pooling: bool = False
    scaled: str = ""
    refined: bool = False
    split_channels: bool = False
    correct_output_bias: bool = False

    @property
    def steps(self) -> int:
        """How much is done to the network, at no cost or hardly any, beside choosing ranges."""
        return (
            bool(self.scaled)
            + self.refined
            + self.correct_output_bias
            + self.config.quantize.int16_residual_additions
        )

    @property
    def recipe(self) -> Recipe:
        """The stages that follow when its float model is made; methods of other stages made that model."""
        return Recipe(self.config, ("calibrate", "correct") if self.correct_output_bias else ("calibrate",))

    @property
    def key(self) -> Hashable:
        """Key of its float model; where channels are split, of ranges as well."""
        own = self.config.calibrate
        split = (own.strategy, own.clip_weight) if self.split_channels else None
        return self.commute_pooling, self.scaled, self.refined, split


@dataclass(frozen=True)
class Candidate:
    """A plan and how far from float it leads.

    Attributes:
        name: What it does.
        plan: All of it.
        fidelity: What it makes of the held-out samples.
        parts: The same by way of holding out; of one that was soon far behind only the first.
        kept: Whether it was taken for the best so far.
    """

    name: str
    plan: Plan
    fidelity: Fidelity
    parts: tuple[Fidelity, ...]
    kept: bool

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.plan.config

    @property
    def refined(self) -> bool:
        """Whether weights were refined."""
        return self.plan.refined

    @property
    def sqnr_db(self) -> float:
        """Of the outputs of held-out samples, the mean over outputs."""
        return self.fidelity.mean_db

    def beats(self, best: Candidate) -> bool:
        """Whether this is to be taken rather than the best so far."""
        more = self.plan.steps > best.plan.steps
        return self.fidelity.beats(best.fidelity, -MARGIN_DB if more else MARGIN_DB)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search over recipes.

    Attributes:
        graph: The best graph, of all samples.
        config: Its configuration.
        ranges: Its ranges.
        candidates: Everything that was tried, in order.
        name: What was taken: the best candidate, or `DEFAULT`.
        validation: What it makes of samples that no choice was made by; None where there are too few.
    """

    graph: AnyGraph
    config: Config
    ranges: Ranges
    candidates: tuple[Candidate, ...]
    name: str
    validation: Validation | None = None

    @property
    def estimate(self) -> Estimate | None:
        """The expected signal-to-noise ratio of the outputs; None where it is not estimated."""
        return None if self.validation is None else self.validation.estimate


def search(
    model: FloatModel,
    samples: Samples,
    config: Config | None = None,
    remark: Callable[[str], None] = logger.info,
    growth: float = GROWTH,
    journal: Journal | None = None,
) -> SearchResult:
    """The closest quantised form of a model among strategies, scaled and split channels, refined weights.

    Args:
        model: A float model; nodes the machine cannot compute stay with the host.
        samples: Calibration samples; some are kept apart to validate with, and of the others one in four is
            held out in turn to evaluate with.
        config: Where the search starts.
        remark: Told about every candidate.
        growth: How many times as many multiplications as it has the network may take, by averages behind last
            layers and channels stored twice together.
        journal: Holds what was seen of every candidate; those it knows are not tried again.

    Raises:
        ConfigError: An entry of the configuration fits no layer.
    """
    given = config or Config()
    parts = kept_apart(samples)
    if parts is None:
        remark(f"{samples.count} samples: too few to choose by, the default recipe is taken")
        return _default(model, samples, given, ())
    with without_warnings():
        tried = _try_candidates(model, parts[0], given, remark, growth, journal)
        found = _validate_best(model, *parts, given, tried, growth)
    chosen = _best(tried)
    flips = f", {found.more_flips:+.2f} decisions a sample" if found.more_flips else ""
    remark(
        f"{chosen.name}: {found.found_db:.1f} dB on samples kept apart, {found.default_db:.1f} dB by the "
        f"default recipe{flips}{'' if found.holds else ': the default is taken'}"
    )
    if not found.holds:
        return replace(_default(model, samples, given, tuple(tried)), validation=found)
    sources = _Sources(model, samples, samples.count, growth, _resolve_config(model, given))
    state = sources.calibrate(chosen.plan)
    assert state.ranges is not None, "calibration gives some"
    graph = chosen.plan.recipe.graph(state)
    return SearchResult(graph, chosen.config, state.ranges, tuple(tried), chosen.name, found)


def _resolve_config(model: FloatModel, config: Config) -> Config:
    """The configuration candidates start from: numbers and operators are those of the network as it is."""
    return resolve_layers(_counting_all(config), model.model)


def _default(
    model: FloatModel, samples: Samples, config: Config, tried: tuple[Candidate, ...]
) -> SearchResult:
    """The result of the default recipe with all samples."""
    recipe = Recipe(config)
    state = recipe.calibrate(CalibratedModel(model, hosted=frozenset()), CalibrationData(samples))
    assert state.ranges is not None, "calibration gives some"
    return SearchResult(recipe.graph(state), config, state.ranges, tried, DEFAULT)


def _validate_best(
    model: FloatModel, shown: Samples, kept: Samples, config: Config, tried: list[Candidate], growth: float
) -> Validation:
    """The best candidate beside the default recipe, on the samples kept apart."""
    sources = _Sources(model, shown, REFINED, growth, _resolve_config(model, config))
    found = sources.graph(_best(tried).plan)
    return validate_graph(
        Evaluator(model, kept), found, _default(model, shown, config, ()).graph, shown.count
    )


def _try_candidates(
    model: FloatModel,
    samples: Samples,
    config: Config,
    remark: Callable[[str], None],
    growth: float,
    journal: Journal | None,
) -> list[Candidate]:
    """Every candidate, in order, with what it makes of samples held out."""
    config = _resolve_config(model, config)
    folds = [
        (_Sources(model, shown, REFINED, growth, config), Evaluator(model, *groups))
        for shown, groups in sample_folds(model, samples, config)
    ]
    tried: list[Candidate] = []
    for name, plan in _steps(config, folds[0][0], tried):
        best = _best(tried) if tried else None
        key = f"{len(tried)}: {name}"
        known = None if journal is None else journal.find(key)
        if known is None:
            start = time.perf_counter()
            parts = _fidelities(plan, folds, best)
            if journal is not None:
                journal.note(key, [asdict(part) for part in parts], seconds=time.perf_counter() - start)
        else:
            parts = [Fidelity(**part) for part in known]
        found = Fidelity.mean(parts)
        candidate = Candidate(name, plan, found, tuple(parts), kept=True)
        complete = len(parts) == len(folds)
        kept = best is None or (complete and candidate.beats(best))
        tried.append(replace(candidate, kept=kept))
        told = ", best so far" if kept else "" if complete else ", far behind"
        flips = f", expected top-1 disagreement {found.expected_flips:.1%}" if found.decisions else ""
        remark(f"{name}: {found.mean_db:.1f} dB{flips}{told}")
    return tried


def _fidelities(
    plan: Plan, folds: Sequence[tuple[_Sources, Evaluator]], best: Candidate | None
) -> list[Fidelity]:
    """The fidelity of a plan on every fold; of one that is far behind the best on the first alone."""
    parts: list[Fidelity] = []
    for sources, evaluator in folds:
        parts.append(evaluator.fidelity(sources.graph(plan)))
        if best is not None and parts[-1].score < best.parts[len(parts) - 1].score - LOST_DB:
            break
    return parts


class _Sources:
    """The float models candidates start from, each made once.

    Args:
        model: As it is.
        samples: What it is calibrated with.
        refined: How many of them weights are refined by.
        growth: How many times its multiplications it may take.
        config: Entries of single layers, by name.
    """

    def __init__(
        self, model: FloatModel, samples: Samples, refined: int, growth: float, config: Config
    ) -> None:
        self._model = model
        self._samples = samples
        self._refined = samples.spread(refined)
        self._most = growth * _multiplications(model)
        commuted = commute_pooling(model, config.layers)
        self._pooling_commuted = commuted if commuted and _multiplications(commuted) <= self._most else None
        self._made: dict[Hashable, FloatModel] = {}
        self._counts: dict[Hashable, Statistics] = {}

    def graph(self, plan: Plan) -> AnyGraph:
        """The graph of a plan."""
        return plan.recipe.graph(self.calibrate(plan))

    def calibrate(self, plan: Plan) -> CalibratedModel:
        """Its model with ranges, by what was counted of that model once for all plans that share it."""
        model, key = self.of(plan), plan.key
        if key not in self._counts:
            calibrate(
                parts_of(model), self._samples, plan.config, counted=lambda found: self._keep(key, found)
            )
        data = CalibrationData(self._samples, statistics=self._counts[key])
        return plan.recipe.calibrate(CalibratedModel(model, hosted=frozenset()), data)

    def _keep(self, key: Hashable, found: Statistics) -> None:
        self._counts[key] = found

    def of(self, plan: Plan) -> FloatModel:
        """The model, with factors by channel, with weights rounded together, with channels stored twice."""
        if plan.key not in self._made:
            if plan.split_channels:
                before = replace(plan, split_channels=False, correct_output_bias=False)
                source = self.of(before)
                growth = self._most / max(1, _multiplications(source))
                ranges = self.calibrate(before).ranges
                assert ranges is not None, "calibration gives some"
                made = split_channels(source, ranges, self._samples, plan.config, growth).model
            elif plan.refined:
                source = self.of(replace(plan, refined=False))
                made, _ = refine_weights(source, self._refined, plan.config)
            elif plan.scaled:
                norms, mild = FACTORS[plan.scaled]
                source, few = self.of(replace(plan, scaled="")), self._samples.spread(SCALED)
                bits = min(plan.config.quantize.weight_bits or 8, 8)
                made = equalize_channels(source, few, bits, norms=norms, mild=mild).model
            else:
                made = (
                    self._pooling_commuted if plan.commute_pooling and self._pooling_commuted else self._model
                )
            self._made[plan.key] = made
        return self._made[plan.key]

    def differs(self, plan: Plan) -> bool:
        """Whether channels are scaled otherwise than by the ways tried before."""
        ways = ["", *FACTORS]
        before = ways[: ways.index(plan.scaled)]
        own, *others = (
            noted_factors(self.of(replace(plan, scaled=each))) for each in (plan.scaled, *reversed(before))
        )
        return own not in others

    @property
    def adds(self) -> bool:
        """Whether there are sums that nothing but additions read."""
        return bool(added_values(self._model.model.graph))

    @property
    def averages(self) -> bool:
        """Whether last layers read averages, which may stand behind them."""
        return self._pooling_commuted is not None


def _multiplications(model: FloatModel) -> int:
    return sum(map(multiplications, linear_layers(model.model.graph)))


def _steps(config: Config, sources: _Sources, tried: list[Candidate]) -> Iterator[tuple[str, Plan]]:
    """Name and plan of every candidate; later ones build on the best so far."""
    for strategy in STRATEGIES:
        yield _strategy_text(strategy), Plan(_with_strategy(config, strategy))
    first = _best(tried)
    # What was far behind was evaluated by other samples than the rest, and comes last.
    ranked = sorted(range(1, len(STRATEGIES)), key=lambda at: (-len(tried[at].parts), -tried[at].sqnr_db))
    likely = [STRATEGIES[at] for at in (0, *ranked[: AGAIN - 1])]
    named = not config.calibrate.statistic_file  # which tells of values by name, as they are
    if config.quantize.dtype == "int8" and sources.averages and named:
        yield "averages behind last layers", replace(first.plan, commute_pooling=True)
    start = _best(tried).plan
    for scaled in FACTORS if config.calibrate.equalize and named else ():
        way = replace(start, scaled=scaled)
        if sources.differs(way):
            for strategy in likely:
                name = f"{scaled} equalized, {_strategy_text(strategy)}"
                yield name, replace(way, config=_with_strategy(config, strategy))
    for key, name in WIDER.items():
        chosen = _best(tried).plan
        fits = key != "int16_residual_additions" or sources.adds
        if config.quantize.dtype == "int8" and fits and not getattr(chosen.config.quantize, key):
            wide = chosen.config.quantize.model_copy(update={key: True})
            widened = chosen.config.model_copy(update={"quantize": wide})
            yield name, replace(chosen, config=widened)
    scaled_best = _best(tried)
    chosen = scaled_best.plan
    yield "weights refined", replace(chosen, refined=True)
    for strategy in likely:
        again = _with_strategy(chosen.config, strategy)
        if again != chosen.config:
            yield f"weights refined, {_strategy_text(strategy)}", replace(chosen, config=again, refined=True)
    if chosen.scaled and scaled_best.fidelity.score < first.fidelity.score + NEAR_DB:
        yield (
            "weights refined, channels as they were",
            replace(chosen, config=first.config, scaled="", refined=True),
        )
    chosen = _best(tried).plan
    if named and sources.of(
        replace(chosen, split_channels=True, correct_output_bias=False)
    ) is not sources.of(chosen):
        yield "channels split", replace(chosen, split_channels=True)
        for strategy in likely:
            again = _with_strategy(chosen.config, strategy)
            if again != chosen.config:
                yield (
                    f"channels split, {_strategy_text(strategy)}",
                    replace(chosen, config=again, split_channels=True),
                )
    if config.quantize.bias_correction:
        yield "output bias correction", replace(_best(tried).plan, correct_output_bias=True)


def _best(tried: list[Candidate]) -> Candidate:
    return next(entry for entry in reversed(tried) if entry.kept)


def _strategy_text(strategy: tuple[str, float]) -> str:
    name, weight = strategy
    return f"{name}, clip_weight {weight:g}" if name == "mse" else name


def _counting_all(config: Config) -> Config:
    """With counts of every value, unless stated otherwise: strategies are told apart by little."""
    own = config.calibrate
    if own.statistic_file or "count_all" in own.model_fields_set:
        return config
    return config.model_copy(update={"calibrate": own.model_copy(update={"count_all": True})})


def _with_strategy(config: Config, strategy: tuple[str, float]) -> Config:
    update = dict(zip(("strategy", "clip_weight"), strategy, strict=True))
    return config.model_copy(update={"calibrate": config.calibrate.model_copy(update=update)})
