"""Which points come next, behind one interface: a grid, random ones, what a sampler of Optuna asks for."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tpuflow.explore.space import ExploreError

if TYPE_CHECKING:
    from tpuflow.explore.objectives import Vector
    from tpuflow.explore.space import Point, Space

__all__ = ["SAMPLERS", "STRATEGIES", "Strategy"]

SAMPLERS = frozenset({"tpe", "nsga2"})
"""Strategies that choose by what came out; of the others all points are known beforehand."""


class Strategy(Protocol):
    """Asks for points and is told what came out, wave by wave, in the order of trials."""

    def ask(self, count: int) -> list[Point]:
        """At most so many points; none when there are no more."""

    def tell(self, outcomes: Sequence[Vector | None]) -> None:
        """Results of the points asked for last; None for those that are impossible."""


class _GivenPoints:
    """Points known beforehand."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = list(points)
        self._next = 0

    def ask(self, count: int) -> list[Point]:
        """See `Strategy`."""
        found = self._points[self._next : self._next + count]
        self._next += len(found)
        return found

    def tell(self, outcomes: Sequence[Vector | None]) -> None:
        """See `Strategy`."""


def _grid(space: Space, _objectives: int, _trials: int, _seed: int) -> Strategy:
    return _GivenPoints(list(space.points()))


def _random(space: Space, _objectives: int, trials: int, seed: int) -> Strategy:
    """Different points, each as likely as any other."""
    names, generator = list(space.fields), random.Random(seed)
    chosen = generator.sample(range(space.size), min(trials, space.size))
    points: list[Point] = []
    for number in chosen:
        point, left = {}, number
        for name in names:
            values = space.fields[name]
            left, at = divmod(left, len(values))
            point[name] = values[at]
        points.append(point)
    return _GivenPoints(points)


class _Optuna:
    """A sampler of Optuna; ordered values are whole numbers to it, their places in the list."""

    def __init__(self, space: Space, objectives: int, trials: int, sampler: Callable[[Any], Any]) -> None:
        try:
            import optuna  # noqa: PLC0415 - an extra
        except ImportError:
            raise ExploreError(
                "this strategy needs Optuna: pip install 'tpuflow[explore]', or take grid or random"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study = optuna.create_study(
                sampler=sampler(optuna.samplers), directions=["minimize"] * objectives
            )
        made = optuna.distributions
        self._fields: dict[str, Any] = {
            name: made.CategoricalDistribution(values)
            if any(isinstance(value, str) for value in values)
            else made.IntDistribution(0, len(values) - 1)
            for name, values in space.fields.items()
        }
        self._space, self._left = space, trials
        self._asked: list[Any] = []

    def ask(self, count: int) -> list[Point]:
        """See `Strategy`."""
        count = min(count, self._left)
        self._left -= count
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._asked = [self._study.ask(self._fields) for _ in range(count)]
        return [
            {
                name: value if isinstance(value, str) else self._space.fields[name][value]
                for name, value in trial.params.items()
            }
            for trial in self._asked
        ]

    def tell(self, outcomes: Sequence[Vector | None]) -> None:
        """See `Strategy`."""
        for trial, outcome in zip(self._asked, outcomes, strict=True):
            if outcome is None:
                self._study.tell(trial, state=self._failed)
            else:
                self._study.tell(trial, outcome)


def _tpe(space: Space, objectives: int, trials: int, seed: int) -> Strategy:
    return _Optuna(space, objectives, trials, lambda samplers: samplers.TPESampler(seed=seed))


def _nsga2(space: Space, objectives: int, trials: int, seed: int) -> Strategy:
    return _Optuna(
        space, objectives, trials, lambda samplers: samplers.NSGAIISampler(seed=seed, population_size=24)
    )


STRATEGIES: Mapping[str, Callable[[Space, int, int, int], Strategy]] = {
    "grid": _grid,
    "random": _random,
    "tpe": _tpe,
    "nsga2": _nsga2,
}
"""By name: from space, number of objectives, trials and seed to a strategy."""
