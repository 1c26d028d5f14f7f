"""Attention between channels and linear attention take all heads at once where that costs no passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuflow
from frontend.graphs import Node, array, graph, normalized, operators
from tpuflow.config import Config
from tpuflow.io.samples import Samples

Model = Any


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def products(model: Model) -> list[list[int]]:
    """The shapes of products of two computed operands, in order."""
    nodes = [node for node in model.model.graph if node.op_type == "MatMul"]
    return [list(node.outputs[0].shape) for node in nodes if node.inputs[1].const_value is None]


def parts(heads: int, width: int, tokens: int, order: list[int]) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Queries, keys and values of products of x, [batch, tokens, heads width] with axes in an order."""
    nodes: list[Node] = []
    constants = {"shape": integers(2, tokens, heads, width)}
    for name in "qkv":
        constants[f"w{name}"] = array(12, heads * width, scale=0.4)
        nodes += [
            ("MatMul", f"x w{name}", f"{name}0"),
            ("Reshape", f"{name}0 shape", f"{name}1"),
            ("Transpose", f"{name}1", name, {"perm": order}),
        ]
    return nodes, constants


def attention(
    heads: int, width: int, tokens: int, *, factor: str = "", axis: int = -1
) -> tuple[list[Node], dict[str, np.ndarray]]:
    """As in XCiT: channels of a head attend to each other."""
    nodes, constants = parts(heads, width, tokens, [0, 2, 3, 1])
    nodes += [("Transpose", "k", "kt", {"perm": [0, 1, 3, 2]}), ("MatMul", "q kt", "s")]
    if factor:
        constants["factor"] = array(*{"head": [heads, 1, 1], "row": [width, 1], "one": []}[factor])
        nodes.append(("Mul", "s factor", "scaled"))
    nodes += [
        ("Softmax", nodes[-1][2], "p", {"axis": axis}),
        ("MatMul", "p v", "o"),
        ("Transpose", "o", "t", {"perm": [0, 3, 1, 2]}),
        ("Reshape", "t merged", "y"),
    ]
    return nodes, constants | {"merged": integers(2, tokens, heads * width)}


def linear(heads: int, width: int, tokens: int) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Keys times values first, then queries times that."""
    nodes, constants = parts(heads, width, tokens, [0, 2, 1, 3])
    nodes += [
        ("Softmax", "k", "shares", {"axis": 2}),
        ("Transpose", "shares", "kt", {"perm": [0, 1, 3, 2]}),
        ("MatMul", "kt v", "s"),
        ("MatMul", "q s", "o"),
        ("Transpose", "o", "t", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "t merged", "y"),
    ]
    return nodes, constants | {"merged": integers(2, tokens, heads * width)}


@settings(max_examples=20, deadline=None)
@given(
    heads=st.integers(2, 4),
    width=st.integers(2, 32),
    tokens=st.integers(2, 40),
    factor=st.sampled_from(["", "head", "one"]),
)
@pytest.mark.feature("IMP-14")
def test_channels_attend_to_those_of_their_head(heads: int, width: int, tokens: int, factor: str) -> None:
    nodes, constants = attention(heads, width, tokens, factor=factor)
    model = normalized(graph(nodes, {"x": [2, tokens, 12]}, ["y"], constants))
    channels = heads * width
    # Values and sums are turned where they are less than what the softmax makes.
    sums = [channels, tokens] if channels > 2 * tokens else [tokens, channels]
    assert products(model) == [[2, channels, channels], [2, *sums]]


@settings(max_examples=20, deadline=None)
@given(heads=st.integers(2, 4), width=st.integers(2, 32), tokens=st.integers(2, 40))
@pytest.mark.feature("IMP-14")
def test_linear_attention(heads: int, width: int, tokens: int) -> None:
    nodes, constants = linear(heads, width, tokens)
    model = normalized(graph(nodes, {"x": [2, tokens, 12]}, ["y"], constants))
    channels = heads * width
    assert products(model) == [[2, channels, channels], [2, tokens, channels]]


@pytest.mark.feature("IMP-14")
def test_images_whose_channels_are_heads() -> None:
    """As in EfficientViT: parts of every head's channels, and a column of ones behind the values."""
    constants = {
        "w": array(96, 8, 1, 1),
        "u": array(96, 96, 1, 1, scale=0.1),
        "shape": integers(2, 8, 24, 20),
    }
    constants |= {"pads": integers(0, 0, 0, 0, 0, 0, 0, 1), "one": np.array(1.0, np.float32)}
    constants |= {"axis": integers(3), "merged": integers(2, 64, 4, 5)}
    nodes: list[Node] = [
        ("Conv", "x w", "first"),
        ("Conv", "first u", "second"),
        ("Concat", "first second", "both", {"axis": 1}),
        ("Reshape", "both shape", "heads"),
        ("Transpose", "heads", "tokens", {"perm": [0, 1, 3, 2]}),
    ]
    for index, name in enumerate("qkv"):
        constants |= {f"{name}a": integers(8 * index), f"{name}b": integers(8 * index + 8)}
        nodes.append(("Slice", f"tokens {name}a {name}b axis", f"{name}0"))
    constants |= {"end": integers(9)}
    nodes += [
        ("Relu", "q0", "q"),
        ("Relu", "k0", "k"),
        ("Pad", "v0 pads one", "v"),
        ("Transpose", "k", "kt", {"perm": [0, 1, 3, 2]}),
        ("MatMul", "kt v", "s"),
        ("MatMul", "q s", "o"),
        ("Slice", "o qa qb axis", "sums"),
        ("Slice", "o qb end axis", "weights"),
        ("Add", "weights one", "positive"),
        ("Div", "sums positive", "means"),
        ("Transpose", "means", "turned", {"perm": [0, 1, 3, 2]}),
        ("Reshape", "turned merged", "y"),
    ]
    model = normalized(graph(nodes, {"x": [2, 8, 4, 5]}, ["y"], constants))
    assert products(model) == [[2, 64, 72], [2, 20, 72]]


@pytest.mark.parametrize(
    ("heads", "width", "tokens", "options"),
    [
        pytest.param(8, 64, 16, {}, id="more passes than head by head"),
        pytest.param(1, 64, 16, {}, id="one head"),
        pytest.param(4, 32, 16, {"axis": 2}, id="shares of the other axis"),
        pytest.param(4, 32, 16, {"factor": "row"}, id="a factor for each channel"),
    ],
)
@pytest.mark.feature("IMP-14")
def test_heads_stay_apart(heads: int, width: int, tokens: int, options: dict[str, Any]) -> None:
    nodes, constants = attention(heads, width, tokens, **options)
    model = normalized(graph(nodes, {"x": [2, tokens, 12]}, ["y"], constants))
    assert [shape[-2:] for shape in products(model)] == [[width, width], [width, tokens]]


@pytest.mark.parametrize("kept", ["s", "p"])
@pytest.mark.feature("IMP-14")
def test_what_others_read_stays(kept: str) -> None:
    nodes, constants = attention(4, 16, 9)
    model = normalized(graph(nodes, {"x": [2, 9, 12]}, ["y", kept], constants))
    assert [2, 64, 64] not in products(model)


@pytest.mark.feature("IMP-14")
def test_attention_between_tokens_stays() -> None:
    nodes, constants = parts(4, 16, 9, [0, 2, 1, 3])
    nodes += [
        ("Transpose", "k", "kt", {"perm": [0, 1, 3, 2]}),
        ("MatMul", "q kt", "s"),
        ("Softmax", "s", "p", {"axis": -1}),
        ("MatMul", "p v", "y"),
    ]
    model = normalized(graph(nodes, {"x": [2, 9, 12]}, ["y"], constants))
    assert [shape[-2:] for shape in products(model)] == [[9, 9], [9, 16]]


@pytest.mark.feature("IMP-14")
def test_heads_that_do_not_lie_in_channels_stay() -> None:
    """Whole matrices that are inputs: nothing has to be parted."""
    shapes = {"q": [2, 4, 16, 9], "kt": [2, 4, 9, 16], "v": [2, 4, 16, 9]}
    nodes: list[Node] = [("MatMul", "q kt", "s"), ("Softmax", "s", "p", {"axis": -1}), ("MatMul", "p v", "y")]
    model = normalized(graph(nodes, shapes, ["y"], {}))
    assert "Reshape" not in operators(model)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int16"])
@pytest.mark.feature("IMP-14")
def test_a_product_of_two_heads_that_overflows_stays_outside(dtype: str) -> None:
    """Keys of one head and values of another are large: infinity in half precision, in no own product."""
    nodes, constants = linear(4, 16, 40)
    nodes = [node for node in nodes if node[0] != "Softmax"]
    nodes = [("Transpose", "k", "kt", {"perm": [0, 1, 3, 2]}) if node[2] == "kt" else node for node in nodes]
    head = np.repeat(np.arange(4), 16)
    constants["wk"] = constants["wk"] * np.select([head == 0, head == 1], [3e3, 1e-3], 1).astype(np.float32)
    constants["wv"] = constants["wv"] * np.select([head == 0, head == 1], [1e-3, 3e3], 1).astype(np.float32)
    model = tpuflow.load(graph(nodes, {"x": [2, 40, 12]}, ["y"], constants))
    assert products(model) == [[2, 64, 64], [2, 40, 64]]
    config = Config.model_validate({"quantize": {"dtype": dtype}})
    feed = {"x": np.random.default_rng(0).standard_normal((2, 40, 12)).astype(np.float32)}
    statistics = Samples.of_feeds([feed], model.inputs)
    quantized = tpuflow.quantize(model, tpuflow.calibrate(model, statistics, config), config)
    found = np.asarray(tpuflow.simulate(tpuflow.compile(quantized), feed).outputs["y"])
    assert np.all(np.isfinite(found))
