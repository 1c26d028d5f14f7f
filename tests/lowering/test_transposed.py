"""Transposed convolutions by phases: the same bits as over inserted zeros, and none of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.lowering.ops import transposed
from tpuflow.lowering.ops.transposed import Geometry, best_division


def operators_and_codes(
    attributes: dict[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...], dtype: str
) -> Any:
    """Operators of the graph of one transposed convolution and what it computes of a sample."""
    b = Builder("transposed", seed=3)
    x = b.input("x", shape)
    channels = kernel[1] * attributes.get("group", 1)
    weight = b.weight(*kernel, fan_in=kernel[0] * 4)
    b.output(b.node("Relu", b.node("ConvTranspose", x, weight, b.spread(channels), **attributes)))
    feeds = normal(b, 2)
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype}})
    made.equals_reference(feeds[1])
    return [layer.op for layer in made.graph.layers], made.run(feeds[1])


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.slow
def test_phases_have_the_bits_of_a_convolution_over_zeros(data: st.DataObject) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    cells, kernel, stride, dilation = pair(1, 5), pair(1, 5), pair(1, 3), pair(1, 2)
    extra = [data.draw(st.integers(0, stride[a] - 1)) for a in range(2)]
    spans = [stride[a] * (cells[a] - 1) + dilation[a] * (kernel[a] - 1) + 1 + extra[a] for a in range(2)]
    pads = [data.draw(st.integers(0, min(3, (spans[a % 2] - 1) // 2))) for a in range(4)]
    groups, taken, made = data.draw(st.sampled_from([(1, 5, 3), (1, 3, 40), (2, 2, 3), (4, 1, 1)]))
    attributes = {
        "kernel_shape": list(kernel), "strides": list(stride), "dilations": list(dilation), "pads": pads,
        "output_padding": extra, "group": groups,
    }  # fmt: skip
    dtype = data.draw(st.sampled_from(["int8", "int16", "float32"]))
    arguments = (attributes, (1, groups * taken, *cells), (groups * taken, made, *kernel), dtype)
    _, found = operators_and_codes(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transposed, "best_division", lambda *_, **__: None)
        operators, wanted = operators_and_codes(*arguments)
    assert ("insert_zeros" in operators) == (max(stride) > 1)
    assert found.keys() == wanted.keys()
    for name, codes in wanted.items():
        np.testing.assert_array_equal(found[name], codes, strict=True)


@pytest.mark.parametrize(
    ("kernel", "channels", "convolutions"),
    [
        (2, (64, 32), 1),  # Every phase meets the same cells.
        (4, (512, 256), 4),  # Columns are full as it is.
        (4, (64, 64), 2),  # Two phases fill the columns of one.
        (4, (64, 3), 1),
    ],
)
def test_phases_share_a_convolution_where_that_is_less_work(
    kernel: int, channels: tuple[int, int], convolutions: int
) -> None:
    before = (kernel - 2) // 2
    pad = kernel - 1 - before
    geometry = Geometry((16, 16), (32, 32), (kernel, kernel), (2, 2), (1, 1), (pad, pad), (pad, pad))
    division = best_division(geometry, channels, joins=True, zeros=True)
    assert division is not None
    assert len(division.rows) * len(division.columns) == convolutions


def test_a_phase_without_taps_is_computed_over_zeros() -> None:
    attributes = {"kernel_shape": [2, 1], "strides": [2, 2]}
    operators, _ = operators_and_codes(attributes, (1, 3, 4, 4), (3, 2, 2, 1), "int8")
    assert "insert_zeros" in operators


def test_no_zeros_are_inserted_for_a_generator() -> None:
    attributes = {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    operators, _ = operators_and_codes(attributes, (1, 3, 4, 4), (3, 2, 4, 4), "int8")
    assert operators == ["conv", "rearrange"]
