"""Truth values at run time: comparisons, connectives and choices, in codes and in floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder

if TYPE_CHECKING:
    from collections.abc import Callable

    Made = Callable[[Builder, str, str], str]

DTYPES = {"int8": 20.0, "int16": 50.0, "float16": 45.0, "float32": 100.0}


def network(make: Made, dtype: str) -> Quantized:
    b = Builder("logic")
    b.output(make(b, b.input("x", [1, 3, 4, 5]), b.input("y", [1, 3, 4, 5])))
    feeds = normal(b, 3)
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype}})
    for found in made.compare(feeds[0]).values():
        assert found.sqnr > DTYPES[dtype]
    made.equals_reference(feeds[1])
    return made


def kinked(b: Builder, x: str, condition: str) -> str:
    """Continuous where the condition changes at `x = 0`, so that a rounded comparison does no harm."""
    return b.node("Where", condition, x, b.node("Mul", x, b.constant(np.array(0.25, np.float32))))


ZERO = np.zeros(1, np.float32)

CHOICES: dict[str, Made] = {
    "greater": lambda b, x, _: kinked(b, x, b.node("Greater", x, b.constant(ZERO))),
    "less or equal": lambda b, x, _: kinked(b, x, b.node("LessOrEqual", x, b.constant(ZERO))),
    "larger": lambda b, x, y: b.node("Where", b.node("GreaterOrEqual", x, y), x, y),
    "not": lambda b, x, _: kinked(b, x, b.node("Not", b.node("Less", x, b.constant(ZERO)))),
    "and": lambda b, x, y: b.node(
        "Where",
        b.node("And", b.node("Less", x, y), b.node("Less", x, b.node("Neg", y))),
        x,
        b.node("Min", y, b.node("Neg", y)),
    ),
    "or": lambda b, x, y: b.node(
        "Where",
        b.node("Or", b.node("Less", x, y), b.node("Less", x, b.node("Neg", y))),
        b.node("Max", x, b.node("Abs", y)),
        b.node("Max", x, y),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CHOICES)
def test_choices_by_computed_conditions(name: str, dtype: str) -> None:
    assert "select" in network(CHOICES[name], dtype).operators


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_a_condition_broadcasts(dtype: str) -> None:
    def make(b: Builder, x: str, y: str) -> str:
        mean = b.node("ReduceMean", y, axes=[2, 3], keepdims=1)
        gate = b.node("Less", mean, b.constant(np.full((1, 3, 1, 1), -9, np.float32)))
        return b.node("Where", gate, b.node("Neg", x), x)

    network(make, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_truths_become_numbers(dtype: str) -> None:
    def make(b: Builder, x: str, _: str) -> str:
        positive = b.node("Less", b.constant(ZERO), x)
        return b.node("Mul", x, b.node("Cast", positive, to=TensorProto.FLOAT))

    network(make, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_networks_may_return_truths(dtype: str) -> None:
    b = Builder("truths")
    x = b.input("x", [2, 30])
    b.output(b.node("Not", b.node("Greater", x, b.constant(np.array([0.5], np.float32)))))
    feeds: list[dict[str, Any]] = [{"x": np.tile(np.array([[-1.0, 0.0, 1.0]], np.float32), (2, 10))}]
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype}})
    (found,) = made.run(feeds[0]).values()
    np.testing.assert_array_equal(found, feeds[0]["x"] <= 0.5)
