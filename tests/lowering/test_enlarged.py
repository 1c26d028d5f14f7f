"""Images enlarged by repeating their cells: seen without being moved, rescaled while they are small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.lowering.ops import resize

if TYPE_CHECKING:
    import onnx

NAMES = {"asymmetric": "floor", "half_pixel": "round_prefer_floor"}


def _neck(factors: tuple[float, float], rule: str = "asymmetric", *, other: float = 9.0) -> onnx.ModelProto:
    """An image that two others read, enlarged and joined with one of another range."""
    b = Builder("neck")
    cells = (5, 6)
    large = tuple(int(np.floor(cell * factor)) for cell, factor in zip(cells, factors, strict=True))
    image = b.conv(b.input("image", [1, 3, *cells]), 8, (1, 1))
    beside = b.conv(b.input("beside", [1, 3, *large]), 8, (1, 1))
    beside = b.node("Mul", beside, b.constant(np.float32(other)))
    scales = b.constant(np.array([1, 1, *factors], np.float32))
    mode = {"mode": "nearest", "coordinate_transformation_mode": rule, "nearest_mode": NAMES[rule]}
    x = b.node("Resize", image, "", scales, **mode)
    b.output(b.conv(b.node("Concat", x, beside, axis=1), 4, pads=(1, 1, 1, 1)))
    b.output(b.conv(image, 4))
    return b.model()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    factors=st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda factors: max(factors) > 1),
    rule=st.sampled_from(sorted(NAMES)),
    dtype=st.sampled_from(["int8", "int16", "float16"]),
)
def test_repeated_cells_are_what_a_gather_picks(factors: tuple[int, int], rule: str, dtype: str) -> None:
    """NumPy twin and interpreter agree, and so does the graph that picks cells one by one."""
    proto = _neck(factors, rule)
    feeds, config = normal(proto, 2), {"quantize": {"dtype": dtype}}
    found = lowered(proto, feeds, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "_repeats", lambda *_: None)
        other = lowered(proto, feeds, config)
    assert not any(layer.op == "gather" for layer in found.graph.layers)
    assert any(layer.op == "gather" for layer in other.graph.layers)
    found.equals_reference(feeds[0])
    ours, theirs = found.run(feeds[0]), other.run(feeds[0])
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)


def test_images_are_rescaled_before_they_are_enlarged() -> None:
    proto = _neck((2, 2))
    graph = lowered(proto, normal(proto, 2)).graph
    (rescale,) = (layer for layer in graph.layers if layer.op == "rescale")
    assert list(graph.tensors[rescale.output].shape[1:3]) == [5, 6]


def test_other_factors_pick_cells() -> None:
    proto = _neck((1.5, 2))
    graph = lowered(proto, normal(proto, 2)).graph
    assert sum(layer.op == "gather" for layer in graph.layers) == 2


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.parametrize("machine", ["128x128_asic", "32x32_fpga"])
@pytest.mark.parametrize("factors", [(2, 2), (1, 3), (3, 1)])
def test_programs_enlarge_bit_for_bit(machine: str, level: int, factors: tuple[int, int]) -> None:
    proto = _neck(factors)
    feeds = normal(proto, 2)
    quantized = lowered(proto, feeds)
    quantized.equals_program(compile_graph(quantized.graph, machine=machine, level=level), feeds[0])
