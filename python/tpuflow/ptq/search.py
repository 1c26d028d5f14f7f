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
first fold is not tried in the others. Candidates that do not depend on each other run in an executor
(`plans.py`), which changes nothing in what is chosen.

Some samples are kept from all of that (`validation.py`): where the best is not as good as the default recipe
on them, that is taken. Of fewer than eight samples nothing is chosen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tpuflow.calibration import without_warnings
from tpuflow.config import Config, resolve_layers
from tpuflow.evaluation.fidelity import Evaluator, Fidelity
from tpuflow.io.samples import Samples
from tpuflow.ptq.folds import sample_folds
from tpuflow.ptq.plans import FACTORS, REFINED, Fold, FoldTrials, Plan, PlanModels
from tpuflow.ptq.recipe import CalibratedModel, CalibrationData, Recipe
from tpuflow.ptq.validation import Validation, kept_apart, validate_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuflow.calibration import Ranges
    from tpuflow.executors import Executor
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

NEAR_DB = 1.0
"""Where scaled channels gained less than that, refined weights are tried without them as well."""

GROWTH = 2.0
"""How many times as many multiplications a network may take at most, by all that is done to it together."""


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
    executor: Executor | None = None,
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
        executor: Where candidates run; here, one after the other, without one.

    Raises:
        ConfigError: An entry of the configuration fits no layer.
    """
    given = config or Config()
    parts = kept_apart(samples)
    if parts is None:
        remark(f"{samples.count} samples: too few to choose by, the default recipe is taken")
        return _default(model, samples, given, ())
    with without_warnings():
        tried = _try_candidates(model, parts[0], given, remark, growth, journal, executor)
        found = _validate_best(model, *parts, given, tried, growth)
    chosen = _best(tried)
    flips = f", {found.more_flips:+.2f} decisions a sample" if found.more_flips else ""
    remark(
        f"{chosen.name}: {found.found_db:.1f} dB on samples kept apart, {found.default_db:.1f} dB by the "
        f"default recipe{flips}{'' if found.holds else ': the default is taken'}"
    )
    if not found.holds:
        return replace(_default(model, samples, given, tuple(tried)), validation=found)
    sources = PlanModels(model, samples, samples.count, growth, _resolve_config(model, given))
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
    sources = PlanModels(model, shown, REFINED, growth, _resolve_config(model, config))
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
    executor: Executor | None,
) -> list[Candidate]:
    """Every candidate, in order, with what it makes of samples held out."""
    config = _resolve_config(model, config)
    folds = [
        Fold(PlanModels(model, shown, REFINED, growth, config), Evaluator(model, *groups))
        for shown, groups in sample_folds(model, samples, config)
    ]
    trials = FoldTrials(folds, executor, journal)
    tried: list[Candidate] = []
    for group in _steps(config, folds[0].sources, tried):
        keys = [f"{number}: {name}" for number, (name, _) in enumerate(group, len(tried))]
        noted = {key: None if journal is None else journal.find(key) for key in keys}
        unknown = {key: plan for key, (_, plan) in zip(keys, group, strict=True) if noted[key] is None}
        trials.begin(unknown, _best(tried).parts if tried else None)
        for key, (name, plan) in zip(keys, group, strict=True):
            best = _best(tried) if tried else None
            known = noted[key]
            if known is None:
                start = time.perf_counter()
                parts = trials.fidelities(key, plan, None if best is None else best.parts)
                if journal is not None:
                    seconds = time.perf_counter() - start
                    journal.note(key, [asdict(part) for part in parts], seconds=seconds)
            else:
                parts = [Fidelity(**part) for part in known]
            tried.append(
                _candidate(name, plan, parts, best, complete=len(parts) == len(folds), remark=remark)
            )
    return tried


def _candidate(
    name: str,
    plan: Plan,
    parts: Sequence[Fidelity],
    best: Candidate | None,
    *,
    complete: bool,
    remark: Callable[[str], None],
) -> Candidate:
    """A candidate by what it makes of the folds beside the best so far."""
    found = Fidelity.mean(parts)
    candidate = Candidate(name, plan, found, tuple(parts), kept=True)
    kept = best is None or (complete and candidate.beats(best))
    told = ", best so far" if kept else "" if complete else ", far behind"
    flips = f", expected top-1 disagreement {found.expected_flips:.1%}" if found.decisions else ""
    remark(f"{name}: {found.mean_db:.1f} dB{flips}{told}")
    return replace(candidate, kept=kept)


Step = tuple[str, Plan]


def _steps(config: Config, sources: PlanModels, tried: list[Candidate]) -> Iterator[list[Step]]:
    """Name and plan of every candidate, in groups: those of a group build on the best before it."""
    yield [(_strategy_text(strategy), Plan(_with_strategy(config, strategy))) for strategy in STRATEGIES]
    first = _best(tried)
    # What was far behind was evaluated by other samples than the rest, and comes last.
    ranked = sorted(range(1, len(STRATEGIES)), key=lambda at: (-len(tried[at].parts), -tried[at].sqnr_db))
    likely = [STRATEGIES[at] for at in (0, *ranked[: AGAIN - 1])]
    named = not config.calibrate.statistic_file  # which tells of values by name, as they are
    if config.quantize.dtype == "int8" and sources.averages and named:
        yield [("averages behind last layers", replace(first.plan, commute_pooling=True))]
    start = _best(tried).plan
    for scaled in FACTORS if config.calibrate.equalize and named else ():
        way = replace(start, scaled=scaled)
        if sources.differs(way):
            yield [
                (
                    f"{scaled} equalized, {_strategy_text(strategy)}",
                    replace(way, config=_with_strategy(config, strategy)),
                )
                for strategy in likely
            ]
    for key, name in WIDER.items():
        chosen = _best(tried).plan
        fits = key != "int16_residual_additions" or sources.adds
        if config.quantize.dtype == "int8" and fits and not getattr(chosen.config.quantize, key):
            wide = chosen.config.quantize.model_copy(update={key: True})
            widened = chosen.config.model_copy(update={"quantize": wide})
            yield [(name, replace(chosen, config=widened))]
    scaled_best = _best(tried)
    chosen = scaled_best.plan
    refined = _with_others("weights refined", replace(chosen, refined=True), likely)
    if chosen.scaled and scaled_best.fidelity.score < first.fidelity.score + NEAR_DB:
        unscaled = replace(chosen, config=first.config, scaled="", refined=True)
        refined.append(("weights refined, channels as they were", unscaled))
    yield refined
    chosen = _best(tried).plan
    if named and sources.of(
        replace(chosen, split_channels=True, correct_output_bias=False)
    ) is not sources.of(chosen):
        yield _with_others("channels split", replace(chosen, split_channels=True), likely)
    if config.quantize.bias_correction:
        yield [("output bias correction", replace(_best(tried).plan, correct_output_bias=True))]


def _with_others(name: str, plan: Plan, strategies: Sequence[tuple[str, float]]) -> list[Step]:
    """A plan as it is, and by other strategies than its own."""
    found = [(name, plan)]
    for strategy in strategies:
        again = _with_strategy(plan.config, strategy)
        if again != plan.config:
            found.append((f"{name}, {_strategy_text(strategy)}", replace(plan, config=again)))
    return found


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
