"""Rewrites of convolutions, pools and matrix products, and what is folded into them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from frontend.graphs import array, graph, integers, normalized, operators

IMAGE = {"x": [2, 4, 9, 10]}
STATED = {"kernel_shape", "strides", "dilations", "pads"}


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_is_explicit(auto_pad: str, stride: int) -> None:
    window = {"strides": [stride, 2], "auto_pad": auto_pad}
    # onnxruntime cannot resolve SAME padding of a dilated kernel.
    dilations = [1, 1] if auto_pad.startswith("SAME") else [2, 1]
    nodes = [
        ("Conv", "x w", "a", window | {"dilations": dilations}),
        ("MaxPool", "x", "b", window | {"kernel_shape": [3, 2]}),
        ("AveragePool", "x", "c", window | {"kernel_shape": [2, 3], "count_include_pad": 1}),
    ]
    model = normalized(graph(nodes, IMAGE, ["a", "b", "c"], {"w": array(6, 4, 3, 2)}, opset=19))
    for node in model.model.graph:
        assert set(node.attributes) >= STATED - ({"dilations"} if node.op_type == "AveragePool" else set())
        assert "auto_pad" not in node.attributes


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 1]])
@pytest.mark.parametrize("include", [0, 1])
def test_pools(ceil_mode: int, pads: list[int], include: int) -> None:
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": pads, "ceil_mode": ceil_mode}
    nodes = [
        ("MaxPool", "x", "a", window),
        ("AveragePool", "x", "b", window | {"count_include_pad": include}),
    ]
    normalized(graph(nodes, IMAGE, ["a", "b"]))


def test_rounding_up_without_effect_is_not_kept() -> None:
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    model = normalized(graph([("MaxPool", "x", "z", window)], {"x": [1, 3, 8, 6]}, ["z"]))
    assert model.model.graph[0].attributes.get_int("ceil_mode") == 0


@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_windows_that_lie_wholly_in_the_padding_are_left_out(pool: str, opset: int) -> None:
    """Until opset 22 the standard counts them; runtimes never compute one. What follows knows the shape."""
    window = {"kernel_shape": [1, 2], "strides": [1, 3], "pads": [0, 0, 0, 1], "ceil_mode": 1}
    nodes = [(pool, "x", "a", window), (pool, "a", "b", window), ("Relu", "b", "z")]
    model = normalized(graph(nodes, {"x": [1, 3, 4, 14]}, ["z"], opset=opset))
    assert model.outputs[0].shape == (1, 3, 4, 2)


@pytest.mark.parametrize("opset", [18, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "window", "shape"),
    [
        ((5, 7), {"kernel_shape": [1, 1], "strides": [3, 3]}, (2, 3)),
        ((8, 7), {"kernel_shape": [2, 2], "strides": [3, 2], "pads": [1, 0, 1, 1]}, (3, 4)),
        ((6, 5), {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [0, 1, 1, 0]}, (2, 3)),
        ((6, 5), {"kernel_shape": [1, 2], "strides": [3, 2], "auto_pad": "VALID"}, (2, 3)),
        ((5, 5), {"kernel_shape": [3, 1], "strides": [3, 3], "pads": [2, 0, 2, 0]}, (3, 2)),
        (
            (8, 7),
            {"kernel_shape": [2, 2], "strides": [3, 2], "pads": [1, 0, 1, 1], "dilations": [1, 2]},
            (3, 4),
        ),
    ],
)
@pytest.mark.parametrize("include", [0, 1])
def test_windows_of_padding_along_one_axis_only(
    size: tuple[int, int], window: dict[str, Any], shape: tuple[int, int], pool: str, opset: int, include: int
) -> None:
    """Along the other one the number of windows is rounded up."""
    if pool == "AveragePool":
        window = window | {"count_include_pad": include}
        opset = max(opset, 19)
    model = normalized(
        graph([(pool, "x", "z", window | {"ceil_mode": 1})], {"x": [1, 3, *size]}, ["z"], opset=opset)
    )
    assert model.outputs[0].shape == (1, 3, *shape)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "output_shape": [18, 20]},
        {"strides": [3, 2], "output_shape": [26, 20], "auto_pad": "SAME_UPPER"},
        {"group": 2, "dilations": [2, 1], "auto_pad": "VALID"},
    ],
)
def test_transposed_convolution(attributes: dict[str, Any]) -> None:
    bias = "b2" if "group" in attributes else "b"
    model = normalized(graph([("ConvTranspose", f"x w {bias}", "z", attributes)], IMAGE, ["z"], TRANSPOSED))
    (node,) = model.model.graph
    assert set(node.attributes) == STATED | {"group", "output_padding"}


TRANSPOSED = {"w": array(4, 3, 3, 3), "b": array(3), "b2": array(6)}


@pytest.mark.parametrize(("mode", "folded"), [("constant", True), ("reflect", False)])
def test_pad_before_convolution(mode: str, *, folded: bool) -> None:
    constants = {"w": array(6, 4, 3, 3), "p": integers(0, 0, 1, 0, 0, 0, 2, 1)}
    nodes = [("Pad", "x p", "q", {"mode": mode}), ("Conv", "q w", "z", {"pads": [0, 1, 0, 0]})]
    model = normalized(graph(nodes, IMAGE, ["z"], constants))
    assert ("Pad" in operators(model)) is not folded


@pytest.mark.parametrize("value", [1.0, 0.0, -3.0, -np.inf])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_pad_before_pool(value: float, pool: str, *, limited: bool) -> None:
    if pool == "AveragePool" and np.isinf(value):
        value = 2.0
    constants = {"p": integers(0, 0, 1, 0, 0, 0, 1, 1), "v": value}
    nodes = [
        ("Relu" if limited else "Neg", "x", "r"),
        ("Pad", "r p v", "q"),
        (pool, "q", "z", {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ]
    model = normalized(graph(nodes, IMAGE, ["z"], constants))
    folds = value == -np.inf or (limited and value <= 0) if pool == "MaxPool" else value == 0
    assert ("Pad" in operators(model)) is not folds


def test_pads_of_channels_are_not_folded() -> None:
    constants = {"w": array(6, 5, 3, 3), "p": integers(0, 1, 0, 0, 0, 0, 0, 0)}
    nodes = [("Pad", "x p", "q"), ("Conv", "q w", "z")]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants))) == {"Pad": 1, "Conv": 1}


@pytest.mark.parametrize("bias", [False, True])
def test_one_spatial_axis(*, bias: bool) -> None:
    sound = {"x": [2, 4, 20]}
    norm = "s b m v"
    constants = {
        "w": array(4, 2, 3),
        "wt": array(4, 3, 4),
        "c": array(4),
        **{name: np.abs(array(4, seed=k)) + 0.5 for k, name in enumerate(norm.split())},
    }
    nodes = [
        (
            "Conv",
            "x w c" if bias else "x w",
            "a",
            {"group": 2, "pads": [2, 1], "strides": [2], "dilations": [2]},
        ),
        ("BatchNormalization", f"a {norm}", "n"),
        ("Relu", "n", "r"),
        ("MaxPool", "r", "p", {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
        ("AveragePool", "p", "q", {"kernel_shape": [2]}),
        ("ConvTranspose", "q wt", "t", {"strides": [2], "output_padding": [1], "pads": [0, 1]}),
        ("GlobalAveragePool", "t", "z"),
        ("GlobalMaxPool", "t", "y"),
    ]
    model = normalized(graph(nodes, sound, ["z", "y"], constants))
    kinds = operators(model)
    assert "BatchNormalization" not in kinds
    assert "Mul" not in kinds
    order = [node.op_type for node in model.model.graph]
    assert order[order.index("Conv") + 1] == "Relu"


def test_silu_stays_next_to_a_convolution_over_one_axis() -> None:
    nodes = [("Conv", "x w", "c"), ("Sigmoid", "c", "s"), ("Mul", "c s", "z")]
    model = normalized(graph(nodes, {"x": [1, 3, 9]}, ["z"], {"w": array(4, 3, 3)}))
    assert [node.op_type for node in model.model.graph] == ["Reshape", "Conv", "Silu", "Reshape"]


def test_global_pool_over_volumes() -> None:
    model = normalized(graph([("GlobalMaxPool", "x", "z")], {"x": [2, 3, 2, 4, 5]}, ["z"]))
    assert operators(model) == {"Reshape": 2, "GlobalMaxPool": 1}


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.feature("IMP-11")
def test_batch_normalization_is_folded(operator: str, group: int, *, bias: bool) -> None:
    constants = {
        "w": array(*((6, 4 // group) if operator == "Conv" else (4, 6 // group)), 3, 3),
        "c": array(6),
        "s": array(6, seed=1),
        "b": array(6, seed=2),
        "m": array(6, seed=3),
        "v": np.abs(array(6, seed=4)),
        "k": array(6, 1, 1, seed=5),
        "h": 0.3,
    }
    nodes = [
        (operator, "x w c" if bias else "x w", "a", {"group": group}),
        ("BatchNormalization", "a s b m v", "n", {"epsilon": 0.01}),
        ("Mul", "n k", "o"),
        ("Sub", "o h", "z"),
    ]
    model = normalized(graph(nodes, IMAGE, ["z"], constants))
    assert operators(model) == {operator: 1}
    assert model.model.graph[0].outputs[0].name == "z"


@pytest.mark.feature("IMP-11")
def test_batch_normalization_of_a_result_used_twice() -> None:
    constants = {"w": array(6, 4, 1, 1), **{n: np.abs(array(6, seed=k)) for k, n in enumerate("sbmv")}}
    nodes = [("Conv", "x w", "a"), ("BatchNormalization", "a s b m v", "n"), ("Add", "a n", "z")]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants))) == {"Conv": 2, "Add": 1}


def test_batch_normalization_alone_is_a_depthwize_convolution() -> None:
    constants = {n: np.abs(array(4, seed=k)) for k, n in enumerate("sbmv")}
    nodes = [("BatchNormalization", "x s b m v", "n"), ("Relu", "n", "z")]
    model = normalized(graph(nodes, IMAGE, ["z"], constants))
    assert [node.op_type for node in model.model.graph] == ["Conv", "Relu"]
    assert model.model.graph[0].attributes["group"].as_int() == 4
    shared = {"c": array(4, 1, 1), "t": array(1), **constants}
    nodes = [("Mul", "x t", "a"), ("Add", "a c", "z")]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], shared))) == {"Mul": 1, "Add": 1}


def test_weights_shared_by_two_convolutions_are_folded_apart() -> None:
    constants = {"w": array(6, 4, 1, 1), "k": 2.0, "c": array(6)}
    nodes = [("Conv", "x w c", "a"), ("Mul", "a k", "b"), ("Conv", "x w c", "c1"), ("Add", "b c1", "z")]
    nodes[2] = ("Conv", "y w c", "c1")
    inputs = {**IMAGE, "y": IMAGE["x"]}
    assert operators(normalized(graph(nodes, inputs, ["z"], constants))) == {"Conv": 2, "Add": 1}


def test_a_shift_that_varies_in_space_is_kept() -> None:
    constants = {"w": array(6, 4, 1, 1), "k": array(6, 9, 10)}
    nodes = [("Conv", "x w", "a"), ("Add", "a k", "z")]
    assert operators(normalized(graph(nodes, IMAGE, ["z"], constants))) == {"Conv": 1, "Add": 1}


GEMM = list(itertools.product([0, 1], [0, 1], [1.0, 0.5], [1.0, 2.0, 0.0], ["c", "row", "_"]))


@pytest.mark.parametrize(("trans_a", "trans_b", "alpha", "beta", "bias"), GEMM)
def test_gemm(trans_a: int, trans_b: int, alpha: float, beta: float, bias: str) -> None:
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    constants = {"w": array(5, 4) if trans_b else array(4, 5), "c": array(5), "row": array(1, 5)}
    source = {"x": [4, 3] if trans_a else [3, 4]}
    model = normalized(
        graph([("Gemm", f"x w {bias}".removesuffix(" _"), "z", attributes)], source, ["z"], constants)
    )
    expected = {"MatMul": 1} | ({"Add": 1} if bias != "_" and beta else {})
    assert operators(model) == expected | ({"Transpose": 1} if trans_a else {})


def test_gemm_of_two_inputs() -> None:
    nodes = [("Gemm", "x y c", "z", {"transB": 1, "alpha": 0.5, "beta": 0.25})]
    model = normalized(graph(nodes, {"x": [3, 4], "y": [5, 4], "c": [5]}, ["z"]))
    assert operators(model) == {"Transpose": 1, "MatMul": 1, "Mul": 2, "Add": 1}


@pytest.mark.parametrize(
    ("left", "right"), [([4], [4, 5]), ([3, 4], [4]), ([4], [4]), ([2, 3, 4], [4]), ([4], [2, 4, 5])]
)
def test_vectors_in_matrix_products(left: list[int], right: list[int]) -> None:
    normalized(graph([("MatMul", "x y", "z")], {"x": left, "y": right}, ["z"]))


def test_scales_are_folded_into_matrix_products() -> None:
    constants: dict[str, Any] = {
        "w": array(4, 5),
        "b": array(5),
        "s": array(5, seed=1),
        "t": array(5, seed=2),
    }
    nodes = [
        ("MatMul", "x w", "a"),
        ("Add", "a b", "p"),
        ("BatchNormalization", "p s t t v", "n"),
        ("Div", "n k", "z"),
    ]
    constants |= {"v": np.abs(array(5)) + 1, "k": 3.0}
    model = normalized(graph(nodes, {"x": [3, 4]}, ["z"], constants))
    assert operators(model) == {"MatMul": 1, "Add": 1}


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "bij,bjk->bik",
        "bhid,bhjd->bhij",
        "bij,kj->bki",
        "ij,ij->i",
        "bi,bj->bij",
        "ijk->kij",
        "ijk->j",
        "ij,jk",
        "i,j->ij",
    ],
)
def test_einsum(equation: str) -> None:
    sizes = dict(zip("bhijkd", (2, 3, 4, 5, 6, 7), strict=True))
    terms = equation.split("->", maxsplit=1)[0].split(",")
    inputs = {f"x{k}": [sizes[c] for c in term] for k, term in enumerate(terms)}
    model = normalized(graph([("Einsum", " ".join(inputs), "z", {"equation": equation})], inputs, ["z"]))
    assert "Einsum" not in operators(model)
