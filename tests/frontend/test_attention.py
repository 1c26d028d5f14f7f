"""Attention as exporters write it becomes MatMul, [Add,] Softmax, MatMul, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.graphs import Node, array, graph, integers, normalized, operators
from tpuflow.frontend import FloatModel

WIDTH = 8
CAUSAL = np.triu(np.ones((6, 6), bool), 1)


def _masking(
    mask: str, heads: int, scores: str, inputs: dict[str, list[int]], constants: dict[str, Any]
) -> list[Node]:
    """What leads from the scores to "masked", its constants and inputs added to these."""
    if mask == "added":
        constants["mask"] = np.where(CAUSAL, np.finfo("f").min, 0).astype("f")[None, None]
    elif mask == "infinite":
        constants["mask"] = np.where(CAUSAL, -np.inf, 0).astype("f")[None, None]
    elif mask == "with bias":
        constants["mask"] = np.where(CAUSAL, -1e9, array(heads, 6, 6, seed=9)).astype("f")[None]
    elif mask == "computed":
        inputs["mask"] = [2, 1, 6, 6]
    elif mask in {"filled", "kept", "chosen"}:
        constants |= {"low": -1e9, "mask": CAUSAL if mask == "filled" else ~CAUSAL}
    if mask in {"added", "infinite", "with bias", "computed"}:
        return [("Add", f"{scores} mask", "masked")]
    if mask == "filled":
        return [("Where", f"mask low {scores}", "masked")]
    if mask == "kept":
        return [("Where", f"mask {scores} low", "masked")]
    if mask == "chosen":
        constants["nothing"] = 0.0
        return [("Where", "mask nothing low", "chosen"), ("Add", f"chosen {scores}", "masked")]
    return [("Identity", scores, "masked")]


def attention(
    *,
    scale: str = "after",
    mask: str = "none",
    heads: int = 2,
    shared: int = 1,
    cross: bool = False,
    biased: bool = True,
    rows: int = 6,
) -> onnx.ModelProto:
    """Attention of `rows` rows with projections; `shared` heads of Q use one head of K and V."""
    columns = 6 if mask != "none" else 5 if cross else rows
    features, few = heads * WIDTH, heads // shared * WIDTH
    factor = WIDTH**-0.5
    inputs: dict[str, list[int]] = {"x": [2, rows, 12]} | ({"y": [2, columns, 12]} if cross else {})
    constants: dict[str, Any] = {"o": array(features, 12, seed=4, scale=0.3)}
    nodes: list[Node] = []
    for index, (name, width, count) in enumerate(
        (("q", features, rows), ("k", few, columns), ("v", few, columns))
    ):
        constants[f"w{name}"] = array(12, width, seed=index, scale=0.3)
        constants[f"s{name}"] = integers(2, count, width // WIDTH, WIDTH)
        source, product = "y" if cross and name != "q" else "x", f"{name}p"
        nodes.append(("MatMul", f"{source} w{name}", product))
        if biased:
            constants[f"b{name}"] = array(width, seed=index + 5)
            nodes.append(("Add", f"b{name} {product}", f"{name}b"))
            product = f"{name}b"
        nodes.append(("Reshape", f"{product} s{name}", f"{name}r"))
        nodes.append(("Transpose", f"{name}r", f"{name}h", {"perm": [0, 2, 1, 3]}))
        if shared > 1 and name != "q":
            constants |= {
                f"{name}1": integers(2, width // WIDTH, 1, count, WIDTH),
                f"{name}n": integers(2, width // WIDTH, shared, count, WIDTH),
                f"{name}m": integers(2, heads, count, WIDTH),
            }
            nodes += [
                ("Reshape", f"{name}h {name}1", f"{name}one"),
                ("Expand", f"{name}one {name}n", f"{name}many"),
                ("Reshape", f"{name}many {name}m", f"{name}all"),
            ]
        else:
            nodes.append(("Identity", f"{name}h", f"{name}all"))
    nodes.append(("Transpose", "kall", "kt", {"perm": [0, 1, 3, 2]}))
    q, k, scores = "qall", "kt", "scores"
    if scale == "before":
        constants["f"] = factor
        nodes, q = [*nodes, ("Mul", "qall f", "qs")], "qs"
    elif scale == "roots":
        constants["f"] = [factor**0.5]
        nodes += [("Mul", "qall f", "qs"), ("Mul", "kt f", "ks")]
        q, k = "qs", "ks"
    nodes.append(("MatMul", f"{q} {k}", "qk"))
    if scale == "after":
        constants["f"] = 1 / factor
        nodes.append(("Div", "qk f", "scores"))
    else:
        nodes.append(("Identity", "qk", "scores"))
    nodes += _masking(mask, heads, scores, inputs, constants)
    constants["back"] = integers(2, rows, features)
    nodes += [
        ("Softmax", "masked", "p", {"axis": -1}),
        ("MatMul", "p vall", "c"),
        ("Transpose", "c", "ct", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "ct back", "cr"),
        ("MatMul", "cr o", "z"),
    ]
    used = {name for _, sources, *_ in nodes for name in sources.split()}
    return graph(nodes, inputs, ["z"], {name: value for name, value in constants.items() if name in used})


def _before(model: FloatModel, operator: str) -> list[str]:
    """What makes the operands of the one node of this operator, constants left out."""
    (node,) = (each for each in model.model.graph if each.op_type == operator)
    producers = (None if value is None else value.producer() for value in node.inputs)
    return [producer.op_type for producer in producers if producer is not None]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("scale", ["after", "before", "roots"])
@pytest.mark.feature("IMP-14")
def test_scale_becomes_part_of_the_projection(scale: str, *, cross: bool, biased: bool) -> None:
    model = normalized(attention(scale=scale, cross=cross, biased=biased))
    expected = {"MatMul": 6, "Reshape": 4, "Transpose": 4, "Softmax": 1}
    assert operators(model) == expected | ({"Add": 3} if biased else {})
    assert _before(model, "Softmax") == ["MatMul"]


MASKS = {"added": 1, "infinite": 1, "with bias": 2, "computed": 1, "chosen": 1, "filled": 0, "kept": 0}


@pytest.mark.parametrize("scale", ["after", "roots"])
@pytest.mark.parametrize(("mask", "additions"), MASKS.items())
@pytest.mark.feature("IMP-14")
def test_masks_of_attention_stay_in_front_of_the_softmax(mask: str, additions: int, scale: str) -> None:
    model = normalized(attention(scale=scale, mask=mask, biased=False))
    kinds = operators(model)
    assert kinds["Add"] == additions
    assert kinds["Add"] + kinds["Where"] == max(additions, 1)
    assert kinds["Mul"] == 0
    masking = _before(model, "Softmax")
    assert masking == (["Where"] if mask in {"filled", "kept"} else ["Add"])
    (softmax,) = (node for node in model.model.graph if node.op_type == "Softmax")
    scores = softmax.inputs[0]
    producer = None if scores is None else scores.producer()
    assert producer is not None
    added = producer.inputs[0 if masking == ["Where"] else 1]
    assert added is not None
    assert added.const_value is not None or mask == "computed"


@pytest.mark.parametrize("mask", ["none", "added"])
@pytest.mark.feature("IMP-14")
def test_grouped_queries_share_their_keys(mask: str) -> None:
    model = normalized(attention(heads=6, shared=3, mask=mask))
    kinds = operators(model)
    assert kinds["Expand"] == kinds["Mul"] == 0
    assert kinds["MatMul"] == 6


@settings(max_examples=8, deadline=None)
@given(
    scale=st.sampled_from(["none", "before", "after", "roots"]),
    mask=st.sampled_from(["none", *MASKS]),
    heads=st.sampled_from([(1, 1), (4, 1), (4, 2)]),
    biased=st.booleans(),
    cross=st.booleans(),
)
@pytest.mark.feature("IMP-14")
def test_any_form_of_attention_is_normalized(
    scale: str, mask: str, heads: tuple[int, int], *, biased: bool, cross: bool
) -> None:
    proto = attention(scale=scale, mask=mask, heads=heads[0], shared=heads[1], biased=biased, cross=cross)
    kinds = operators(normalized(proto))
    assert kinds["Mul"] == kinds["Expand"] == 0
    assert kinds["Softmax"] == 1


@pytest.mark.parametrize("mask", ["added", "kept"])
@pytest.mark.feature("IMP-14")
def test_scale_behind_the_mask(mask: str) -> None:
    constants: dict[str, Any] = {"f": 0.25}
    if mask == "added":
        constants["m"] = np.where(CAUSAL, -1e9, 0).astype("f")
        nodes: list[Node] = [("MatMul", "a b", "s"), ("Add", "s m", "t")]
    else:
        constants |= {"m": ~CAUSAL, "low": -1e9}
        nodes = [("MatMul", "a b", "s"), ("Where", "m s low", "t")]
    nodes += [("Mul", "t f", "u"), ("Softmax", "u", "p"), ("MatMul", "p c", "z")]
    shapes = {"a": [3, 6, 4], "b": [3, 4, 6], "c": [3, 6, 5]}
    model = normalized(graph(nodes, shapes, ["z"], constants))
    names = [node.op_type for node in model.model.graph]
    assert names == ["MatMul", "Mul", "Add" if mask == "added" else "Where", "Softmax", "MatMul"]


@pytest.mark.feature("IMP-14")
def test_mask_in_front_of_a_reshape() -> None:
    constants = {
        "m": np.where(CAUSAL, -1e9, 0).astype("f")[None, None, None],
        "s": integers(3, 2, 6, 6),
    }
    nodes = [("Add", "x m", "t"), ("Reshape", "t s", "r"), ("Softmax", "r", "z")]
    model = normalized(graph(nodes, {"x": [1, 3, 2, 6, 6]}, ["z"], constants))
    assert [node.op_type for node in model.model.graph] == ["Reshape", "Add", "Softmax"]


@pytest.mark.parametrize("whole_rows", [False, True])
@pytest.mark.feature("IMP-14")
def test_guard_against_rows_left_out(*, whole_rows: bool) -> None:
    mask = np.where(CAUSAL, -np.inf, 0).astype("f")
    if whole_rows:
        mask[2] = -np.inf
    nodes = [("Add", "x m", "t"), ("Softmax", "t", "p"), ("IsNaN", "p", "n"), ("Where", "n o p", "z")]
    model = normalized(graph(nodes, {"x": [2, 6, 6]}, ["z"], {"m": mask, "o": 0.0}))
    assert ("Where" in operators(model)) == whole_rows


@pytest.mark.parametrize(("values", "turned"), [(3, True), (4, False)])
@pytest.mark.feature("IMP-14")
def test_values_are_turned_where_they_are_less_than_probabilities(values: int, *, turned: bool) -> None:
    # Probabilities have 7 x 8 elements a head; values 8 x `values` and sums 7 x `values`.
    nodes: list[Node] = [
        ("Softmax", "x", "p"),
        ("Transpose", "p", "t", {"perm": [0, 2, 1]}),
        ("MatMul", "v t", "z"),
    ]
    model = normalized(graph(nodes, {"x": [2, 7, 8], "v": [2, values, 8]}, ["z"]))
    names = [node.op_type for node in model.model.graph]
    assert sorted(names) == ["MatMul", "Softmax", *["Transpose"] * (2 if turned else 1)]
    (product,) = (node for node in model.model.graph if node.op_type == "MatMul")
    softmax = product.inputs[0 if turned else 1]
    assert softmax is not None
    producer = softmax.producer()
    assert producer is not None
    assert producer.op_type == ("Softmax" if turned else "Transpose")


@pytest.mark.parametrize("kept", ["p", "t"])
@pytest.mark.feature("IMP-14")
def test_probabilities_others_need_turned_stay(kept: str) -> None:
    nodes: list[Node] = [
        ("Softmax", "x", "p"),
        ("Transpose", "p", "t", {"perm": [0, 2, 1]}),
        ("MatMul", "v t", "z"),
        ("Relu", kept, "y"),
    ]
    model = normalized(graph(nodes, {"x": [2, 7, 8], "v": [2, 3, 8]}, ["z", "y"]))
    assert operators(model)["Transpose"] == 1


@pytest.mark.feature("IMP-12")
def test_a_factor_others_need_stays() -> None:
    nodes = [("MatMul", "x w", "y"), ("Reshape", "y s", "r"), ("Mul", "r f", "z"), ("Relu", "y", "t")]
    constants = {"w": array(4, 6), "s": integers(3, 2, 3), "f": 0.5}
    model = normalized(graph(nodes, {"x": [3, 4]}, ["z", "t"], constants))
    assert operators(model)["Mul"] == 1


@pytest.mark.feature("IMP-12")
def test_factor_through_rotary_embedding() -> None:
    nodes: list[Node] = [
        ("Mul", "x c", "a"),
        ("Slice", "x zero four ax", "l"),
        ("Slice", "x four eight ax", "r"),
        ("Neg", "r", "n"),
        ("Concat", "n l", "t", {"axis": -1}),
        ("Mul", "t s", "b"),
        ("Add", "a b", "q"),
        ("MatMul", "q k", "p"),
        ("Mul", "p f", "z"),
    ]
    constants = {"c": array(5, 8), "s": array(5, 8, seed=1), "f": 0.5} | {
        name: integers(value) for name, value in (("zero", 0), ("four", 4), ("eight", 8), ("ax", 2))
    }
    model = normalized(graph(nodes, {"x": [2, 5, 8], "k": [2, 8, 5]}, ["z"], constants))
    assert operators(model)["Mul"] == 2


@pytest.mark.feature("IMP-12")
def test_nodes_that_take_a_factor_in_keep_their_names() -> None:
    nodes = [("MatMul", "x w", "y"), ("Reshape", "y s", "r"), ("Mul", "r f", "z")]
    model = normalized(
        graph(nodes, {"x": [3, 4]}, ["z"], {"w": array(4, 6), "s": integers(3, 2, 3), "f": 0.5})
    )
    assert next(node.name for node in model.model.graph) == "matmul0"
