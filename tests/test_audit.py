"""The check before a build: every problem at once, each with what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from end_to_end.levels import SMALL
from frontend.graphs import array, graph, integers
from tpuflow.calibration import Range, Ranges
from tpuflow.cli import main
from tpuflow.cli.commands.listings import ops
from tpuflow.frontend.supported import OPERATORS
from tpuflow.lowering import supported_operators
from tpuflow.pipeline.preflight import audit

if TYPE_CHECKING:
    from pathlib import Path


def troubled() -> onnx.ModelProto:
    """An open shape, an unknown operator, an integer type, more weights than the machine holds."""
    return graph(
        [
            ("Conv", "x w", "c"),
            ("Relu", "c", "r"),
            ("custom:Magic", "r", "m"),
            ("BitwiseNot", "ids", "n"),
            ("MatMul", "rows big", "p"),
        ],
        {"x": [1, 3, "height", "width"], "ids": [1, 4], "rows": [1, 8]},
        ["m", "n", "p"],
        {"w": array(4, 3, 3, 3), "big": array(8, 64)},
        opset=18,
        types={"ids": TensorProto.INT64, "n": TensorProto.INT64},
        domains=["custom"],
    )


def tiny_machine(folder: Path) -> Path:
    """A machine whose memory holds less than the weights."""
    lines = [
        "capacity_bytes = 128" if line.startswith("capacity_bytes") else line
        for line in SMALL.read_text(encoding="utf-8").splitlines()
    ]
    path = folder / "tiny.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.feature("IMP-35")
def test_four_problems_are_four_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, machine = tmp_path / "troubled.onnx", tiny_machine(tmp_path)
    onnx.save(troubled(), path)
    monkeypatch.setattr("sys.argv", ["tpuflow", "check", str(path), "--no-host", "--machine", str(machine)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    text = capsys.readouterr().err
    assert f"{path}: 4 unsupported nodes:" in text
    assert 'node "x" (input, shape): axes 2, 3 without a fixed size: give --input-shape x=1,3,224,224' in text
    assert 'node "big" (constant, size): 512 bytes exceed the' in text
    assert 'node "magic2" (custom.Magic): operator is not supported' in text
    assert 'node "bitwisenot3" (BitwiseNot)' in text
    assert "--cut-outputs r" in text
    assert "Traceback" not in text
    monkeypatch.setattr("sys.argv", ["tpuflow", "check", str(path), "--machine", str(machine)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    text = capsys.readouterr().err
    assert f"{path}: 2 unsupported nodes:" in text, "the host computes the other nodes, not shapes and sizes"
    assert "give --input-shape x=1,3,224,224" in text
    assert 'node "big" (constant, size)' in text


@pytest.mark.feature("IMP-35")
def test_what_only_lowering_knows_and_missing_ranges() -> None:
    proto = graph([("Exp", "x", "y"), ("Softmax", "y", "z")], {"x": [1, 5]}, ["z"])
    assert audit(proto).findings == ()
    ranges = Ranges({"x": Range(-1.0, 1.0), "z": Range(0.0, 1.0)})
    (finding,) = audit(proto, ranges=ranges).findings
    assert str(finding) == 'node "y" (tensor, range): has no range: calibrate this model again'


@pytest.mark.feature("IMP-29")
def test_operators_listed_are_those_that_are_lowered(capsys: pytest.CaptureFixture[str]) -> None:
    ops()
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:] if line.strip()}
    assert set(OPERATORS) & set(supported_operators()) <= listed


@pytest.mark.feature("IMP-35")
def test_open_batches_are_no_problem() -> None:
    proto = graph(
        [("Reshape", "x k", "y"), ("MatMul", "y w", "z")],
        {"x": ["N", 2, 3]},
        ["z"],
        {"k": integers(-1, 6), "w": np.ones((6, 4), np.float32)},
    )
    assert audit(proto).findings == ()
