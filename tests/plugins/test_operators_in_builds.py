"""Operators of plugins in networks: imported, calibrated, quantised by their rule, run, at every level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.conftest import run_command
from tpuflow.frontend import load, operators, run_float
from tpuflow.io.arrays import read_arrays
from tpuflow.partitioning.storage import load_graph
from tpuflow.plugins import load_plugins, operators_of

PLUGIN = """
import numpy as np
from AIPUBuilder.Optimizer.framework import *

@op_register(OpType.Wave, '1.0')
def wave(self, *args):
    x = np.asarray(self.inputs[0].betensor)
    w = np.asarray(self.constants['weights'].betensor)
    self.outputs[0].betensor = (np.sin(x * w) + self.get_param('offset')).astype(np.float32)

@quant_register(OpType.Wave, '1.0')
def wave_rule(self, *args):
    out = self.outputs[0]
    out.scale, out.zerop, out.qbits, out.dtype, out.qinvariant = 32.0, 0, 8, 'int8', False
    out.qmin, out.qmax = -128, 127

@op_register(OpType.Relu, '2.0')
def relu(self, *args):
    self.outputs[0].betensor = np.maximum(np.asarray(self.inputs[0].betensor), np.float32(-0.25))
"""


def network(*, relu: bool = False) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "k1": rng.normal(0, 0.3, (4, 3, 3, 3)),
        "k2": rng.normal(0, 0.3, (4, 4, 3, 3)),
        "w": np.float32(2.0),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], name="c1"),
        helper.make_node("Wave", ["a", "w"], ["b"], name="wave", offset=0.5),
        helper.make_node("Conv", ["b", "k2"], ["c" if relu else "y"], name="c2"),
        *([helper.make_node("Relu", ["c"], ["y"], name="relu")] if relu else []),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "aipubt_opt_op_wave.py").write_text(PLUGIN, encoding="utf-8")
    onnx.save(network(), tmp_path / "net.onnx")
    images = np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=images)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPUFLOW_PLUGINS", raising=False)
    return tmp_path


def expected(image: Any, *, relu: bool = False) -> Any:
    """The network by its plain meaning, the plugin's functions written out."""
    whole = network(relu=True)
    parts = [onnx.ModelProto.FromString(whole.SerializeToString()) for _ in range(2)]
    for part, at, name_in, name_out in ((parts[0], 0, "x", "a"), (parts[1], 2, "b", "c")):
        node = whole.graph.node[at]
        del part.graph.node[:], part.graph.input[:], part.graph.output[:]
        part.graph.node.append(node)
        part.graph.input.append(helper.make_tensor_value_info(name_in, TensorProto.FLOAT, None))
        part.graph.output.append(helper.make_tensor_value_info(name_out, TensorProto.FLOAT, None))
    a = run_float(parts[0], {"x": image})["a"]
    c = run_float(parts[1], {"b": (np.sin(a * np.float32(2)) + np.float32(0.5)).astype(np.float32)})["c"]
    return np.maximum(c, np.float32(-0.25)) if relu else c


@pytest.mark.feature("PLG-04")
def test_the_float_model_computes_what_the_plugin_says(folder: Path) -> None:
    image = read_arrays(folder / "samples.npz")["x"][:1]
    with operators(operators_of(load_plugins([folder / "mine"]))):
        model = load(network(relu=True), host=True)
        assert [each.node for each in model.findings] == ["wave", "relu"]
        for form in (model.origin, model.model):
            found = run_float(form, {"x": image})["y"]
            np.testing.assert_allclose(found, expected(image, relu=True), rtol=1e-5, atol=1e-5)


@pytest.mark.feature("PLG-04")
def test_a_build_runs_the_plugin_on_the_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_command(
        "build",
        "net.onnx",
        "--calib",
        "samples.npz",
        "--plugins",
        "mine",
        "-O5",
        "-o",
        "net.tpu",
        "--json",
        "r.json",
    )
    assert made.status == 0, made.err
    told = made.out + made.err
    assert "operator of a plugin" in told and "takes no part" not in told
    hosts = json.loads((folder / "r.json").read_text())["host_subgraphs"]
    assert [name for each in hosts for name in each["nodes"]] == ["wave"]
    # What the device reads of the plugin has the grid its rule states: 32 codes per unit, zero at zero.
    parts: Any = load_graph(folder / "net.tpuq")
    second = parts.device[1].network
    taken = second.tensors[second.inputs[0]]
    assert taken.scale is not None
    np.testing.assert_allclose(taken.scale, [1 / 32], rtol=0.01)

    monkeypatch.setenv("TPUFLOW_PLUGINS", str(folder / "mine"))
    outputs = {}
    for name in ("net.tpu", "net.tpuq"):
        ran = run_command("run", name, "--inputs", "samples.npz", "--outputs", f"{name}.npz")
        assert ran.status == 0, ran.err
        outputs[name] = read_arrays(folder / f"{name}.npz")["y"]
    np.testing.assert_array_equal(outputs["net.tpu"], outputs["net.tpuq"])
    image = read_arrays(folder / "samples.npz")["x"]
    exact = np.concatenate([expected(image[at : at + 1]) for at in range(len(image))])
    error = np.linalg.norm(outputs["net.tpu"] - exact) / np.linalg.norm(exact)
    assert error < 0.1


@pytest.mark.usefixtures("folder")
@pytest.mark.feature("PLG-04")
def test_a_program_without_its_plugin_says_what_is_missing() -> None:
    made = run_command("build", "net.onnx", "--calib", "samples.npz", "--plugins", "mine", "-o", "net.tpu")
    assert made.status == 0, made.err
    ran = run_command("run", "net.tpu", "--inputs", "samples.npz", "--outputs", "y.npz")
    assert ran.status == 1
    assert 'operator "Wave" is one of a plugin' in ran.err and "TPUFLOW_PLUGINS=DIR" in ran.err
    refused = run_command("build", "net.onnx", "--calib", "samples.npz", "-o", "x.tpu")
    assert refused.status == 1 and "Wave" in refused.err
