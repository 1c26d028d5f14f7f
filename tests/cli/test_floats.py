"""Networks in floats from the command line: no calibration, and three levels that agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Built, Command

NEAR = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5}


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("level", ["-O1", "-O5"])
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
    assert "int8 needs ranges: give --ranges" in refused.err
    assert not list(tmp_path.iterdir())
