"""Names of modes for activations and weights, and weights on asymmetric grids through every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.config.spellings import METHODS
from tpuflow.execution.levels import graph_level, program_level

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
        with pytest.raises(ConfigError, match=f'"{name}" is no method for activations'):
            Config.parse({"quantize": {"quantize_method_for_activation": name}})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.feature("QMO-08")
def test_names_of_modes_for_weights(name: str) -> None:
    """Per tensor or per channel; one zero point a tensor; blocks are for weights under floats."""
    _, what, grid = name.split("_", 2)
    if what in SPANS and name != "per_channel_asymmetric":
        found = Config.parse({"quantize": {"quantize_method_for_weight": name}}).quantize
        assert grid.startswith(found.weight_mode) and found.per_channel is SPANS[what]
        proto = networks()
        made = lowered(proto, normal(proto), {"quantize": {"quantize_method_for_weight": name}})
        (weights,) = {
            (len(t.scale) > 1, t.zero_point != 0)
            for t in made.graph.tensors
            if t.is_constant and t.scale is not None
        }
        assert weights == (SPANS[what], grid == "asymmetric")
        for feed in normal(proto, 2, seed=3):
            made.equals_reference(feed)
            assert all(alike.cosine > 0.99 for alike in made.compare(feed).values())
    else:
        words = "per_block needs weight_bits = 4" if what == "block" else "need per_channel = false"
        with pytest.raises(ConfigError, match=words):
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
        ({"quantize": {"weight_mode": "asymmetric"}}, "need per_channel = false"),
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
    with pytest.raises(ConfigError, match="asymmetric weights need per_channel = false"):
        lowered(proto, normal(proto), {"layers": [{"operators": ["Conv"], "weight_mode": "asymmetric"}]})
