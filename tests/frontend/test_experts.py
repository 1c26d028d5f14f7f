"""Choices of the largest and products with matrices chosen at run time, with onnxruntime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from frontend.graphs import array, graph, integers, normalized, operators
from tpuflow import load
from tpuflow.errors import TpuflowError
from tpuflow.frontend import FloatSession

MS = "com.microsoft"


def _top(shape: list[int], count: int, axis: int, **attributes: Any) -> onnx.ModelProto:
    """Values and indices, by which rows of a table are picked as well."""
    nodes: list[Any] = [
        ("TopK", "x k", "values indices", {"axis": axis, **attributes}),
        ("Gather", "table indices", "places", {"axis": 0}),
    ]
    constants = {"k": np.array([count]), "table": np.arange(shape[axis], dtype=np.float32)[:, np.newaxis]}
    return graph(nodes, {"x": list(shape)}, ["values", "places"], constants)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "count", "axis"), [([5], 5, 0), ([3, 8], 2, -1), ([2, 7, 3], 3, 1), ([4, 1], 1, 1)]
)
def test_the_largest_are_found_by_comparing(shape: list[int], count: int, axis: int, largest: int) -> None:
    assert "TopK" not in operators(normalized(_top(shape, count, axis, largest=largest)))


@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_elements_the_first_comes_first(largest: int) -> None:
    model = _top([6, 9], 9, 1, largest=largest)
    x = np.random.default_rng(3).integers(-2, 3, (6, 9)).astype(np.float32)
    found = FloatSession(load(model).model).run({"x": x})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")
    np.testing.assert_array_equal(found["places"][..., 0], order)
    np.testing.assert_array_equal(found["values"], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("size", [6, 8400])
def test_other_choices_are_left_to_the_host(size: int) -> None:
    nodes: list[Any] = [("TopK", "x k", "values indices", {"axis": 1})]
    if size > 6:
        nodes.append(("Gather", "table indices", "places", {"axis": 0}))
    constants = {"k": np.array([5]), "table": array(size, 2)}
    outputs = ["values", "places" if size > 6 else "indices"]
    proto = graph(nodes, {"x": [1, size]}, outputs, constants, types={"indices": TensorProto.INT64})
    assert "TopK" in operators(load(proto, host=True))


def _picked(
    batch: int, experts: int, rows: int, *, left: bool, turned: bool, how: str = "Gather"
) -> onnx.ModelProto:
    """A product of x with matrices [experts, 6, 5] picked by indices that are computed."""
    weights = array(experts, 6, 5, seed=1)
    weights[:, :, 2] = 0
    constants: dict[str, Any] = {"w": weights, "last": integers(-1)}
    nodes: list[Any] = [("ArgMax", "scores", "place", {"axis": 1, "keepdims": 0})]
    if how == "GatherND":
        nodes += [("Unsqueeze", "place last", "column"), ("GatherND", "w column", "picked")]
    else:
        nodes += [("Gather", "w place", "picked", {"axis": 0})]
    if turned:
        nodes.append(("Transpose", "picked", "matrices", {"perm": [0, 2, 1]}))
    name, inner = ("matrices" if turned else "picked"), (5 if turned != left else 6)
    nodes.append(("MatMul", f"{name} x" if left else f"x {name}", "y"))
    shape = [batch, inner, rows] if left else [batch, rows, inner]
    return graph(nodes, {"scores": [batch, experts], "x": shape}, ["y"], constants)


@pytest.mark.parametrize("how", ["Gather", "GatherND"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_products_with_picked_matrices(batch: int, rows: int, left: bool, turned: bool, how: str) -> None:  # noqa: FBT001
    experts = 4
    model = _picked(batch, experts, rows, left=left, turned=turned, how=how)
    found = operators(normalized(model, 1e-5))
    assert found["MatMul"] == (min(batch, experts))
    assert found.get("Where", 0) == (0 if batch <= experts else experts - 1)


def _mixture(
    op: str, constants: dict[str, Any], names: str, tokens: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    width, experts = 32, 4
    nodes = [(f"{MS}:{op}", f"x router {names}", "y", attributes)]
    return graph(nodes, {"x": [tokens, width], "router": [tokens, experts]}, ["y"], constants, domains=[MS])


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("relu", {}),
    ("gelu", {}),
    ("silu", {}),
    ("identity", {}),
    ("swiglu", {"swiglu_fusion": 1}),
    ("swiglu", {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}),
]


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_mixtures_of_experts(kind: str, more: dict[str, Any], normalize: int, tokens: int) -> None:
    rows = 48 if kind == "swiglu" else 24
    constants = {
        "w1": array(4, rows, 32, seed=1, scale=0.3), "b1": array(4, rows, seed=2),
        "w2": array(4, 32, 24, seed=3, scale=0.3), "b2": array(4, 32, seed=4),
    }  # fmt: skip
    attributes = {"k": 2, "activation_type": kind, "normalize_routing_weights": normalize, **more}
    model = normalized(_mixture("MoE", constants, "w1 b1 w2 b2", tokens, attributes), 2e-4)
    assert not {"MoE", "Gather"} <= set(operators(model)), "nothing of it is left"


def _codes(at: int, rows: int, columns: int, bits: int, block: int) -> tuple[dict[str, Any], np.ndarray]:
    """Weights of a layer in codes with zero points, as QMoE takes them, and the numbers they stand for."""
    random, per = np.random.default_rng(at), 8 // bits
    size = block or columns
    blocks = columns // size
    codes = random.integers(0, 1 << bits, (4, rows, columns))
    zeros = random.integers(0, 1 << bits, (4, rows, blocks))
    scales = random.uniform(0.005, 0.015, (4, rows, blocks)).astype(np.float32)

    def packed(array: np.ndarray) -> np.ndarray:
        parts = array.reshape(*array.shape[:-1], -1, per) << (np.arange(per) * bits)
        return np.asarray(parts.sum(-1), np.uint8)

    made = {f"w{at}": packed(codes), f"s{at}": scales if block else scales[..., 0]}
    made[f"z{at}"] = packed(zeros if block else zeros[..., 0])
    numbers = (codes - zeros.repeat(size, 2)) * scales.repeat(size, 2)
    return {**made, f"b{at}": array(4, rows, seed=at + 10)}, numbers.astype(np.float32)


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_mixtures_of_experts_in_codes(bits: int, block: int, tokens: int) -> None:
    """Beside the mixture of the numbers: onnxruntime's own rounds activations where codes have 8 bits."""
    first, second = _codes(1, 64, 32, bits, block), _codes(2, 32, 32, bits, block)
    codes = {**first[0], **second[0]}
    attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    stored = {"expert_weight_bits": bits, **({"block_size": block} if block else {})}
    names = "w1 s1 b1 w2 s2 b2 _ _ _ z1 z2"
    model = _mixture("QMoE", codes, names, tokens, {**attributes, **stored})
    numbers = {"w1": first[1], "w2": second[1], "b1": codes["b1"], "b2": codes["b2"]}
    same = _mixture("MoE", numbers, "w1 b1 w2 b2", tokens, {**attributes, "normalize_routing_weights": 1})
    if bits == 4:
        normalized(model, 1e-2)
    feed = {"x": array(tokens, 32, seed=5), "router": array(tokens, 4, seed=6)}
    expected = FloatSession(same).run(feed)["y"]
    found = FloatSession(load(model).model).run(feed)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


BAD: list[tuple[str, dict[str, Any]]] = [
    ("MoE", {"activation_type": "tanh"}),
    ("MoE", {"k": 5}),
    ("MoE", {"use_sparse_mixer": 1}),
    ("MoE", {"activation_type": "swiglu"}),
]


@pytest.mark.parametrize(("op", "attributes"), BAD)
def test_other_mixtures_are_named(op: str, attributes: dict[str, Any]) -> None:
    constants = {"w1": array(4, 24, 32), "b1": array(4, 24), "w2": array(4, 32, 24), "b2": array(4, 32)}
    with pytest.raises(TpuflowError, match="MoE"):
        load(_mixture(op, constants, "w1 b1 w2 b2", 2, {"k": 2, **attributes}))
