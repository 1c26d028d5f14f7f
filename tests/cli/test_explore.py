"""`tpuflow explore` as a user types it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cli.conftest import Built, Command


def test_a_study_is_one_command_and_is_gone_on_with(built: Built, command: Command, tmp_path: Path) -> None:
    words = (
        "explore", built.graph, "-o", tmp_path / "s.db", "--vary", "cache.bytes=64K,1M",
        "--vary", "array.size=32,64", "--objectives", "latency,area,energy",
    )  # fmt: skip
    asked = command(*words, "--dry-run")
    assert asked.status == 0, asked.err
    assert "4 points, 4 possible, 4 to try (grid)" in asked.out
    assert not list(tmp_path.iterdir())
    first = command(*words)
    assert first.status == 0, first.err
    assert "4 points: " in first.out
    assert "Front (" in first.out
    again = command(*words, "--csv", tmp_path / "s.csv", "--page", tmp_path / "s.html")
    assert again.status == 0, again.err
    assert "finished steps" in again.err
    assert again.out.startswith(first.out)
    with (tmp_path / "s.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["cache.bytes"], row["array.size"]) for row in rows] == [
        ("65536", "32"), ("65536", "64"), ("1048576", "32"), ("1048576", "64"),
    ]  # fmt: skip
    assert "parallel coordinates" in (tmp_path / "s.html").read_text(encoding="utf-8").lower()
    other = command(*words[:-1], "latency,area")
    assert other.status == 1
    assert "s.db: is of another settings: give another file, or delete this one" in other.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--vary", "array.sise=32"), 'no field "array.sise"'),
        (("--vary", "array.size"), "write FIELD=A,B"),
        ((), "say what varies"),
        (("--vary", "batch=1,2"), "batch and precision cannot vary"),
        (("--vary", "ddr.channels=3"), "no point of the space is possible"),
        (("--vary", "array.size=64", "--strategy", "magic"), 'strategy "magic": choose of'),
        (("--vary", "array.size=64", "--levels", "x"), "--levels x: write numbers"),
        (("--vary", "array.size=64", "--constraint", "a b"), 'constraint "a b"'),
    ],
)
def test_what_cannot_be_explored_is_one_line(
    words: tuple[str, ...], told: str, built: Built, command: Command, tmp_path: Path
) -> None:
    refused = command("explore", built.graph, "-o", tmp_path / "s.db", *words)
    assert refused.status == 1
    assert told in refused.err
    assert refused.err.count("error:") == 1
    assert "internal error" not in refused.err


def test_a_study_on_no_cluster_leaves_nothing(built: Built, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    refused = command(
        "explore", built.model, "-o", tmp_path / "s.db", "--vary", "array.size=64", "--ray", "not an address"
    )
    assert refused.status == 1
    assert "--ray not an address: no cluster answers: " in refused.err
    assert not list(tmp_path.iterdir())


def test_accuracy_is_an_objective_where_precision_varies(
    built: Built, command: Command, tmp_path: Path
) -> None:
    words = [
        "explore", built.model, "-o", tmp_path / "s.db", "--vary", "precision=int8,int16,float32",
        "--vary", "array.size=32,64", "--calib", built.calibration, "--levels", "1",
    ]  # fmt: skip
    table = tmp_path / "s.csv"
    made = command(
        *words, "--objectives", "latency,accuracy", "--data", built.calibration, "--csv", table,
        "--page", tmp_path / "s.html",
    )  # fmt: skip
    assert made.status == 0, made.err
    assert "accuracy, dB" in made.out
    with table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    decibels = {row["precision"]: float(row["bound_accuracy"]) for row in rows}
    assert decibels["int8"] + 20 < decibels["int16"]
    graph = tmp_path / "m.tpuq"
    made = command("quantize", built.model, "--calib", built.calibration, "--dtype", "int16", "-o", graph)
    assert made.status == 0, made.err
    front = [row for row in rows if row["front"] == "True"]
    assert {row["precision"] for row in front} >= {"int8", "int16"}
    assert all(float(row["accuracy"]) == float(row["bound_accuracy"]) for row in front)
    for changed, reason in (
        (["--objectives", "latency,accuracy"], "objective accuracy: needs samples"),
        (["--data", built.calibration], "is read for the objective accuracy alone"),
    ):
        refused = command(*words[:3], tmp_path / "t.db", *words[4:], *changed)
        assert refused.status == 1
        assert reason in refused.err
        assert not (tmp_path / "t.db").exists()


def test_the_page_links_the_reports_of_the_front_and_marks_uncertain_ranks(
    built: Built, command: Command, tmp_path: Path
) -> None:
    table, page, folder = tmp_path / "s.csv", tmp_path / "pages" / "s.html", tmp_path / "reports"
    page.parent.mkdir()
    made = command(
        "explore", built.graph, "-o", tmp_path / "s.db", "--vary", "array.size=32,64,128", "--objectives",
        "latency,energy", "--csv", table, "--page", page, "--reports", folder,
    )  # fmt: skip
    assert made.status == 0, made.err
    with table.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["front"] == "True"]
    text = page.read_text(encoding="utf-8")
    for row in rows:
        name = f"{row['trial']}-{built.graph.stem}.html"
        assert f"../reports/{name}" in text
        # The program of the report is that of the row.
        assert f"{int(row[f'cycles_{built.graph.stem}']):,}" in (folder / name).read_text(encoding="utf-8")
        assert float(row["energy_low"]) < float(row["energy"]) < float(row["energy_high"])
    assert len(list(folder.iterdir())) == len(rows)
    spans = {row["trial"]: (float(row["energy_low"]), float(row["energy_high"])) for row in rows}
    for row in rows:
        low, high = spans[row["trial"]]
        others = [each for trial, each in spans.items() if trial != row["trial"]]
        overlaps = any(each[0] <= high and low <= each[1] for each in others)
        assert row["energy_uncertain"] == str(overlaps)
