"""The page of a run, made of what other commands wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Built, Command


def data(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


@pytest.mark.feature("VIS-09")
def test_a_page_of_two_programs_with_similarity_and_histograms(
    command: Command, built: Built, tmp_path: Path
) -> None:
    names = {
        name: tmp_path / name for name in ("slow.tpu", "similar.json", "ranges.json", "counts", "page.html")
    }
    calls: list[list[str | Path]] = [
        ["build", built.graph, "-O1", "-o", names["slow.tpu"]],
        [
            "compare",
            built.model,
            built.program,
            "--inputs",
            built.calibration,
            "--json",
            names["similar.json"],
        ],
        ["calibrate", built.model, "--calib", built.calibration, "-o", names["ranges.json"]],
        ["report", built.program, names["slow.tpu"], "-o", names["page.html"]],
    ]
    calls[2] += ["--histograms", names["counts"]]
    calls[3] += ["--compare", names["similar.json"], "--histograms", names["counts"]]
    for words in calls:
        result = command(*words)
        assert result.status == 0, result.err
    page = data(names["page.html"])
    assert [run["letter"] for run in page["runs"]] == ["A", "B"]
    compared = json.loads(names["similar.json"].read_text())["tensors"]
    ranges = json.loads(names["ranges.json"].read_text())["tensors"]
    tensors = {row["name"]: row for row in page["tensors"]}
    assert set(tensors) == {tensor["name"] for tensor in compared} | set(ranges)
    for tensor in compared:
        if tensor["quantized"] is not None:
            assert tensors[tensor["name"]]["compared"][0]["cosine"] == pytest.approx(
                tensor["quantized"]["cosine"], rel=1e-5
            )
    for name, limits in ranges.items():
        assert tensors[name]["low"] == pytest.approx(limits["min"], rel=1e-5)
        assert tensors[name]["high"] == pytest.approx(limits["max"], rel=1e-5)
    # The graph beside the first program says which tensor a layer stands for.
    assert any("cosine" in layer for layer in page["runs"][0]["layers"])


@pytest.mark.feature("VIS-09")
def test_build_writes_a_page_with_its_ranges(command: Command, built: Built, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["build", built.model, "--calib", built.calibration, "-o", tmp_path / "x.tpu", "--report", page]
    result = command(*words)
    assert result.status == 0, result.err
    found = data(page)
    assert found["runs"][0]["lanes"]
    assert all("path" in row for row in found["tensors"]) and found["tensors"]


def test_saved_figures_make_a_page_without_charts(command: Command, built: Built, tmp_path: Path) -> None:
    figures = tmp_path / "run.json"
    assert command("simulate", built.program, "--timing-only", "--json", figures).status == 0
    result = command("report", figures)
    assert result.status == 0, result.err
    (run,) = data(tmp_path / "run.html")["runs"]
    assert "lanes" not in run
    assert run["cycles"] == json.loads(figures.read_text())["cycles"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.onnx", b"", "is a model, not a program: build it first: tpuflow build"),
        ("x.json", b"{", "give what `tpuflow simulate --json` wrote"),
        ("x.json", b"[1]", 'it has no "counters"'),
        ("x.txt", b"", 'unknown kind of file ".txt": give a program'),
        ("x.json", None, "no such file"),
    ],
)
def test_other_files_are_refused(
    command: Command, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = command("report", tmp_path / name, "-o", tmp_path / "page.html")
    assert result.status == 1
    assert words in result.err
    assert not (tmp_path / "page.html").exists()


def test_a_comparison_must_be_one(command: Command, built: Built, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    result = command("report", built.program, "--compare", tmp_path / "x.json", "-o", tmp_path / "page.html")
    assert result.status == 1
    assert 'not what `tpuflow compare --json` writes: it has no "tensors"' in result.err
