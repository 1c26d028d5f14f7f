"""What `dump` and `dump_dir` of a text file write, and what is said of operator plugins in a build."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Built, Command
from tpuflow import _core
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import load, run_float
from tpuflow.io.arrays import read_arrays

PLUGIN = """
from AIPUBuilder.Optimizer.framework import *

@op_register(OpType.Relu, '{version}')
def forward(self, *args):
    raise RuntimeError('never called')

@quant_register(OpType.Missing, '1.0')
def quantise(self, *args):
    pass
"""


@pytest.mark.feature("CMP-13")
def test_every_tensor_is_written_in_floats_and_codes(built: Built, command: Command, tmp_path: Path) -> None:
    config = tmp_path / "x.cfg"
    config.write_text(
        f"[Common]\noutput_dir = {tmp_path}\ndump = true\ndump_dir = tensors\nmodel_name = net\n"
    )
    made = command("build", built.model, "--calib", built.calibration, "--cfg", config)
    assert made.status == 0, made.err
    listed = json.loads((tmp_path / "tensors" / "tensors.json").read_text())
    assert f"{tmp_path}/tensors" in made.out + made.err
    files = {
        path.relative_to(tmp_path / "tensors").as_posix() for path in (tmp_path / "tensors").rglob("*.npy")
    }
    assert {f"float/{each['file']}" for each in listed.values()} <= files
    graph = _core.Graph.load(tmp_path / "net_o.tpuq")
    level = GraphLevel(graph)
    feed = {name: array[:1] for name, array in read_arrays(built.calibration).items()}
    exact = run_float(load(built.model).model, feed, "all")
    found = level.run(feed, all_tensors=True)
    seen = 0
    for name, each in listed.items():
        float_file = tmp_path / "tensors" / "float" / each["file"]
        if name in exact:
            np.testing.assert_array_equal(np.load(float_file), exact[name])
        if name not in found:
            continue
        seen += 1
        real = np.load(tmp_path / "tensors" / "quantized" / each["file"])
        np.testing.assert_array_equal(real, found[name])
        codes = np.load(tmp_path / "tensors" / "codes" / each["file"])
        assert codes.dtype == each["dtype"] and codes.size == real.size
        if each["scale"] is not None and len(each["scale"]) == 1:
            values = np.unique((codes.astype(np.float64) - each["zero_point"]) * each["scale"][0])
            np.testing.assert_allclose(values, np.unique(real.astype(np.float64)), rtol=1e-6, atol=1e-9)
    assert seen >= 4


@pytest.mark.feature("PLG-04")
def test_no_operator_plugin_is_ignored_in_silence(built: Built, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "aipubt_opt_op_x.py").write_text(PLUGIN.format(version="1.0"))
    made = command(
        "build", built.model, "--calib", built.calibration, "--plugins", folder, "-o", tmp_path / "x.tpu"
    )
    assert made.status == 0, made.err
    told = made.out + made.err
    assert 'operator plugin "Relu" takes no part, it has no forward function of a version above 1.0' in told
    assert 'operator plugin "Missing": the model has no node of that type' in told
    # Not in place of the first, whose bytecode would stand for a file of the same length and second.
    later = tmp_path / "later"
    later.mkdir()
    (later / "aipubt_opt_op_x.py").write_text(PLUGIN.format(version="2.0"))
    made = command(
        "build", built.model, "--calib", built.calibration, "--plugins", later, "-o", tmp_path / "y.tpu"
    )
    assert made.status == 1
    assert "plugin Relu failed: RuntimeError: never called" in made.err
    assert not (tmp_path / "y.tpu").exists()


@pytest.mark.parametrize("preference", ["float16_preferred", "bfloat16_preferred!"])
def test_data_of_a_file_are_no_mistake_where_floats_are_preferred(
    preference: str, built: Built, command: Command, tmp_path: Path
) -> None:
    config = tmp_path / "opt.cfg"
    config.write_text(
        f"[Common]\ntrigger_float_op = {preference}\ncalibration_data = {built.calibration}\n",
        encoding="utf-8",
    )
    made = command("build", built.model, "--cfg", config, "-o", tmp_path / "x.tpu")
    assert made.status == 0, made.err
    dtype = preference.partition("_")[0]
    assert f"all layers are {dtype}: nothing is calibrated" in made.out + made.err
    found = _core.Graph.load(tmp_path / "x.tpuq")
    assert {found.tensors[layer.output].dtype for layer in found.layers} == {dtype}


@pytest.mark.parametrize("step", ["build", "quantize"])
def test_one_command_makes_integers_and_floats(
    step: str, built: Built, command: Command, tmp_path: Path
) -> None:
    """The samples that integers are calibrated with are no mistake beside `--dtype f32`."""
    suffix = {"build": "tpu", "quantize": "tpuq"}[step]
    for name, more in (("with", ("--calib", built.calibration)), ("without", ())):
        made = command(step, built.model, "--dtype", "f32", *more, "-o", tmp_path / f"{name}.{suffix}")
        assert made.status == 0, made.err
        told = "all layers are float32: nothing is calibrated" in made.out + made.err
        assert told == (name == "with")
    given, none = (_core.Graph.load(tmp_path / f"{name}.tpuq").to_json() for name in ("with", "without"))
    assert given == none
