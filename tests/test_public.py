"""The public flow in single calls, on paths, arrays and objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpuflow
from conftest import REPOSITORY
from tpuflow.evaluation.comparison import ComparisonError

DIGITS = REPOSITORY / "examples" / "digits"
CALIBRATION = DIGITS / "calibration.npz"


@pytest.fixture(scope="module")
def built() -> tpuflow.BuildResult:
    return tpuflow.build(DIGITS / "digits.onnx", CALIBRATION, level=5)


@pytest.mark.slow
def test_a_build_in_one_call_is_that_of_the_stages(built: tpuflow.BuildResult) -> None:
    model = tpuflow.load(DIGITS / "digits.onnx")
    graph = tpuflow.quantize(model, samples=tpuflow.samples(CALIBRATION, model))
    program = tpuflow.compile(graph, machine=tpuflow.Machine.preset("128x128_asic"), level=5)
    assert isinstance(built.program, tpuflow.Program)
    assert program.digest() == built.program.digest()
    again = tpuflow.build(tpuflow.Request(DIGITS / "digits.onnx", level=5, calibration=CALIBRATION))
    assert isinstance(again.program, tpuflow.Program)
    assert again.program.digest() == program.digest()


@pytest.mark.slow
def test_levels_are_compared_and_scored(built: tpuflow.BuildResult, tmp_path: Path) -> None:
    found = tpuflow.compare(DIGITS / "digits.onnx", built.program, CALIBRATION, graph=built.graph, count=2)
    assert found.bit_equal
    assert found.samples == 2
    alone = tpuflow.compare(tpuflow.load(DIGITS / "digits.onnx"), built.graph)
    assert alone.bit_equal is None
    with pytest.raises(ComparisonError, match="give the graph it was compiled from"):
        tpuflow.compare(DIGITS / "digits.onnx", built.program)
    built.graph.save(tmp_path / "digits.tpuq")
    labeled = DIGITS / "digits.npz"
    floating = tpuflow.load(DIGITS / "digits.onnx")
    (by_file,) = tpuflow.evaluate(tmp_path / "digits.tpuq", labeled, "top1", reference=floating)
    arrays = dict(np.load(labeled))
    labels = arrays.pop("labels")
    (by_arrays,) = tpuflow.evaluate(built.graph, arrays, "top1", labels=labels, reference=floating)
    assert by_file == by_arrays
    assert by_file.value > 0.9


def test_what_limits_a_program_is_explained(built: tpuflow.BuildResult) -> None:
    assert isinstance(built.program, tpuflow.Program)
    run = tpuflow.simulate(built.program, values=False)
    assert tpuflow.explain(built.program).cycles == run.cycles
