"""What readers take of a product's columns is computed by products of their own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuflow
from frontend.graphs import Node, array, graph, normalized, operators
from tpuflow.errors import ModelError

ROWS = {"x": [2, 5, 16]}
IMAGE = {"x": [2, 6, 4, 5]}


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def widths(model: Any) -> list[int]:
    """Outputs of each product, in order."""
    shapes = [node.outputs[0].shape for node in model.model.graph if node.op_type in {"MatMul", "Conv"}]
    return [shape[1 if len(shape) == 4 else -1] for shape in shapes]


def cut(value: str, axis: int, bounds: list[int]) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Slices s0, s1, ... between the bounds, each an output `z0`, `z1`, ... of another function."""
    nodes: list[Node] = []
    constants = {"axis": integers(axis)}
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        constants |= {f"from{index}": integers(start), f"to{index}": integers(stop)}
        nodes.append(("Slice", f"{value} from{index} to{index} axis", f"s{index}"))
        nodes.append((("Sin", "Cos", "Exp")[index % 3], f"s{index}", f"z{index}"))
    return nodes, constants


@settings(max_examples=20, deadline=None)
@given(
    parts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    biased=st.sampled_from(["", "vector", "scalar"]),
    function=st.sampled_from(["", "LeakyRelu", "Relu"]),
)
@pytest.mark.feature("IMP-15")
def test_whole_passes_of_the_array(parts: list[int], biased: str, function: str) -> None:
    bounds = [128 * sum(parts[:k]) for k in range(len(parts) + 1)]
    columns = bounds[-1] + 128  # the last of which nobody reads
    constants = {"w": array(16, columns, scale=0.2), "b": array(*([] if biased == "scalar" else [columns]))}
    nodes: list[Node] = [("MatMul", "x w", "y")]
    if biased:
        nodes.append(("Add", f"{nodes[-1][2]} b", "biased"))
    if function:
        nodes.append((function, nodes[-1][2], "active"))
    slices, more = cut(nodes[-1][2], 2, bounds)
    outputs = [f"z{index}" for index in range(len(parts))]
    model = normalized(graph([*nodes, *slices], ROWS, outputs, constants | more))
    assert sorted(widths(model)) == sorted(128 * part for part in parts)
    assert "Slice" not in operators(model)


@pytest.mark.parametrize("order", [[2, 0, 3, 1, 4], [2, 3, 0, 4, 1], [0, 1, 3, 2, 4]])
@pytest.mark.feature("IMP-15")
def test_queries_keys_and_values(order: list[int]) -> None:
    constants = {"w": array(16, 288, scale=0.2), "b": array(288), "shape": integers(2, 5, 3, 4, 24)}
    nodes: list[Node] = [
        ("MatMul", "x w", "y"),
        ("Add", "y b", "biased"),
        ("Reshape", "biased shape", "heads"),
        ("Transpose", "heads", "turned", {"perm": order}),
    ]
    slices, more = cut("turned", order.index(2), [0, 1, 2, 3])
    model = normalized(graph([*nodes, *slices], ROWS, ["z0", "z1", "z2"], constants | more))
    assert widths(model) == [96, 96, 96]
    assert "Slice" not in operators(model)


@pytest.mark.feature("IMP-15")
def test_parts_of_every_head() -> None:
    constants = {"w": array(16, 384, scale=0.2), "shape": integers(2, 5, 4, 96)}
    nodes: list[Node] = [
        ("MatMul", "x w", "y"),
        ("Reshape", "y shape", "heads"),
        ("Transpose", "heads", "turned", {"perm": [0, 2, 1, 3]}),
    ]
    slices, more = cut("turned", 3, [0, 32, 64, 96])
    model = normalized(graph([*nodes, *slices], ROWS, ["z0", "z1", "z2"], constants | more))
    assert widths(model) == [128, 128, 128]


@pytest.mark.feature("IMP-15")
def test_axes_of_size_one_around_the_channels() -> None:
    constants = {"w": array(16, 288, scale=0.2)}
    constants |= {"first": integers(10, 1, 1, 3, 96), "second": integers(3, 10, 1, 96)}
    nodes: list[Node] = [
        ("MatMul", "x w", "y"),
        ("Reshape", "y first", "a"),
        ("Transpose", "a", "b", {"perm": [3, 1, 0, 2, 4]}),
        ("Relu", "b", "c"),
        ("Reshape", "c second", "d"),
    ]
    slices, more = cut("d", 0, [0, 1, 3])
    model = normalized(graph([*nodes, *slices], ROWS, ["z0", "z1"], constants | more))
    assert sorted(widths(model)) == [96, 192]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.feature("IMP-15")
def test_channels_of_a_convolution(*, biased: bool) -> None:
    constants = {"w": array(240, 6, 3, 3, scale=0.2), "b": array(240)}
    nodes: list[Node] = [
        ("Conv", "x w b" if biased else "x w", "y", {"pads": [1, 1, 0, 0], "strides": [1, 2]}),
        ("HardSwish", "y", "a"),
    ]
    slices, more = cut("a", 1, [0, 112, 240])
    model = normalized(graph([*nodes, *slices], IMAGE, ["z0", "z1"], constants | more))
    assert sorted(widths(model)) == [112, 128]


@pytest.mark.parametrize(
    ("reader", "bounds", "parts"),
    [
        ("function", [0, 16, 32, 80], [80]),  # three passes in place of one
        ("function", [0, 64, 128], [64, 64]),
        ("long function", [0, 64, 128], [128]),
        ("product", [0, 64, 128], [128]),
        ("product", [0, 192, 384, 576], [192, 192, 192]),
        ("product", [0, 192, 384], [384]),
        ("long function", [0, 96, 192], [192]),  # rows of 128 twice in place of 192
    ],
)
def test_passes_of_the_array_that_parts_may_take(reader: str, bounds: list[int], parts: list[int]) -> None:
    slices, more = cut("y", 2, bounds)
    terms = 300 if reader == "long function" else 16
    constants = {"w": array(terms, bounds[-1], scale=0.1)} | more
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    if reader == "product":
        slices = [node for node in slices if node[0] == "Slice"]
        for index, size in enumerate(sizes):
            constants[f"v{index}"] = array(size, 3, seed=index, scale=0.2)
            slices.append(("MatMul", f"s{index} v{index}", f"z{index}"))
    outputs = [f"z{index}" for index in range(len(sizes))]
    rows = {"x": [2, 5, terms]}
    found = widths(normalized(graph([("MatMul", "x w", "y"), *slices], rows, outputs, constants)))
    assert sorted(width for width in found if width > 3) == parts


@pytest.mark.parametrize("other", ["whole", "overlap", "rows", "output", "weights", "join"])
def test_what_is_read_otherwise_stays(other: str) -> None:
    constants = {
        "w": array(16, 256, scale=0.2),
        "from": integers(64),
        "to": integers(192),
        "one": integers(1),
    }
    nodes: list[Node] = [("MatMul", "x w", "y")]
    outputs = ["z0", "z1"]
    slices, more = cut("y", 2, [0, 128, 256])
    nodes += slices
    if other == "whole":
        nodes.append(("Tanh", "y", "z2"))
    elif other == "overlap":
        nodes += [("Slice", "y from to axis", "s2"), ("Tanh", "s2", "z2")]
    elif other == "rows":
        nodes += [("Slice", "y one to one", "s2"), ("Tanh", "s2", "z2")]
    elif other == "weights":
        nodes += [("Sin", "x", "sine"), ("MatMul", "sine w", "z2")]
    elif other == "join":
        nodes.append(("Concat", "s1 z0 s0", "z2", {"axis": 2}))
    outputs.append("y" if other == "output" else "z2")
    model = normalized(graph(nodes, ROWS, outputs, constants | more))
    assert widths(model) == [256, 256] if other == "weights" else [256]


def test_many_parts_stay() -> None:
    """A look at every part for each of them would take time that grows as their square."""
    count = 64
    slices, more = cut("y", 2, [128 * k for k in range(count + 1)])
    constants = {"w": array(4, 128 * count, scale=0.2)} | more
    outputs = [f"z{index}" for index in range(count)]
    model = normalized(graph([("MatMul", "x w", "y"), *slices], {"x": [1, 2, 4]}, outputs, constants))
    assert widths(model) == [128 * count]


@pytest.mark.parametrize("form", ["parts", "joined"])
def test_a_bias_of_another_length_is_told_as_the_models_mistake(form: str) -> None:
    bounds = [0, 128, 256]
    slices, more = cut("y", 1, bounds)
    constants = {"w": array(256, 6, 1, 1), "b": array(7), "v": array(4, 6, 1, 1)} | more
    nodes: list[Node] = [("Conv", "x w b", "y"), *slices]
    if form == "joined":
        nodes = [("Conv", "x v b", "a"), ("Conv", "x v", "c"), ("Concat", "a c", "z0", {"axis": 1})]
    outputs = ["z0", "z1"] if form == "parts" else ["z0"]
    with pytest.raises(ModelError, match="Conv, input 2"):
        tpuflow.load(graph(nodes, IMAGE, outputs, constants))
