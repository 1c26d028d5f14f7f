"""Constants beside values: in the order of the value's tensor, and no larger than they vary."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.graphs import Node, graph
from tpuflow.lowering.ops.elementwise import laid_out
from tpuflow.lowering.registry import UnsupportedNodeError
from tpuflow.lowering.view import View
from tpuflow.pipeline.preflight import audit


@given(st.data())
def test_constants_lie_as_the_value_does(data: st.DataObject) -> None:
    """Broadcast with the value's tensor they give what the constant gives beside the value."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    kept = [extent if data.draw(st.booleans()) else 1 for extent in shape]
    array = np.random.default_rng(0).standard_normal(kept[data.draw(st.integers(0, len(kept) - 1)) :])
    stored = tuple(shape[axis] for axis in order)
    found = laid_out(array, stored, View.dense(shape, order))
    expected = np.broadcast_to(array, shape).transpose(order)
    assert np.array_equal(np.broadcast_to(found, stored), expected)


def test_a_constant_for_all_of_a_large_batch_takes_no_more_memory_than_one() -> None:
    array = np.random.default_rng(0).standard_normal((9, 15))
    tracemalloc.start()
    found = laid_out(array, (1 << 20, 9, 15), View.dense((1 << 20, 9, 15)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (9, 15)
    assert peak < 1 << 16


def test_a_constant_for_the_channels_of_a_large_image_takes_no_more_memory_than_one() -> None:
    array = np.random.default_rng(0).standard_normal((1, 64, 1, 1))
    shape, order = (1, 64, 1 << 16, 1 << 16), (0, 2, 3, 1)
    tracemalloc.start()
    found = laid_out(array, (1, 1 << 16, 1 << 16, 64), View.dense(shape, order))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found.ravel(), array.ravel())
    assert peak < 1 << 16


def test_a_constant_is_not_spread_over_more_than_memory_holds() -> None:
    view = View((((1 << 20, 2),), ((1 << 20, 1 << 21),)))
    with pytest.raises(UnsupportedNodeError, match="would be spread over"):
        laid_out(np.arange(1 << 20, dtype=np.float64), (1 << 20, 1 << 21), view)


def test_images_that_are_resized_have_a_longest_side() -> None:
    nodes: list[Node] = [("Resize", "x _ s", "z", {"mode": "nearest"})]
    factors = {"s": np.array([1, 1, 2, 2], np.float32)}
    (finding,) = audit(graph(nodes, {"x": [1, 2, 1 << 16, 4]}, ["z"], factors, opset=21)).findings
    assert finding.reason == "gives 131072 x 8 pixels, at most 65536 each way"
