"""Models onnxruntime has quantised, between quantisations (QDQ) and as operators on codes, taken as they are.

Scales are the model's own; results differ from onnxruntime's by one step of the output at most, and rarely by
that: multipliers of requantisation have 15 bits here and 24 there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from cli.conftest import run_command
from end_to_end.levels import config
from models.builder import Builder, samples
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.evaluation.import_check import verify_import
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import program_ports, simulate
from tpuflow.frontend import FloatSession, load
from tpuflow.lowering import lower

Array = NDArray[Any]
COUNT = 16


def network() -> onnx.ModelProto:
    """Convolutions (one grouped), addition, both pools, concatenation, global pool, dense."""
    b = Builder("network")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 12, 12]), 8, pads=(1, 1, 1, 1)))
    x = b.node("Add", x, b.node("Relu", b.conv(x, 8, pads=(1, 1, 1, 1))))
    largest = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    mean = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.conv(b.node("Concat", largest, mean, axis=1), 12, (3, 3), group=4)
    b.output(b.gemm(b.node("GlobalAveragePool", x), 7))
    return b.model()


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands samples to onnxruntime one by one."""

    def __init__(self, images: Array) -> None:
        self._feeds = iter([{"image": images[i : i + 1]} for i in range(len(images))])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def quantized(folder: Path, form: str, kind: str, *, per_channel: bool) -> onnx.ModelProto:
    """The network as onnxruntime quantises it."""
    proto = network()
    onnx.save(proto, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "quantised.onnx",
        Reader(samples(proto, 8)["image"]),
        quant_format=QuantFormat[form],
        activation_type=QuantType[kind],
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
        # Its kernels for operators on codes saturate sums of two products on processors without VNNI.
        reduce_range=form == "QOperator",
    )
    return onnx.load(folder / "quantised.onnx")


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.feature("QMO-25")
def test_models_with_scales_of_their_own(tmp_path: Path, form: str, kind: str, *, per_channel: bool) -> None:
    proto = quantized(tmp_path, form, kind, per_channel=per_channel)
    images = samples(network(), COUNT)["image"]
    model, settings = load(proto), config("int8")
    verify_import(model)
    graph = lower(model, calibrate(model, {"image": images}, settings), settings)
    level, session = GraphLevel(graph), FloatSession(proto)
    name = model.outputs[0].name
    found = np.concatenate([level.run({"image": images[i : i + 1]})[name] for i in range(COUNT)])
    wanted = np.concatenate([session.run({"image": images[i : i + 1]})[name] for i in range(COUNT)])
    steps = np.rint((found - wanted) / np.diff(np.unique(wanted)).min())
    assert np.abs(steps).max() <= 1
    assert np.mean(steps == 0) >= 0.75
    results = simulate(compile_graph(graph), {"image": images}).outputs[name]
    np.testing.assert_array_equal(results, found)
    assert scales(proto) <= {float(np.float32(t.scale[0])) for t in graph.tensors if t.scale} | weights(proto)


def scales(proto: onnx.ModelProto) -> set[float]:
    """Every single scale the model states for activations."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    named = {
        name for node in proto.graph.node if node.op_type == "QuantizeLinear" for name in node.input[1:2]
    }
    return {float(arrays[name]) for name in named if arrays[name].size == 1}


def weights(proto: onnx.ModelProto) -> set[float]:
    """Scales of tensors that only pass codes on, which keep those of what they read."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    passing = {
        name
        for node in proto.graph.node
        if node.op_type == "QuantizeLinear"
        for name in node.input[1:2]
        if "maxpool" in name or "flatten" in name
    }
    return {float(arrays[name]) for name in passing}


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(("given", "returned"), [(True, False), (False, True), (True, True)])
@pytest.mark.feature("LOW-03")
def test_raw_codes_at_the_border(dtype: str, *, given: bool, returned: bool) -> None:
    """Codes in, codes out: the numbers of the plain program, without its casts."""
    proto = network()
    images = samples(proto, 4)["image"]
    name = proto.graph.output[0].name
    plain = Config.parse({"quantize": {"dtype": dtype}, "calibrate": {"strategy": "extrema"}})
    options = plain.quantize.model_copy(update={"quant_input": given, "quant_output": returned})
    raw = plain.model_copy(update={"quantize": options})
    model = load(proto)
    ranges = calibrate(model, {"image": images}, plain)
    before, after = (compile_graph(lower(model, ranges, settings)) for settings in (plain, raw))
    (source,), (target,) = program_ports(before)
    ins, outs = program_ports(after)
    assert ins[0].dtype == (source.code if given else np.float32)
    assert outs[0].dtype == (target.code if returned else np.float32)
    assert (ins[0].scale, outs[0].zero_point) == (source.scale, target.zero_point)
    expected = simulate(before, {"image": images}).outputs[name]
    codes = np.concatenate([source.encode(images[i : i + 1]) for i in range(4)])
    shown = codes.transpose(0, 3, 1, 2) if codes.shape[1:] != images.shape[1:] else codes
    found = simulate(after, {"image": np.ascontiguousarray(shown) if given else images}).outputs[name]
    if returned:
        found = ((found.astype(np.float64) - target.zero_point) * np.float32(target.scale[0])).astype(
            np.float32
        )
    np.testing.assert_array_equal(found, expected)


def test_a_build_says_that_scales_of_the_model_are_used(tmp_path: Path) -> None:
    onnx.save(quantized(tmp_path, "QDQ", "QInt8", per_channel=True), tmp_path / "qdq.onnx")
    told = {}
    for name in ("float.onnx", "qdq.onnx"):
        done = run_command("build", tmp_path / name, "-o", tmp_path / "out.tpu")
        assert done.status == 0, done.err
        told[name] = done.out + done.err
    assert "accuracy is not calibrated" in told["float.onnx"]
    assert "accuracy is not calibrated" not in told["qdq.onnx"]
    assert "the model states scales, which are used as they are" in told["qdq.onnx"]
