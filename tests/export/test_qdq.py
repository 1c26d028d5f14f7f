"""Quantised models in ONNX: onnxruntime gives the graph's outputs, step for step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from lowering.quantized import Array, Quantized, lowered, normal, source_of
from models.builder import Builder
from models.random_model import random_model
from partitioning.networks import between, gated, top_scores
from tpuflow.calibration import Ranges, calibrate
from tpuflow.config import Config
from tpuflow.errors import ModelError, RangesError
from tpuflow.execution.levels import graph_level
from tpuflow.export import quantized_onnx, scales
from tpuflow.frontend import load
from tpuflow.lowering import lower
from tpuflow.partitioning import partition


def outputs(proto: onnx.ModelProto, feed: dict[str, Array], *, fake: bool = False) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Else float weights between quantisers are quantised anew, on a grid of the runtime's own.
    options.add_session_config_entry("session.disable_quant_qdq", "1" if fake else "0")
    # Else products of uint8 and int8 saturate on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feed), strict=True))


def steps_apart(proto: onnx.ModelProto, *, fake: bool = False, exact: bool = False, **quantize: Any) -> Array:
    """How many steps every output value of onnxruntime is away from the graph's."""
    feeds = normal(proto)
    made = lowered(proto, feeds, {"quantize": quantize})
    exported = quantized_onnx(made.model, made.graph, fake=fake, exact=exact)
    onnx.checker.check_model(exported)
    steps = {source_of(t)["name"]: t for t in (made.graph.tensors[i] for i in made.graph.outputs)}
    apart = []
    for feed in normal(proto, 3, seed=7):
        ours, theirs = made.run(feed), outputs(exported, feed, fake=fake)
        for name, tensor in steps.items():
            assert tensor.scale is not None
            apart.append(np.rint((theirs[name] - ours[name]) / tensor.scale[0]).ravel())
    found: Array = np.abs(np.concatenate(apart))
    return found


def convolutions(b: Builder) -> str:
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 10, 10]), 8, pads=(1, 1, 1, 1)))
    y = b.node("Add", x, b.conv(x, 8, (1, 1)))
    return b.gemm(b.node("GlobalAveragePool", y), 6)


def functions(b: Builder) -> str:
    x = b.conv(b.input("x", [1, 3, 8, 8]), 6)
    return b.node("Mul", x, b.node("Sigmoid", b.conv(x, 6, (1, 1))))


def joins(b: Builder) -> str:
    x = b.input("x", [1, 4, 6, 6])
    y = b.node("Tanh", b.conv(x, 4, (1, 1)))
    return b.conv(b.node("Concat", x, y, b.node("Sub", x, y), axis=1), 5)


def attention(b: Builder) -> str:
    x = b.input("x", [1, 6, 8])
    q, k, v = (b.node("MatMul", x, b.weight(8, 8, fan_in=8)) for _ in range(3))
    scores = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1])), axis=-1)
    return b.node("Add", b.node("MatMul", scores, v), x)


def upsampled(b: Builder) -> str:
    x = b.conv(b.input("x", [1, 3, 6, 6]), 4)
    kernel = b.weight(4, 3, 2, 2, fan_in=8)
    return b.node("LeakyRelu", b.node("ConvTranspose", x, kernel, strides=[2, 2]), alpha=0.1)


NETWORKS: Sequence[Callable[[Builder], str]] = (convolutions, functions, joins, attention, upsampled)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("build", NETWORKS, ids=lambda build: build.__name__)
@pytest.mark.feature("MSC-08")
def test_outputs_are_within_one_step(build: Callable[[Builder], str], fake: bool) -> None:  # noqa: FBT001
    b = Builder(build.__name__)
    b.output(build(b))
    apart = steps_apart(b.model(), fake=fake, output_dtype="int8")
    # Floats are computed anew where functions are tables in the graph: a step now and then.
    assert apart.max() <= 1
    assert (apart == 0).mean() > 0.8


def encoder(b: Builder) -> str:
    """Norms and functions behind attention, where a single step would reach every element."""
    y = attention(b)
    gamma, beta = (b.constant(value) for value in np.ones((2, 8), np.float32))
    z = b.node("LayerNormalization", y, gamma, beta, axis=-1)
    z = b.node(
        "MatMul", b.node("Tanh", b.node("MatMul", z, b.weight(8, 16, fan_in=8))), b.weight(16, 8, fan_in=16)
    )
    z = b.node("Add", y, z)
    return b.node("Softmax", b.node("ReduceMean", z, axes=[1], keepdims=0), axis=-1)


def pools(b: Builder) -> str:
    x = b.node("Relu", b.conv(b.input("x", [1, 4, 9, 9]), 4, group=2))
    x = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = b.node("MaxPool", b.node("PRelu", x, b.spread(4, 1, 1)), kernel_shape=[2, 2])
    return b.node("Div", x, b.node("Add", b.node("Sigmoid", x), b.constant(np.float32(1))))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"output_dtype": "int8"},
    {"dtype": "int16"},
    {"weight_mode": "asymmetric", "per_channel": False},
    {"activation_mode": "symmetric_restricted"},
]
# A norm of 16-bit codes needs more than the 64 bits ONNX has.
PAIRS = [
    pytest.param(build, settings, id=f"{build.__name__}-{settings}")
    for build in (*NETWORKS, encoder, pools)
    for settings in SETTINGS
    if not (build is encoder and "dtype" in settings)
]


@pytest.mark.parametrize(("build", "settings"), PAIRS)
@pytest.mark.feature("MSC-08")
def test_outputs_are_those_of_the_graph(build: Callable[[Builder], str], settings: dict[str, Any]) -> None:
    b = Builder(build.__name__)
    b.output(build(b))
    apart = steps_apart(b.model(), exact=True, **settings)
    assert apart.size and apart.max() == 0


@pytest.mark.parametrize("mode", ["asymmetric", "symmetric_full"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.feature("MSC-08")
def test_every_grid_is_within_one_step_of_onnxruntime(mode: str, per_channel: bool) -> None:  # noqa: FBT001 - parametrised
    b = Builder("grids")
    b.output(convolutions(b))
    apart = steps_apart(b.model(), output_dtype="int8", activation_mode=mode, per_channel=per_channel)
    assert apart.max() <= 1
    assert (apart == 0).mean() > 0.9


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.feature("MSC-08")
def test_random_networks_run(seed: int) -> None:
    proto = random_model(seed)
    feeds = normal(proto)
    made = lowered(proto, feeds)
    for exact in (False, True):
        exported = quantized_onnx(made.model, made.graph, exact=exact)
        ours, theirs = made.run(feeds[0]), outputs(exported, feeds[0])
        for name, found in theirs.items():
            assert found.shape == ours[name].shape
            assert np.all(np.isfinite(found))
            if exact:
                np.testing.assert_array_equal(found, ours[name].astype(np.float32))


def test_weights_are_the_codes_of_the_graph() -> None:
    b = Builder("codes")
    b.output(convolutions(b))
    feeds = normal(b)
    made = lowered(b.model(), feeds)
    exported = quantized_onnx(made.model, made.graph, exact=False)
    stored = {value.name: numpy_helper.to_array(value) for value in exported.graph.initializer}
    weights = [
        i
        for i, t in enumerate(made.graph.tensors)
        if t.is_constant and t.dtype == "int8" and len(t.shape) == 4
    ]
    assert len(weights) >= 2
    for index in weights:
        name = made.graph.tensors[index].name
        codes = stored[f"{name}/codes"]
        own = made.graph.constant(index)
        if codes.ndim == 4:
            assert np.array_equal(codes.transpose(0, 2, 3, 1), own)


def test_scales_tell_what_users_of_codes_must_know() -> None:
    b = Builder("scales")
    b.output(convolutions(b))
    made = lowered(b.model(), normal(b))
    found = json.loads(json.dumps(scales(made.graph)))
    (tensor,) = (made.graph.tensors[i] for i in made.graph.inputs)
    entry = found["inputs"]["x"]
    assert entry["dtype"] == "int8"
    assert ([entry["scale"]], entry["zero_point"]) == (tensor.scale, tensor.zero_point)
    assert entry["shape"] == [1, 3, 10, 10] and entry["stored_shape"] == [1, 10, 10, 3]
    assert len(found["outputs"]) == 1


def test_what_cannot_be_exported() -> None:
    b = Builder("one")
    b.output(convolutions(b))
    made = lowered(b.model(), normal(b))
    other = Builder("other")
    other.output(other.node("Relu", other.input("z", [1, 3])))
    with pytest.raises(ModelError, match="the graph was made of another model"):
        quantized_onnx(load(other.model()), made.graph)
    model = load(b.model())
    floats = lower(model.model, None, Config.parse({"quantize": {"dtype": "float16"}}))
    with pytest.raises(ModelError, match="stores nothing as codes"):
        quantized_onnx(model, floats)


@pytest.mark.parametrize("text", ['{"a": 1e39}', '{"a": NaN}'])
def test_thresholds_that_are_none(text: str) -> None:
    with pytest.raises(RangesError):
        Ranges.from_json(text)


def corrected(b: Builder) -> str:
    """Linear layers with and without biases of their own."""
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 10, 10]), 8, pads=(1, 1, 1, 1), bias=False))
    x = b.node("Relu", b.conv(x, 6, (3, 3)))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Relu", b.linear(x, 7))
    return b.node("MatMul", x, b.weight(7, 5, fan_in=7))


@pytest.mark.parametrize("fake", [False, True])
def test_asymmetric_weights_keep_their_zero_point(fake: bool) -> None:  # noqa: FBT001 - parametrised
    b = Builder("asymmetric")
    b.output(convolutions(b))
    found = steps_apart(b.model(), fake=fake, weight_mode="asymmetric", per_channel=False)
    assert found.max() <= 1


@pytest.mark.parametrize("fake", [False, True])
def test_biases_are_the_corrected_ones_of_the_graph(fake: bool) -> None:  # noqa: FBT001 - parametrised
    """Biases take back what rounded weights add: those of the model would be off in every layer."""
    b = Builder("corrected")
    b.output(corrected(b))
    proto = b.model()
    model = load(proto)
    feeds = normal(proto, 6)
    ranges = calibrate(model, {"x": np.concatenate([feed["x"] for feed in feeds])})
    assert ranges.means
    made = Quantized(model, lower(model.model, ranges, Config.parse({"quantize": {"weight_bits": 4}})))
    biases = [
        made.graph.constant(index)
        for layer in made.graph.layers
        if (index := json.loads(layer.op_json).get("bias")) is not None
    ]
    assert len(biases) == 4 and all(bias.any() for bias in biases)
    exported = quantized_onnx(model, made.graph, fake=fake, exact=False)
    onnx.checker.check_model(exported)
    (tensor,) = (made.graph.tensors[i] for i in made.graph.outputs)
    assert tensor.scale is not None
    for feed in normal(proto, 3, seed=7):
        name = source_of(tensor)["name"]
        ours, theirs = made.run(feed)[name], outputs(exported, feed, fake=fake)[name]
        assert np.abs(np.rint((theirs - ours) / tensor.scale[0])).max() <= 1


def test_constants_that_are_added_are_those_of_the_graph() -> None:
    b = Builder("constants")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 6))
    b.output(b.node("Add", b.node("Add", x, b.spread(1, 6, 6, 6)), b.conv(x, 6, (1, 1))))
    found = steps_apart(b.model(), output_dtype="int8")
    assert found.max() <= 1
    assert (found == 0).mean() > 0.99


@pytest.mark.parametrize("network", [top_scores, between, gated])
@pytest.mark.feature("MSC-08")
def test_segments_of_the_device_are_those_of_the_graph(network: Callable[[], onnx.ModelProto]) -> None:
    """What the host computes is left as it is, and gets and gives what the graphs of the device do."""
    proto = network()
    model = load(proto, host=True)
    parts = partition(model)
    shapes = {port.name: port.shape for port in model.inputs}
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.normal(0, 1, (4, *shape[1:])).astype(np.float32) for name, shape in shapes.items()
    }
    graph = lower(parts, calibrate(parts, arrays))
    exported = quantized_onnx(model, graph)
    feed = {name: array[:1] for name, array in arrays.items()}
    ours, theirs = graph_level(graph).run(feed), outputs(exported, feed)
    for name, found in theirs.items():
        np.testing.assert_array_equal(found, ours[name])
