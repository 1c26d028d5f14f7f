"""Several studies of the same networks as one: all their trials, the common front, what each contributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuflow.explore.objectives import displayed_value, dominates, front, minimized_value
from tpuflow.explore.results import Results
from tpuflow.explore.space import BATCH, PRECISION, ExploreError

if TYPE_CHECKING:
    from tpuflow.explore.objectives import Vector

__all__ = ["Contribution", "MergedResults", "merge_results"]

COMMON = ("objectives", "combine", "energy_table")
"""Settings whose difference makes figures of two studies incomparable; so do networks and the last level."""


@dataclass(frozen=True)
class Contribution:
    """One study beside the others.

    Attributes:
        trials: How many it has.
        front: Points of its own front.
        common: Of these, points of the common front.
        dominated: Of these, points that a point of another study dominates.
        best: The best figure of each objective on its own front.
    """

    trials: int
    front: int
    common: int
    dominated: int
    best: dict[str, float]


@dataclass(frozen=True)
class MergedResults(Results):
    """Trials of several studies, numbered anew; rows have the name of their study under `study`.

    Attributes:
        studies: By name.
        origins: Study and trial there, of every trial here.
        varied: Names of the fields that any of them varies.
    """

    studies: Mapping[str, Results] = field(default_factory=dict)
    origins: list[tuple[str, int]] = field(default_factory=list)
    varied: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what points differ in, the study first."""
        return ("study", *self.varied)

    def machine_toml(self, trial: int) -> str:
        """See `Results`."""
        study, own = self.origins[trial]
        return self.studies[study].machine_toml(own)

    @property
    def contributions(self) -> dict[str, Contribution]:
        """Every study beside the others, by name."""
        fronts = {
            name: [_vector(own, own.rows[at]) for at in own.front] for name, own in self.studies.items()
        }
        found = {}
        for name, own in self.studies.items():
            others = [each for other, vectors in fronts.items() if other != name for each in vectors]
            lost = sum(any(dominates(other, mine) for other in others) for mine in fronts[name])
            best = {
                key: displayed_value(key, min(values))
                for key, *values in zip(self.settings.objectives, *fronts[name], strict=True)
                if values
            }
            found[name] = Contribution(len(own.rows), len(own.front), len(own.front) - lost, lost, best)
        return found


def merge_results(studies: Mapping[str, Results]) -> MergedResults:
    """The trials of all studies, and the front of all that are finished.

    A trial that two studies have, on the same machine with the same figures, is taken once. Fields that one
    study does not vary have the value of its base machine.

    Args:
        studies: By the name that rows shall have.

    Raises:
        ExploreError: They cannot be compared: networks, objectives, tables or levels differ.
    """
    (first, reference), *others = studies.items()
    for name, own in others:
        reason = _difference(reference, own)
        if reason:
            raise ExploreError(f"{first} and {name} cannot be merged: {reason}")
    names = list(dict.fromkeys(key for own in studies.values() for key in own.settings.space.fields))
    rows: list[dict[str, Any]] = []
    origins: list[tuple[str, int]] = []
    known: set[tuple[object, ...]] = set()
    for study, own in studies.items():
        for row in own.rows:
            values = {key: row[key] if key in row else _usual(own, key) for key in names}
            key = (*values.values(), row["status"], *(row[each] for each in own.settings.objectives))
            if key in known:
                continue
            known.add(key)
            rest = {key: value for key, value in row.items() if key not in names}
            rows.append({**rest, "trial": len(rows), "study": study, **values})
            origins.append((study, row["trial"]))
    best = front({row["trial"]: _vector(reference, row) for row in rows if row["status"] == "finished"})
    places = {origin: number for number, origin in enumerate(origins)}
    for row, (study, _) in zip(rows, origins, strict=True):
        row["front"] = row["trial"] in best
        # Of a trial that was taken from another study the number here is not known.
        row["pruned_by"] = None if row["pruned_by"] is None else places.get((study, row["pruned_by"]))
    ordered = [dict(sorted(row.items(), key=lambda item: item[0] not in {"trial", "study"})) for row in rows]
    return MergedResults(reference.settings, ordered, best, studies, origins, tuple(names))


def _usual(results: Results, name: str) -> Any:
    """The value of a field in a study that does not vary it, of its base machine; "" if that has none."""
    base = results.settings.base
    if name == "array.size":
        return base["array.rows"] if base["array.rows"] == base["array.columns"] else ""
    return "" if name in {BATCH, PRECISION} else base[name]


def _difference(left: Results, right: Results) -> str:
    """Why figures of two studies cannot be compared, in words; empty if they can."""
    ours, theirs = left.settings, right.settings
    if ours.names != theirs.names:
        return f"networks {', '.join(ours.names)}, and {', '.join(theirs.names)}"
    if ours.levels[-1] != theirs.levels[-1]:
        return f"results of level {ours.levels[-1]}, and of level {theirs.levels[-1]}"
    for name in COMMON:
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name} {getattr(ours, name)}, and {getattr(theirs, name)}"
    return ""


def _vector(results: Results, row: Mapping[str, Any]) -> Vector:
    """The values to minimise, of the figures that a row shows."""
    return tuple(minimized_value(name, row[name]) for name in results.settings.objectives)
