"""Convolutions whose results are joined are one, or take in what follows the Concat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.graphs import Node, array, graph, normalized, operators

IMAGE = {"x": [2, 12, 9, 8]}
STATISTICS = {
    "g": array(10, seed=1),
    "b": array(10, seed=2),
    "m": array(10, seed=3),
    "v": np.abs(array(10, seed=4)) + 0.1,
}


def convolutions(
    widths: list[int], channels: int, group: int = 1, **attributes: Any
) -> tuple[list[Node], dict[str, np.ndarray]]:
    """One convolution c0, c1, ... of so many outputs for each of x0, x1, ..."""
    nodes: list[Node] = []
    constants = {}
    for index, width in enumerate(widths):
        constants[f"w{index}"] = array(width, channels // group, 3, 3, seed=index, scale=0.3)
        nodes.append(("Conv", f"x{index} w{index}", f"c{index}", {"group": group, **attributes}))
    return nodes, constants


def split(*sizes: int) -> tuple[Node, dict[str, np.ndarray]]:
    outputs = " ".join(f"x{index}" for index in range(len(sizes)))
    return ("Split", "x sizes", outputs, {"axis": 1}), {"sizes": np.array(sizes, np.int64)}


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("window", [{}, {"strides": [2, 1], "pads": [1, 0, 2, 1]}, {"dilations": [2, 2]}])
def test_equal_parts_of_the_channels(group: int, window: dict[str, Any]) -> None:
    parts, sizes = split(4, 4, 4)
    nodes, weights = convolutions([8, 8, 8], 4, group, **window)
    made = [parts, *nodes, ("Concat", "c0 c1 c2", "z", {"axis": 1})]
    model = normalized(graph(made, IMAGE, ["z"], sizes | weights))
    assert operators(model) == {"Conv": 1}
    assert next(iter(model.model.graph)).attributes.get_int("group", 1) == 3 * group


@settings(max_examples=15, deadline=None)
@given(widths=st.lists(st.integers(1, 7), min_size=2, max_size=4), biased=st.integers(0, 15))
def test_several_of_one_value(widths: list[int], biased: int) -> None:
    nodes, weights = convolutions(widths, 12)
    made: list[Node] = []
    for index, (operator, inputs, output, attributes) in enumerate(nodes):
        bias = f" o{index}" if biased >> index & 1 else ""
        weights[f"o{index}"] = array(widths[index], seed=9 + index)
        made.append((operator, inputs.replace(f"x{index}", "x") + bias, output, attributes))
    made.append(("Concat", " ".join(f"c{index}" for index in range(len(widths))), "z", {"axis": -3}))
    assert operators(normalized(graph(made, IMAGE, ["z"], weights))) == {"Conv": 1}


def test_parts_that_are_no_groups_stay() -> None:
    for sizes, widths in [((6, 6), [3, 4]), ((8, 4), [4, 2])]:
        parts, constants = split(*sizes)
        nodes: list[Node] = [parts]
        for index, (size, width) in enumerate(zip(sizes, widths, strict=True)):
            constants[f"w{index}"] = array(width, size, 3, 3, seed=index)
            nodes.append(("Conv", f"x{index} w{index}", f"c{index}"))
        nodes.append(("Concat", "c0 c1", "z", {"axis": 1}))
        assert operators(normalized(graph(nodes, IMAGE, ["z"], constants)))["Conv"] == 2


def test_parts_out_of_order_or_read_elsewhere_stay() -> None:
    parts, sizes = split(6, 6)
    nodes, weights = convolutions([4, 4], 6)
    constants = sizes | weights
    exchanged = [parts, *nodes, ("Concat", "c1 c0", "z", {"axis": 1})]
    assert operators(normalized(graph(exchanged, IMAGE, ["z"], constants)))["Conv"] == 2
    read = [parts, *nodes, ("Concat", "c0 c1", "z", {"axis": 1}), ("Relu", "c0", "y")]
    assert operators(normalized(graph(read, IMAGE, ["z", "y"], constants)))["Conv"] == 2


def test_different_windows_stay() -> None:
    parts, sizes = split(6, 6)
    constants = sizes | {"w0": array(4, 6, 3, 3), "w1": array(4, 6, 5, 5)}
    nodes: list[Node] = [
        parts,
        ("Conv", "x0 w0", "c0", {"pads": [1, 1, 1, 1]}),
        ("Conv", "x1 w1", "c1", {"pads": [2, 2, 2, 2]}),
        ("Concat", "c0 c1", "z", {"axis": 1}),
    ]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants)))["Conv"] == 2


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "HardSwish", "Elu", ""])
@pytest.mark.feature("IMP-11")
def test_what_follows_the_concat_goes_into_its_branches(activation: str) -> None:
    constants = STATISTICS | {"w0": array(4, 12, 3, 3), "w1": array(6, 12, 5, 5, seed=7), "o1": array(6)}
    nodes: list[Node] = [
        ("Conv", "x w0", "c0", {"pads": [1, 1, 1, 1]}),
        ("Conv", "x w1 o1", "c1", {"pads": [2, 2, 2, 2]}),
        ("Concat", "c0 c1", "joined", {"axis": 1}),
        ("BatchNormalization", "joined g b m v", "n" if activation else "z"),
    ]
    if activation:
        nodes.append((activation, "n", "z"))
    kinds = operators(normalized(graph(nodes, IMAGE, ["z"], constants)))
    assert kinds == {"Conv": 2, "Concat": 1} | ({activation: 2} if activation else {})


def test_a_scale_of_what_is_no_convolution_stays() -> None:
    constants = STATISTICS | {"w0": array(4, 12, 1, 1), "w1": array(6, 12, 1, 1)}
    nodes: list[Node] = [
        ("Conv", "x w0", "c0"),
        ("Conv", "x w1", "c1"),
        ("MaxPool", "c1", "p", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("Concat", "c0 p", "joined", {"axis": 1}),
        ("BatchNormalization", "joined g b m v", "z"),
    ]
    kinds = operators(normalized(graph(nodes, IMAGE, ["z"], constants)))
    assert kinds == {"Conv": 3, "MaxPool": 1, "Concat": 1}  # the third is the scale, channel by channel
