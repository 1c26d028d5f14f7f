"""Pixels that the array computes side by side have the bits they have one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.compiler.tiling import Tiling
from tpuflow.execution.simulation import simulate
from tpuflow.lowering.ops import linear
from tpuflow.lowering.ops.wide_pixels import WideWindow, cycles_of_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from lowering.quantized import Feed


MATRIX_ENGINE = 2
"""Its place in the list of units."""


def _one_by_one(proto: onnx.ModelProto, feeds: Sequence[Feed], config: dict[str, Any]) -> Quantized:
    """The same network with a row of the array for every pixel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "wide_window", lambda *_: WideWindow())
        patch.setattr(linear, "product_of_neighbors", lambda *_, **__: False)
        return lowered(proto, feeds, config)


def _wide(quantized: Quantized) -> list[dict[str, Any]]:
    """Layers that multiply by zeros which stand there by construction."""
    return [layer for layer in json.loads(quantized.graph.to_json())["layers"] if "terms" in layer]


def _assert_equal(wide: Quantized, narrow: Quantized, feed: Feed) -> None:
    found, expected = (each.run(feed, all_tensors=True) for each in (wide, narrow))
    outputs = [port.name for port in wide.model.outputs]
    for name in {*outputs, *found} & {*expected}:
        assert np.array_equal(found[name], expected[name]), name
    assert {*outputs} <= {*found} & {*expected}
    assert wide.graph.macs == narrow.graph.macs
    wide.equals_reference(feed)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    channels=st.integers(1, 20),
    outputs=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    slack=st.integers(0, 2),
    dtype=st.sampled_from(["int8", "int16"]),
    function=st.sampled_from([None, "Relu", "Sigmoid"]),
    joined=st.booleans(),
    mode=st.sampled_from(["symmetric_full", "asymmetric"]),
)
def test_convolutions_have_the_same_bits(
    *,
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    slack: int,
    dtype: str,
    function: str | None,
    joined: bool,
    mode: str,
) -> None:
    """Images of 16 x 64 results, with columns of the operand behind the last window that none reads."""
    behind = min(slack, strides[1] - 1)
    height = (16 - 1) * strides[0] + kernel[0] - pads[0] - pads[2]
    width = (64 - 1) * strides[1] + kernel[1] - pads[1] - pads[3] + behind
    b = Builder("image")
    x = b.input("x", [1, channels, height, width])
    y = b.conv(x, outputs, kernel, strides=strides, pads=pads)
    y = b.node(function, y) if function else y
    y = b.node("Concat", b.node("Tanh", y), y, axis=1) if joined else y
    b.output(b.conv(y, 8, (3, 3), pads=(1, 1, 1, 1)))
    feeds = normal(b)
    config = {"quantize": {"dtype": dtype, "weight_mode": mode, "per_channel": mode != "asymmetric"}}
    wide = lowered(b.model(), feeds, config)
    assert _wide(wide)
    _assert_equal(wide, _one_by_one(b.model(), feeds, config), feeds[0])


@pytest.mark.parametrize("places", [3, 16, 17])
def test_an_expected_value_of_distributions_is_one_row_for_all_sides(places: int) -> None:
    """The box regression of a detection head: four softmaxes over some places, and their expected values."""
    b = Builder("box")
    x = b.conv(b.input("x", [1, 3, 16, 40]), 4 * places, (1, 1))
    sides = b.node("Reshape", x, b.integers(1, 4, places, 640))
    sides = b.node("Softmax", b.node("Transpose", sides, perm=[0, 2, 1, 3]), axis=1)
    value = b.node("Conv", sides, b.constant(np.arange(places, dtype=np.float32).reshape(1, places, 1, 1)))
    b.output(b.node("Reshape", value, b.integers(1, 4, 640)))
    feeds = normal(b)
    config: dict[str, Any] = {"quantize": {"dtype": "int8"}}
    wide, narrow = lowered(b.model(), feeds, config), _one_by_one(b.model(), feeds, config)
    (layer,) = [layer for layer in _wide(wide) if layer["op"]["op"] == "mat_mul"]
    assert layer["terms"] == places
    found, expected = wide.run(feeds[0]), narrow.run(feeds[0])
    for port in wide.model.outputs:
        assert np.array_equal(found[port.name], expected[port.name])
    assert wide.graph.macs == narrow.graph.macs
    wide.equals_reference(feeds[0])


@pytest.mark.parametrize(
    ("outputs", "options", "dtype"),
    [
        (24, {}, "int8"),  # pixels with padding
        (8, {"group": 2}, "int8"),
        (8, {"dilations": (1, 2)}, "int8"),
        (128, {}, "int8"),  # no columns left
        (8, {}, "float16"),  # zero times infinity
        (64, {"joined": True}, "int8"),  # a copy would take as long
        (8, {"width": 63}, "int8"),
        (8, {"height": 2}, "int8"),  # few rows of the array
    ],
)
def test_what_gains_nothing_stays(outputs: int, options: dict[str, Any], dtype: str) -> None:
    options = {"height": 16, "width": 64, **options}
    height, width, joined = options.pop("height"), options.pop("width"), options.pop("joined", False)
    b = Builder("image")
    x = b.input("x", [1, 4, height, width])
    y = b.conv(x, outputs, (1, 1), **options)
    if joined:
        y = b.node("Concat", y, x, axis=1)
    b.output(y)
    assert not _wide(lowered(b.model(), normal(b), {"quantize": {"dtype": dtype}}))


@pytest.mark.parametrize(
    ("channels", "outputs", "across", "stride"),
    [
        (64, 16, 3, 1),
        (64, 64, 3, 1),
        (32, 32, 3, 2),
        (64, 128, 3, 2),
        (16, 16, 3, 1),
        (3, 32, 3, 2),
        (16, 8, 5, 1),
    ],
)
def test_windows_hold_the_array_as_long_as_they_are_chosen_for(
    channels: int, outputs: int, across: int, stride: int
) -> None:
    """All windows that are considered, some of which begin and end where words do, in simulated cycles."""
    pad, height, width = across // 2, 40, 64
    b = Builder("image")
    x = b.input("x", [1, channels, height * stride, width * stride])
    b.output(b.conv(x, outputs, (across, across), strides=(stride, stride), pads=(pad,) * 4))
    feeds = normal(b)
    in_word = 128 // (1 << (channels - 1).bit_length())
    for count in (count for count in (1, 2, 4, 8) if count * outputs <= 128):
        for before in {0, -pad % in_word}:
            reach = before + across + stride * (count - 1)
            for behind in {0, -reach % in_word}:
                window = WideWindow(count, before, behind)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(linear, "wide_window", lambda *_, window=window: window)
                    program = compile_graph(lowered(b.model(), feeds).graph, level=1)
                array = simulate(program, values=False).report["counters"]["units"][MATRIX_ENGINE]
                found = array["busy"] + array["stalls"]["bank_conflict"]
                held = cycles_of_result(
                    across, reach + behind, -(pad + before) % in_word, stride * count, in_word
                )
                # Lines outside the image are not read, and the first window of a row finds nothing there.
                assert found == pytest.approx(held * height * width // count, rel=0.08), window


def test_small_arrays_have_fewer_columns_to_fill() -> None:
    b = Builder("image")
    b.output(b.conv(b.input("x", [1, 4, 32, 64]), 8, (3, 3), pads=(1, 1, 1, 1)))
    feeds = normal(b)
    widths = {
        columns: _widest(lowered(b.model(), feeds, {"quantize": {"array_columns": columns}}))
        for columns in (32, 16, 8, 1)
    }
    assert widths == {32: 32, 16: 16, 8: 8, 1: 8}


def _widest(quantized: Quantized) -> int:
    (layer,) = [
        layer for layer in json.loads(quantized.graph.to_json())["layers"] if layer["op"]["op"] == "conv"
    ]
    return int(quantized.graph.tensors[layer["output"]].shape[-1])


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.parametrize("machine", ["128x128_asic", "32x32_fpga"])
def test_programs_compute_wide_pixels_bit_for_bit(machine: str, level: int) -> None:
    b = Builder("net")
    x = b.input("x", [1, 3, 32, 64])
    y = b.node("Relu", b.conv(x, 16, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))
    z = b.node("Relu", b.conv(y, 16, (3, 3), pads=(1, 1, 1, 1)))
    z = b.node("Add", y, b.conv(z, 16, (1, 1)))
    z = b.conv(z, 16, (3, 3), pads=(1, 1, 1, 1), group=16)
    b.output(b.node("Concat", b.node("MaxPool", z, kernel_shape=[1, 1]), y, axis=1))
    b.output(b.node("GlobalAveragePool", z))
    feeds = normal(b)
    quantized = lowered(b.model(), feeds, {"quantize": {"dtype": "int8"}})
    assert _wide(quantized)
    program = compile_graph(quantized.graph, machine=machine, level=level)
    quantized.equals_program(program, feeds[0])


def test_tiles_of_wide_pixels_count_the_same_products() -> None:
    b = Builder("image")
    b.output(b.conv(b.input("x", [1, 4, 32, 64]), 16, (3, 3), pads=(1, 1, 1, 1)))
    feeds = normal(b)
    graph = lowered(b.model(), feeds).graph
    tiles = Schedule(tiling=Tiling(runs=((0, 0, 2, 1),)))
    program = compile_graph(graph, schedule=tiles)
    assert json.loads(program.metadata())["tilings"]
    assert simulate(program, values=False).report["macs"] == graph.macs == 32 * 64 * 16 * 36
