"""The example: every command of its walk runs, and its figures mean something."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Command
from conftest import REPOSITORY
from tpuflow.pipeline.example import WALK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    made = tmp_path_factory.mktemp("example") / "first"
    done = command("example", made)
    assert done.status == 0, done.err
    assert all(line in done.out for line, _ in WALK)
    return made


@pytest.mark.slow
def test_every_command_of_the_walk_runs(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = (folder / "README.txt").read_text()
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("tpuflow ")]
    assert lines == [line for line, _ in WALK]
    for line in lines:
        done = command(*shlex.split(line)[1:])
        assert done.status == 0, f"{line}\n{done.err}"
    assert {"stripes.tpu", "report.html", "vectors"} <= {path.name for path in folder.iterdir()}
    tight = command("alloc", "buffers.csv", "--capacity", "24575")
    assert "every allocation takes at least 24576" in tight.err


def test_the_readme_shows_the_walk() -> None:
    shown = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert all(line in shown for line, _ in WALK)


def test_the_network_is_good_at_its_task(folder: Path, command: Command, tmp_path: Path) -> None:
    figures = tmp_path / "scores.json"
    model, data = folder / "stripes.onnx", folder / "stripes.npz"
    done = command("evaluate", model, "--data", data, "--metric", "top1", "--json", figures)
    assert done.status == 0, done.err
    with np.load(data) as samples:
        assert sorted(set(samples["labels"].tolist())) == list(range(8))
    assert 0.95 < json.loads(figures.read_text())["value"] < 1


def test_the_files_repeat_and_are_not_overwritten(folder: Path, command: Command, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert command("example", again).status == 0
    for path in again.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    (again / "stripes.npz").unlink()
    done = command("example", again)
    assert done.status == 1
    assert "is there already: remove it, or name another folder" in done.err
    assert not (again / "stripes.npz").exists()
