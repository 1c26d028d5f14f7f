"""Reductions and broadcast operands take a tensor as it is stored, where axes of the value lie in runs."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow.lowering.layout import Run, StoredValue, runs
from tpuflow.lowering.view import View


@settings(max_examples=60, deadline=None)
@given(
    factors=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    cuts=st.tuples(st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6))),
    data=st.data(),
)
def test_runs_are_the_shortest_of_equal_size(
    factors: list[int], cuts: tuple[set[int], set[int]], data: st.DataObject
) -> None:
    def grouped(places: set[int]) -> list[int]:
        ends = sorted({0, len(factors), *(place for place in places if place < len(factors))})
        return [math.prod(factors[a:b]) for a, b in itertools.pairwise(ends)]

    extents, shape = grouped(cuts[0]), grouped(cuts[1])
    order = data.draw(st.permutations(range(len(extents))))
    natural = [0] * len(extents)
    for place, axis in enumerate(order):
        natural[axis] = extents[place]
    found = runs(StoredValue(0, tuple(shape), View.dense(natural, order), None), order)
    assert found is not None
    assert [axis for run in found for axis in run.axes] == list(order)
    assert [place for run in found for place in run.places] == list(range(len(shape)))
    for run in found:
        sizes = [natural[axis] for axis in run.axes], [shape[place] for place in run.places]
        assert math.prod(sizes[0]) == math.prod(sizes[1])
        inner = ({math.prod(part[:k]) for k in range(1, len(part))} for part in sizes)
        assert set.intersection(*inner) <= {1, math.prod(sizes[0])}


def test_what_does_not_lie_in_order_has_no_runs() -> None:
    dense = View.dense((3, 8))
    assert runs(StoredValue(0, (24,), dense, None), (0, 1)) == [Run((0, 1), (0,))]
    assert runs(StoredValue(0, (4, 6), dense, None), (0, 1)) == [Run((0, 1), (0, 1))]
    assert runs(StoredValue(0, (24,), dense, None), (1, 0)) is None
    assert runs(StoredValue(0, (25,), dense, None), (0, 1)) is None


@settings(max_examples=12, deadline=None)
@given(
    heads=st.integers(1, 4),
    width=st.integers(1, 24),
    sides=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    reduced=st.sampled_from(["ReduceL2", "ReduceMax"]),
    over=st.sampled_from(["tokens", "channels", "a head's channels"]),
)
def test_heads_of_an_image_are_scaled_where_they_lie(
    heads: int, width: int, sides: tuple[int, int], reduced: str, over: str
) -> None:
    """`[1, heads, width, h w]`, of which the tensor is `[1, h, w, heads width]`."""
    b = Builder("heads")
    image = b.conv(b.input("x", [1, 3, *sides]), heads * width, (1, 1))
    shape = [1, heads, width, sides[0] * sides[1]]
    split = b.node("Reshape", image, b.integers(*shape))
    axes = {"tokens": [3], "channels": [1, 2], "a head's channels": [2]}[over]
    norm = b.node(reduced, split, axes=axes, keepdims=1)
    scaled = b.node("Mul", split, norm)
    b.output(b.node("Reshape", scaled, b.integers(1, heads * width, *sides)))
    feeds = normal(b)
    quantized = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    parted = over == "a head's channels" and heads > 1 and width > 1
    assert parted or "rearrange" not in quantized.operators
    quantized.equals_reference(feeds[0])
    assert min(found.sqnr for found in quantized.compare(feeds[0]).values()) > 40
