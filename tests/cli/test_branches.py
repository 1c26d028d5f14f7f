"""The float and the integer form of one network, side by side: `compare MODEL F32 INT8`, and their page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Built, Command
from cli.test_report import data
from test_metric_listings import functions


@pytest.fixture(scope="module")
def floating(command: Command, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("branches") / "f32.tpu"
    result = command("build", built.model, "--dtype", "f32", "-o", program)
    assert result.status == 0, result.err
    return program


def figures(command: Command, path: Path, *words: str | Path) -> dict[str, Any]:
    result = command("compare", *words, "--json", path)
    assert result.status == 0, result.err
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_two_programs_of_a_model_are_compared_as_each_alone(
    command: Command, built: Built, floating: Path, tmp_path: Path
) -> None:
    inputs = ("--inputs", built.calibration, "--samples", "3", "--validation", built.calibration)
    both = figures(command, tmp_path / "both.json", built.model, floating, built.program, *inputs)
    first, second = (
        figures(command, tmp_path / "one.json", built.model, program, *inputs)
        for program in (floating, built.program)
    )
    assert both.pop("other") == {key: second[key] for key in second if key not in ("validation", "format")}
    assert both.pop("validation") == first.pop("validation") | {"other": second["validation"]}
    assert both == first
    assert first["tensors"] != second["tensors"]


def test_the_table_has_columns_of_both(command: Command, built: Built, floating: Path) -> None:
    words = (built.model, floating, built.program, "--inputs", built.calibration)
    result = command("compare", *words)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert f"A: {floating.name}" in lines and f"B: {built.program.name}" in lines
    head = next(line for line in lines if line.startswith("tensor"))
    assert re.sub(r"\s+", " ", head).strip() == (
        "tensor import cos euclid A cos euclid SQNR dB program B cos euclid SQNR dB program"
    )
    (output,) = (line.split() for line in lines if line.split()[:1] == [built.output])
    # Float beside float is exact to three digits; eight bits are not exact in every figure.
    assert output[3:5] == ["1.000", "1.000"] and output[6] == "equal" and output[-1] == "equal"
    assert float(output[5]) > 100 > float(output[9])
    assert sum("graph and program: equal in every bit" in line for line in lines) == 2


def test_the_branch_that_falls_short_decides_the_status(
    command: Command, built: Built, floating: Path
) -> None:
    words = (built.model, floating, built.program, "--inputs", built.calibration, "--least-sqnr", "100")
    result = command("compare", *words)
    assert result.status == 3
    assert f'{built.program.name}: output "{built.output}" has' in result.err


@pytest.mark.feature("VIS-09")
@pytest.mark.parametrize("files", [1, 2])
def test_a_page_shows_both_branches(
    command: Command, built: Built, floating: Path, tmp_path: Path, files: int
) -> None:
    programs, page = [floating, built.program], tmp_path / "page.html"
    inputs = ("--inputs", built.calibration)
    if files == 1:
        paths = [tmp_path / "both.json"]
        found = figures(command, paths[0], built.model, *programs, *inputs)
        compared = [found, found["other"]]
    else:
        paths = [tmp_path / f"{number}.json" for number in range(2)]
        compared = [
            figures(command, path, built.model, program, *inputs)
            for path, program in zip(paths, programs, strict=True)
        ]
    options = [word for path in paths for word in ("--compare", path)]
    result = command("report", *programs, *options, "-o", page)
    assert result.status == 0, result.err
    content = data(page)
    rows = {row["name"]: row["compared"] for row in content["tensors"]}
    for number, comparison in enumerate(compared):
        for tensor in comparison["tensors"]:
            if tensor["quantized"] is not None:
                measures = rows[tensor["name"]][number]
                for key in ("cosine", "euclid"):
                    assert measures[key] == pytest.approx(tensor["quantized"][key], rel=1e-5)
        assert any("cosine" in layer for layer in content["runs"][number]["layers"])
    text = page.read_text(encoding="utf-8")
    summary = text[text.index('id="similarity"') :].split("</table>")[0]
    assert "A: tiny float32 -O1 on" in summary and "B: tiny int8" in summary
    assert summary.count("equal in every bit") == 2


def test_more_comparisons_than_programs_are_refused(
    command: Command, built: Built, floating: Path, tmp_path: Path
) -> None:
    both, page = tmp_path / "both.json", tmp_path / "page.html"
    figures(command, both, built.model, floating, built.program, "--inputs", built.calibration)
    for words in (
        [built.program, "--compare", both],
        [built.program, floating, "--compare", both, "--compare", both],
    ):
        result = command("report", *words, "-o", page)
        assert result.status == 1
        assert "give one for each program of the page, in their order" in result.err
        assert not page.exists()


def test_what_has_no_effect_beside_two_programs_is_refused(
    command: Command, built: Built, floating: Path, tmp_path: Path
) -> None:
    words = (built.model, floating, built.program)
    for option in ("--picture", "--histograms"):
        result = command("compare", *words, option, tmp_path / "x.svg")
        assert result.status == 1
        assert f"{option} has no effect where a model with two programs is compared" in result.err
    result = command("compare", built.calibration, built.calibration, built.program)
    assert result.status == 1
    assert "is one too many: two files of tensors are compared" in result.err
    assert command("compare", built.model, built.program, built.model).status == 1


@pytest.mark.feature("CMP-01", "CMP-02")
def test_both_branches_of_the_document_stand_side_by_side(
    shared: Path, command: Command, built: Built, floating: Path, tmp_path: Path
) -> None:
    programs = {"f32": floating, "int8": built.program}
    words = (built.model, floating, built.program, "--inputs", built.calibration)
    content = figures(command, tmp_path / "both.json", *words)
    theirs = functions(shared)

    class Owner:
        square_rooted = theirs["square_rooted"]

    def output(network: Path, name: str) -> np.ndarray[Any, Any]:
        target = tmp_path / f"{name}.npz"
        assert command("run", network, "--inputs", built.calibration, "--outputs", target).status == 0
        with np.load(target) as arrays:
            return np.asarray(arrays[built.output][0], np.float64).ravel()

    origin = output(built.model, "origin")
    for (name, program), branch in zip(programs.items(), (content, content["other"]), strict=True):
        (found,) = (tensor["quantized"] for tensor in branch["tensors"] if tensor["name"] == built.output)
        ours = output(program, name)
        assert round(found["cosine"], 3) == theirs["cosine_similarity"](Owner(), origin, ours)
        distance = theirs["euclidean_distance"](origin, ours)
        assert found["euclid"] == pytest.approx(
            1 - distance / Owner().square_rooted((origin + ours) / 2), abs=1e-6
        )
