"""What is chosen for operators and parts of networks: grids, types, what is fused, functions to a step."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import pytest

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.calibration import Range, Ranges
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.frontend import load
from tpuflow.lowering import lower


def block(*, pad: bool = False, relu: bool = True) -> Builder:
    """A padded convolution with a clamp, as the exporter of the day writes it."""
    b = Builder("block")
    x = b.input("x", [1, 4, 8, 8])
    if pad:
        x = b.node("Pad", x, b.integers(0, 0, 1, 1, 0, 0, 1, 1))
    y = b.conv(x, 6, pads=(0, 0, 0, 0) if pad else (1, 1, 1, 1))
    y = b.node("Relu", y) if relu else y
    b.output(b.conv(y, 5, (1, 1)))
    return b


def types(found: Quantized) -> dict[str, set[str]]:
    """Element types of what the layers of every operator make."""
    made: dict[str, set[str]] = {}
    for layer in found.graph.layers:
        made.setdefault(layer.op, set()).add(found.graph.tensors[layer.output].dtype)
    return made


@pytest.mark.feature("LOW-05")
def test_padding_and_clamps_are_part_of_a_convolution() -> None:
    """Fused or not, the codes are the same."""
    apart, whole = (lowered(b.model(), normal(b)) for b in (block(pad=True), block()))
    assert [layer.op for layer in whole.graph.layers] == ["conv", "conv"]
    feed = normal(block(), 1, seed=5)[0]
    (first,), (second,) = (list(each.run(feed).values()) for each in (apart, whole))
    np.testing.assert_array_equal(first, second)


@pytest.mark.feature("QMO-34")
def test_what_is_fused_is_quantized_as_one() -> None:
    """A clamp, a constant added to a product and a function behind it have no tensors of their own."""
    b = Builder("fused")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 4))
    x = b.node("Reshape", b.node("Sigmoid", b.conv(x, 4)), b.integers(1, 4, 16))
    b.output(b.node("Add", b.node("MatMul", x, b.weight(16, 5, fan_in=16)), b.spread(5)))
    found = lowered(b.model(), normal(b)).graph
    stored = [tensor for tensor in found.tensors if not tensor.is_constant]
    # The input, two convolutions and the product; neither before the clamp, nor the function, nor the bias.
    assert len(stored) == 4 + sum(layer.op == "rearrange" for layer in found.layers)


@pytest.mark.feature("LOW-02")
def test_asymmetric_grids_suit_skewed_numbers() -> None:
    b = block()
    feeds = [{"x": np.abs(feed["x"]) + 3} for feed in normal(b, 6)]
    sqnr = {
        mode: min(
            each.sqnr
            for feed in feeds
            for each in lowered(b.model(), feeds, {"quantize": {"activation_mode": mode}})
            .compare(feed)
            .values()
        )
        for mode in ("asymmetric", "symmetric_restricted")
    }
    assert sqnr["asymmetric"] > sqnr["symmetric_restricted"]


@pytest.mark.feature("LOW-06")
def test_norms_and_softmax_in_floats() -> None:
    b = Builder("norms")
    x = b.node("MatMul", b.input("x", [1, 6, 8]), b.weight(8, 8, fan_in=8))
    gamma, beta = (b.constant(value) for value in np.ones((2, 8), np.float32))
    x = b.node("LayerNormalization", x, gamma, beta, axis=-1)
    x = b.node("Softmax", b.node("MatMul", x, b.weight(8, 8, fan_in=8)), axis=-1)
    b.output(b.node("MatMul", x, b.weight(8, 4, fan_in=8)))
    entry = {"operators": ["LayerNormalization", "Softmax"], "dtype": "float16"}
    found = lowered(b.model(), normal(b), {"layers": [entry]})
    made = types(found)
    assert made["layer_norm"] == made["softmax"] == {"float16"}
    assert not any("float" in dtype for op in made.keys() & {"conv", "mat_mul"} for dtype in made[op])
    found.equals_reference(normal(b, 1, seed=9)[0])


@pytest.mark.feature("QMO-36")
def test_only_the_listed_operators_are_quantized() -> None:
    b = block()
    content: dict[str, Any] = {
        "quantize": {"dtype": "float32"},
        "layers": [{"ids": [[1, 1]], "dtype": "int8"}],
    }
    found = lowered(b.model(), normal(b), content)
    convolutions = [layer for layer in found.graph.layers if layer.op == "conv"]
    kinds = [found.graph.tensors[layer.operands[1]].dtype for layer in convolutions]
    assert kinds == ["int8", "float32"]
    found.equals_reference(normal(b, 1, seed=9)[0])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.feature("QMO-12")
def test_wide_asymmetric_activations_become_symmetric(
    dtype: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = block()
    wide, settings = dtype == "int16", {"activation_mode": "asymmetric", "dtype": dtype}
    with caplog.at_level(logging.INFO):
        found = lowered(b.model(), normal(b), {"quantize": settings})
    zeros = {t.zero_point for t in found.graph.tensors if t.dtype == dtype and not t.is_constant}
    assert (zeros <= {0, -32768}) is wide  # those that are never negative spend all codes
    assert ("16-bit activations with both signs are symmetric" in caplog.text) is wide


FUNCTIONS: dict[str, Any] = {
    "Sqrt": np.sqrt, "Log": np.log, "Exp": np.exp, "Reciprocal": np.reciprocal,
    "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin,
    "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh,
    "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh,
}  # fmt: skip


@pytest.mark.parametrize("low", [-4.0, 0.0])
@pytest.mark.parametrize("name", [*FUNCTIONS, "Pow 2", "Pow 3", "Pow 0.5", "Pow -1"])
@pytest.mark.feature("NUM-37")
def test_every_code_is_within_a_step_of_its_function(name: str, low: float) -> None:
    """Where the function is not defined the result is some code: nothing becomes NaN."""
    operator, _, power = name.partition(" ")
    b = Builder("function")
    x = b.input("x", [1, 256])
    y = b.node(operator, x, *([b.constant(np.float32(power))] if power else []))
    b.output(y)
    ranges = Ranges({"x": Range(low, 4.0), y: Range(-2.0 if low else 0.0, 6.0)})
    graph = lower(load(b.model()), ranges, Config.parse({"quantize": {"output_dtype": "int8"}}))
    (source,), (target,) = ([graph.tensors[i] for i in ids] for ids in (graph.inputs, graph.outputs))
    assert source.scale is not None and target.scale is not None
    codes = np.arange(-128, 128)
    found = graph.run({source.name: codes.astype(np.int8).reshape(source.shape)})[target.name].ravel()
    with np.errstate(all="ignore"):
        real = (codes - source.zero_point) * np.float64(source.scale[0])
        exact = real ** float(power) if power else FUNCTIONS[operator](real)
        wanted = np.clip(np.rint(exact / target.scale[0]) + target.zero_point, -128, 127)
    known = np.isfinite(wanted)
    assert known.sum() > 60
    assert np.abs(found[known] - wanted[known]).max() <= 1


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.feature("NUM-34")
def test_recurrent_cells_follow_float(operator: str) -> None:
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator], 6
    b = Builder("cell")
    x = b.input("x", [5, 1, 8])
    weights = [b.weight(1, gates * hidden, size, fan_in=size) for size in (8, hidden)]
    y = b.nodes(operator, [x, *weights, b.spread(1, 2 * gates * hidden)], 1, hidden_size=hidden)[0]
    b.output(b.node("Reshape", y, b.integers(5, hidden)))
    found = lowered(b.model(), normal(b, 24))
    for feed in normal(b, 2, seed=3):
        for each in found.compare(feed).values():
            assert each.cosine > 0.99
        found.equals_reference(feed)


def test_indices_become_numbers_and_are_joined() -> None:
    """Places of largest elements, compared, picked by and added, on their own grid."""
    b = Builder("indices")
    x, y = b.input("x", [2, 3, 40]), b.input("y", [2, 3, 40])
    joined = b.node("Concat", *(b.node("ArgMax", each, axis=2, keepdims=1) for each in (x, y)), axis=2)
    picked = b.node("GatherElements", x, joined, axis=2)
    numbers = b.node("Cast", joined, to=onnx.TensorProto.FLOAT)
    b.output(b.node("Add", picked, b.node("Mul", numbers, b.constant(np.float32(0.01)))))
    feeds = normal(b, 6)
    found = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    for feed in feeds:
        found.equals_reference(feed)
        assert all(each.sqnr > 60 for each in found.compare(feed).values())
    found.equals_program(compile_graph(found.graph), feeds[0])


def test_rows_of_zeros_are_added_on_the_grid_of_the_sum() -> None:
    """A table of biases that are all zero, as of experts that were never trained, has no range of its own."""
    b = Builder("zeros")
    x, scores = b.input("x", [3, 16]), b.input("scores", [3, 5])
    rows = b.node(
        "Gather", b.constant(np.zeros((5, 16), np.float32)), b.node("ArgMax", scores, axis=1, keepdims=0)
    )
    b.output(b.node("Relu", b.node("Add", b.node("Mul", x, b.constant(np.float32(0.001))), rows)))
    feeds = normal(b, 4)
    found = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    assert all(each.sqnr > 60 for feed in feeds for each in found.compare(feed).values())
