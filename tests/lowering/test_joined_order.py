"""Joined values whose operands are moved in any case are stored in the order their readers want."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder


@settings(max_examples=12, deadline=None)
@given(
    anchors=st.integers(2, 4),
    widths=st.lists(st.integers(2, 9), min_size=2, max_size=3),
    sides=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    transposed=st.booleans(),
)
def test_a_detection_head_moves_every_element_once(
    *, anchors: int, widths: list[int], sides: tuple[int, int], transposed: bool
) -> None:
    """Parts `[1, anchors, width, h, w]`, each with a convolution of its own, as `[1, anchors h w, width]`."""
    b = Builder("head")
    x = b.input("x", [1, 3, *sides])
    perm, axis = [0, 1, 3, 4, 2], 4 if transposed else 2
    parts = []
    for function, width in zip(("Sigmoid", "Tanh", "Relu"), widths, strict=False):
        part = b.node(function, b.conv(x, anchors * width, (1, 1)))
        part = b.node("Reshape", part, b.integers(1, anchors, width, *sides))
        parts.append(b.node("Transpose", part, perm=perm) if transposed else part)
    joined = b.node("Concat", *parts, axis=axis)
    joined = joined if transposed else b.node("Transpose", joined, perm=perm)
    b.output(b.node("Reshape", joined, b.integers(1, -1, sum(widths))))
    feeds = normal(b)
    quantized = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    layers = json.loads(quantized.graph.to_json())["layers"]
    moves = [layer["op"] for layer in layers if layer["op"]["op"] == "rearrange"]
    # One for every part; another one only reshapes.
    assert len(moves) <= len(parts) + 1
    assert all(len(move["strides"]) == 1 for move in moves[len(parts) :])
    quantized.equals_reference(feeds[0])
    assert min(found.sqnr for found in quantized.compare(feeds[0]).values()) > 40


def test_what_lies_as_it_is_joined_is_not_moved() -> None:
    """Images joined by channels are joined where they lie, although a Reshape reads them."""
    b = Builder("images")
    x = b.input("x", [1, 3, 4, 6])
    joined = b.node("Concat", b.conv(x, 5, (1, 1)), b.conv(x, 8, (1, 1)), axis=1)
    b.output(b.node("Reshape", joined, b.integers(1, 13, 24)))
    feeds = normal(b)
    quantized = lowered(b.model(), feeds, {"quantize": {"dtype": "int8"}})
    assert "rearrange" not in quantized.operators
    quantized.equals_reference(feeds[0])
