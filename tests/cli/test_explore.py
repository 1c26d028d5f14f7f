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
