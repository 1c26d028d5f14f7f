"""Folding is left out exactly where it would change nothing."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxscript.optimizer import _constant_folding

from frontend.graphs import Node, array, graph, integers
from models.make_models import MODELS, random_model
from tpuflow.frontend import folding, load
from tpuflow.frontend.folding import SIMPLIFIED, is_fully_folded


def test_every_operator_that_is_simplified_is_known() -> None:
    # Private to onnxscript: the one place that says what it does beyond constants.
    registry = _constant_folding.registry.op_evaluators
    assert {name for domain, name in registry if domain == ""} == set(SIMPLIFIED)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_settled_networks_stay_as_they_are(name: str) -> None:
    _unchanged(load(MODELS[name]()).model)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_random_settled_networks_stay_as_they_are(seed: int) -> None:
    _unchanged(load(random_model(seed)).model)


def _unchanged(model: ir.Model) -> None:
    if is_fully_folded(model):
        before = str(model)
        assert not folding._fold_once(model)
        assert str(model) == before


@pytest.mark.parametrize(
    ("nodes", "settled"),
    [
        ([("Relu", "x", "y")], True),
        ([("Add", "x c", "y")], True),
        ([("Concat", "x x", "y", {"axis": 0})], True),
        ([("Reshape", "x two", "y")], True),
        ([("Reshape", "x same", "y")], False),
        ([("Concat", "x", "y", {"axis": 0})], False),
        ([("Identity", "x", "y")], False),
        ([("Mul", "c c", "d"), ("Add", "x d", "y")], False),
        ([("Shape", "x", "s"), ("Reshape", "x s", "y")], False),
        ([("ArgMax", "x", "i", {"axis": 0}), ("Cast", "i", "y", {"to": 1})], False),
    ],
)
def test_what_is_settled(nodes: list[Node], settled: bool) -> None:  # noqa: FBT001 - a table
    constants = {"c": array(2, 3), "two": integers(3, 2), "same": integers(2, 3)}
    used = {name for _, sources, *_ in nodes for name in sources.split()}
    kept = {name: value for name, value in constants.items() if name in used}
    made = graph(nodes, {"x": [2, 3]}, ["y"], kept)
    model = ir.from_proto(made)
    ir.passes.common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    assert is_fully_folded(model) == settled
    _unchanged(model)
