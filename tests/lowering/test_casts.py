"""Casts of integers: what saturates, what wraps around, what is left to the host."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from lowering.quantized import Quantized, lowered
from models.builder import Builder
from tpuflow.errors import UnsupportedModelError
from tpuflow.execution.levels import GraphLevel

NARROW = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}
VALUES = np.array([[-40000.7, -300.4, -129.5, -2.6, 1.7, 130.2, 300.9, 70000.1]], np.float32)


def chain(*kinds: int) -> Builder:
    """Numbers that become integers of some types in turn, and numbers again."""
    b = Builder("cast")
    value = b.input("x", [1, 8])
    for kind in (*kinds, TensorProto.FLOAT):
        value = b.node("Cast", value, to=kind)
    b.output(value)
    return b


def integers(*kinds: int) -> Quantized:
    return lowered(chain(*kinds).model(), [{"x": VALUES}], {"quantize": {"dtype": "float32"}})


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.feature("NUM-38")
def test_casts_of_numbers_saturate(kind: str) -> None:
    made = integers(NARROW[kind])
    made.equals_reference({"x": VALUES})
    (found,) = GraphLevel(made.graph).run({"x": VALUES}).values()
    limits = np.iinfo(kind)
    assert np.array_equal(found, np.clip(np.trunc(VALUES), limits.min, limits.max))


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in itertools.permutations(NARROW, 2) if pair[0].endswith("t8")]
)
@pytest.mark.feature("NUM-38")
def test_integers_of_8_bits_keep_their_low_bits(source: str, target: str) -> None:
    made = integers(NARROW[source], NARROW[target])
    made.equals_reference({"x": VALUES})
    (found,) = GraphLevel(made.graph).run({"x": VALUES}).values()
    limits = np.iinfo(source)
    stored = np.clip(np.trunc(VALUES), limits.min, limits.max).astype(source)
    assert np.array_equal(found, stored.astype(target).astype(np.float32))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (TensorProto.INT16, TensorProto.INT8),
        (TensorProto.UINT16, TensorProto.INT16),
        (TensorProto.INT32, TensorProto.UINT8),
    ],
)
@pytest.mark.feature("NUM-38")
def test_wider_integers_that_may_not_fit_are_the_hosts(source: int, target: int) -> None:
    with pytest.raises(UnsupportedModelError, match="lose their high bits"):
        integers(source, target)


@pytest.mark.feature("NUM-38")
def test_places_along_an_axis_fit_where_it_is_short() -> None:
    for channels, fits in ((200, True), (300, False)):
        b = Builder("mask")
        x = b.input("x", [1, channels, 2, 3])
        b.output(b.node("Cast", b.node("ArgMax", b.node("Relu", x), axis=1), to=TensorProto.UINT8))
        feed = {"x": np.random.default_rng(0).standard_normal((1, channels, 2, 3)).astype(np.float32)}
        if not fits:
            with pytest.raises(UnsupportedModelError, match="lose their high bits"):
                lowered(b.model(), [feed], {"quantize": {"dtype": "float32"}})
            continue
        (found,) = (
            GraphLevel(lowered(b.model(), [feed], {"quantize": {"dtype": "float32"}}).graph)
            .run(feed)
            .values()
        )
        session = onnxruntime.InferenceSession(b.model().SerializeToString())
        assert np.array_equal(found, session.run(None, feed)[0])
