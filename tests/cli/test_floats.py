"""Networks in floats from the command line: no calibration, and three levels that agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from models.builder import Builder

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Built, Command

NEAR = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5}


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("level", ["-O1", "-O5"])
@pytest.mark.feature("LOW-01")
def test_floats_go_through_every_level(
    built: Built, command: Command, tmp_path: Path, dtype: str, level: str
) -> None:
    graph, program = tmp_path / "net.tpuq", tmp_path / "net.tpu"
    for words in (
        ("quantize", built.model, "--dtype", dtype, "-o", graph),
        ("build", built.model, "--dtype", dtype, level, "-o", program),
    ):
        result = command(*words)
        assert result.status == 0, result.err
        assert "calibrated" not in result.out + result.err
    arrays = []
    for file in (built.model, graph, program):
        outputs = tmp_path / f"{file.suffix[1:]}.npz"
        assert command("run", file, "--inputs", built.calibration, "--outputs", outputs).status == 0
        with np.load(outputs) as found:
            arrays.append(found[built.output])
    exact, of_graph, of_program = arrays
    assert exact.dtype == of_graph.dtype == of_program.dtype == np.float32
    np.testing.assert_array_equal(of_graph, of_program)
    assert 0 < np.abs(of_graph - exact).max() < NEAR[dtype] * np.abs(exact).max()
    compared = command("compare", built.model, program, "--inputs", built.calibration)
    assert compared.status == 0, compared.err


def test_codes_alone_need_ranges(built: Built, command: Command, tmp_path: Path) -> None:
    refused = command("quantize", built.model, "-o", tmp_path / "net.tpuq")
    assert refused.status == 1
    assert "int8 needs ranges: give --calib or --ranges" in refused.err
    assert not list(tmp_path.iterdir())


@pytest.mark.feature("SIM-12")
def test_infinity_and_nan_are_events_with_layer_place_and_count(command: Command, tmp_path: Path) -> None:
    b = Builder("large")
    x = b.input("x", [1, 3, 4, 5])
    large = b.node("Mul", x, b.constant(np.float32(4)))
    b.output(b.node("Sub", large, b.node("Mul", large, b.constant(np.float32(2)))))
    onnx.save(b.model(), tmp_path / "net.onnx")
    assert command("build", tmp_path / "net.onnx", "--dtype", "f16", "-o", tmp_path / "net.tpu").status == 0
    image = np.zeros((1, 3, 4, 5), np.float32)
    image[0, 1, 2, 3] = image[0, 2, 3, 4] = 60000  # four times that is beyond float16
    np.savez(tmp_path / "x.npz", x=image)
    words = (
        "simulate",
        tmp_path / "net.tpu",
        "--inputs",
        tmp_path / "x.npz",
        "--json",
        tmp_path / "run.json",
    )
    calm = command(*words)
    assert calm.status == 0, calm.err
    events = json.loads((tmp_path / "run.json").read_text())["events"]
    # Without a convolution the axes lie as in the model: rows are its channels.
    kinds = {(event["kind"], event["count"], tuple(event["first"])) for event in events}
    assert ("infinity", 2, (1, 2, 3)) in kinds
    assert ("NaN", 2, (1, 2, 3)) in kinds
    assert "infinity in layer" in calm.out
    assert "row 1, column 2, channel 3" in calm.out
    failed = command(*words, "--fail-on-events")
    assert failed.status == 1
    assert "--fail-on-events" in failed.err
    np.savez(tmp_path / "x.npz", x=image * 0)
    assert command(*words, "--fail-on-events").status == 0
