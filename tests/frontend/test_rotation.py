"""Rotations of pairs: signs in the table of sines, halves exchanged by a view, the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import tpuflow
from frontend.decoders import decoder
from frontend.graphs import Node, array, graph, normalized, operators
from tpuflow.frontend import FloatModel, FloatSession, specialize
from tpuflow.lowering.int16_values import int16_values

POSITIONS = 12


def rotated(
    nodes: list[Node], *, shape: list[int], width: int, more: dict[str, Any] | None = None
) -> tuple[onnx.ModelProto, FloatModel]:
    """`nodes` make `y` of `x` and of sines `s` of positions `p` below a bound."""
    angles: list[Node] = [
        ("Cast", "p", "f", {"to": TensorProto.FLOAT}),
        ("Mul", "f w", "a"),
        ("Sin", "a", "s"),
    ]
    constants: dict[str, Any] = {"w": np.linspace(0.1, 1.3, width, dtype=np.float32)} | {
        name: np.array([number])
        for name, number in (("zero", 0), ("half", width // 2), ("end", width), ("last", -1))
    }
    constants |= more or {}
    proto = graph(
        [*angles, *nodes], {"x": shape, "p": [1, 1]}, ["y"], constants, types={"p": TensorProto.INT64}
    )
    model = ir.from_proto(proto)
    for value in model.graph.inputs:
        if value.name == "p":
            value.metadata_props["tpuflow.bound"] = str(POSITIONS)
    return proto, tpuflow.load(model)


def compared(proto: onnx.ModelProto, loaded: FloatModel, shape: list[int]) -> None:
    before, after = FloatSession(proto), FloatSession(loaded.model)
    for position in range(POSITIONS):
        feed = {"x": array(*shape, seed=position), "p": np.array([[position]])}
        np.testing.assert_allclose(after.run(feed)["y"], before.run(feed)["y"], atol=1e-6)


HALVES: list[Node] = [
    ("Slice", "x zero half last", "b"),
    ("Slice", "x half end last", "c"),
    ("Neg", "c", "n"),
]


def test_constant_sines_take_the_signs() -> None:
    constants = {
        name: np.array([number]) for name, number in (("zero", 0), ("half", 4), ("end", 8), ("last", -1))
    }
    sines = np.sin(np.linspace(-2.0, 2.0, 24, dtype=np.float32)).reshape(3, 1, 8)
    nodes: list[Node] = [*HALVES, ("Concat", "n b", "r", {"axis": -1}), ("Mul", "r s", "y")]
    proto = graph(nodes, {"x": [1, 3, 2, 8]}, ["y"], {**constants, "s": sines})
    loaded = tpuflow.load(ir.from_proto(proto))
    assert not {"Neg", "Concat"} & set(operators(loaded))
    feed = {"x": array(1, 3, 2, 8, seed=1)}
    np.testing.assert_array_equal(
        FloatSession(loaded.model).run(feed)["y"], FloatSession(proto).run(feed)["y"]
    )


@pytest.mark.parametrize("constant", [False, True])
def test_rotations_of_neighbors_need_no_negation(*, constant: bool) -> None:
    shape = [1, 3, 2, 8]
    pairs: list[Node] = [
        ("Slice", "x zero end last two", "b"),
        ("Slice", "x one end last two", "c"),
        ("Neg", "c", "n"),
        ("Unsqueeze", "n last", "u"),
        ("Unsqueeze", "b last", "v"),
        ("Concat", "u v", "r", {"axis": -1}),
        ("Reshape", "r whole", "g"),
        ("Mul", "g w" if constant else "g s", "m"),
        ("Add", "m s", "y"),
    ]
    numbers = {"one": np.array([1]), "two": np.array([2]), "whole": np.array(shape)}
    proto, loaded = rotated(pairs, shape=shape, width=8, more=numbers)
    assert not {"Neg", "Concat"} & set(operators(loaded))
    compared(proto, loaded, shape)


@pytest.mark.parametrize(
    ("first", "second", "views"), [(0, 1, False), (1, 0, True), (1, 1, False), (2, 0, False)]
)
def test_only_exchanged_neighbors_become_a_view(first: int, second: int, *, views: bool) -> None:
    numbers = {"last": np.array([-1]), "two": np.array([2]), "end": np.array([8]), "ones": np.array([8, 9])}
    starts = {"a": np.array([first]), "b": np.array([second])}
    ends = {"c": np.array([first + 6]), "d": np.array([second + 6])}
    nodes: list[Node] = [
        ("Slice", "x a c last two", "p"),
        ("Slice", "x b d last two", "q"),
        ("Unsqueeze", "p last", "u"),
        ("Unsqueeze", "q last", "v"),
        ("Concat", "u v", "z", {"axis": -1}),
        ("Relu", "z", "y"),
    ]
    proto = graph(nodes, {"x": [1, 2, 8 if first == 2 else 6]}, ["y"], {**numbers, **starts, **ends})
    loaded = tpuflow.load(ir.from_proto(proto))
    assert (operators(loaded)["Concat"] == 0) == views
    feed = {"x": array(1, 2, 8 if first == 2 else 6, seed=3)}
    np.testing.assert_array_equal(
        FloatSession(loaded.model).run(feed)["y"], FloatSession(proto).run(feed)["y"]
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_half_rotations_need_no_negation(*, swapped: bool) -> None:
    shape = [1, 3, 1, 8]
    nodes = [*HALVES, ("Concat", "n b", "r", {"axis": -1}), ("Mul", "s r" if swapped else "r s", "y")]
    proto, loaded = rotated(nodes, shape=shape, width=8)
    assert not {"Neg", "Concat", "Sin"} & set(operators(loaded))
    compared(proto, loaded, shape)


@pytest.mark.parametrize(("width", "products"), [(128, 2), (256, 2), (126, 1), (64, 1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_wide_halves_are_multiplied_where_they_lie(width: int, products: int, *, swapped: bool) -> None:
    """A half of 64 channels of 16 bits is a word of the cache; narrower ones are moved."""
    shape = [1, 3, 2, width]
    nodes = [*HALVES, ("Concat", "n b", "r", {"axis": -1}), ("Mul", "s r" if swapped else "r s", "y")]
    proto, loaded = rotated(nodes, shape=shape, width=width)
    found = operators(loaded)
    assert (found["Neg"], found["Mul"], found["Concat"]) == (0, products, products - 1)
    compared(proto, loaded, shape)


def test_products_of_halves_have_sixteen_bits_as_one_product_has() -> None:
    nodes = [*HALVES, ("Concat", "n b", "r", {"axis": -1}), ("Mul", "r s", "y")]
    _, loaded = rotated(nodes, shape=[1, 3, 2, 128], width=128)
    wide = int16_values(loaded.model.graph, norms=True, softmax=True)
    made = [node for node in loaded.model.graph if node.op_type in {"Mul", "Concat"}]
    assert [node.op_type for node in made] == ["Mul", "Mul", "Concat"]
    assert all(node.outputs[0] in wide for node in made)


def test_halves_that_others_read_are_exchanged_once() -> None:
    shape = [1, 3, 2, 128]
    nodes: list[Node] = [
        *HALVES,
        ("Concat", "c b", "r", {"axis": -1}),
        ("Mul", "r s", "m"),
        ("Add", "m r", "y"),
    ]
    proto, loaded = rotated(nodes, shape=shape, width=128)
    assert operators(loaded)["Mul"] == 1
    compared(proto, loaded, shape)


def test_parts_of_several_tensors_keep_their_concatenation() -> None:
    shape = [1, 3, 1, 8]
    nodes: list[Node] = [
        *HALVES,
        ("Relu", "b", "e"),
        ("Concat", "n e", "r", {"axis": 3}),
        ("Mul", "r s", "y"),
    ]
    proto, loaded = rotated(nodes, shape=shape, width=8)
    found = operators(loaded)
    assert (found["Neg"], found["Concat"]) == (0, 1)
    compared(proto, loaded, shape)


@pytest.mark.parametrize(
    ("nodes", "negations"),
    [
        # Something else reads what is negated.
        ([*HALVES, ("Concat", "n b", "r", {"axis": 3}), ("Mul", "r s", "m"), ("Add", "m r", "y")], 1),
        # Of a computed factor no table is made.
        ([*HALVES, ("Concat", "n b", "r", {"axis": 3}), ("Mul", "r x", "m"), ("Add", "m s", "y")], 1),
        # The order of the halves stays.
        ([("Neg", "x", "n"), ("Mul", "n s", "y")], 1),
    ],
)
def test_other_negations_stay(nodes: list[Node], negations: int) -> None:
    shape = [1, 3, 1, 8]
    proto, loaded = rotated(nodes, shape=shape, width=8)
    assert operators(loaded)["Neg"] == negations
    compared(proto, loaded, shape)


@pytest.mark.parametrize(
    ("second", "first", "views"),
    [
        ([4, 8], [0, 4], True),
        ([5, 8], [0, 5], False),
        ([0, 4], [4, 8], False),
        ([4, 8], [4, 8], False),
    ],
)
def test_only_exchanged_halves_become_a_view(second: list[int], first: list[int], *, views: bool) -> None:
    constants = {name: np.array([number]) for name, number in zip("abcd", (*second, *first), strict=True)}
    nodes: list[Node] = [
        ("Slice", "x a b axis", "u"),
        ("Slice", "x c d axis", "v"),
        ("Concat", "u v", "z", {"axis": 2}),
        ("Relu", "z", "y"),
    ]
    model = graph(nodes, {"x": [1, 2, 8, 3]}, ["y"], constants | {"axis": np.array([2])})
    found = operators(normalized(model))
    assert (found["Concat"] == 0) == views


@pytest.mark.parametrize("style", ["exported", "contributed"])
@pytest.mark.parametrize("sequence", [1, 3])
def test_decoders_negate_nothing(style: str, sequence: int) -> None:
    loaded = tpuflow.load(specialize(decoder(style, 2), sequence, 16))
    found = operators(loaded)
    assert found["Neg"] == 0
    # New rows and, as exported, repeated heads of two caches in each layer, and no halves.
    assert found["Concat"] == (8 if style == "exported" else 4)
    if style == "exported":
        # Tokens, cosines, sines and masks: what all layers rotate by is looked up once.
        assert found["Gather"] == 4
