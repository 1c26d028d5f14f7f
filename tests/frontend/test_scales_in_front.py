"""Scales and shifts per channel in front of a convolution or a product disappear into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.graphs import Node, array, graph, normalized, operators

STATISTICS = {
    "g": array(6, seed=1),
    "b": array(6, seed=2),
    "m": array(6, seed=3),
    "v": np.abs(array(6, seed=4)) + 0.1,
}
NORMALIZED: Node = ("BatchNormalization", "x g b m v", "n")
IMAGE = {"x": [2, 6, 7, 8]}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.feature("IMP-11")
def test_batch_normalization_before_a_convolution(group: int, *, biased: bool) -> None:
    constants = STATISTICS | {"w": array(12, 6 // group, 3, 2)} | ({"c": array(12)} if biased else {})
    nodes = [NORMALIZED, ("Conv", "n w c" if biased else "n w", "z", {"group": group, "strides": [2, 1]})]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants))) == {"Conv": 1}


@pytest.mark.parametrize("pads", [{"pads": [0, 0, 1, 0]}, {"auto_pad": "SAME_UPPER"}])
@pytest.mark.feature("IMP-11")
def test_what_is_padded_has_no_shift(pads: dict[str, Any]) -> None:
    nodes = [NORMALIZED, ("Conv", "n w", "z", pads)]
    constants = STATISTICS | {"w": array(4, 6, 3, 3)}
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants))) == {"Conv": 2}
    without = constants | {"b": np.zeros(6, "f"), "m": np.zeros(6, "f")}
    assert operators(normalized(graph(nodes, IMAGE, ["z"], without))) == {"Conv": 1}


@pytest.mark.feature("IMP-11")
def test_what_others_read_stays() -> None:
    nodes = [NORMALIZED, ("Conv", "n w", "z"), ("Relu", "n", "y")]
    constants = STATISTICS | {"w": array(4, 6, 3, 3)}
    assert operators(normalized(graph(nodes, IMAGE, ["z", "y"], constants)))["Conv"] == 2


@settings(max_examples=20, deadline=None)
@given(
    operations=st.lists(st.sampled_from(["Add", "Sub", "Mul", "Div"]), min_size=1, max_size=3),
    one=st.booleans(),
)
@pytest.mark.feature("IMP-12")
def test_any_scales_and_shifts_before_a_product(operations: list[str], *, one: bool) -> None:
    nodes: list[Node] = []
    constants: dict[str, Any] = {"w": array(8, 5, scale=0.3)}
    value = "x"
    for index, operation in enumerate(operations):
        constants[f"c{index}"] = np.abs(array(1 if one else 8, seed=index + 1)) + 0.5
        nodes.append((operation, f"{value} c{index}", f"y{index}"))
        value = f"y{index}"
    nodes.append(("MatMul", f"{value} w", "z"))
    kinds = operators(normalized(graph(nodes, {"x": [2, 3, 8]}, ["z"], constants)))
    assert kinds == {"MatMul": 1} | ({"Add": 1} if {"Add", "Sub"} & {*operations} else {})
