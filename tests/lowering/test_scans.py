"""Steps of a selective scan, as exporters unroll them, move nothing but what is small."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.quantized import lowered, normal
from models.builder import Builder


def scan(steps: int, width: int, states: int) -> Builder:
    """Mamba's recurrence (Gu and Dao, arXiv:2312.00752): `h = exp(t A) h + t B x`, `y = h C`.

    t and x are [1, width, steps], A is [width, 1, states], B and C [1, steps, states], h [1, width, states].
    """
    b = Builder("scan")
    source = b.input("x", [1, steps, 12])
    t, x = (b.node("Transpose", b.linear(source, width), perm=[0, 2, 1]) for _ in range(2))
    rates = b.constant(
        -np.abs(np.random.default_rng(1).normal(1, 0.3, (width, 1, states)).astype(np.float32))
    )
    t = b.node("Sigmoid", t)
    inner, outer = b.integers(1, width, steps, 1), b.integers(1, 1, steps, states)
    t = b.node("Reshape", t, inner)
    decay = b.node("Exp", b.node("Mul", t, rates))
    gain = b.node("Mul", t, b.node("Reshape", b.linear(source, states), outer))
    gain = b.node("Mul", gain, b.node("Reshape", x, inner))
    read = b.linear(source, states)

    def step(value: str, axis: int, index: int, shape: tuple[int, ...]) -> str:
        bounds = (b.integers(number) for number in (index, index + 1, axis, 1))
        return b.node("Reshape", b.node("Slice", value, *bounds), b.integers(*shape))

    h = step(gain, 2, 0, (1, width, states))
    results = []
    for index in range(steps):
        if index:
            kept = b.node("Mul", step(decay, 2, index, (1, width, states)), h)
            h = b.node("Add", kept, step(gain, 2, index, (1, width, states)))
        results.append(b.node("MatMul", h, step(read, 1, index, (1, states, 1))))
    b.output(b.node("Concat", *results, axis=2))
    return b


@settings(max_examples=8, deadline=None)
@given(steps=st.integers(2, 6), width=st.integers(2, 24), states=st.integers(2, 8))
def test_graph_and_reference_agree(steps: int, width: int, states: int) -> None:
    b = scan(steps, width, states)
    feeds = normal(b)
    quantized = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    quantized.equals_reference(feeds[0])
    assert min(found.cosine for found in quantized.compare(feeds[0]).values()) > 0.999


@pytest.mark.parametrize("steps", [4, 8])
def test_states_are_neither_copied_nor_turned(steps: int) -> None:
    b = scan(steps, width=64, states=8)
    quantized = lowered(b.model(), normal(b))
    moves = [json.loads(layer.op_json) for layer in quantized.graph.layers if layer.op == "rearrange"]
    large = [move for move in moves if math.prod(move["dims"]) >= 64 * 8]
    assert all(move["strides"] == [1] for move in large), "a stretch of the tensor, which needs no copy"
