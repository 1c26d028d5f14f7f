"""The course of a study: waves of trials, pruning by lower bounds, rising optimisation levels.

Trials are decided on in waves of a fixed size, in their order, by what was finished before the wave began;
so the same trials are made whatever the number of workers and whoever is done first. Whatever is decided or
found is noted in the journal before the next wave; a study that was killed takes the same course again, finds
all that in its journal, and goes on.

**Pruning.** A point whose lower bounds are dominated by the figures of a finished trial cannot be on the
front, because its own figures are no lower: it is not built; of several networks not those that are left
once the figures of the others and the bounds of these are dominated. Where every objective can only improve
from one level to the next, figures of a lower level are such figures as well: what they dominate is not built
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.machine import Machine
from tpuflow.errors import MachineError
from tpuflow.explore.measure import Comparison, Measurement, Workload, bound_point, measure_point
from tpuflow.explore.objectives import OBJECTIVES, front, rank, vector
from tpuflow.explore.results import Results, results_of
from tpuflow.explore.space import MOST_POINTS, ExploreError, derived_fields
from tpuflow.explore.strategies import SAMPLERS, STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuflow.executors import Executor
    from tpuflow.explore.objectives import Vector
    from tpuflow.explore.settings import Settings
    from tpuflow.explore.space import Point
    from tpuflow.io.journal import Journal

__all__ = ["Progress", "explore"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many trials of it are done, and of how many."""

SLOTS = 16
"""Rows a trial may have in the journal: its bounds, its levels, and that it was pruned."""

PRUNED = 15

ATTEMPTS = 2
"""How often a trial is begun whose process was killed."""


@dataclass(frozen=True)
class _Trial:
    """A point, with its machine, or why there is none."""

    number: int
    point: Point
    machine: Machine | str
    workloads: tuple[Workload, ...]


def explore(
    settings: Settings,
    workloads: Sequence[Workload],
    executor: Executor,
    journal: Journal,
    progress: Progress | None = None,
) -> Results:
    """Makes a study, or goes on with it.

    Args:
        settings: What to explore.
        workloads: Every network in every batch and precision of the space.
        executor: Where trials run.
        journal: Where everything is noted.
        progress: Told after every trial.

    Raises:
        ExploreError: No point is possible, or a strategy needs an extra.
    """
    strategy = STRATEGIES[settings.strategy](
        settings.space, len(settings.objectives), settings.trials, settings.seed
    )
    table = Path(settings.energy_table)
    executor.ship([each.graph for each in workloads] + ([table] if table.is_file() else []))
    run = _Run(settings, workloads, executor, journal, progress or (lambda _what, _done, _total: None))
    if journal.find("settings") is None:
        journal.note("settings", settings.to_json(), number=-1, seed=settings.seed)
    if settings.strategy in SAMPLERS:
        while points := strategy.ask(settings.wave):
            asked = [run.trial(point) for point in points]
            run.bound(asked)
            run.level(asked, settings.levels[0])
            strategy.tell([run.outcome(trial) for trial in asked])
    else:
        trials = [run.trial(point) for point in strategy.ask(MOST_POINTS)]
        run.bound(trials)
        for wave in _waves(run.by_rank(trials), settings.wave):
            run.level(wave, settings.levels[0])
    for level in settings.levels[1:]:
        for wave in _waves(run.by_rank(run.trials), settings.wave):
            run.level(wave, level)
    found = results_of(settings, journal.rows())
    if not any(row["status"] != "impossible" for row in found.rows):
        reason = found.rows[0]["reason"] if found.rows else "no points"
        raise ExploreError(f"no point of the space is possible; the first: {reason}")
    return found


def _waves(trials: Sequence[_Trial], size: int) -> Iterable[Sequence[_Trial]]:
    return (trials[at : at + size] for at in range(0, len(trials), size))


class _Run:
    """The state of a study while it runs."""

    def __init__(
        self,
        settings: Settings,
        workloads: Sequence[Workload],
        executor: Executor,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._settings, self._workloads = settings, workloads
        self._executor, self._journal, self._progress = executor, journal, progress
        self._base = settings.base
        self._numbers: dict[frozenset[tuple[str, Any]], int] = {}
        self.trials: list[_Trial] = []
        self._bounds: dict[int, Measurement] = {}
        self._found: dict[int, Measurement] = {}
        self._levels: dict[int, int] = {}
        self._pruned: set[int] = set()
        self._monotone = all(OBJECTIVES[name].monotone for name in settings.objectives)

    def trial(self, point: Point) -> _Trial:
        """The trial of a point; a point that is asked for again is the same trial."""
        key = frozenset(point.items())
        if key not in self._numbers:
            self._numbers[key] = len(self.trials)
            machine: Machine | str
            try:
                machine = self._settings.space.machine(point, self._base)
            except MachineError as error:
                machine = str(error)
            own = tuple(each for each in self._workloads if each.fits(point))
            self.trials.append(_Trial(len(self.trials), point, machine, own))
        return self.trials[self._numbers[key]]

    def bound(self, trials: Sequence[_Trial]) -> None:
        """Finds the lower bounds of trials."""
        # A sampler may ask for a point twice in a wave.
        new = {trial.number: trial for trial in trials if trial.number not in self._bounds}.values()
        table = self._settings.energy_table
        work = [(trial, (trial.machine, trial.workloads, table)) for trial in new]
        for trial, found in self._done("bounds", 0, bound_point, work):
            self._bounds[trial.number] = found

    def level(self, trials: Sequence[_Trial], level: int) -> None:
        """Builds and runs those of a wave that may still be on the front."""
        own, wanted = self._settings, []
        best = self._certain_front() if own.prune else {}
        for trial in {trial.number: trial for trial in trials}.values():
            known = self._bounds[trial.number]
            if known.reason or trial.number in self._pruned or self._levels.get(trial.number, 0) >= level:
                continue
            if trial.number in self._found and self._found[trial.number].reason:
                continue
            comparison = Comparison(own.objectives, own.combine, known, best)
            by = comparison.dominating({})
            if by is None:
                wanted.append((trial, comparison))
            else:
                self._prune(trial, by, level)
        steps = own.search_steps if level > 1 else None
        work = [
            (trial, (trial.machine, trial.workloads, own.energy_table, level, own.seed, steps, comparison))
            for trial, comparison in wanted
        ]
        for trial, found in self._done(f"-O{level}", level, measure_point, work):
            if found.dominated_by is not None:
                self._prune(trial, found.dominated_by, level)
                continue
            self._found[trial.number] = found
            self._levels[trial.number] = level

    def _prune(self, trial: _Trial, by: int, level: int) -> None:
        self._pruned.add(trial.number)
        if self._journal.find(f"{trial.number} {PRUNED}") is None:
            self._note(trial, PRUNED, {"by": by, "before": level}, 0.0)

    def outcome(self, trial: _Trial) -> Vector | None:
        """The result for a strategy: figures, or bounds of a pruned trial, which are dominated as well."""
        known = self._bounds[trial.number] if trial.number in self._pruned else self._found.get(trial.number)
        return None if known is None or known.reason else self._vector(known)

    def by_rank(self, trials: Sequence[_Trial]) -> list[_Trial]:
        """Possible trials, those first that are likely to dominate others."""
        known = {trial.number: self._found.get(trial.number, self._bounds[trial.number]) for trial in trials}
        vectors = {number: self._vector(own) for number, own in known.items() if not own.reason}
        return [self.trials[number] for number in rank(vectors)]

    def _vector(self, known: Measurement) -> Vector:
        own = self._settings
        return vector(own.objectives, list(known.networks.values()), known.mm2, own.combine)

    def _certain_front(self) -> dict[int, Vector]:
        """The front of the figures that finished trials certainly reach at the last level."""
        last = self._settings.levels[-1]
        vectors = {
            number: self._vector(found)
            for number, found in self._found.items()
            if not found.reason and (self._monotone or self._levels[number] == last)
        }
        return {number: vectors[number] for number in front(vectors)}

    def _done(
        self,
        what: str,
        slot: int,
        work: Callable[..., Measurement],
        given: Sequence[tuple[_Trial, tuple[Any, ...]]],
    ) -> list[tuple[_Trial, Measurement]]:
        """Results in the order given, from the journal or the executor; new ones are noted as they come."""
        results: dict[int, Measurement] = {}
        waiting: dict[int, tuple[_Trial, tuple[Any, ...], int]] = {}

        def submit(trial: _Trial, arguments: tuple[Any, ...], attempt: int) -> None:
            task = self._executor.submit(_run_timed, work, arguments)
            waiting[task.number] = (trial, arguments, attempt)

        for trial, arguments in given:
            row = self._journal.find(f"{trial.number} {slot}")
            if row is None:
                submit(trial, arguments, 1)
            else:
                results[trial.number] = Measurement.from_json(row)
        before = self._count_decided(slot) if slot else 0
        done, total = len(results), len(self.trials) if slot else len(given)
        while waiting:
            for task in self._executor.as_completed():
                trial, arguments, attempt = waiting.pop(task.number)
                try:
                    found, seconds = task.result()
                except Exception as error:  # noqa: BLE001 - one trial's failure is not the study's
                    if attempt < ATTEMPTS:
                        submit(trial, arguments, attempt + 1)
                        continue
                    found, seconds = Measurement(0.0, {}, {}, f"{type(error).__name__}: {error}"), 0.0
                results[trial.number] = found
                self._note(trial, slot, found.to_json(), seconds)
                done += 1
                self._progress(what, before + done, total)
        return [(trial, results[trial.number]) for trial, _ in given]

    def _count_decided(self, level: int) -> int:
        """Trials of which all is known that a level could tell."""
        known = {number for number, own in (*self._bounds.items(), *self._found.items()) if own.reason}
        return len(known | self._pruned | {number for number, own in self._levels.items() if own >= level})

    def _note(self, trial: _Trial, slot: int, content: Mapping[str, Any], seconds: float) -> None:
        told: dict[str, Any] = {"point": dict(trial.point), "slot": slot, **content}
        if slot == 0 and isinstance(trial.machine, Machine):
            told["derived"] = derived_fields(trial.point, trial.machine, self._base)
        self._journal.note(
            f"{trial.number} {slot}",
            told,
            number=trial.number * SLOTS + slot,
            seed=self._settings.seed,
            seconds=seconds,
        )


def _run_timed(work: Callable[..., Measurement], arguments: tuple[Any, ...]) -> tuple[Measurement, float]:
    start = time.perf_counter()
    found = work(*arguments)
    return found, time.perf_counter() - start
