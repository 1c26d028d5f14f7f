"""Studies merged: every trial once, the front of them all, and what each contributes."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from cli.conftest import run_command, tiny
from tpuflow.executors import InProcess
from tpuflow.explore import ExploreError, Results, Settings, Space, explore, load_results, merge_results
from tpuflow.explore.page import study_page
from tpuflow.io.journal import Journal
from tpuflow.pipeline.exploration import workloads

SMALL = Space({"cache.bytes": (65536, 1 << 20), "array.size": (32, 64)})
WIDE = Space({"cache.bytes": (1 << 20,), "array.size": (64, 128), "ddr.channels": (1, 2)})


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("merged")
    onnx.save(tiny(), folder / "tiny.onnx")
    found = {}
    spaces: dict[str, dict[str, Any]] = {
        "small": {"space": SMALL},
        "wide": {"space": WIDE},
        "energy": {"space": SMALL, "objectives": ("energy",)},
        "quick": {"space": SMALL, "levels": (1,)},
    }
    for name, changes in spaces.items():
        settings = replace(Settings((str(folder / "tiny.onnx"),), SMALL, levels=(1, 5)), **changes)
        networks = workloads(settings, folder / "graphs")
        found[name] = folder / f"{name}.db"
        with InProcess() as executor, Journal.open(found[name], "explore", {"s": name}) as journal:
            explore(settings, networks, executor, journal)
    return found


def loaded(studies: dict[str, Path], *names: str) -> dict[str, Results]:
    return {name: load_results(studies[name]) for name in names}


def test_every_trial_is_there_once_and_the_front_is_that_of_all(studies: dict[str, Path]) -> None:
    given = loaded(studies, "small", "wide")
    merged = merge_results(given)
    # One machine is in both: 64 x 64, 1 MiB, two channels, as the base machine has.
    assert len(merged.rows) == 4 + 4 - 1
    assert merged.fields == ("study", "cache.bytes", "array.size", "ddr.channels")
    assert {row["ddr.channels"] for row in merged.rows if row["study"] == "small"} == {2}
    finished = [row for row in merged.rows if row["status"] == "finished"]
    figures = {row["trial"]: (row["latency"], row["area"]) for row in finished}
    best = set()
    for trial, (latency, area) in figures.items():
        others = [each for each in figures.values() if each != (latency, area)]
        if not any(each[0] <= latency and each[1] <= area for each in others):
            best.add(trial)
    assert set(merged.front) == best
    for row in merged.rows:
        study, own = merged.origins[row["trial"]]
        assert row["latency"] == given[study].rows[own]["latency"]
        assert merged.machine_toml(row["trial"]) == given[study].machine_toml(own)
    for name, own in merged.contributions.items():
        assert own.common + own.dominated == own.front == len(given[name].front)
        assert own.best["latency"] == min(given[name].rows[at]["latency"] for at in given[name].front)
    assert "small" in study_page(merged)


def test_the_order_of_studies_changes_numbers_alone(studies: dict[str, Path]) -> None:
    fronts = []
    for names in itertools.permutations(("small", "wide")):
        merged = merge_results(loaded(studies, *names))
        fronts.append({(merged.rows[at]["latency"], merged.rows[at]["area"]) for at in merged.front})
    assert fronts[0] == fronts[1]
    alone = merge_results(loaded(studies, "small") | {"again": load_results(studies["small"])})
    assert len(alone.rows) == len(alone.studies["small"].rows)


@pytest.mark.parametrize(
    ("other", "reason"), [("energy", "objectives"), ("quick", "results of level 5, and of level 1")]
)
def test_what_cannot_be_compared_is_an_error(other: str, reason: str, studies: dict[str, Path]) -> None:
    with pytest.raises(ExploreError, match=f"small and {other} cannot be merged: .*{reason}"):
        merge_results(loaded(studies, "small", other))


def test_the_command_shows_studies_side_by_side(studies: dict[str, Path], tmp_path: Path) -> None:
    table, page = tmp_path / "all.csv", tmp_path / "all.html"
    made = run_command("explore", studies["small"], studies["wide"], "--csv", table, "--page", page)
    assert made.status == 0, made.err
    assert "on the common front" in made.out
    with table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["study"] for row in rows].count("small") == 4
    assert page.stat().st_size > 1000
    refused = run_command("explore", studies["small"], "-o", tmp_path / "s.db")
    assert refused.status == 1
    assert "give two or more studies" in refused.err
    refused = run_command("explore", studies["small"], studies["wide"], "-o", tmp_path / "s.db")
    assert refused.status == 1
    assert "merged studies are written by" in refused.err
