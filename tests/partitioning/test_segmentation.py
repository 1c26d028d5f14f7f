"""Segmentation against every schedule there is, on small graphs; in linear time on large ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuflow.partitioning.segmentation import Side, islands, segmentation

Graph = tuple[list[list[int]], list[Side | None]]


@st.composite
def graphs(draw: st.DrawFn, largest: int = 9) -> Graph:
    """A graph in topological order, with sides."""
    count = draw(st.integers(1, largest))
    before = [
        draw(st.lists(st.integers(0, max(0, node - 1)), max_size=3, unique=True)) for node in range(count)
    ]
    before[0] = []
    sides: list[Side | None] = draw(
        st.lists(st.sampled_from(["device", "host", None]), min_size=count, max_size=count)
    )
    return before, sides


def fewest(before: Sequence[Sequence[int]], sides: Sequence[Side | None]) -> int:
    """The least number of segments, by trying every choice for free nodes and running whatever can run."""
    free = [node for node, side in enumerate(sides) if side is None]
    both: tuple[Side, Side] = ("device", "host")
    best = len(sides) + 1
    for choice in itertools.product(both, repeat=len(free)):
        chosen = {**dict(enumerate(sides)), **dict(zip(free, choice, strict=True))}
        for order in (both, both[::-1]):
            done: set[int] = set()
            count = 0
            while len(done) < len(sides):
                ready = True
                while ready:
                    ready = False
                    for node in range(len(sides)):
                        if (
                            node not in done
                            and chosen[node] == order[count % 2]
                            and done.issuperset(before[node])
                        ):
                            done.add(node)
                            ready = True
                count += 1
            best = min(best, count)
    return best


@given(graphs())
def test_segments_are_legal_and_as_few_as_can_be(graph: Graph) -> None:
    before, sides = graph
    found = segmentation(before, sides)
    for node, others in enumerate(before):
        assert all(found.of[other] <= found.of[node] for other in others)
        assert sides[node] in {None, found.side(found.of[node])}
    assert set(found.of) == set(range(found.count)), "no segment is empty"
    assert found.count == fewest(before, sides)


@given(graphs())
def test_a_turn_of_the_device_has_a_node_bound_to_it_and_no_island_without(graph: Graph) -> None:
    before, sides = graph
    found = segmentation(before, sides)
    if found.count == 1:
        return
    roots = islands(before, found.of)
    for node, segment in enumerate(found.of):
        if found.side(segment) == "device":
            assert any(sides[other] == "device" for other, root in enumerate(roots) if root == roots[node])


def test_free_nodes_between_host_nodes_stay_on_the_host() -> None:
    found = segmentation([[], [0], [1], [2], [3]], ["device", None, "host", None, "host"])
    assert found.of == (0, 0, 1, 1, 1)
    assert found.first == "device"


def test_a_graph_of_one_side_is_one_turn() -> None:
    assert segmentation([[], [0]], ["device", None]).count == 1
    assert segmentation([[], [0]], ["host", None]).side(0) == "host"
    assert segmentation([], []).count == 1


@pytest.mark.slow
def test_a_hundred_thousand_nodes_take_a_second_or_so() -> None:
    count = 100_000
    before = [[other for other in (node - 1, node - 7) if other >= 0] for node in range(count)]
    sides: list[Side | None] = [("device", None, "host", None)[node // 50 % 4] for node in range(count)]
    start = time.process_time()
    found = segmentation(before, sides)
    assert found.count == count // 100
    assert time.process_time() - start < 10
