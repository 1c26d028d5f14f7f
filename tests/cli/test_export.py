"""`tpuflow export`: files for other runtimes, and thresholds that come back as ranges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from cli.conftest import Built, Command
from export.test_qdq import outputs
from tpuflow.calibration import Ranges


def test_export_writes_model_scales_and_thresholds(built: Built, command: Command, tmp_path: Path) -> None:
    ranges = tmp_path / "r.json"
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    files = [tmp_path / name for name in ("q.onnx", "scales.json", "thresholds.json")]
    words = ("--scales", files[1], "--ranges", ranges, "--thresholds", files[2])
    done = command("export", built.model, built.graph, "-o", files[0], *words)
    assert done.status == 0, done.err
    with np.load(built.calibration) as arrays:
        feed = {name: array[:1] for name, array in arrays.items()}
    (found,) = outputs(onnx.load(files[0]), feed).values()
    assert found.shape == (1, 6)
    np.savez(tmp_path / "one.npz", **feed)
    ran = command("run", built.graph, "--inputs", tmp_path / "one.npz", "--outputs", tmp_path / "ran.npz")
    assert ran.status == 0, ran.err
    with np.load(tmp_path / "ran.npz") as arrays:
        assert all(np.array_equal(found, array) for array in arrays.values())
    assert "ConvInteger" in {node.op_type for node in onnx.load(files[0]).graph.node}
    plain = command("export", built.model, built.graph, "-o", files[0], "--qdq-only")
    assert plain.status == 0
    own = {node.op_type for node in onnx.load(built.model).graph.node}
    added = {node.op_type for node in onnx.load(files[0]).graph.node} - own
    assert {"QuantizeLinear", "DequantizeLinear"} <= added and "Mod" not in added
    read = json.loads(files[2].read_text(encoding="utf-8"))
    whole = Ranges.load(ranges)
    assert read == whole.thresholds
    for name, each in whole.tensors.items():
        assert read[name] == max(abs(bound) for pair in each.pairs for bound in pair)
    again = Ranges.load(files[2])
    assert again.thresholds == whole.thresholds
    program = tmp_path / "x.tpu"
    assert command("build", built.model, "--ranges", files[2], "-o", program).status == 0
    refused = command("export", built.model, built.graph, "-o", files[0], "--thresholds", files[2])
    assert refused.status == 1 and "give --ranges" in refused.err
