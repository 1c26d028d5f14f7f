"""Integer weights under float activations: every weight is what its code stands for, on every level."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowering.quantized import Array, lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.lowering.blocks import in_blocks

MODES = ("symmetric_restricted", "symmetric_full", "asymmetric")


def one_block(weights: list[float], mode: str, bits: int) -> list[float]:
    """What a block's codes stand for, number by number."""
    top = 2 ** (bits - 1) - 1
    bottom = -top if mode == "symmetric_restricted" else -top - 1
    low, high = min(*weights, 0.0, 0.0), max(*weights, 0.0, 0.0)
    span, steps = {
        "symmetric_restricted": (max(high, -low), top),
        "symmetric_full": (2 * max(high, -low), top - bottom),
        "asymmetric": (high - low, top - bottom),
    }[mode]
    scale = float(np.float32(span) / np.float32(steps)) if span >= 2.0**-23 else 1.0
    zero = min(max(bottom - round(low / scale), bottom), top) if mode == "asymmetric" else 0
    codes = [min(max(round(weight / scale) + zero, bottom), top) for weight in weights]
    return [float(np.float32(scale) * np.float32(code - zero)) for code in codes]


@given(
    st.integers(1, 4), st.integers(1, 40), st.integers(1, 50), st.integers(4, 16), st.sampled_from(MODES),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
@pytest.mark.feature("QMO-07", "CFG-11")
def test_one_scale_per_block(channels: int, terms: int, size: int, bits: int, mode: str, seed: int) -> None:
    """The last block of a channel is as long as what is left."""
    rows = np.random.default_rng(seed).normal(0.1, 1, (channels, terms))
    made = in_blocks(rows, mode, bits, size)
    assert made.scales.shape == (channels, -(-terms // min(size, terms)))
    expected = [
        [each for at in range(0, terms, size) for each in one_block(list(row[at : at + size]), mode, bits)]
        for row in rows
    ]
    np.testing.assert_array_equal(made.floats(), np.array(expected, np.float32))


@pytest.mark.feature("QMO-07")
def test_blocks_follow_what_differs_along_a_channel() -> None:
    row = np.concatenate([np.linspace(-1, 1, 64), np.linspace(-0.01, 0.01, 64)])[np.newaxis]
    apart, together = (
        np.abs(in_blocks(row, MODES[0], 4, size).floats() - row)[0, 64:].max() for size in (64, None)
    )
    assert apart < 0.001 and together > 0.009


def network() -> onnx.ModelProto:
    """A convolution, a depthwise one, and products from both sides."""
    b = Builder("weights")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 8))
    x = b.node("Relu", b.conv(x, 8, group=8))
    x = b.node("Reshape", x, b.integers(1, 8, 16))
    x = b.node("MatMul", x, b.weight(16, 12, fan_in=16))
    b.output(b.node("MatMul", b.weight(5, 8, fan_in=8), x))
    return b.model()


def weights_of(settings: dict[str, Any]) -> list[Array]:
    """Weights of the graph in float64, each `[channels, terms]`."""
    found = lowered(network(), normal(network()), {"quantize": settings}).graph
    rows = []
    for layer in found.layers:
        op = json.loads(layer.op_json)
        if "weights" in op:
            array = found.constant(op["weights"])
            rows.append(array.reshape(array.shape[0], -1))
        elif op["op"] == "mat_mul":
            array = found.constant(op["b"])
            rows.append(np.swapaxes(array, -1, -2).reshape(-1, array.shape[-2]))
    return [each.astype(np.float64) for each in rows]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("span", ["tensor", "channel", "block"])
@pytest.mark.feature("QMO-24", "LOW-08")
def test_weights_are_what_their_codes_stand_for(mode: str, span: str) -> None:
    grid = mode if mode == "asymmetric" else f"{mode}_range"
    settings: dict[str, Any] = {
        "trigger_float_op": "float32_act_int_wht",
        "quantize_method_for_weight": f"per_{span}_{grid}",
        "weight_bits": 4,
    }
    if span == "block":
        settings["weight_block_size"] = 5
    floats, found = weights_of({"dtype": "float32"}), weights_of(settings)
    assert len(floats) == len(found) == 4
    for before, after in zip(floats, found, strict=True):
        size = {"tensor": before.size, "channel": before.shape[1], "block": 5}[span]
        rows = before.reshape(1, -1) if span == "tensor" else before
        expected = [
            [
                each
                for at in range(0, len(row), size)
                for each in one_block(list(row[at : at + size]), mode, 4)
            ]
            for row in rows
        ]
        np.testing.assert_array_equal(after, np.array(expected).reshape(after.shape))


@pytest.mark.parametrize("preset", ["w8f16", "w4f16", "w8bf16", "w4bf16"])
@pytest.mark.feature("QMO-24")
def test_every_level_computes_the_same(preset: str) -> None:
    proto = network()
    feeds = normal(proto)
    found = lowered(proto, feeds, {"quantize": {"quant_type": preset}})
    for each in found.compare(feeds[0]).values():
        assert each.sqnr > (6 if "w4" in preset else 30)  # four layers of random weights
    found.equals_reference(feeds[1])
    for machine in ("128x128_asic", "32x32_fpga"):
        levels = graph_level(found.graph), program_level(compile_graph(found.graph, machine))
        ours, theirs = (level.compute(feeds[2]).codes for level in levels)
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


@pytest.mark.feature("QMO-24")
def test_one_layer_of_an_integer_network() -> None:
    proto = network()
    entry = {"operators": ["MatMul"], "trigger_float_op": "float16_act_int_wht", "weight_bits": 6}
    found = lowered(proto, normal(proto), {"layers": [entry]})
    found.equals_reference(normal(proto, 1, seed=3)[0])
    kinds = {
        layer.op: found.graph.tensors[layer.operands[1]].dtype for layer in found.graph.layers if layer.macs
    }
    assert kinds == {"conv": "int8", "mat_mul": "float16"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantize": {"per_block": True}}, "per_block needs weight_bits = 4, or weight_only = true"),
        ({"quantize": {"quant_type": "w8f16", "per_block": False}}, "no effect without per_block"),
        ({"layers": [{"match": "*", "weight_only": True}]}, "has weights in codes under floats"),
        (
            {"quantize": {"quant_type": "w8f16"}, "layers": [{"match": "*", "weight_strategy": "mse"}]},
            "weight_only needs weight_strategy = extrema",
        ),
    ],
)  # fmt: skip
@pytest.mark.feature("CFG-10", "CFG-17")
def test_what_weight_only_needs(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        lowered(network(), normal(network()), Config.parse(settings).model_dump(exclude_unset=True))
