"""Normalisation decomposed as exporters write it becomes one node, with the same results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.graphs import Node, array, graph, integers, normalized, operators
from tpuflow.frontend import load

CONSTANTS: dict[str, Any] = {
    "a": integers(2),
    "two": 2.0,
    "one": 1.0,
    "half": 0.5,
    "minus_half": -0.5,
    "share": 1.0 / 16.0,
    "eps": 1e-3,
    "zero": 0.0,
    "g": array(16, seed=1),
    "b": array(16, seed=2),
}
MEAN = [("ReduceMean", "x a", "m"), ("Sub", "x m", "d")]
SQUARES: dict[str, list[Node]] = {
    "product": [("Mul", "{0} {0}", "s"), ("ReduceMean", "s a", "v")],
    "power": [("Pow", "{0} two", "s"), ("ReduceMean", "s a", "v")],
    "sum": [("Mul", "{0} {0}", "s"), ("ReduceSum", "s a", "t"), ("Mul", "t share", "v")],
    "sum of squares": [("ReduceSumSquare", "{0} a", "t"), ("Mul", "share t", "v")],
}
ROOTS: dict[str, list[Node]] = {
    "divided": [("Sqrt", "u", "r"), ("Div", "{0} r", "n")],
    "reciprocal of root": [("Sqrt", "u", "r"), ("Reciprocal", "r", "i"), ("Mul", "{0} i", "n")],
    "root of reciprocal": [("Reciprocal", "u", "r"), ("Sqrt", "r", "i"), ("Mul", "i {0}", "n")],
    "one over root": [("Sqrt", "u", "r"), ("Div", "one r", "i"), ("Mul", "{0} i", "n")],
    "power": [("Pow", "u half", "r"), ("Div", "{0} r", "n")],
    "negative power": [("Pow", "u minus_half", "i"), ("Mul", "{0} i", "n")],
}
SCALES: dict[str, list[Node]] = {
    "none": [("Identity", "n", "z")],
    "scale": [("Mul", "n g", "z")],
    "scale first": [("Mul", "g n", "z")],
}


def _filled(nodes: list[Node], name: str) -> list[Node]:
    return [(operator, sources.format(name), target) for operator, sources, target in nodes]


def _rms(square: str, root: str, scale: str) -> list[Node]:
    under = [("Add", "v eps", "u")]
    return [*_filled(SQUARES[square], "x"), *under, *_filled(ROOTS[root], "x"), *SCALES[scale]]


def _model(nodes: list[Node], shape: tuple[int, ...] = (2, 5, 16)) -> onnx.ModelProto:
    used = {name for _, sources, *_ in nodes for name in sources.split()}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    return graph(nodes, {"x": list(shape)}, ["z"], constants, opset=18)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_root_mean_square(square: str, root: str, scale: str) -> None:
    assert operators(normalized(_model(_rms(square, root, scale)))) == {"RMSNormalization": 1}


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_layer_normalization(square: str, root: str) -> None:
    nodes = [*MEAN, *_filled(SQUARES[square], "d"), ("Add", "v eps", "u"), *_filled(ROOTS[root], "d")]
    nodes += [("Mul", "n g", "k"), ("Add", "k b", "z")]
    assert operators(normalized(_model(nodes))) == {"LayerNormalization": 1}


VARIANCES: dict[str, list[Node]] = {
    "of deviations": [*MEAN, ("Mul", "d d", "s"), ("ReduceMean", "s a", "v")],
    "difference of means": [
        ("ReduceMean", "x a", "m"),
        ("Mul", "x x", "s"),
        ("ReduceMean", "s a", "q"),
        ("Mul", "m m", "p"),
        ("Sub", "q p", "v"),
    ],
    "kept positive": [
        ("ReduceMean", "x a", "m"),
        ("Mul", "x x", "s"),
        ("ReduceMean", "s a", "q"),
        ("Pow", "m two", "p"),
        ("Sub", "q p", "c"),
        ("Max", "c zero", "v"),
    ],
}
AFFINE: dict[str, list[Node]] = {
    "scale and shift": [
        ("Mul", "i g", "k"),
        ("Mul", "x k", "xk"),
        ("Mul", "m k", "mk"),
        ("Sub", "b mk", "o"),
        ("Add", "xk o", "z"),
    ],
    "shift second": [
        ("Mul", "g i", "k"),
        ("Mul", "k x", "xk"),
        ("Mul", "k m", "mk"),
        ("Sub", "mk b", "o"),
        ("Sub", "xk o", "z"),
    ],
    "no shift": [("Mul", "i g", "k"), ("Mul", "x k", "xk"), ("Mul", "m k", "mk"), ("Sub", "xk mk", "z")],
    "neither": [("Mul", "x i", "xk"), ("Mul", "m i", "mk"), ("Neg", "mk", "o"), ("Add", "o xk", "z")],
}


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("variance", VARIANCES)
def test_scale_multiplied_first(variance: str, affine: str) -> None:
    root = [("Add", "v eps", "u"), ("Sqrt", "u", "r"), ("Reciprocal", "r", "i")]
    model = normalized(_model([*VARIANCES[variance], *root, *AFFINE[affine]]))
    assert operators(model) == {"LayerNormalization": 1}


def test_what_only_looks_like_normalization_stays() -> None:
    other_axis = {"e": integers(1)}
    nodes = [("ReduceMean", "x e", "m"), ("Sub", "x m", "d"), ("Mul", "d d", "s"), ("ReduceMean", "s a", "v")]
    nodes += [("Add", "v eps", "u"), ("Sqrt", "u", "r"), ("Div", "x r", "z")]
    constants = {"a": CONSTANTS["a"], "eps": 1e-3} | other_axis
    model = normalized(graph(nodes, {"x": [2, 5, 16]}, ["z"], constants, opset=18))
    assert not operators(model).keys() & {"LayerNormalization", "RMSNormalization"}


@pytest.mark.parametrize("epsilon", [-1e-3, math.inf, math.nan])
def test_what_is_added_under_the_root_is_an_epsilon(epsilon: float) -> None:
    # An infinite number comes from constants: one that is stored is refused when the model is read.
    nodes = [
        ("Mul", "x x", "s"),
        ("ReduceMean", "s a", "v"),
        ("Div", "big small", "eps"),
        ("Add", "v eps", "u"),
    ]
    nodes += [("Sqrt", "u", "r"), ("Div", "x r", "z")]
    parts = {-1e-3: (-1e-3, 1.0), math.inf: (1.0, 0.0)}.get(epsilon, (0.0, 0.0))
    constants = {"a": CONSTANTS["a"], "big": parts[0], "small": parts[1]}
    model = normalized(graph(nodes, {"x": [2, 5, 16]}, ["z"], constants, opset=18))
    assert not operators(model).keys() & {"LayerNormalization", "RMSNormalization"}


@settings(max_examples=25, deadline=None)
@given(
    square=st.sampled_from(sorted(SQUARES)),
    root=st.sampled_from(sorted(ROOTS)),
    rank=st.integers(2, 4),
    axis=st.integers(0, 3),
    gain=st.floats(0.01, 100),
)
def test_root_mean_square_over_any_axis(square: str, root: str, rank: int, axis: int, gain: float) -> None:
    shape, axis = [3, 5, 2, 7][:rank], axis % rank
    constants = CONSTANTS | {"a": integers(axis), "share": 1.0 / shape[axis], "k": gain}
    nodes = [("Mul", "y k", "x"), *_rms(square, root, "none")]
    model = normalized(graph(nodes, {"y": shape}, ["z"], constants, opset=18), 2e-5)
    assert operators(model)["RMSNormalization"] == 1


def test_instance_normalization_by_pooling() -> None:
    nodes = [
        ("GlobalAveragePool", "x", "m"),
        ("Sub", "x m", "d"),
        ("Mul", "d d", "s"),
        ("GlobalAveragePool", "s", "v"),
        ("Add", "v e", "u"),
        ("Sqrt", "u", "r"),
        ("Div", "d r", "n"),
        ("Mul", "n g", "k"),
        ("Add", "k b", "z"),
    ]
    constants = {"e": 1e-3, "g": array(6, 1, 1, seed=1), "b": array(6, 1, 1, seed=2)}
    model = normalized(graph(nodes, {"x": [2, 6, 5, 4]}, ["z"], constants))
    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1, "Conv": 1}


@pytest.mark.parametrize("way", ["instance", "elementary"])
def test_group_normalization_by_reshape(way: str) -> None:
    tail = [("Reshape", "n back", "y"), ("Mul", "y g", "k"), ("Add", "k b", "z")]
    constants: dict[str, Any] = {
        "back": integers(2, 6, 5, 4),
        "g": array(6, 1, 1, seed=1),
        "b": array(6, 1, 1, seed=2),
    }
    if way == "instance":
        nodes = [("Reshape", "x rows", "p"), ("InstanceNormalization", "p ones zeros", "n")]
        constants |= {"rows": integers(2, 3, -1), "ones": np.ones(3, "f"), "zeros": np.zeros(3, "f")}
    else:
        nodes = [
            ("Reshape", "x rows", "p"),
            ("ReduceMean", "p a", "m"),
            ("Sub", "p m", "d"),
            ("Mul", "d d", "s"),
            ("ReduceMean", "s a", "v"),
            ("Add", "v e", "u"),
            ("Sqrt", "u", "r"),
            ("Reciprocal", "r", "i"),
            ("Mul", "d i", "n"),
        ]
        constants |= {"rows": integers(2, 3, 2, 5, 4), "a": integers(2, 3, 4), "e": 1e-3}
    model = normalized(graph([*nodes, *tail], {"x": [2, 6, 5, 4]}, ["z"], constants, opset=18))
    assert operators(model) == {"Reshape": 2, "LayerNormalization": 1, "Conv": 1}


@pytest.mark.parametrize("axis", [-1, 1])
def test_onnx_root_mean_square(axis: int) -> None:
    node = ("RMSNormalization", "x g", "z", {"axis": axis, "epsilon": 1e-2})
    proto = graph([node], {"x": [2, 5, 16]}, ["z"], {"g": array(16, seed=1)}, opset=23)
    expected = {"RMSNormalization": 1} | ({} if axis == -1 else {"Reshape": 2})
    assert operators(normalized(proto)) == expected


def test_half_precision_with_casts() -> None:
    nodes = [
        ("Cast", "x", "h", {"to": onnx.TensorProto.FLOAT16}),
        ("Cast", "h", "f", {"to": onnx.TensorProto.FLOAT}),
        ("Pow", "f two", "s"),
        ("ReduceMean", "s a", "v"),
        ("Add", "v eps", "u"),
        ("Sqrt", "u", "r"),
        ("Div", "one r", "i"),
        ("Mul", "f i", "n"),
        ("Cast", "n", "c", {"to": onnx.TensorProto.FLOAT16}),
        ("Mul", "g c", "k"),
        ("Cast", "k", "z", {"to": onnx.TensorProto.FLOAT}),
    ]
    constants = {name: CONSTANTS[name] for name in ("two", "a", "eps", "one")}
    constants["g"] = CONSTANTS["g"].astype(np.float16)
    model = load(graph(nodes, {"x": [2, 5, 16]}, ["z"], constants, opset=18))
    assert operators(model)["RMSNormalization"] == 1
    assert "Sqrt" not in operators(model)
