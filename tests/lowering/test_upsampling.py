"""Images enlarged linearly by convolutions: what the operator gives but for a rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.quantized import Quantized, lowered, normal, source_of
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.lowering.ops import resize
from tpuflow.lowering.ops.upsampling import places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from lowering.quantized import Feed

RULES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "half_pixel_symmetric"]


def _resized(
    channels: int, cells: tuple[int, int], factors: tuple[int, int], rule: str = "half_pixel", *, behind: bool
) -> onnx.ModelProto:
    """An image, made by a convolution, enlarged; with a convolution behind or as the network's output."""
    b = Builder("resized")
    image = b.conv(b.input("image", [1, 3, *cells]), channels, (1, 1))
    scales = b.constant(np.array([1, 1, *factors], np.float32))
    x = b.node("Resize", image, "", scales, mode="linear", coordinate_transformation_mode=rule)
    b.output(b.conv(x, 4, pads=(1, 1, 1, 1)) if behind else x)
    return b.model()


def _by_the_operator(proto: onnx.ModelProto, feeds: Sequence[Feed], config: dict[str, Any]) -> Quantized:
    """The same network resized by the elementwise unit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "is_quicker", lambda *_: False)
        return lowered(proto, feeds, config)


def _by_convolutions(proto: onnx.ModelProto, feeds: Sequence[Feed], config: dict[str, Any]) -> Quantized:
    """The same network resized by the array, quicker or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "is_quicker", lambda *_: True)
        return lowered(proto, feeds, config)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    channels=st.integers(1, 21),
    cells=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    factors=st.tuples(st.integers(1, 9), st.integers(1, 9)).filter(lambda factors: max(factors) > 1),
    rule=st.sampled_from(RULES),
    dtypes=st.sampled_from([("int8", "int8"), ("int8", "int16"), ("int16", "int16")]),
    behind=st.booleans(),
)
def test_convolutions_are_the_resize(
    *,
    channels: int,
    cells: tuple[int, int],
    factors: tuple[int, int],
    rule: str,
    dtypes: tuple[str, str],
    behind: bool,
) -> None:
    """NumPy twin and interpreter agree, and with the operator but for one rounding."""
    proto = _resized(channels, cells, factors, rule, behind=behind)
    feeds = normal(proto, 2)
    config = {"quantize": {"dtype": dtypes[0], "output_dtype": dtypes[1]}}
    found, other = (make(proto, feeds, config) for make in (_by_convolutions, _by_the_operator))
    resizes = [layer for layer in found.graph.layers if layer.op == "resize_linear"]
    assert not resizes
    found.equals_reference(feeds[0])
    (layer,) = [layer for layer in other.graph.layers if layer.op == "resize_linear"]
    tensor = other.graph.tensors[layer.output]
    assert tensor.scale is not None
    name = source_of(tensor)["name"]
    # Weights of eleven bits are not exact where the factor is no power of two.
    ours, theirs = (each.run(feeds[0], all_tensors=True)[name] for each in (found, other))
    bound = 1.01 if tensor.dtype == "int8" else 1.01 + (1 << 16) / (1 << 11)
    assert np.abs(ours - theirs).max() <= bound * tensor.scale[0]


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.parametrize("machine", ["128x128_asic", "32x32_fpga"])
@pytest.mark.parametrize("factors", [(8, 8), (1, 4), (4, 1)])
def test_programs_upsample_bit_for_bit(machine: str, level: int, factors: tuple[int, int]) -> None:
    """A segmentation head: few classes of 16 bits, enlarged as the last layer."""
    proto = _resized(5, (12, 20), factors, behind=False)
    feeds = normal(proto, 2)
    make = lowered if factors == (8, 8) else _by_convolutions
    quantized = make(proto, feeds, {"quantize": {"output_dtype": "int16"}})
    assert all(layer.op != "resize_linear" for layer in quantized.graph.layers)
    program = compile_graph(quantized.graph, machine=machine, level=level)
    quantized.equals_program(program, feeds[0])


@pytest.mark.parametrize(
    ("channels", "factors", "config"),
    [
        pytest.param(256, (2, 2), {}, id="many-channels"),
        pytest.param(5, (64, 1), {}, id="weights-of-more-than-8-bits"),
        pytest.param(5, (4, 4), {"array_columns": 1}, id="no-columns-to-fill"),
        pytest.param(5, (4, 4), {"dtype": "float16"}, id="floats"),
    ],
)
def test_what_gains_nothing_stays(channels: int, factors: tuple[int, int], config: dict[str, Any]) -> None:
    proto = _resized(channels, (12, 20), factors, behind=False)
    quantized = lowered(proto, normal(proto, 2), {"quantize": config})
    assert [layer.op for layer in quantized.graph.layers].count("resize_linear") == 1


def test_weights_count() -> None:
    """Few cells enlarged far would be quick, were it not for the weights of all their places."""
    proto = _resized(32, (2, 2), (16, 1), behind=False)
    quantized = lowered(proto, normal(proto, 2))
    assert [layer.op for layer in quantized.graph.layers].count("resize_linear") == 1


def test_places_repeat_and_have_weights_of_8_bits() -> None:
    half_pixels = [Fraction(2 * i + 1, 8) - Fraction(1, 2) for i in range(12)]
    places = places_of(half_pixels, 3)
    assert places is not None
    assert places.weights == ((3, 5, 0), (1, 7, 0), (0, 7, 1), (0, 5, 3))
    assert (places.first, places.whole, places.border) == (-1, 8, (1, 1))
    corners = [Fraction(i * 2, 11) for i in range(12)]
    assert places_of(corners, 3) is None
    assert places_of(half_pixels[:-1], 3) is None
    assert places_of([Fraction(2 * i + 1, 200) - Fraction(1, 2) for i in range(300)], 3) is None
