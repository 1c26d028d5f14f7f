"""One recipe: Python, the command line and its single stages give the same graph and the same program."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpuflow
from cli.conftest import run_command
from conftest import REPOSITORY
from models.builder import Builder
from partitioning.networks import detector
from runtime.test_networks import NETWORKS
from test_end_to_end import evaluation_networks
from tpuflow import ptq as refine
from tpuflow.calibration import Ranges
from tpuflow.config import Config, ConfigError
from tpuflow.errors import SampleError
from tpuflow.frontend import FloatModel, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import QuantizeError
from tpuflow.partitioning import device_networks, partition
from tpuflow.partitioning.storage import load_program
from tpuflow.pipeline import Request, build
from tpuflow.ptq import CalibratedModel, CalibrationData, Listener, Recipe

DIGITS = REPOSITORY / "examples" / "digits"
COUNTS = dict.fromkeys(("kws_dscnn", "lenet5_mnist", "mnist_cntk", "resnet8_cifar10"), 32)
"""Samples by network: where they are quick, enough for ranges to be tuned; otherwise two."""


def by_command(model: Path, samples: Path, folder: Path, level: int) -> tuple[bytes, list[str]]:
    """Bytes of the graph and digests of the program that `tpuflow build` writes."""
    program = folder / "built.tpu"
    done = run_command("build", model, f"-O{level}", "--calib", samples, "-o", program)
    assert done.status == 0, done.err
    return program.with_suffix(".tpuq").read_bytes(), digests(load_program(program))


def by_python(model: Path, samples: Path, folder: Path, level: int) -> tuple[bytes, list[str]]:
    """The same by the lines of the README."""
    loaded = tpuflow.load(model)
    graph = tpuflow.quantize(loaded, samples=dict(np.load(samples)))
    graph.save(folder / "python.tpuq")
    program = tpuflow.compile(graph, machine="128x128_asic", level=level)
    return (folder / "python.tpuq").read_bytes(), digests(program)


def digests(program: Any) -> list[str]:
    return [part.digest() for part in device_networks(program)]


@pytest.mark.parametrize("name", NETWORKS)
def test_python_and_the_command_line_build_the_same_program(name: str, shared: Path, tmp_path: Path) -> None:
    model = shared / "data" / name / "model.onnx"
    images, _ = evaluation_networks(shared).load(name, "calib")
    samples = tmp_path / "samples.npz"
    count = COUNTS.get(name, 2)
    # One entry of `inputs` may be a sample with its own batch axis.
    stacked = np.stack([np.asarray(images[at], np.float32) for at in range(count)])
    (port,) = load(model).inputs
    np.savez(samples, allow_pickle=False, **{port.name: stacked.reshape(count, *port.shape[1:])})
    assert by_python(model, samples, tmp_path, 1) == by_command(model, samples, tmp_path, 1)


@pytest.mark.slow
def test_python_and_the_command_line_build_the_same_program_of_the_digits_network(tmp_path: Path) -> None:
    model, samples = DIGITS / "digits.onnx", DIGITS / "calibration.npz"
    built = by_command(model, samples, tmp_path, 5)
    assert by_python(model, samples, tmp_path, 5) == built
    # The stages before lowering matter: by ranges alone it is another network.
    loaded = tpuflow.load(model)
    plain = tpuflow.quantize(loaded, tpuflow.calibrate(loaded, dict(np.load(samples))))
    plain.save(tmp_path / "plain.tpuq")
    assert (tmp_path / "plain.tpuq").read_bytes() != built[0]


@pytest.mark.slow
def test_single_stages_of_the_command_line_leave_what_build_leaves(tmp_path: Path) -> None:
    model, samples = DIGITS / "digits.onnx", DIGITS / "calibration.npz"
    graph, _ = by_command(model, samples, tmp_path, 1)
    done = run_command("quantize", model, "--calib", samples, "-o", tmp_path / "at_once.tpuq")
    assert done.status == 0, done.err
    assert (tmp_path / "at_once.tpuq").read_bytes() == graph
    assert run_command("calibrate", model, "--calib", samples, "-o", tmp_path / "r.json").status == 0
    ranges = ("--ranges", tmp_path / "r.json")
    assert run_command("quantize", model, *ranges, "-o", tmp_path / "by_ranges.tpuq").status == 0
    assert (tmp_path / "by_ranges.tpuq").read_bytes() == graph
    both = run_command("quantize", model, *ranges, "--calib", samples, "-o", tmp_path / "both.tpuq")
    assert both.status == 1 and "give one of them" in both.err
    assert not (tmp_path / "both.tpuq").exists()


@pytest.mark.slow
def test_a_build_takes_samples_in_memory() -> None:
    arrays = dict(np.load(DIGITS / "calibration.npz"))
    request = Request(DIGITS / "digits.onnx", calibration=DIGITS / "calibration.npz", verify=False)
    built = build(request)
    assert tuple(built.stages) == tuple(refine.STAGES)
    for given in (arrays, Samples.of(arrays, load(request.model).inputs)):
        program = build(replace(request, calibration=given)).program
        assert digests(program) == digests(built.program)


def test_networks_in_segments_go_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "detector.onnx").write_bytes(detector().SerializeToString())
    image = np.random.default_rng(0).normal(0, 1, (12, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", image=image)
    model = load(tmp_path / "detector.onnx", host=True)
    graph = tpuflow.quantize(partition(model), samples={"image": image})
    graph.save(tmp_path / "python.tpuq")
    built, _ = by_command(tmp_path / "detector.onnx", tmp_path / "samples.npz", tmp_path, 1)
    assert (tmp_path / "python.tpuq").read_bytes() == built


def network() -> FloatModel:
    b = Builder("small")
    hidden = b.node("Relu", b.conv(b.input("x", [1, 4, 6, 6]), 8))
    b.output(b.gemm(hidden, 5))
    return load(b.model())


def images(count: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(1).normal(0, 1, (count, 4, 6, 6)).astype(np.float32)}


def test_stages_run_in_their_order_and_can_be_left_out() -> None:
    model, told = network(), list[str]()
    data = CalibrationData(Samples.of(images(8), model.inputs))
    listener = Listener(stage=lambda name, _seconds: told.append(name))
    Recipe().calibrate(model, data, listener)
    assert told == ["equalize", "calibrate", "shift", "tune", "refine", "correct", "estimate"]
    told.clear()
    found = (
        Recipe()
        .without("equalize", "shift", "tune", "refine", "correct", "estimate")
        .calibrate(model, data, listener)
    )
    assert told == ["calibrate"]
    assert found.ranges == tpuflow.calibrate(model, images(8))
    with pytest.raises(ConfigError, match="choose among equalize, calibrate, shift, tune, refine, correct"):
        Recipe(stages=("correct", "calibrate"))


def test_saved_ranges_are_taken_as_they_are(tmp_path: Path) -> None:
    model = network()
    found = Recipe().calibrate(model, CalibrationData(Samples.of(images(8), model.inputs)))
    assert found.ranges is not None
    found.ranges.save(tmp_path / "ranges.json")
    ranges = Ranges.load(tmp_path / "ranges.json")
    again = Recipe().calibrate(CalibratedModel(model), CalibrationData(ranges=ranges))
    assert again.ranges == found.ranges


@pytest.mark.parametrize("fallback", [{}, {"fallback": "int8"}])
def test_floats_take_samples_and_need_none(fallback: dict[str, str]) -> None:
    model = network()
    floats = Config.parse({"quantize": {"dtype": "float16"} | fallback})
    given = tpuflow.quantize(model, None, floats, samples=images(4))
    none = tpuflow.quantize(model, None, Config.parse({"quantize": {"dtype": "float16"}}))
    assert given.to_json() == none.to_json()


def test_wrong_requests_say_what_is_wrong() -> None:
    model = network()
    ranges = tpuflow.calibrate(model, images(4))
    chain = Config.parse({"calibrate": {"global_calibration": "adaround"}})
    with pytest.raises(QuantizeError, match="ranges and samples are both given"):
        tpuflow.quantize(model, ranges, samples=images(4))
    with pytest.raises(ConfigError, match="global_calibration needs samples"):
        tpuflow.quantize(model, ranges, chain)
    with pytest.raises(QuantizeError, match=r"tpuflow\.load"):
        tpuflow.quantize(model.model, samples=images(4))
    with pytest.raises(SampleError, match='unknown input "y"'):
        tpuflow.quantize(model, samples={"y": images(4)["x"]})


@pytest.mark.slow
def test_only_the_recipe_calls_the_methods_of_its_stages() -> None:
    """Nobody writes the recipe a second time: what decides about a network is called from one module."""
    methods = {"better_equalized", "better_tuned", "apply_chain", "with_factors"}
    package = REPOSITORY / "python" / "tpuflow"
    callers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in methods
    }
    assert callers == {"ptq/recipe.py"}
