"""What a study's journal says, as rows: one a trial, with everything that is known of it."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.explore.measure import Measurement
from tpuflow.explore.objectives import OBJECTIVES, displayed_value, front, vector
from tpuflow.explore.settings import Settings, settings_of
from tpuflow.explore.space import ExploreError
from tpuflow.io.files import replace_atomically
from tpuflow.io.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuflow.io.journal import Row

__all__ = ["Results", "load_results", "results_of"]

SLOTS, PRUNED = 16, 15


@dataclass(frozen=True)
class Results:
    """A study's outcome so far.

    Attributes:
        settings: What was explored.
        rows: One a trial, in their order: `trial`, `status` (`finished`, `pruned`, `impossible`; `open` where
            the study was cut short), `front`, `level`, every field, every objective with its lower bound, and
            more; values of CSV and Parquet.
        front: Trials none dominates, by the first objective.
    """

    settings: Settings
    rows: list[dict[str, Any]]
    front: list[int]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what points differ in."""
        return tuple(self.settings.space.fields)

    @property
    def counts(self) -> dict[str, int]:
        """Trials by status."""
        return dict(Counter(row["status"] for row in self.rows))

    @property
    def pruned_before(self) -> dict[int, int]:
        """How many trials were discarded by their bounds before each level."""
        return dict(sorted(Counter(r["pruned_before"] for r in self.rows if r["status"] == "pruned").items()))

    @property
    def below_bound(self) -> list[int]:
        """Trials with a figure below its lower bound; any would refute what pruning rests on."""
        return [
            row["trial"]
            for row in self.rows
            for name in self.settings.objectives
            if row[name] is not None
            and (row[name] - row[f"bound_{name}"]) * OBJECTIVES[name].sign < -1e-9 * abs(row[name])
        ]

    def machine_toml(self, trial: int) -> str:
        """The machine file of a trial.

        Raises:
            MachineError: It has none.
        """
        point = {name: self.rows[trial][name] for name in self.settings.space.fields}
        return self.settings.space.machine(point, self.settings.base).to_toml()

    def save_csv(self, path: str | Path) -> None:
        """Writes all rows as CSV.

        Raises:
            FileError: The file cannot be written.
        """
        with replace_atomically(path) as beside, beside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)

    def save_parquet(self, path: str | Path) -> None:
        """Writes all rows as Parquet.

        Raises:
            ExploreError: The extra is not installed.
            FileError: The file cannot be written.
        """
        try:
            import pyarrow as pa  # noqa: PLC0415 - an extra
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError:
            raise ExploreError(
                f"{path}: Parquet needs pyarrow: pip install 'tpuflow[explore]', or write .csv"
            ) from None
        with replace_atomically(path) as beside:
            parquet.write_table(pa.Table.from_pylist(self.rows), str(beside))


def load_results(path: str | Path) -> Results:
    """Reads a study's file, whatever made it and however far it is.

    Raises:
        FileError: It is no study.
    """
    with Journal.existing(path, "explore") as journal:
        rows = list(journal.rows())
    if not rows or rows[0].key != "settings":
        raise ExploreError(f"{path}: holds no study yet")
    return results_of(settings_of(rows[0].content, Path()), rows)


def results_of(settings: Settings, journal: Iterable[Row]) -> Results:
    """Rows of trials, of the rows of a journal."""
    by_trial: dict[int, dict[int, Row]] = {}
    for noted in journal:
        if noted.key != "settings":
            by_trial.setdefault(noted.number // SLOTS, {})[noted.number % SLOTS] = noted
    rows = [_row(settings, number, slots) for number, slots in sorted(by_trial.items())]
    last = settings.levels[-1]
    vectors = {
        row["trial"]: vector(settings.objectives, list(found.networks.values()), found.mm2, settings.combine)
        for row in rows
        if row["status"] == "finished"
        for found in [Measurement.from_json(by_trial[row["trial"]][last].content)]
    }
    best = front(vectors)
    for row in rows:
        row["front"] = row["trial"] in best
    _mark_uncertain(settings, [rows[number] for number in best])
    return Results(settings, rows, best)


def _mark_uncertain(settings: Settings, best: list[dict[str, Any]]) -> None:
    """Marks points of the front whose place by energy is within the uncertainty of the table."""
    if "energy" not in settings.objectives:
        return
    known = [row for row in best if row["energy_low"] is not None]
    for row in known:
        row["energy_uncertain"] = any(
            each["energy"] != row["energy"]
            and each["energy_low"] <= row["energy_high"]
            and row["energy_low"] <= each["energy_high"]
            for each in known
        )


def _energy_interval(settings: Settings, found: Measurement | None) -> dict[str, Any]:
    """Energy at least and at most, as the objective has it; nothing where energy is none."""
    if "energy" not in settings.objectives:
        return {}
    ends: list[float | None] = [None, None]
    if found is not None and all(own.interval is not None for own in found.networks.values()):
        for at in (0, 1):
            figures = [
                replace(own, joules=own.interval[at]) for own in found.networks.values() if own.interval
            ]
            ends[at] = vector(("energy",), figures, found.mm2, settings.combine)[0] if figures else None
    return {"energy_low": ends[0], "energy_high": ends[1], "energy_uncertain": False}


def _row(settings: Settings, number: int, slots: Mapping[int, Row]) -> dict[str, Any]:
    bounds = Measurement.from_json(slots[0].content)
    built = {slot: row.content for slot, row in slots.items() if slot not in (0, PRUNED)}
    levels = {slot: Measurement.from_json(content) for slot, content in built.items()}
    level = max((slot for slot, own in levels.items() if own.dominated_by is None), default=0)
    found = levels.get(level)
    pruned = slots[PRUNED].content if PRUNED in slots else None
    reason = bounds.reason or (found.reason if found is not None else "")
    if reason:
        status = "impossible"
    elif pruned is not None:
        status = "pruned"
    else:
        status = "finished" if level == settings.levels[-1] else "open"
    row: dict[str, Any] = {"trial": number, "status": status, "front": False, "level": level}
    row |= slots[0].content["point"]
    row |= _objectives(settings, found, "") | _objectives(settings, bounds, "bound_")
    row |= _energy_interval(settings, found)
    row["pruned_by"] = None if pruned is None else pruned["by"]
    row["pruned_before"] = None if pruned is None else pruned["before"]
    for network in settings.names:
        row[f"cycles_{network}"] = None if found is None else found.cycles.get(network)
        row[f"bound_cycles_{network}"] = bounds.cycles.get(network)
    follows = slots[0].content.get("derived", {})
    row["derived"] = "; ".join(f"{name} = {value} ({why})" for name, (value, why) in follows.items())
    row["reason"] = reason
    row["seed"] = slots[0].seed
    row["seconds"] = sum(each.seconds for each in slots.values())
    return row


def _objectives(settings: Settings, known: Measurement | None, prefix: str) -> dict[str, float | None]:
    if known is None or known.reason:
        return {prefix + name: None for name in settings.objectives}
    values = vector(settings.objectives, list(known.networks.values()), known.mm2, settings.combine)
    return {
        prefix + name: displayed_value(name, value)
        for name, value in zip(settings.objectives, values, strict=True)
    }
