"""Rewrites of operators that move elements, shapes computed at run time, and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from frontend.graphs import Node, array, graph, integers, normalized, operators

X = {"x": [2, 3, 4, 5]}
CASES: dict[str, tuple[list[Node], dict[str, Any], dict[str, int]]] = {
    "flatten": ([("Flatten", "x", "z", {"axis": 2})], {}, {"Reshape": 1}),
    "reshape with 0 and -1": ([("Reshape", "x s", "z")], {"s": integers(0, -1, 5)}, {"Reshape": 1}),
    "reshapes": (
        [("Flatten", "x", "a"), ("Reshape", "a s", "b"), ("Neg", "b", "c"), ("Reshape", "c t", "z")],
        {"s": integers(6, 20), "t": integers(2, 3, 4, 5)},
        {"Reshape": 2, "Neg": 1},
    ),
    "reshape to the same": (
        [("Reshape", "x s", "a"), ("Neg", "a", "z")],
        {"s": integers(2, 3, 4, -1)},
        {"Neg": 1},
    ),
    "transposes that cancel": (
        [("Transpose", "x", "a"), ("Transpose", "a", "b"), ("Neg", "b", "z")],
        {},
        {"Neg": 1},
    ),
    "transposes in sequence": (
        [("Transpose", "x", "a", {"perm": [0, 2, 3, 1]}), ("Transpose", "a", "z", {"perm": [0, 2, 3, 1]})],
        {},
        {"Transpose": 1},
    ),
    "transpose of a transpose that ends the model": (
        [("Transpose", "x", "a", {"perm": [0, 2, 3, 1]}), ("Transpose", "a", "z", {"perm": [0, 3, 1, 2]})],
        {},
        {"Reshape": 1},
    ),
    "gather one": ([("Gather", "x i", "z", {"axis": 2})], {"i": np.int64(-1)}, {"Slice": 1, "Reshape": 1}),
    "gather a range": ([("Gather", "x i", "z", {"axis": -1})], {"i": integers(0, 2, 4)}, {"Slice": 1}),
    "gather some": ([("Gather", "x i", "z", {"axis": -1})], {"i": integers(3, -5, 1)}, {"Gather": 1}),
    "gather a matrix": (
        [("Gather", "x i", "z", {"axis": 1})],
        {"i": np.array([[2, 0], [1, 1]])},
        {"Gather": 1, "Reshape": 1},
    ),
    "gather backwards": ([("Gather", "x i", "z", {"axis": 1})], {"i": integers(2, 1, 0)}, {"Gather": 1}),
    "slice": (
        [("Slice", "x s e a t", "z")],
        {
            "s": integers(-2, 4, 0),
            "e": integers(99, -99, 2),
            "a": integers(2, -1, 1),
            "t": integers(1, -2, 1),
        },
        {"Slice": 1},
    ),
    "slice of everything": (
        [("Slice", "x s e", "a"), ("Neg", "a", "z")],
        {"s": integers(0, -3), "e": integers(2, 2**62)},
        {"Neg": 1},
    ),
    "concat of one": ([("Concat", "x", "a", {"axis": 1}), ("Neg", "a", "z")], {}, {"Neg": 1}),
    "concat with nothing": (
        [("Concat", "x n", "a", {"axis": 1}), ("Neg", "a", "z")],
        {"n": np.zeros((2, 0, 4, 5), np.float32)},
        {"Neg": 1},
    ),
    "concat from the back": ([("Concat", "x x", "z", {"axis": -1})], {}, {"Concat": 1}),
    "expand that broadcasts": ([("Expand", "x s", "z")], {"s": integers(3, 1, 1, 1, 1)}, {"Expand": 1}),
    "expand without effect": ([("Expand", "x s", "a"), ("Neg", "a", "z")], {"s": integers(4, 1)}, {"Neg": 1}),
    "expand before an addition": (
        [("ReduceMax", "x", "m", {"axes": [1]}), ("Expand", "m s", "e"), ("Add", "x e", "z")],
        {"s": integers(2, 3, 4, 5)},
        {"ReduceMax": 1, "Add": 1},
    ),
    "expand by leading axes before a choice": (
        [("Expand", "x s", "e"), ("Where", "c e k", "z")],
        {"s": integers(1, 1, 2, 3, 4, 5), "c": array(2, 1, 4, 5) > 0, "k": -1e9},
        {"Reshape": 1, "Where": 1},
    ),
    "expand by more than its reader": (
        [("Expand", "x s", "e"), ("Where", "c e k", "z")],
        {"s": integers(2, 2, 3, 4, 5), "c": array(4, 5) > 0, "k": -1e9},
        {"Expand": 1, "Where": 1},
    ),
    "tile": ([("Tile", "x r", "z")], {"r": integers(1, 2, 1, 3)}, {"Tile": 1}),
    "tile once": ([("Tile", "x r", "a"), ("Neg", "a", "z")], {"r": integers(1, 1, 1, 1)}, {"Neg": 1}),
    "pad of nothing": ([("Pad", "x p", "a"), ("Neg", "a", "z")], {"p": integers(*[0] * 8)}, {"Neg": 1}),
    "pad that crops": (
        [("Pad", "x p", "z", {"mode": "edge"})],
        {"p": integers(0, 0, -1, 2, 0, -2, 0, 0)},
        {"Slice": 1, "Pad": 1},
    ),
    "where": ([("Where", "c x k", "z")], {"c": array(4, 5) > 0, "k": -1e9}, {"Where": 1}),
    "shuffle": (
        [
            ("DepthToSpace", "y", "a", {"blocksize": 2, "mode": "CRD"}),
            ("SpaceToDepth", "a", "z", {"blocksize": 2}),
        ],
        {},
        {"DepthToSpace": 1, "SpaceToDepth": 1},
    ),
    "a constant result": (
        [("Add", "k k", "a"), ("Mul", "a k", "b"), ("Add", "x b", "z")],
        {"k": 2.0},
        {"Add": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_movement(case: str) -> None:
    nodes, constants, expected = CASES[case]
    model = normalized(graph(nodes, X | {"y": [1, 8, 2, 3]}, ["z"], constants))
    assert operators(model) == expected


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
@pytest.mark.parametrize("sizes", [(1, 3), None])
def test_split(opset: int, sizes: tuple[int, int] | None) -> None:
    constants: dict[str, Any] = {}
    attributes: dict[str, Any] = {"axis": -2}
    inputs = "x"
    if sizes and opset < 13:
        attributes["split"] = list(sizes)
    elif sizes:
        constants, inputs = {"s": integers(*sizes)}, "x s"
    elif opset >= 18:
        attributes["num_outputs"] = 2
    model = normalized(graph([("Split", inputs, "a b", attributes)], X, ["a", "b"], constants, opset=opset))
    assert operators(model) == {"Slice": 2}


def test_uneven_split() -> None:
    nodes = [("Split", "x", "a b", {"axis": 3, "num_outputs": 2})]
    model = normalized(graph(nodes, X, ["a", "b"], opset=18))
    assert [port.shape[3] for port in model.outputs] == [3, 2]


@pytest.mark.parametrize("opset", [7, 13])
def test_squeeze_and_unsqueeze(opset: int) -> None:
    old = opset < 13
    nodes = [
        ("Unsqueeze", "x" if old else "x a", "u", {"axes": [0, 3]} if old else {}),
        ("Neg", "u", "n"),
        ("Squeeze", "n" if old else "n b", "z", {"axes": [3]} if old else {}),
    ]
    constants = {} if old else {"a": integers(0, -3), "b": integers(-3)}
    if not old:
        nodes[2] = ("Squeeze", "n", "z")
    model = normalized(graph(nodes, X, ["z"], constants, opset=opset))
    assert operators(model) == {"Reshape": 2, "Neg": 1}


def test_attributes_of_old_opsets_become_inputs() -> None:
    nodes = [
        ("Clip", "x", "a", {"min": -1.0, "max": 0.5}),
        ("Pad", "a", "b", {"pads": [0, 0, 1, 1, 0, 0, 0, 2], "value": 0.25}),
        ("Slice", "b", "c", {"starts": [1, 0], "ends": [3, -1], "axes": [2, 3]}),
        ("ReduceSum", "c", "d", {"axes": [1]}),
        ("Dropout", "d", "e"),
        ("Upsample", "e", "z", {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
    ]
    model = normalized(graph(nodes, X, ["z"], opset=7))
    assert operators(model) == {"Clip": 1, "Pad": 1, "Slice": 1, "ReduceSum": 1, "Resize": 1}


RESIZES = [
    ({"mode": mode, "coordinate_transformation_mode": transform} | nearest, extra)
    for mode, nearest in (
        ("nearest", {}),
        ("nearest", {"nearest_mode": "floor"}),
        ("nearest", {"nearest_mode": "ceil"}),
        ("linear", {}),
    )
    for transform in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for extra in ("scales", "sizes", "uneven")
]


@pytest.mark.parametrize(("attributes", "extra"), RESIZES)
def test_resize(attributes: dict[str, Any], extra: str) -> None:
    constants = {
        "scales": np.array([1, 1, 2, 3], np.float32),
        "uneven": np.array([1, 1, 2.3, 0.7], np.float32),
        "sizes": integers(2, 3, 7, 3),
    }
    inputs = "x _ _ sizes" if extra == "sizes" else f"x _ {extra}"
    model = normalized(
        graph([("Resize", inputs, "z", attributes)], X, ["z"], {extra: constants[extra]}, opset=19)
    )
    (node,) = model.model.graph
    stated = extra != "uneven" or attributes["coordinate_transformation_mode"] == "align_corners"
    assert (len(node.inputs) == 4) is stated


@pytest.mark.parametrize("opset", [9, 10])
def test_resize_of_old_opsets(opset: int) -> None:
    operator = "Upsample" if opset == 9 else "Resize"
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    normalized(graph([(operator, "x s", "z", {"mode": "linear"})], X, ["z"], constants, opset=opset))


@pytest.mark.parametrize("rule", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (2.3, 0.7)])
def test_resize_as_tensorflow_has_it(rule: str, scales: tuple[float, float]) -> None:
    """The nearest cell where half a cell is added but not taken away again, in opsets 11 and 12."""
    transform = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rule}
    constants = {"r": np.zeros(0, np.float32), "s": np.array([1, 1, *scales], np.float32)}
    normalized(
        graph([("Resize", "x r s", "z", {"mode": "nearest"} | transform)], X, ["z"], constants, opset=11)
    )


@pytest.mark.parametrize("scales", [(2.0, 3.0), (2.3, 1.4)])
def test_resize_of_channels_last(scales: tuple[float, float]) -> None:
    constants = {"s": np.array([1, *scales, 1], np.float32)}
    model = normalized(graph([("Resize", "x _ s", "z", {"mode": "linear"})], X, ["z"], constants))
    assert operators(model) == {"Transpose": 2, "Resize": 1}


def test_resize_of_some_axes() -> None:
    attributes = {"axes": [3, 2], "mode": "linear"}
    constants = {"s": np.array([2, 3], np.float32)}
    model = normalized(graph([("Resize", "x _ s", "z", attributes)], X, ["z"], constants, opset=18))
    assert model.outputs[0].shape == (2, 3, 12, 10)


def test_shapes_computed_at_run_time() -> None:
    nodes = [
        ("Shape", "x", "s"),
        ("Gather", "s zero", "n"),
        ("Unsqueeze", "n axes", "m"),
        ("Concat", "m rest", "t", {"axis": 0}),
        ("Reshape", "x t", "r"),
        ("Shape", "r", "u"),
        ("Slice", "u one two", "v"),
        ("ConstantOfShape", "v", "c", {"value": helper.make_tensor("value", TensorProto.FLOAT, [1], [2.5])}),
        ("Mul", "r c", "q"),
        ("Cast", "m", "f", {"to": TensorProto.FLOAT}),
        ("Div", "q f", "z"),
    ]
    constants = {
        "zero": np.int64(0),
        "axes": integers(0),
        "rest": integers(-1),
        "one": integers(1),
        "two": integers(2),
    }
    model = normalized(graph(nodes, {"x": ["N", 3, 4]}, ["z"], constants), batch=5)
    assert operators(model) == {"Reshape": 1, "Mul": 1}
    assert model.outputs[0].shape == (5, 12)


def test_channels_last_wrapping_disappears() -> None:
    there, back = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
    constants = {
        "w": array(6, 3, 3, 3),
        "s": array(6),
        "b": array(6, seed=1),
        "p": integers(0, 0, 1, 0, 0, 1, 0, 0),
        "k": array(6, 6, 2, 2, seed=2),
        "lo": 0.0,
        "hi": 6.0,
    }
    nodes = [
        ("Transpose", "x", "a", back),
        ("Conv", "a w", "c", {"pads": [1, 1, 1, 1]}),
        ("Transpose", "c", "d", there),
        ("Mul", "d s", "e"),
        ("Add", "e b", "f"),
        ("Clip", "f lo hi", "g"),
        ("Pad", "g p", "h"),
        ("Transpose", "h", "i", back),
        ("Conv", "i k", "j"),
        ("Transpose", "j", "l", there),
        ("Add", "l b", "m"),
        ("Concat", "l m", "n", {"axis": 3}),
        ("ReduceMean", "n", "z", {"axes": [1, 2], "keepdims": 0}),
    ]
    model = normalized(graph(nodes, {"x": [1, 8, 9, 3]}, ["z"], constants))
    kinds = operators(model)
    assert kinds["Transpose"] <= 2
    assert kinds["Conv"] == 2
    assert "Mul" not in kinds
    assert "Pad" not in kinds


def test_channels_last_gate_disappears() -> None:
    """Squeeze and excitation with SiLU, as channels-last frameworks write it."""
    there, back = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
    nodes = [
        ("Conv", "x w", "c"),
        ("Transpose", "c", "t", there),
        ("Sigmoid", "t", "s"),
        ("Mul", "t s", "m"),
        ("ReduceMean", "m", "p", {"axes": [1, 2]}),
        ("Transpose", "p", "q", back),
        ("Conv", "q v", "e"),
        ("Transpose", "e", "f", there),
        ("Sigmoid", "f", "g"),
        ("Mul", "m g", "h"),
        ("Transpose", "h", "i", back),
        ("Conv", "i v", "z"),
    ]
    constants = {"w": array(6, 3, 1, 1), "v": array(6, 6, 1, 1, seed=1)}
    model = normalized(graph(nodes, {"x": [1, 3, 5, 5]}, ["z"], constants))
    expected = {"Conv": 3, "Silu": 1, "GlobalAveragePool": 1, "Sigmoid": 1, "Mul": 1}
    assert operators(model) == expected


def test_embedding() -> None:
    nodes = [("Cast", "x", "c", {"to": TensorProto.INT32}), ("Gather", "t c", "e"), ("Tanh", "e", "z")]
    proto = graph(nodes, {"x": ["batch", 5]}, ["z"], {"t": array(11, 4)}, types={"x": TensorProto.INT64})
    model = normalized(proto)
    assert operators(model) == {"Gather": 1, "Tanh": 1}


def test_index_of_the_maximum() -> None:
    proto = graph(
        [("ArgMax", "x", "z", {"axis": -1, "keepdims": 0})], X, ["z"], types={"z": TensorProto.INT64}
    )
    assert operators(normalized(proto)) == {"ArgMax": 1}


def test_bytes_as_input() -> None:
    nodes = [("Cast", "x", "c", {"to": TensorProto.FLOAT}), ("Div", "c k", "z")]
    model = normalized(graph(nodes, X, ["z"], {"k": 255.0}, types={"x": TensorProto.UINT8}))
    assert operators(model) == {"Cast": 1, "Mul": 1}


def test_a_constant_output() -> None:
    model = normalized(graph([("Add", "k k", "z"), ("Relu", "x", "y")], X, ["z", "y"], {"k": array(2)}))
    assert operators(model) == {"Relu": 1}
    assert model.outputs[0].shape == (2,)


def test_outputs_that_are_inputs_or_each_other() -> None:
    nodes = [("Identity", "x", "a"), ("Relu", "x", "r"), ("Identity", "r", "b"), ("Identity", "r", "c")]
    model = normalized(graph(nodes, X, ["a", "b", "c"]))
    assert operators(model) == {"Relu": 1, "Reshape": 2}


@pytest.mark.parametrize("reduction", ["mul", "max", "min"])
@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("places", [[1, 3, 4], [2, 2, 5, 2, 0], list(range(0, 200, 2))])
def test_scattering_with_a_reduction_makes_no_neutral_elements(
    operator: str, places: list[int], reduction: str
) -> None:
    """Infinities have no grid, and ones beside small factors cost these their bits."""
    rows = 2 + 2 * max(places)
    index = np.array(places)[:, np.newaxis]
    node = (operator, "x i u", "z", {"reduction": reduction})
    constants = {"i": index if operator == "ScatterND" else index.repeat(3, axis=1)}
    model = normalized(graph([node], {"x": [rows, 3], "u": [len(places), 3]}, ["z"], constants, opset=18))
    for value in model.model.graph.initializers.values():
        assert value.const_value is not None
        assert value.const_value.numpy().dtype.kind == "i"
    assert reduction.title() in operators(model)
