"""Networks that state integers themselves: codes in, codes out, weights as codes.

What such a network computes in onnxruntime is known to the code, so results are compared as codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from end_to_end.levels import config
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import LEVELS
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.errors import UnsupportedModelError
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import Graph, lower

Array = NDArray[Any]
Node = tuple[str, str, str, dict[str, Any]]
TYPES: dict[type[np.integer[Any]], int] = {
    np.uint8: TensorProto.UINT8,
    np.int8: TensorProto.INT8,
    np.uint16: TensorProto.UINT16,
    np.int16: TensorProto.INT16,
}
SAMPLES = 16


def network(
    nodes: list[Node],
    shape: list[int],
    taken: int,
    given: dict[str, int],
    constants: dict[str, Any],
    opset: int = 19,
) -> onnx.ModelProto:
    """Nodes from the input `x` to outputs of the types `given`; constants that are no arrays are float32."""
    made = [helper.make_node(op, i.split(), o.split(), o.split()[0], **a) for op, i, o, a in nodes]
    tensors = [
        numpy_helper.from_array(
            np.asarray(v, None if isinstance(v, np.ndarray | np.generic) else np.float32), k
        )
        for k, v in constants.items()
    ]
    graph = helper.make_graph(
        made,
        "stated",
        [helper.make_tensor_value_info("x", taken, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in given.items()],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def convolutional(kind: type[np.integer[Any]], *, per_channel: bool = True) -> onnx.ModelProto:
    """Codes, Conv, Relu, MaxPool, Add, Gemm, codes; every value quantised, as onnxruntime writes it."""
    generator = np.random.default_rng(0)
    zero = kind((int(np.iinfo(kind).max) + int(np.iinfo(kind).min) + 1) // 2 + 3)
    w = generator.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    w[2] //= 3  # no channel need reach the largest code
    channels = generator.uniform(0.002, 0.006, 8).astype(np.float32) if per_channel else np.float32(0.004)
    constants: dict[str, Any] = {
        "sx": 0.02, "zx": zero, "sy": 0.03, "zy": kind(np.iinfo(kind).min), "so": 0.05, "zo": zero,
        "w": w, "sw": channels, "zw": np.zeros(np.shape(channels), np.int8),
        "b": generator.integers(-4000, 4000, 8).astype(np.int32), "sb": np.float32(0.02) * channels,
        "m": generator.integers(-127, 128, (5, 128)).astype(np.int8), "sm": 0.003, "zm": np.int8(0),
    }  # fmt: skip
    axis = {"axis": 0} if per_channel else {}
    nodes: list[Node] = [
        ("DequantizeLinear", "x sx zx", "f", {}),
        ("DequantizeLinear", "w sw zw", "wf", axis),
        ("DequantizeLinear", "b sb", "bf", axis),
        ("Conv", "f wf bf", "c", {"pads": [1, 1, 1, 1]}),
        ("Relu", "c", "r", {}),
        ("QuantizeLinear", "r sy zy", "rq", {}),
        ("DequantizeLinear", "rq sy zy", "rf", {}),
        ("MaxPool", "rf", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Flatten", "p", "l", {}),
        ("DequantizeLinear", "m sm zm", "mf", {}),
        ("Gemm", "l mf", "g", {"transB": 1}),
        ("QuantizeLinear", "g so zo", "y", {}),
    ]
    return network(nodes, [1, 3, 8, 8], TYPES[kind], {"y": TYPES[kind]}, constants)


def drawn(shape: tuple[int, ...], kind: type[np.integer[Any]], seed: int = 0) -> Array:
    """Codes of every sample, normal around the middle of the type, both ends included."""
    limits = np.iinfo(kind)
    spread = np.random.default_rng(seed).standard_normal((SAMPLES, *shape)) * (limits.max - limits.min) / 8
    middle = (int(limits.max) + int(limits.min) + 1) // 2
    codes = np.clip(np.rint(spread + middle), limits.min, limits.max).astype(kind)
    codes[0].flat[:2] = limits.min, limits.max
    return codes


def lowered(proto: onnx.ModelProto, codes: Array, settings: Config | None = None) -> tuple[FloatModel, Graph]:
    model = load(proto)
    settings = settings or config("int8")
    return model, lower(model, calibrate(model, {"x": codes}, settings.calibrate), settings)


def outputs(
    proto: onnx.ModelProto, codes: Array, settings: Config | None = None
) -> tuple[Graph, Array, Array]:
    """The graph, its output for all samples, which programs of both levels repeat, and onnxruntime's."""
    model, graph = lowered(proto, codes, settings)
    samples = Samples.of({"x": codes}, model.inputs)
    level, session = GraphLevel(graph), FloatSession(proto)
    found = np.concatenate([level.run(batch.arrays)["y"] for batch in samples.batches()])
    wanted = np.concatenate([session.run(batch.arrays)["y"] for batch in samples.batches()])
    for optimization in LEVELS:
        run = simulate(compile_graph(graph, "32x32_fpga", optimization, strict=True), {"x": codes})
        assert run.outputs["y"].dtype == wanted.dtype
        np.testing.assert_array_equal(run.outputs["y"], found)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    return graph, found, wanted


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("scales", ["per channel", "one"])
def test_codes_in_and_out(kind: type[np.integer[Any]], scales: str) -> None:
    _, found, wanted = outputs(
        convolutional(kind, per_channel=scales == "per channel"), drawn((3, 8, 8), kind)
    )
    away = np.abs(found.astype(int) - wanted.astype(int))
    assert np.ptp(wanted.astype(int)) > 100
    assert away.max() <= 1
    assert np.mean(away == 0) >= 0.97


@pytest.mark.parametrize("scales", ["per channel", "one"])
def test_weights_keep_their_integers_and_scales(scales: str) -> None:
    proto = convolutional(np.uint8, per_channel=scales == "per channel")
    _, graph = lowered(proto, drawn((3, 8, 8), np.uint8))
    stated = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    kernel, matrix = (layer.operands[1] for layer in graph.layers if layer.op == "conv")
    np.testing.assert_array_equal(graph.constant(kernel), stated["w"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(graph.tensors[kernel].scale, np.broadcast_to(stated["sw"], 8))
    rows = stated["m"].reshape(5, 8, 4, 4).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(graph.constant(matrix), rows)
    assert set(graph.tensors[matrix].scale or ()) == {float(stated["sm"])}
    np.testing.assert_array_equal(graph.constant(graph.layers[0].operands[2]), stated["b"])


def test_no_layer_is_spent_on_codes() -> None:
    _, graph = lowered(convolutional(np.uint8), drawn((3, 8, 8), np.uint8))
    assert [layer.op for layer in graph.layers] == ["conv", "max_pool", "conv"]


@pytest.mark.parametrize("kind", TYPES)
def test_the_same_codes_come_back(kind: type[np.integer[Any]]) -> None:
    constants = {"s": 0.01, "z": kind(7)}
    nodes: list[Node] = [
        ("DequantizeLinear", "x s z", "f", {}),
        ("Transpose", "f", "t", {"perm": [0, 2, 1]}),
        ("QuantizeLinear", "t s z", "y", {}),
    ]
    codes = drawn((5, 6), kind)
    opset = 19 if np.dtype(kind).itemsize == 1 else 21
    proto = network(nodes, [1, 5, 6], TYPES[kind], {"y": TYPES[kind]}, constants, opset)
    _, found, wanted = outputs(proto, codes)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, codes.transpose(0, 2, 1))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_integers_are_numbers_behind_a_cast(kind: type[np.integer[Any]]) -> None:
    """Pixels as bytes, cast and normalised inside the network."""
    constants = {"a": np.full((3, 1, 1), -100.0, np.float32), "b": np.float32(1 / 64)}
    nodes: list[Node] = [
        ("Cast", "x", "f", {"to": TensorProto.FLOAT}),
        ("Add", "f a", "g", {}),
        ("Mul", "g b", "y", {}),
    ]
    codes = drawn((3, 6, 6), kind)
    proto = network(nodes, [1, 3, 6, 6], TYPES[kind], {"y": TensorProto.FLOAT}, constants)
    _, found, wanted = outputs(proto, codes)
    assert np.abs(found - wanted).max() <= np.ptp(wanted) / 255


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_cast_to_integers_truncates(kind: type[np.integer[Any]]) -> None:
    limits = np.iinfo(kind)
    constants = {"s": 0.5, "z": kind(limits.min + (0 if kind is np.uint8 else 128))}
    nodes: list[Node] = [("DequantizeLinear", "x s z", "f", {}), ("Cast", "f", "y", {"to": TYPES[kind]})]
    codes = drawn((4, 9), kind)
    _, found, wanted = outputs(network(nodes, [1, 4, 9], TYPES[kind], {"y": TYPES[kind]}, constants), codes)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_weights_over_one_axis_keep_their_integers(operator: str) -> None:
    generator = np.random.default_rng(2)
    w = generator.integers(-100, 101, (4, 2, 3) if operator == "Conv" else (4, 3, 3)).astype(np.int8)
    axis = 0 if operator == "Conv" else 1
    scales = np.asarray(generator.uniform(0.01, 0.02, w.shape[axis]), np.float32)
    constants = {"w": w, "s": scales}
    nodes: list[Node] = [
        ("DequantizeLinear", "w s", "f", {"axis": axis}),
        (operator, "x f", "y", {"group": 2}),
    ]
    proto = network(nodes, [1, 4, 9], TensorProto.FLOAT, {"y": TensorProto.FLOAT}, constants)
    graph, _, _ = outputs(proto, generator.standard_normal((SAMPLES, 4, 9)).astype(np.float32))
    weights = next(layer for layer in graph.layers if layer.op == "conv").operands[1]
    np.testing.assert_array_equal(np.sort(graph.constant(weights).ravel()), np.sort(w.ravel()))
    wanted = scales if operator == "Conv" else np.tile(scales, 2)
    np.testing.assert_array_equal(graph.tensors[weights].scale or [], wanted)


def test_codes_that_differ_by_channel_are_refused() -> None:
    constants = {"s": np.full(5, 0.1, np.float32), "z": np.zeros(5, np.int8)}
    nodes: list[Node] = [("DequantizeLinear", "x s z", "y", {"axis": 1})]
    proto = network(nodes, [1, 5, 6], TensorProto.INT8, {"y": TensorProto.FLOAT}, constants)
    with pytest.raises(UnsupportedModelError, match="one scale and zero point per tensor"):
        lowered(proto, drawn((5, 6), np.int8))


def test_codes_of_one_kind_read_on_another_grid() -> None:
    constants = {"s": 0.5, "t": 0.25, "z": np.uint8(128)}
    nodes: list[Node] = [
        ("QuantizeLinear", "x s z", "q", {}),
        ("DequantizeLinear", "q t z", "f", {}),
        ("QuantizeLinear", "f t z", "y", {}),
    ]
    proto = network(nodes, [1, 30], TensorProto.FLOAT, {"y": TensorProto.UINT8}, constants)
    samples = np.random.default_rng(0).standard_normal((SAMPLES, 30)).astype(np.float32) * 8
    _, found, wanted = outputs(proto, samples)
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


def test_transposed_weights_keep_their_integers() -> None:
    generator = np.random.default_rng(1)
    m = generator.integers(-100, 101, (6, 10)).astype(np.int8)
    scales = generator.uniform(0.01, 0.02, 6).astype(np.float32)
    constants = {"m": m, "s": scales, "z": np.zeros(6, np.int8)}
    nodes: list[Node] = [
        ("DequantizeLinear", "m s z", "f", {"axis": 0}),
        ("Transpose", "f", "t", {"perm": [1, 0]}),
        ("MatMul", "x t", "y", {}),
    ]
    proto = network(nodes, [1, 10], TensorProto.FLOAT, {"y": TensorProto.FLOAT}, constants)
    graph, _, _ = outputs(proto, generator.standard_normal((SAMPLES, 10)).astype(np.float32))
    (product,) = graph.layers
    np.testing.assert_array_equal(graph.constant(product.operands[1]), m.T)
    np.testing.assert_array_equal(graph.tensors[product.operands[1]].scale or [], scales)
