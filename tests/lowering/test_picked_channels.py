"""A convolution of some channels of an image reads all of it, by zeros for the others: nothing is moved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.lowering.ops import linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from lowering.quantized import Feed, Quantized


def shuffled(half: int, outputs: int, kernel: int = 1, group: int = 1) -> onnx.ModelProto:
    """Two images joined, their channels shuffled and halved; each half is read by a convolution."""
    b = Builder("shuffled", seed=3)
    parts = [b.conv(b.input(name, [1, 3, 6, 5]), half, (1, 1)) for name in ("x", "z")]
    joined = b.node("Concat", *parts, axis=1)
    paired = b.node("Reshape", joined, b.integers(1, 2, half, 6, 5))
    turned = b.node("Transpose", paired, perm=[0, 2, 1, 3, 4])
    halves = b.nodes("Split", [b.node("Reshape", turned, b.integers(1, 2 * half, 6, 5))], 2, axis=1)
    b.output(*(b.conv(each, outputs, (kernel, kernel), group=group) for each in halves), joined)
    return b.model()


def sliced(channels: int, start: int, step: int, count: int, size: tuple[int, int]) -> onnx.ModelProto:
    """Every `step`-th channel of an image of a height and width, from one on."""
    b = Builder("sliced", seed=5)
    x = b.node("Relu", b.conv(b.input("x", [1, 3, size[0] + 2, size[1] + 2]), channels))
    bounds = [b.integers(number) for number in (start, start + (count - 1) * step + 1, 1, step)]
    b.output(b.conv(b.node("Slice", x, *bounds), 6, (1, 1)), x)
    return b.model()


def moved(proto: onnx.ModelProto, feeds: Sequence[Feed], config: dict[str, Any]) -> Quantized:
    """The same network with every operand of a convolution written out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_places_of_channels", lambda *_: None)
        return lowered(proto, feeds, config)


def moves(quantized: Quantized) -> int:
    layers = json.loads(quantized.graph.to_json())["layers"]
    return sum(layer["op"]["op"] == "rearrange" for layer in layers)


def assert_equal_bits(picked: Quantized, written: Quantized, feed: Feed) -> None:
    found, expected = picked.run(feed), written.run(feed)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert picked.graph.macs == written.graph.macs
    picked.equals_reference(feed)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("mode", ["symmetric_full", "asymmetric"])
def test_halves_of_shuffled_channels_are_not_moved(dtype: str, mode: str) -> None:
    proto = shuffled(half=12, outputs=7)
    config = {"quantize": {"dtype": dtype, "activation_mode": mode}}
    feeds = normal(proto, 2)
    picked, written = lowered(proto, feeds, config), moved(proto, feeds, config)
    assert moves(picked) == 0 < moves(written)
    assert_equal_bits(picked, written, feeds[0])
    for level in (1, 5):
        picked.equals_program(compile_graph(picked.graph, level=level), feeds[0])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    channels=st.integers(2, 40),
    place=st.tuples(st.floats(0, 0.999), st.floats(0, 1), st.integers(1, 4)),
    size=st.sampled_from([(2, 5), (16, 16), (9, 32)]),  # large enough for pixels side by side, too
    dtype=st.sampled_from(["int8", "int16"]),
    mode=st.sampled_from(["symmetric_restricted", "symmetric_full", "asymmetric"]),
)
def test_any_channels_have_the_same_bits(
    channels: int, place: tuple[float, float, int], size: tuple[int, int], dtype: str, mode: str
) -> None:
    start, step = int(place[0] * channels), place[2]
    count = 1 + int(place[1] * ((channels - 1 - start) // step))
    proto = sliced(channels, start, step, count, size)
    feeds = normal(proto, 2)
    config = {"quantize": {"dtype": dtype, "weight_mode": mode, "weight_bits": 8}}
    assert_equal_bits(lowered(proto, feeds, config), moved(proto, feeds, config), feeds[1])


@pytest.mark.parametrize(
    ("proto", "dtype"),
    [
        (shuffled(half=70, outputs=4), "int8"),  # a K block more
        (shuffled(half=40, outputs=4), "int16"),
        (shuffled(half=12, outputs=4, kernel=3), "int8"),
        (shuffled(half=12, outputs=4, group=2), "int8"),
        (shuffled(half=12, outputs=4), "float16"),  # zero times infinity is no zero
    ],
    ids=["wide", "wide_int16", "window", "grouped", "float"],
)
def test_channels_are_written_out_where_zeros_would_cost(proto: onnx.ModelProto, dtype: str) -> None:
    feeds = normal(proto, 2)
    assert moves(lowered(proto, feeds, {"quantize": {"dtype": dtype}})) > 0
