"""Rewrites of arithmetic, clipping, activations and normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from frontend.graphs import Node, array, graph, integers, normalized, operators
from tpuflow.frontend import FloatSession, check_model, load

X = {"x": [2, 3, 4]}
CASES: dict[str, tuple[list[Node], dict[str, Any], dict[str, int]]] = {
    "sum of three": ([("Sum", "x y x", "z")], {}, {"Add": 2}),
    "sum of one": ([("Sum", "x", "a"), ("Add", "a y", "z")], {}, {"Add": 1}),
    "mean": ([("Mean", "x y x", "z")], {}, {"Add": 2, "Mul": 1}),
    "max of three": ([("Max", "x y x", "z")], {}, {"Max": 2}),
    "subtract a constant": ([("Sub", "x c", "z")], {"c": array(4)}, {"Add": 1}),
    "subtract from a constant": ([("Sub", "c x", "z")], {"c": array(4)}, {"Sub": 1}),
    "subtract a mask": (
        [("Sub", "one x", "s"), ("Mul", "s c", "m"), ("Sub", "y m", "z")],
        {"one": 1.0, "c": 1e4},
        {"Sub": 1, "Mul": 1, "Add": 1},
    ),
    "subtract a product": ([("Mul", "x c", "m"), ("Sub", "y m", "z")], {"c": 3.0}, {"Mul": 1, "Sub": 1}),
    "divide by a constant": ([("Div", "x c", "z")], {"c": 3.0}, {"Mul": 1}),
    "divide by a tiny constant": (
        [("Mul", "x small", "m"), ("Div", "m c", "z")],
        {"small": 1e-30, "c": 1e-39},
        {"Mul": 1, "Div": 1},
    ),
    "divide a constant": ([("Exp", "x", "e"), ("Div", "c e", "z")], {"c": 3.0}, {"Exp": 1, "Div": 1}),
    "constant first": ([("Mul", "c x", "z")], {"c": array(1, 4)}, {"Mul": 1}),
    "nothing added": ([("Add", "x c", "a"), ("Relu", "a", "z")], {"c": np.zeros(4, np.float32)}, {"Relu": 1}),
    "one that broadcasts": (
        [("Mul", "x c", "z")],
        {"c": np.ones((5, 1, 1, 1), np.float32)},
        {"Mul": 1},
    ),
    "chain": (
        [("Mul", "x a", "p"), ("Div", "p b", "q"), ("Add", "q c", "r"), ("Sub", "r d", "z")],
        {"a": 3.0, "b": array(4), "c": array(3, 1), "d": array(3, 1, seed=1)},
        {"Mul": 1, "Add": 1},
    ),
    "chain that would grow": (
        [("Mul", "x a", "p"), ("Mul", "p b", "z")],
        {"a": array(4), "b": array(3, 1)},
        {"Mul": 2},
    ),
    "max with zero": ([("Max", "x c", "z")], {"c": 0.0}, {"Relu": 1}),
    "min and max": ([("Max", "x a", "p"), ("Min", "b p", "z")], {"a": -0.5, "b": [0.5]}, {"Clip": 1}),
    "max with a vector": ([("Max", "x c", "z")], {"c": array(4)}, {"Max": 1}),
    "relu6": ([("Relu", "x", "p"), ("Clip", "p _ c", "z")], {"c": 6.0}, {"Clip": 1}),
    "clip without effect": (
        [("Clip", "x a b", "p"), ("Neg", "p", "z")],
        {"a": float(np.finfo(np.float32).min), "b": math.inf},
        {"Neg": 1},
    ),
    "clips that overlap": (
        [("Clip", "x a b", "p"), ("Clip", "p c d", "z")],
        {"a": -1.0, "b": 0.5, "c": -0.2, "d": 2.0},
        {"Clip": 1},
    ),
    "clips apart": (
        [("Clip", "x a b", "p"), ("Clip", "p c d", "z")],
        {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0},
        {"Clip": 1},
    ),
    "relu of relu": ([("Relu", "x", "p"), ("Relu", "p", "z")], {}, {"Relu": 1}),
    "relu of clip": ([("Clip", "x a b", "p"), ("Relu", "p", "z")], {"a": -2.0, "b": 1.0}, {"Clip": 1}),
    "power one": ([("Pow", "x c", "p"), ("Neg", "p", "z")], {"c": 1.0}, {"Neg": 1}),
    "power half": ([("Abs", "x", "p"), ("Pow", "p c", "z")], {"c": 0.5}, {"Abs": 1, "Sqrt": 1}),
    "power minus one": ([("Exp", "x", "p"), ("Pow", "p c", "z")], {"c": [-1.0]}, {"Exp": 1, "Reciprocal": 1}),
    "integer power": ([("Pow", "x c", "z")], {"c": np.int64(3)}, {"Pow": 1}),
    "identity chain": (
        [("Identity", "x", "p"), ("Dropout", "p", "q"), ("Cast", "q", "r", {"to": 1}), ("Relu", "r", "z")],
        {},
        {"Relu": 1},
    ),
    "prelu with one slope": (
        [("PRelu", "x s", "z")],
        {"s": np.full((3, 1), 0.25, np.float32)},
        {"LeakyRelu": 1},
    ),
    "prelu": ([("PRelu", "x s", "z")], {"s": array(3, 1)}, {"PRelu": 1}),
    "max with a scaled self": ([("Mul", "x c", "p"), ("Max", "p x", "z")], {"c": 0.1}, {"LeakyRelu": 1}),
    "sigmoid": (
        [("Neg", "x", "n"), ("Exp", "n", "e"), ("Add", "e one", "s"), ("Div", "one s", "z")],
        {"one": 1.0},
        {"Sigmoid": 1},
    ),
    "softplus": (
        [("Exp", "x", "e"), ("Add", "one e", "s"), ("Log", "s", "z")],
        {"one": 1.0},
        {"Softplus": 1},
    ),
    "silu": ([("Sigmoid", "x", "s"), ("Mul", "s x", "z")], {}, {"Silu": 1}),
    "silu of something else": ([("Sigmoid", "y", "s"), ("Mul", "s x", "z")], {}, {"Sigmoid": 1, "Mul": 1}),
    "mish": ([("Softplus", "x", "s"), ("Tanh", "s", "t"), ("Mul", "x t", "z")], {}, {"Mish": 1}),
    "mish from elementary operators": (
        [
            ("Exp", "x", "e"),
            ("Add", "e one", "s"),
            ("Log", "s", "l"),
            ("Tanh", "l", "t"),
            ("Mul", "x t", "z"),
        ],
        {"one": 1.0},
        {"Mish": 1},
    ),
    "hard swish from clip": (
        [("Add", "x three", "a"), ("Clip", "a lo hi", "c"), ("Mul", "x c", "m"), ("Div", "m six", "z")],
        {"three": 3.0, "lo": 0.0, "hi": 6.0, "six": 6.0},
        {"HardSwish": 1},
    ),
    "hard swish from hard sigmoid": (
        [("HardSigmoid", "x", "h", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", "h x", "z")],
        {},
        {"HardSwish": 1},
    ),
    "hard sigmoid": (
        [("Add", "x three", "a"), ("Clip", "a lo hi", "c"), ("Div", "c six", "z")],
        {"three": 3.0, "lo": 0.0, "hi": 6.0, "six": 6.0},
        {"HardSigmoid": 1},
    ),
    "hard sigmoid of a line": (
        [("Mul", "x k", "m"), ("Add", "m half", "a"), ("Clip", "a lo one", "z")],
        {"k": 0.2, "half": 0.5, "lo": 0.0, "one": 1.0},
        {"HardSigmoid": 1},
    ),
    "gelu, half first": (
        [
            ("Mul", "x half", "h"),
            ("Div", "x root", "r"),
            ("Erf", "r", "e"),
            ("Add", "e one", "a"),
            ("Mul", "h a", "z"),
        ],
        {"half": 0.5, "root": math.sqrt(2), "one": 1.0},
        {"Gelu": 1},
    ),
    "gelu, half last": (
        [
            ("Mul", "x root", "r"),
            ("Erf", "r", "e"),
            ("Add", "one e", "a"),
            ("Mul", "x a", "m"),
            ("Mul", "half m", "z"),
        ],
        {"half": 0.5, "root": math.sqrt(0.5), "one": 1.0},
        {"Gelu": 1},
    ),
    "gelu, half inside": (
        [
            ("Div", "x root", "r"),
            ("Erf", "r", "e"),
            ("Add", "e one", "a"),
            ("Mul", "a half", "h"),
            ("Mul", "x h", "z"),
        ],
        {"half": 0.5, "root": math.sqrt(2), "one": 1.0},
        {"Gelu": 1},
    ),
    "gelu with a wrong constant": (
        [
            ("Mul", "x half", "h"),
            ("Div", "x root", "r"),
            ("Erf", "r", "e"),
            ("Add", "e one", "a"),
            ("Mul", "h a", "z"),
        ],
        {"half": 0.5, "root": 1.5, "one": 1.0},
        {"Mul": 3, "Erf": 1, "Add": 1},
    ),
    "gelu by tanh, cube": (
        [
            ("Pow", "x three", "p"),
            ("Mul", "p k", "q"),
            ("Add", "x q", "s"),
            ("Mul", "s root", "i"),
            ("Tanh", "i", "t"),
            ("Add", "t one", "a"),
            ("Mul", "x half", "h"),
            ("Mul", "h a", "z"),
        ],
        {"three": 3.0, "k": 0.044715, "root": math.sqrt(2 / math.pi), "one": 1.0, "half": 0.5},
        {"Gelu": 1},
    ),
    "gelu by tanh, nested": (
        [
            ("Mul", "x x", "p"),
            ("Mul", "p k", "q"),
            ("Add", "q one", "s"),
            ("Mul", "x root", "r"),
            ("Mul", "r s", "i"),
            ("Tanh", "i", "t"),
            ("Add", "t one", "a"),
            ("Mul", "x a", "h"),
            ("Mul", "h half", "z"),
        ],
        {"k": 0.044715, "root": 0.7978845608, "one": 1.0, "half": 0.5},
        {"Gelu": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_arithmetic(case: str) -> None:
    nodes, constants, expected = CASES[case]
    model = normalized(graph(nodes, X | {"y": [2, 3, 4]}, ["z"], constants))
    assert operators(model) == expected


def test_a_result_used_twice_is_not_merged_away() -> None:
    nodes = [("Mul", "x a", "p"), ("Mul", "p b", "z")]
    model = normalized(graph(nodes, X, ["z", "p"], {"a": 3.0, "b": 2.0}))
    assert operators(model) == {"Mul": 2}


@pytest.mark.parametrize("shifted", [False, True])
def test_decomposed_softmax_is_recognized(*, shifted: bool) -> None:
    nodes = [
        ("ReduceMax", "x", "m", {"axes": [1]}),
        ("Sub", "x m", "d"),
        ("Exp", "d" if shifted else "x", "e"),
        ("ReduceSum", "e a", "s"),
        ("Div", "e s", "z"),
    ]
    model = normalized(graph(nodes, X, ["z"], {"a": integers(1)}))
    assert operators(model) == {"Softmax": 1}


LAYER = [
    ("ReduceMean", "x", "m", {"axes": [-1]}),
    ("Sub", "x m", "d"),
    ("Pow", "d two", "s"),
    ("ReduceMean", "s", "v", {"axes": [-1]}),
    ("Add", "v eps", "e"),
    ("Sqrt", "e", "r"),
    ("Div", "d r", "n"),
    ("Mul", "n g", "k"),
    ("Add", "k b", "z"),
]


@pytest.mark.parametrize("variant", ["power", "product", "reciprocal", "two deviations"])
def test_decomposed_layer_normalization_is_recognized(variant: str) -> None:
    nodes: list[Node] = list(LAYER)
    if variant == "product":
        nodes[2] = ("Mul", "d d", "s")
    if variant == "reciprocal":
        nodes[6:7] = [("Reciprocal", "r", "i"), ("Mul", "i d", "n")]
    if variant == "two deviations":
        nodes.insert(2, ("Sub", "x m", "d2"))
        nodes[3] = ("Pow", "d2 two", "s")
    constants = {"two": 2.0, "eps": 1e-5, "g": array(8), "b": array(8, seed=1)}
    model = normalized(graph(nodes, {"x": [2, 3, 8]}, ["z"], constants))
    assert operators(model) == {"LayerNormalization": 1}
    assert model.model.graph[0].attributes.get_float("epsilon") == pytest.approx(1e-5)


def test_layer_normalization_over_channels() -> None:
    nodes = [(*node[:3], {"axes": [1]}) if node[0] == "ReduceMean" else node for node in LAYER]
    constants = {"two": 2.0, "eps": 1e-6, "g": array(8, 1, 1), "b": array(8, 1, 1, seed=1)}
    model = normalized(graph(nodes, {"x": [1, 8, 3, 5]}, ["z"], constants))
    assert operators(model)["LayerNormalization"] == 1
    assert "ReduceMean" not in operators(model)


@pytest.mark.parametrize(("opset", "groups"), [(17, 0), (20, 2), (21, 2)])
def test_instance_and_group_normalization(opset: int, groups: int) -> None:
    entries = groups if opset == 20 else 4
    constants = {"g": array(entries), "b": array(entries, seed=1)}
    operator = ("GroupNormalization", "x g b", "z", {"num_groups": groups})
    node = operator if groups else ("InstanceNormalization", "x g b", "z")
    model = normalized(graph([node], {"x": [2, 4, 3, 5]}, ["z"], constants, opset=opset))
    assert operators(model)["LayerNormalization"] == 1


def test_layer_normalization_without_bias_and_with_axis_from_the_back() -> None:
    node = ("LayerNormalization", "x g b", "z", {"axis": -2})
    constants = {"g": array(3, 4), "b": np.zeros((3, 4), np.float32)}
    model = normalized(graph([node], X, ["z"], constants))
    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1}
    (layer,) = (node for node in model.model.graph if node.op_type == "LayerNormalization")
    assert layer.attributes.get_int("axis") == 1
    assert len(layer.inputs) == 2


def test_scale_and_shift_join_a_normalization_over_several_axes() -> None:
    nodes: list[Node] = [
        ("LayerNormalization", "x g", "n", {"axis": 1}),
        ("Mul", "n s", "m"),
        ("Add", "m b", "z"),
    ]
    constants = {"g": array(2, 3, 4), "s": array(3, 1, seed=1), "b": array(4, seed=2)}
    model = normalized(graph(nodes, {"x": [1, 2, 3, 4]}, ["z"], constants))
    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1}


@pytest.mark.parametrize(("shape", "muls"), [((1, 8, 2), 3), ((1, 7, 2), 4), ((1, 2, 1), 1), ((1, 64, 2), 6)])
def test_a_product_is_taken_half_by_half(shape: tuple[int, ...], muls: int) -> None:
    nodes: list[Node] = [("Sigmoid", "x", "s"), ("ReduceProd", "s", "z", {"axes": [1]})]
    model = normalized(graph(nodes, {"x": list(shape)}, ["z"]))
    assert operators(model)["Mul"] == muls
    assert "ReduceProd" not in operators(model)


def test_a_product_of_too_many_is_listed() -> None:
    nodes: list[Node] = [("ReduceProd", "x", "z", {"axes": [1, 2]})]
    (found,) = check_model(graph(nodes, {"x": [1, 13, 5]}, ["z"]))
    assert (found.operator, found.reason) == (
        "ReduceProd",
        "it multiplies more than 64 elements, whose product has no useful range",
    )


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.1, 0.9, {"Mul": 1, "Max": 1}),
        (1.0, 2.0, {"Mul": 1, "Min": 1}),
        (-1.0, 2.0, {"Clip": 1, "Mul": 1, "Add": 1}),
    ],
)
def test_slopes_along_several_axes(low: float, high: float, wanted: dict[str, int]) -> None:
    slopes = np.random.default_rng(0).uniform(low, high, (3, 4)).astype(np.float32)
    model = normalized(graph([("PRelu", "x s", "z")], {"x": [1, 3, 4]}, ["z"], {"s": slopes}))
    assert operators(model) == wanted


def test_unit_length() -> None:
    model = normalized(graph([("LpNormalization", "x", "z", {"axis": 1})], X, ["z"]))
    assert operators(model) == {"ReduceL2": 1, "Clip": 1, "Div": 1}


@pytest.mark.parametrize(
    "operator", ["ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceL2", "ReduceProd"]
)
@pytest.mark.parametrize("opset", [11, 18])
def test_reductions(operator: str, opset: int) -> None:
    nodes: list[Node] = [("Exp", "x", "e")]
    if opset == 11:
        nodes.append((operator, "e", "z", {"axes": [-1, 0], "keepdims": 0}))
    else:
        nodes.append((operator, "e axes", "z", {"keepdims": 0}))
    constants = {} if opset == 11 else {"axes": integers(-1, 0)}
    normalized(graph(nodes, X, ["z"], constants, opset=opset))


@pytest.mark.parametrize("operator", ["ReduceLogSum", "ReduceLogSumExp"])
def test_logarithms_of_sums_over_both_axes_of_an_image(operator: str) -> None:
    """Whose maximum becomes a global pool."""
    inner = "e" if operator == "ReduceLogSum" else "x"
    nodes: list[Node] = [("Exp", "x", "e")] if operator == "ReduceLogSum" else []
    nodes += [(operator, f"{inner} axes", "z")]
    normalized(graph(nodes, {"x": [1, 3, 5, 4]}, ["z"], {"axes": integers(2, 3)}, opset=18))


@pytest.mark.parametrize("keep", [0, 1])
def test_a_sum_of_exponentials_written_out_is_taken_of_what_is_at_most_zero(keep: int) -> None:
    """Exponentials of numbers from -60 to 60 have no common grid; those of what is less the largest do."""
    nodes: list[Node] = [
        ("Exp", "y", "e"),
        ("ReduceSum", "e axes", "s", {"keepdims": keep}),
        ("Log", "s", "z"),
    ]
    scaled = [("Mul", "x k", "y"), *nodes]
    constants = {"axes": integers(1), "k": np.array(20, np.float32)}
    model = normalized(graph(scaled, X, ["z"], constants, opset=18))
    assert operators(model)["ReduceMax"] >= 1
    again = normalized(graph([("ReduceLogSumExp", "x axes", "z")], X, ["z"], {"axes": integers(1)}, opset=18))
    assert operators(again)["ReduceMax"] == 1


def test_reduction_over_everything_and_over_nothing() -> None:
    model = normalized(graph([("ReduceSum", "x", "z")], X, ["z"]))
    assert operators(model) == {"ReduceSum": 1}
    nodes: list[Node] = [("ReduceSum", "x", "a", {"noop_with_empty_axes": 1}), ("Neg", "a", "z")]
    assert operators(normalized(graph(nodes, X, ["z"]))) == {"Neg": 1}
    nodes = [("ReduceMax", "x", "a", {"axes": [1]}), ("Neg", "a", "z")]
    assert operators(normalized(graph(nodes, {"x": [2, 1, 4]}, ["z"]))) == {"Neg": 1}


@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize(
    "name", ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
)
def test_reduction_over_no_axis_keeps_its_function_of_each_element(name: str, axes: list[int] | None) -> None:
    constants = {} if axes is None else {"a": integers(*axes)}
    node: Node = (f"Reduce{name}", "x" if axes is None else "x a", "z", {"noop_with_empty_axes": 1})
    proto = graph([node], {"x": [2, 3]}, ["z"], constants, opset=18)
    x = np.array([[0.25, 3.0, 1.5], [0.125, 2.0, 7.0]], np.float32) * (1 if name == "LogSum" else -1)
    model = load(proto)
    np.testing.assert_array_equal(
        FloatSession(model.model).run({"x": x})["z"], FloatSession(proto).run({"x": x})["z"]
    )
    assert "Reduce" not in "".join(operators(model))


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_softmax_of_all_opsets(opset: int, operator: str, axis: int | None) -> None:
    attributes = {} if axis is None else {"axis": axis}
    model = normalized(graph([(operator, "x", "z", attributes)], X, ["z"], opset=opset))
    assert operators(model)["Softmax" if operator == "Softmax" else "Exp"] == 1
