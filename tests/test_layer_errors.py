"""The error a layer makes by itself, and the warnings that name it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from frontend.graphs import graph
from models.builder import Builder
from tpuflow import cli
from tpuflow.calibration import Range, calibrate
from tpuflow.config import Config
from tpuflow.evaluation.by_tensor import tensor_similarities
from tpuflow.evaluation.layer_errors import _decibels, layer_errors
from tpuflow.execution.levels import FloatLevel, GraphLevel
from tpuflow.frontend import load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.partitioning import device_networks
from tpuflow.pipeline.warnings import AccuracyError, accuracy_warnings, refuse
from tpuflow.ptq import CalibratedModel, CalibrationData, Recipe

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from tpuflow.frontend import FloatModel

DTYPES = pytest.mark.parametrize("dtype", ["int8", "int16"])


def built() -> onnx.ModelProto:
    """Convolution, function, residual addition and product."""
    b = Builder("small", seed=1)
    x = b.input("x", [1, 4, 6, 6])
    c = b.conv(x, 8)
    s = b.node("Add", b.node("Sigmoid", c), c)
    b.output(b.gemm(s, 5))
    return b.model()


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4, 6, 6)).astype(np.float32)


def prepared(dtype: str) -> tuple[FloatModel, CalibratedModel, Config, CalibrationData]:
    model, config = load(built()), Config.parse({"quantize": {"dtype": dtype}})
    data = CalibrationData(Samples.of({"x": images(32)}, model.inputs))
    return model, Recipe(config).calibrate(model, data), config, data


def clipped(state: CalibratedModel, name: str, share: float) -> CalibratedModel:
    """The state with a range that holds a share of a value."""
    assert state.ranges is not None
    low, high = state.ranges.tensors[name].pairs[0]
    tensors = {**state.ranges.tensors, name: Range(share * low, share * high)}
    return replace(state, ranges=replace(state.ranges, tensors=tensors))


@DTYPES
@pytest.mark.feature("SUB-03")
def test_layers_run_apart_inherit_no_error(dtype: str) -> None:
    """On the graph's own values all is as in a run; and on inputs alone; exact ones give less."""
    model, state, config, data = prepared(dtype)
    level = GraphLevel(device_networks(Recipe(config).graph(state))[0])
    batch = next(iter(data.samples.batches())).arrays
    own = level.run(batch, all_tensors=True)
    again = level.run_apart({**batch, **own})
    assert own.keys() == again.keys()
    for name, array in own.items():
        np.testing.assert_array_equal(again[name], array)
    assert all(np.array_equal(array, own[name]) for name, array in level.run_apart(batch).items())
    errors = []
    for each in data.samples.batches():
        exact = FloatLevel(model).run(each.arrays, all_tensors=True)
        (out,) = level.outputs
        found = (level.run_apart({**each.arrays, **exact})[out], level.run(each.arrays)[out])
        errors.append([np.sum((made - exact[out]) ** 2) for made in found])
    apart, together = np.sum(errors, axis=0)
    assert apart < together


@DTYPES
def test_a_sound_network_gives_no_warning(dtype: str) -> None:
    model, state, config, data = prepared(dtype)
    graph = Recipe(config).graph(state)
    assert accuracy_warnings(model, state, graph, config, data) == []
    found = layer_errors(model, graph, data.samples, 8 if dtype == "int8" else 16)
    assert len(found) >= 3
    assert all(abs(each.lost_db) < 20 for each in found if each.found_db < 200)


@DTYPES
@pytest.mark.parametrize("memory", [1, 2000])
def test_parts_that_fit_into_memory_give_the_same(
    dtype: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of layers, similarities of tensors: node by node as in one piece."""
    model, state, config, data = prepared(dtype)
    graph = Recipe(config).graph(state)
    errors, similar = (
        layer_errors(model, graph, data.samples),
        tensor_similarities(model, graph, data.samples),
    )
    monkeypatch.setattr("tpuflow.evaluation.layer_errors.MEMORY", memory)
    monkeypatch.setattr("tpuflow.evaluation.by_tensor.MEMORY", memory)
    parts = layer_errors(model, graph, data.samples)
    assert [replace(each, found_db=0, expected_db=0, reach=0) for each in parts] == [
        replace(each, found_db=0, expected_db=0, reach=0) for each in errors
    ]
    for one, other in zip(parts, errors, strict=True):
        assert one.found_db == pytest.approx(other.found_db, abs=0.01)
        assert one.expected_db == pytest.approx(other.expected_db, abs=0.01)
        assert one.reach == pytest.approx(other.reach)
    again = tensor_similarities(model, graph, data.samples)
    assert again.keys() == similar.keys()
    assert {each.tensor for each in errors} <= similar.keys()
    for name, each in again.items():
        assert each.cosine == pytest.approx(similar[name].cosine, abs=1e-6)


@DTYPES
def test_tensors_of_some_names(dtype: str) -> None:
    """What is kept of a run, and which layers run apart, changes no value."""
    model, state, config, data = prepared(dtype)
    level = GraphLevel(device_networks(Recipe(config).graph(state))[0])
    batch = next(iter(data.samples.batches())).arrays
    exact = FloatLevel(model).run(batch, all_tensors=True)
    every, apart = level.run(batch, all_tensors=True), level.run_apart({**batch, **exact})
    for name in every:
        some = level.run(batch, all_tensors=True, names=[name])
        assert some.keys() == {name, *level.outputs}
        alone = level.run_apart({**batch, **exact}, [name])
        assert alone.keys() == {name}
        np.testing.assert_array_equal(some[name], every[name])
        np.testing.assert_array_equal(alone[name], apart[name])


@DTYPES
def test_a_layer_whose_grid_is_too_narrow_is_named(dtype: str) -> None:
    model, state, config, data = prepared(dtype)
    node = next(node for node in state.model.model.graph if node.op_type == "Add")
    bad = clipped(state, node.outputs[0].name or "", 1 / 20)
    found = accuracy_warnings(model, bad, Recipe(config).graph(bad), config, data)
    assert [each.name for each in found if each.kind == "layer"] == [node.name]
    text = next(each.text for each in found if each.kind == "layer")
    assert f'layer "{node.name}"' in text
    assert "its grid holds" in text
    with pytest.raises(AccuracyError, match="an error under --strict") as caught:
        refuse(found)
    assert caught.value.exit_status == 3
    refuse([])


def test_int16_that_is_worse_than_int8_is_told() -> None:
    model, state, config, data = prepared("int16")
    node = next(node for node in state.model.model.graph if node.op_type == "Add")
    bad = Recipe(config).graph(clipped(state, node.outputs[0].name or "", 1 / 20))
    kinds = [each.kind for each in accuracy_warnings(model, state, bad, config, data)]
    assert kinds == ["int16", "layer"]


def masked(path: Path) -> None:
    """A network with a mask, and samples in which it is zero throughout."""
    b = Builder("masked", seed=2)
    x, mask = b.input("x", [1, 6]), b.input("mask", [1, 6])
    b.output(b.gemm(b.node("Add", x, mask), 4))
    (path / "m.onnx").write_bytes(b.model().SerializeToString())
    x_values = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
    np.savez(path / "calib.npz", x=x_values, mask=np.zeros((16, 6), np.float32))


def test_an_input_that_was_constant_is_named_and_strict_makes_it_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    masked(tmp_path)
    command = ["tpuflow", "build", "m.onnx", "-o", "m.tpu", "--calib", "calib.npz", "--json", "m.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [*command, "--strict"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 3
    assert 'input "mask"' in capfd.readouterr().err
    assert not (tmp_path / "m.tpu").exists()
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert 'WARNING: input "mask": 0 throughout calibration' in capfd.readouterr().out
    report = json.loads((tmp_path / "m.json").read_text())
    assert [(each["kind"], each["name"]) for each in report["warnings"]] == [("constant_input", "mask")]
    ((low, high),) = report["output_sqnr_db"].values()
    assert 20 < low < high


@pytest.mark.parametrize("noise", [math.inf, math.nan])
def test_what_a_rounded_operand_makes_infinite_is_no_decibels(noise: float) -> None:
    """As the logarithm of a number that is zero on the best grid of its type."""
    assert _decibels(1.0, noise) == -math.inf


@pytest.mark.parametrize("count", [4, 16])
def test_an_output_that_has_little_to_do_with_float_is_named(count: int) -> None:
    """Though every layer is as good as its types: a product of twenty factors of very unequal size."""
    b = Builder("factors")
    x = b.input("x", [1, 20])
    b.output(b.node("ReduceProd", x, axes=[1], keepdims=1))
    model, config = load(b.model()), Config.parse({"quantize": {"dtype": "int8"}})
    shown = {"x": np.random.default_rng(0).standard_normal((count, 20)).astype(np.float32)}
    data = CalibrationData(Samples.of(shown, model.inputs))
    state = Recipe(config).calibrate(model, data)
    assert (state.estimate is None) is (count < 8)
    found = accuracy_warnings(model, state, Recipe(config).graph(state), config, data)
    (named,) = (each for each in found if each.kind == "output")
    assert named.name == model.outputs[0].name
    assert "dB beside float is expected; use --dtype int16 or floats" in named.text


def test_a_tensor_that_is_also_held_on_the_grid_of_a_reader_is_shown_as_it_is() -> None:
    """What a choice takes of it is clamped to what the choice gives."""
    b = Builder("chosen", seed=4)
    half = b.constant(np.float32(0.5))
    total = b.node("Add", b.input("x", [1, 32]), half)
    b.output(b.node("Where", b.node("Greater", total, half), total, half))
    model, config = load(b.model()), Config.parse({"quantize": {"dtype": "int16"}})
    data = CalibrationData(
        Samples.of({"x": np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)}, model.inputs)
    )
    state = Recipe(config).calibrate(model, data)
    graph = Recipe(config).graph(state)
    assert accuracy_warnings(model, state, graph, config, data) == []
    level = GraphLevel(device_networks(graph)[0])
    batch = next(iter(data.samples.batches())).arrays
    (name,) = (node.outputs[0].name or "" for node in model.model.graph if node.op_type == "Add")
    np.testing.assert_allclose(level.run(batch, all_tensors=True)[name], batch["x"] + 0.5, atol=1e-3)


def test_a_network_that_makes_only_truths_has_no_layer_to_measure() -> None:
    proto = graph([("Greater", "x h", "z")], {"x": [1, 8]}, ["z"], {"h": np.float32(0.1)}, types={"z": 9})
    model = load(proto)
    samples = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    quantized = lower(model.model, calibrate(model, samples), Config())
    assert layer_errors(model, quantized, Samples.of(samples, model.inputs)) == []
