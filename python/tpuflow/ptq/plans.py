"""Plans of a search: the models they start from, and what they make of samples held out.

Every model is made once a process, and what was counted of it serves all plans that share it. Plans that do
not depend on each other run in an executor (`FoldTrials.begin`); what is asked for does not depend on that.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tpuflow.calibration import calibrate, without_warnings
from tpuflow.config import Config
from tpuflow.evaluation.fidelity import Evaluator, Fidelity
from tpuflow.executors import run_all
from tpuflow.io.samples import Samples
from tpuflow.lowering import added_values
from tpuflow.ptq.channel_splitting import multiplications, split_channels
from tpuflow.ptq.confirmation import parts_of
from tpuflow.ptq.equalization import SCALED, equalize_channels, noted_factors
from tpuflow.ptq.layers import linear_layers
from tpuflow.ptq.pooling_commutation import commute_pooling
from tpuflow.ptq.recipe import CalibratedModel, CalibrationData, Recipe
from tpuflow.ptq.seen_channels import MILD, SeenChannels
from tpuflow.ptq.weights import refine_weights

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from tpuflow.calibration import Statistics
    from tpuflow.executors import Executor, Shared
    from tpuflow.frontend import FloatModel
    from tpuflow.io.journal import Journal
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["FACTORS", "REFINED", "Fold", "FoldTrials", "Plan", "PlanModels"]

FACTORS: Mapping[str, tuple[bool, float]] = {
    "channels": (False, MILD),
    "channels mildly": (False, 0.5),
    "channels and norms": (True, MILD),
}
"""Ways to scale channels: whether those that norms make are, and how mildly (see `equalize_channels`)."""

LOST_DB = 1.5
"""So far behind the best with the first samples held out, a candidate is out."""

REFINED = 64
"""Samples that weights are refined by in the search, at most; the result is refined by all."""


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


class PlanModels:
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

    def __getstate__(self) -> dict[str, object]:
        # Other processes make their own.
        return self.__dict__ | {"_made": {}, "_counts": {}}

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
                seen = SeenChannels.of(source, few)
                made = equalize_channels(seen, bits, norms=norms, mild=mild).model
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


@dataclass(frozen=True)
class Fold:
    """Samples to calibrate with, and those held out."""

    sources: PlanModels
    evaluator: Evaluator

    def fidelity(self, plan: Plan) -> Fidelity:
        """Fidelity of a plan on the samples held out."""
        return self.evaluator.fidelity(self.sources.graph(plan))


class FoldTrials:
    """Plans on folds: here when asked for, or groups of them in an executor before.

    What is run ahead may turn out not to be needed, which is no more than lost time: what is asked for does
    not depend on it.

    Args:
        folds: Samples to calibrate with and held out, in turn.
        executor: Where groups run.
        journal: Holds what was run ahead, so that it is not run again.
    """

    def __init__(self, folds: Sequence[Fold], executor: Executor | None, journal: Journal | None) -> None:
        self._folds = folds
        self._executor = executor
        self._journal = journal
        self._shared = [] if executor is None else [executor.share(fold) for fold in folds]
        self._known: dict[str, Fidelity] = {}

    def begin(self, plans: Mapping[str, Plan], best: Sequence[Fidelity] | None) -> None:
        """Runs plans that do not depend on each other: on the first fold, then those not far behind on all.

        Args:
            plans: By name, none of which comes twice in a search.
            best: Of the best plan so far, by fold.
        """
        if self._executor is None or len(plans) < 2:
            return
        self._run(self._executor, plans, 0)
        first = {name: self._known[_key(0, name)] for name in plans}
        least = (best[0] if best else next(iter(first.values()))).score - LOST_DB
        left = {name: plan for name, plan in plans.items() if first[name].score >= least}
        self._run(self._executor, left, *range(1, len(self._folds)))

    def _run(self, executor: Executor, plans: Mapping[str, Plan], *folds: int) -> None:
        groups: list[tuple[int, list[str]]] = []
        for fold in folds:
            by_model: dict[Hashable, list[str]] = {}
            for name, plan in plans.items():
                if not self._is_known(_key(fold, name)):
                    # A model that takes long to make is made in one process.
                    slow = plan.refined or plan.split_channels
                    by_model.setdefault(plan.key if slow else name, []).append(name)
            groups += [(fold, names) for names in by_model.values()]

        def note(at: int, found: Sequence[tuple[Fidelity, float]]) -> None:
            fold, names = groups[at]
            for name, (fidelity, seconds) in zip(names, found, strict=True):
                key = _key(fold, name)
                self._known[key] = fidelity
                if self._journal is not None:
                    self._journal.note(key, asdict(fidelity), seconds=seconds)

        calls = [(self._shared[fold], [plans[name] for name in names]) for fold, names in groups]
        run_all(executor, _run_fold, calls, note)

    def _is_known(self, key: str) -> bool:
        if key not in self._known and self._journal is not None:
            found = self._journal.find(key)
            if found is not None:
                self._known[key] = Fidelity(**found)
        return key in self._known

    def fidelities(self, name: str, plan: Plan, best: Sequence[Fidelity] | None) -> list[Fidelity]:
        """The fidelity of a plan on every fold; of one that is far behind the best on the first alone."""
        parts: list[Fidelity] = []
        for number, fold in enumerate(self._folds):
            known = self._known.get(_key(number, name))
            parts.append(fold.fidelity(plan) if known is None else known)
            if best is not None and parts[-1].score < best[number].score - LOST_DB:
                break
        return parts


def _key(fold: int, name: str) -> str:
    return f"{name}, fold {fold}"


def _run_fold(shared: Shared[Fold], plans: Sequence[Plan]) -> list[tuple[Fidelity, float]]:
    found = []
    with without_warnings():
        for plan in plans:
            start = time.perf_counter()
            found.append((shared.value.fidelity(plan), time.perf_counter() - start))
    return found
