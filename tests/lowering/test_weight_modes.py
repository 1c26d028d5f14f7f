"""Names of modes for activations and weights, and weights on asymmetric grids through every level."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.config.spellings import METHODS
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.lowering import scheme

SPANS = {"tensor": False, "channel": True}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.feature("QMO-08")
def test_names_of_modes_for_activations(name: str) -> None:
    """One scale per tensor, on any of the three grids; all else is refused."""
    _, what, grid = name.split("_", 2)
    if what == "tensor":
        found = Config.parse({"quantize": {"quantize_method_for_activation": name}}).quantize
        assert grid.startswith(found.activation_mode)
    else:
        with pytest.raises(ConfigError, match=f'"{name}" is not a method for activations'):
            Config.parse({"quantize": {"quantize_method_for_activation": name}})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.feature("QMO-08")
def test_names_of_modes_for_weights(name: str) -> None:
    """Per tensor or per channel, whose zero points are not stored; blocks are for weights under floats."""
    _, what, grid = name.split("_", 2)
    if what in SPANS:
        found = Config.parse({"quantize": {"quantize_method_for_weight": name}}).quantize
        assert grid.startswith(found.weight_mode) and found.per_channel is SPANS[what]
        proto = networks()
        made = lowered(proto, normal(proto), {"quantize": {"quantize_method_for_weight": name}})
        (weights,) = {
            (len(t.scale) > 1, t.zero_point != 0)
            for t in made.graph.tensors
            if t.is_constant and t.scale is not None
        }
        assert weights == (SPANS[what], name == "per_tensor_asymmetric")
        for feed in normal(proto, 2, seed=3):
            made.equals_reference(feed)
            assert all(alike.cosine > 0.99 for alike in made.compare(feed).values())
    else:
        with pytest.raises(ConfigError, match="per_block needs weight_bits = 4"):
            Config.parse({"quantize": {"quantize_method_for_weight": name}})


def networks() -> onnx.ModelProto:
    """Plain, grouped and dense sums, of weights that lie to one side of zero."""
    b = Builder("weights")
    x = b.input("x", [1, 8, 8, 8])
    for group in (1, 8, 2):
        x = b.node("Relu", b.conv(x, 8, pads=(1, 1, 1, 1), group=group))
    b.output(b.linear(b.node("Flatten", x), 5))
    model = b.model()
    for value in model.graph.initializer:
        if len(value.dims) > 1:
            array = onnx.numpy_helper.to_array(value)
            moved = (array + 0.5 * array.std()).astype(np.float32)
            value.CopyFrom(onnx.numpy_helper.from_array(moved, value.name))
    return model


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 4), ("int8", 8), ("int16", 16), ("int8", 12)])
@pytest.mark.feature("QMO-08")
def test_asymmetric_weights_go_through_every_level(dtype: str, bits: int) -> None:
    """Graph, NumPy reference and program agree; one side of zero is not wasted."""
    proto = networks()
    wish = {"dtype": dtype, "weight_bits": bits, "per_channel": False}
    losses = {}
    for mode in ("asymmetric", "symmetric_full"):
        made = lowered(proto, normal(proto), {"quantize": {**wish, "weight_mode": mode}})
        program = compile_graph(made.graph, level=5)
        for feed in normal(proto, 2, seed=3):
            made.equals_reference(feed)
            ours, theirs = (
                level.compute(feed).codes for level in (graph_level(made.graph), program_level(program))
            )
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
            losses[mode] = min(alike.sqnr for alike in made.compare(feed).values())
    if bits == 4:
        assert losses["asymmetric"] > losses["symmetric_full"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"quantize": {"weight_mode": "asymmetric", "per_channel": False, "weight_strategy": "mse"}},
            "weight_strategy = mse is for symmetric weights",
        ),
        (
            {
                "quantize": {"weight_mode": "asymmetric", "per_channel": False},
                "calibrate": {"global_calibration": "gptq"},
            },
            "global_calibration refines symmetric weights",
        ),
    ],
)
@pytest.mark.feature("QMO-08")
def test_what_asymmetric_weights_cannot_go_with(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config.parse(content)


@pytest.mark.feature("QMO-08")
def test_an_entry_alone_may_ask_for_too_much() -> None:
    proto = networks()
    entry = {"operators": ["Conv"], "weight_mode": "asymmetric"}
    for more, words in (
        ({"weight_bits": 16}, "a zero point per channel have at most 15 bits"),
        ({"weight_strategy": "mse"}, "asymmetric weights need weight_strategy = extrema"),
    ):
        with pytest.raises(ConfigError, match=words):
            lowered(proto, normal(proto), {"layers": [entry | more]})


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 4), ("int8", 8), ("int16", 15), ("int8", 2)])
@pytest.mark.feature("QMO-08")
def test_a_zero_point_per_channel_goes_through_every_level(dtype: str, bits: int) -> None:
    """Codes less their zero points are weights of 16 bits: graph, NumPy reference and program agree."""
    if bits == 2:
        weights = np.array([[0.0, 1.0, 2.0, 3.0], [-3.0, 0.0, -1.0, -2.0]])
        codes, scales = scheme.asymmetric_channels(weights, 0, np.zeros(2), 2)
        assert codes.dtype == np.int16
        np.testing.assert_array_equal(codes, weights)
        np.testing.assert_array_equal(scales, [1, 1])
        return
    proto = networks()
    wish = {"dtype": dtype, "weight_bits": bits, "weight_mode": "asymmetric"}
    made = lowered(proto, normal(proto), {"quantize": wish})
    program = compile_graph(made.graph, level=5)
    for feed in normal(proto, 2, seed=3):
        made.equals_reference(feed)
        ours, theirs = (
            level.compute(feed).codes for level in (graph_level(made.graph), program_level(program))
        )
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
        assert all(alike.cosine > 0.99 for alike in made.compare(feed).values())
    for layer in made.graph.layers:
        if layer.op == "conv":
            codes = made.graph.constant(layer.operands[1])
            rows = codes.reshape(len(codes), -1).astype(np.int64)
            assert codes.dtype == np.int16
            assert (rows.max(1).clip(0) - rows.min(1).clip(max=0) <= (1 << bits) - 1).all()


@pytest.mark.feature("QMO-08")
def test_a_zero_point_per_channel_wastes_no_side_of_zero() -> None:
    weights = np.random.default_rng(0).uniform(-0.1, 1, (6, 40))
    off = {}
    for bits in (4, 8):
        codes, scales = scheme.asymmetric_channels(weights, 0, np.zeros(6), bits)
        plain, steps = scheme.weights(
            weights, 0, scheme.Format("int8", "symmetric_full", bits), floor=np.zeros(6)
        )
        for name, stored, scale in (("asymmetric", codes, scales), ("symmetric", plain, steps)):
            off[name] = float(np.sum((stored * scale[:, np.newaxis] - weights) ** 2))
        assert off["asymmetric"] < off["symmetric"] / 2


@given(
    codes=st.lists(st.integers(-128, 127), min_size=1, max_size=9),
    count=st.integers(2, 4),
)
@pytest.mark.feature("QMO-21")
def test_clusters_of_weights_are_the_best_there_are(codes: list[int], count: int) -> None:
    """Against all divisions of the values that occur into intervals, each held by its rounded mean."""
    array = np.array(codes, np.int8)
    found = scheme.cluster_codes(array, count).astype(np.int64)
    assert len(set(found.tolist())) <= count
    values = sorted(set(codes))
    least = min(
        sum(min((code - round(center)) ** 2 for center in _centers(codes, values, cuts)) for code in codes)
        for size in range(min(count, len(values)))
        for cuts in itertools.combinations(range(1, len(values)), size)
    )
    assert int(np.sum((found - array.astype(np.int64)) ** 2)) <= least


def _centers(codes: list[int], values: list[int], cuts: tuple[int, ...]) -> list[float]:
    groups = [values[a:b] for a, b in itertools.pairwise((0, *cuts, len(values)))]
    return [float(np.mean([code for code in codes if code in group])) for group in groups]


@pytest.mark.feature("QMO-21")
def test_a_layer_of_clustered_weights_keeps_few_of_its_codes() -> None:
    proto = networks()
    feeds = normal(proto)
    plain = lowered(proto, feeds, {})
    made = lowered(proto, feeds, {"quantize": {"weight_clusters": 16}})
    for graph, most in ((plain.graph, 256), (made.graph, 16)):
        sizes = [
            len(np.unique(graph.constant(layer.operands[1])))
            for layer in graph.layers
            if layer.op in {"conv", "mat_mul"}
        ]
        assert max(sizes) <= most and (most == 16 or max(sizes) > 16)
    made.equals_reference(feeds[0])
    assert all(alike.cosine > 0.98 for alike in made.compare(feeds[0]).values())
    with pytest.raises(ConfigError, match="weight_clusters is for weights of at most 8 bits"):
        lowered(proto, feeds, {"quantize": {"weight_clusters": 16, "weight_bits": 12}})


@pytest.mark.feature("QMO-17")
def test_weights_of_few_bits() -> None:
    """4 bits that ACIQ cuts off where that costs least; 2 and 3 bits for what layers in floats stand for."""
    proto = networks()
    feeds = normal(proto)
    four = {"weight_bits": 4, "weight_strategy": "aciq_laplace"}
    made = lowered(proto, feeds, {"quantize": four})
    assert all(alike.cosine > 0.9 for alike in made.compare(feeds[0]).values())
    for bits in (2, 3):
        wish = {"dtype": "float32", "weight_only": True, "weight_bits": bits}
        floats = lowered(proto, feeds, {"quantize": wish})
        floats.equals_reference(feeds[0])
        for layer in floats.graph.layers:
            if layer.op == "conv":
                rows = floats.graph.constant(layer.operands[1])
                assert all(len(np.unique(row)) <= (1 << bits) for row in rows.reshape(rows.shape[0], -1))
        with pytest.raises(ConfigError, match="unless weight_only = true"):
            Config.parse({"quantize": {"weight_bits": bits}})
