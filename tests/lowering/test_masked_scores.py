"""Masks of attention in every form exporters give them: what they leave out has no share, at no cost."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from lowering.quantized import Array, lowered
from models.builder import Builder

HEADS, ROWS, SIZE = 3, 9, 16
FORMS = (
    "where hidden",  # masked_fill(hidden, low)
    "where kept",
    "where not kept",
    "add of where hidden",
    "add of where kept",
    "reshaped",
    "read twice",
    "beside a sink",
    "heads without a batch",
)


def _attention(form: str, low: float) -> onnx.ModelProto:
    """Scores of an input with itself, masked by an input of zeros and ones, the values of another."""
    b = Builder("masked")
    x, seen = b.input("x", [1, HEADS, ROWS, SIZE]), b.input("seen", [1, 1, 1, ROWS])
    turned = b.node("Transpose", x, perm=[0, 1, 3, 2])
    scores = b.node("MatMul", x, turned)
    scores = b.node("Mul", scores, b.constant(np.float32(0.5)))
    lowest, zero = b.constant(np.float32(low), "low"), b.constant(np.float32(0), "nothing")
    half = b.constant(np.float32(0.5))
    hidden, kept = b.node("Less", seen, half), b.node("Greater", seen, half)
    if form == "where hidden":
        masked = b.node("Where", hidden, lowest, scores)
    elif form == "where kept":
        masked = b.node("Where", kept, scores, lowest)
    elif form == "where not kept":
        masked = b.node("Where", b.node("Not", kept), lowest, scores)
    elif form == "add of where hidden":
        masked = b.node("Add", scores, b.node("Where", hidden, lowest, zero))
    elif form == "add of where kept":
        masked = b.node("Add", b.node("Where", kept, zero, lowest), scores)
    elif form == "beside a sink":
        scores = b.node("Add", scores, b.node("Where", hidden, lowest, zero))
        masked = b.node("Concat", scores, b.spread(1, HEADS, ROWS, 1), axis=3)
        masked = b.node("Sub", masked, b.node("ReduceMax", masked, axes=[3], keepdims=1))
    elif form == "heads without a batch":
        apart = b.node("Add", b.node("Reshape", scores, b.integers(HEADS, ROWS, ROWS)), b.spread(1, 1, ROWS))
        scores = b.node("Reshape", apart, b.integers(1, HEADS, ROWS, ROWS))
        masked = b.node("Where", kept, scores, lowest)
    else:
        masked = b.node("Where", hidden, lowest, scores)
        if form == "reshaped":
            masked = b.node("Reshape", masked, b.integers(HEADS, ROWS, ROWS))
    shares = b.node("Softmax", masked, axis=-1)
    if form == "reshaped":
        shares = b.node("Reshape", shares, b.integers(1, HEADS, ROWS, ROWS))
    if form == "beside a sink":
        shares = b.node("Slice", shares, b.integers(0), b.integers(ROWS), b.integers(3))
    if form == "read twice":
        b.output(b.node("ReduceMax", masked, axes=[3]))
    b.output(b.node("MatMul", shares, x))
    return b.model()


def _feeds(count: int) -> list[dict[str, Array]]:
    rng, feeds = np.random.default_rng(2), []
    for at in range(count):
        seen = np.zeros((1, 1, 1, ROWS), np.float32)
        seen[..., : 3 + at % 6] = 1
        feeds.append({"x": rng.standard_normal((1, HEADS, ROWS, SIZE)).astype(np.float32), "seen": seen})
    return feeds


@pytest.mark.parametrize("low", [float(np.finfo(np.float32).min), -1e9, -1e4])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_leaves_out_and_costs_nothing(form: str, low: float) -> None:
    feeds = _feeds(8)
    made = lowered(_attention(form, low), feeds)
    name = made.model.outputs[-1].name
    worst = min(made.compare(feed)[name].sqnr for feed in feeds)
    assert worst > 30, worst
    made.equals_reference(feeds[0])
