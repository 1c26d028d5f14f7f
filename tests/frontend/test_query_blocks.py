"""Masked attention by blocks of queries: the same results from fewer keys, whatever the mask is made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuflow
from frontend.graphs import Node, array, graph, normalized, operators
from lowering.quantized import Quantized, normal
from tpuflow import _core
from tpuflow.frontend import load
from tpuflow.frontend.rewrites.query_blocks import blocks_of
from tpuflow.frontend.values import shape_of

HEADS, SIZE = 4, 8


def causal(queries: int, keys: int, window: int | None = None) -> np.ndarray:
    """Which keys a query sees: those up to its own, `window` of them at most."""
    ahead = np.arange(keys)[np.newaxis] - np.arange(keys - queries, keys)[:, np.newaxis]
    return (ahead <= 0) & (ahead > -(window or keys))


def masked(kind: str, seen: np.ndarray) -> tuple[list[Node], dict[str, Any], dict[str, list[int]]]:
    """Nodes from "scores" to "masked", their constants and inputs."""
    low = np.float32(-3e38)
    added = np.where(seen, 0, low).astype("f")[None, None]
    if kind == "added":
        return [("Add", "scores mask", "masked")], {"mask": added}, {}
    if kind == "chosen":
        return [("Where", "seen scores low", "masked")], {"seen": seen, "low": low}, {}
    if kind == "not chosen":
        return [("Where", "hidden low scores", "masked")], {"hidden": ~seen, "low": low}, {}
    if kind == "biased":
        nodes = [("Add", "scores bias", "near"), ("Add", "near mask", "masked")]
        return nodes, {"bias": array(1, HEADS, *seen.shape, seed=5), "mask": added}, {}
    if kind == "capped":
        nodes = [
            ("Div", "scores cap", "small"),
            ("Tanh", "small", "flat"),
            ("Mul", "flat cap", "capped"),
            ("Add", "capped mask", "masked"),
        ]
        return nodes, {"cap": 2.0, "mask": added}, {}
    assert kind == "with an input"
    nodes = [
        ("Greater", "valid half", "counts"),
        ("And", "counts seen", "both"),
        ("Where", "both nothing low", "mask"),
        ("Add", "scores mask", "masked"),
    ]
    constants = {"half": -9.0, "seen": seen[None, None], "nothing": 0.0, "low": low}
    return nodes, constants, {"valid": [1, 1, 1, seen.shape[1]]}


def attention(
    kind: str, seen: np.ndarray, shared: int = 1, *, computed_keys: bool = False
) -> onnx.ModelProto:
    """Attention over keys and values that are inputs; `shared` heads of queries for each of theirs.

    Or over keys that are computed as the queries are, as many.
    """
    queries, keys = seen.shape
    few = HEADS // shared
    nodes, constants, inputs = masked(kind, seen)
    repeated: list[Node] = []
    for name in ("k", "v") if shared > 1 else ():
        repeated += [
            ("Unsqueeze", f"{name} two", f"{name}1"),
            ("Expand", f"{name}1 many", f"{name}2"),
            ("Reshape", f"{name}2 all", f"{name}r"),
        ]
        constants |= {
            "two": np.array([2]),
            "many": np.array([1, few, shared, keys, SIZE]),
            "all": np.array([1, HEADS, keys, SIZE]),
        }
    k, v = ("kr", "vr") if shared > 1 else ("k", "v")
    made: list[Node] = [
        ("MatMul", "x wq", "rows"),
        ("Reshape", "rows apart", "heads"),
        ("Transpose", "heads", "q", {"perm": [0, 2, 1, 3]}),
        *repeated,
        ("Transpose", k, "turned", {"perm": [0, 1, 3, 2]}),
        ("MatMul", "q turned", "scores"),
        *nodes,
        ("Softmax", "masked", "shares", {"axis": -1}),
        ("MatMul", f"shares {v}", "sums"),
        ("Transpose", "sums", "back", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "back joined", "together"),
        ("MatMul", "together wo", "y"),
    ]
    width = HEADS * SIZE
    constants |= {
        "wq": array(12, width, seed=1, scale=0.3),
        "wo": array(width, 12, seed=2, scale=0.3),
        "apart": np.array([0, 0, HEADS, SIZE]),
        "joined": np.array([0, 0, width]),
    }
    inputs |= {"x": [1, queries, 12], "v": [1, few, keys, SIZE]}
    if computed_keys:
        made = [
            ("MatMul", "x wk", "key_rows"),
            ("Reshape", "key_rows apart", "key_heads"),
            ("Transpose", "key_heads", "k", {"perm": [0, 2, 1, 3]}),
            *made,
        ]
        constants["wk"] = array(12, width, seed=3, scale=0.3)
    else:
        inputs["k"] = [1, few, keys, SIZE]
    return graph(made, inputs, ["y"], constants)


KINDS = ["added", "chosen", "not chosen", "biased", "capped", "with an input"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("past", "window", "shared"), [(0, None, 1), (40, None, 2), (0, 100, 4), (300, 60, 1)]
)
def test_blocks_of_queries_take_the_keys_that_they_may_see(
    kind: str, past: int, window: int | None, shared: int
) -> None:
    queries = 300
    seen = causal(queries, past + queries, window)
    model = normalized(attention(kind, seen, shared))
    assert operators(model)["Softmax"] == 3
    widths = [shape_of(n.outputs[0]) for n in model.model.graph if n.op_type == "Softmax"]
    expected = [int(seen[first : first + 128].any(axis=0).sum()) for first in (0, 128, 256)]
    assert [shape[-1] for shape in widths if shape is not None] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_attention_whose_queries_see_all_keys_stays_whole(kind: str) -> None:
    seen = np.ones((256, 256), bool)
    seen[3, 5] = seen[200, 9] = False
    assert operators(normalized(attention(kind, seen)))["Softmax"] == 1


def test_few_queries_stay_together_and_very_many_make_eight_blocks() -> None:
    assert operators(normalized(attention("added", causal(255, 255))))["Softmax"] == 1
    assert len(blocks_of(~causal(2048, 2048), 2048, 2048)) == 8
    # Blocks of 256 are not divided once more.
    assert operators(normalized(attention("added", causal(1100, 1100))))["Softmax"] == 5


@given(
    queries=st.integers(1, 600),
    keys=st.integers(1, 40),
    density=st.sampled_from([0.0, 0.01, 0.5]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_blocks_cover_every_query_once_and_every_key_it_sees(
    queries: int, keys: int, density: float, seed: int
) -> None:
    seen = np.random.default_rng(seed).random((2, queries, keys)) < density
    blocks = blocks_of(~seen, queries, keys)
    assert [row for rows, _ in blocks for row in rows] == [*range(queries)]
    for rows, kept in blocks:
        columns = np.flatnonzero(seen[:, rows.start : rows.stop].any(axis=(0, 1)))
        assert len(kept) > 0
        assert {*columns} <= {*kept}
        assert columns.size == 0 or (columns[0], columns[-1]) == (kept[0], kept[-1])


@pytest.mark.parametrize(("kind", "shared"), [("added", 1), ("with an input", 2)])
def test_program_and_graph_of_blocks_are_equal_and_near_the_float_model(kind: str, shared: int) -> None:
    proto = attention(kind, causal(256, 320), shared)
    feeds = normal(proto)
    for feed in feeds:
        if "valid" in feed:
            feed["valid"] = np.where(np.arange(320) % 9, 0, -20).astype("f")[None, None, None]
    model = load(proto)
    samples = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    quantized = Quantized(model, tpuflow.quantize(model, samples=samples))
    # Masks are operands of the softmax, also those that are computed.
    assert not {"select", "add"} & {*quantized.operators}
    assert all(each.sqnr > 25 for each in quantized.compare(feeds[0]).values())
    for level in (1, 5):
        quantized.equals_program(tpuflow.compile(quantized.graph, level=level), feeds[0])
    quantized.equals_reference(feeds[0])


def test_keys_are_transposed_once_for_all_blocks() -> None:
    """Blocks read columns of what is transposed: as rows these have no gaps."""
    proto = attention("added", causal(384, 384), computed_keys=True)
    feeds = normal(proto)
    samples = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    graph = tpuflow.quantize(load(proto), samples=samples)
    assert isinstance(graph, _core.Graph)
    moves = [json.loads(layer.op_json) for layer in graph.layers if layer.op == "rearrange"]
    made = {layer.output: json.loads(layer.op_json) for layer in graph.layers if layer.op == "rearrange"}
    products = [layer.operands[1] for layer in graph.layers if layer.op == "mat_mul"]
    keys = [operand for operand in products if graph.tensors[operand].shape[-1] > 32]
    assert [graph.tensors[key].shape[-1] for key in keys] == [128, 256, 384]
    transposed = [move for move in moves if move["strides"][-1] != 1]
    assert len(transposed) == 1
    whole = keys[-1]
    assert made[whole] == transposed[0]
    assert all(made[key]["input"] == whole and made[key]["strides"][-1] == 1 for key in keys[:-1])
