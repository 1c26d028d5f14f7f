"""Folding gives what onnxruntime computes, and is left out exactly where it would change nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state
from onnxscript.optimizer import _constant_folding

from frontend.graphs import Node, array, graph, integers
from fuzz.onnx_nodes import random_node
from models.make_models import MODELS, random_model
from tpuflow.errors import TpuflowError
from tpuflow.frontend import folding, load
from tpuflow.frontend.folding import SIMPLIFIED, is_fully_folded
from tpuflow.frontend.session import FloatSession


def test_every_operator_that_is_simplified_is_known() -> None:
    # Private to onnxscript: the one place that says what it does beyond constants.
    registry = _constant_folding.registry.op_evaluators
    assert {name for domain, name in registry if domain == ""} == set(SIMPLIFIED)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_settled_networks_stay_as_they_are(name: str) -> None:
    _unchanged(load(MODELS[name]()).model)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
@pytest.mark.slow
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


def test_weights_of_any_size_are_laid_out_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of embeddings, transposed for the last product of a decoder."""
    monkeypatch.setattr(folding, "LARGEST_FOLDED", 100)
    nodes = [("Transpose", "c", "t", {"perm": [1, 0]}), ("MatMul", "x t", "y")]
    model = load(graph(nodes, {"x": [2, 9]}, ["y"], {"c": array(20, 9)})).model
    assert [node.op_type for node in model.graph] == ["MatMul"]
    # What computes numbers of more than that is left to a run.
    larger = load(
        graph(
            [("MatMul", "c d", "t"), ("Add", "x t", "y")],
            {"x": [20, 20]},
            ["y"],
            {"c": array(20, 9), "d": array(9, 20)},
        )
    ).model
    assert len(larger.graph) == 2


REFUSALS = tuple(
    getattr(onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
)


def _as_constants(model: onnx.ModelProto, random: np.random.Generator) -> onnx.ModelProto | None:
    """A model of one free input, all others of which are constants; None where these have no numbers."""
    known = {each.name for each in model.graph.initializer}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        drawn = 2 * random.standard_normal([size.dim_value for size in tensor.shape.dim])
        if value.name not in known and dtype.kind not in "fiub":
            return None
        if value.name not in known:
            own = {"b": drawn > 0, "u": np.abs(drawn)}.get(dtype.kind, drawn)
            model.graph.initializer.append(onnx.numpy_helper.from_array(own.astype(dtype), value.name))
    del model.graph.input[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("zero", onnx.TensorProto.FLOAT, []))
    made = [value.name for value in model.graph.output]
    del model.graph.output[:]
    for name in made:
        freed = onnx.helper.make_tensor_value_info(f"{name}/freed", onnx.TensorProto.FLOAT, None)
        model.graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}/float"], to=1))
        model.graph.node.append(onnx.helper.make_node("Add", [f"{name}/float", "zero"], [freed.name]))
        model.graph.output.append(freed)
    return model


def _same_as_in_onnxruntime(model: onnx.ModelProto) -> bool:
    """Compares all numbers of a model of constants; False where one of the two does not take it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    feeds = {"zero": np.zeros((), np.float32)}
    try:
        ours = FloatSession(load(model).model, once=True).run(feeds)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        outputs = dict(
            zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True)
        )
    except (TpuflowError, *REFUSALS):
        return False
    for name, theirs in outputs.items():
        assert ours[name].shape == theirs.shape
        known = np.isfinite(theirs)
        np.testing.assert_allclose(ours[name][known], theirs[known], rtol=4e-3, atol=1e-3)
    return True


@pytest.mark.parametrize(
    "node",
    [
        ("GlobalMaxPool", "v", "y"),
        ("GlobalMaxPool", "m", "y"),
        ("LpNormalization", "m", "y", {"p": 1}),
        ("LpNormalization", "w", "y", {"p": 1, "axis": 0}),
        ("Squeeze", "one none", "y"),
        ("Div", "i j", "y"),
        ("Mod", "i j", "y"),
        ("LpPool", "v", "y", {"kernel_shape": [2, 2, 2]}),
    ],
)
def test_constants_are_computed_as_onnxruntime_does(node: Node) -> None:
    constants = {
        "v": array(1, 2, 3, 3, 4), "m": array(2, 3, 4), "w": array(3, 4), "one": array(4, 1, 1),
        "none": integers(), "i": integers(-7, 7, -8, 8), "j": integers(2, -2, 3, -3),
    }  # fmt: skip
    used = {name: constants[name] for name in node[1].split()}
    made = graph([node], {"x": [2]}, ["y"], used)
    del made.graph.input[:]
    complete = _as_constants(made, np.random.default_rng(0))
    assert complete is not None
    assert _same_as_in_onnxruntime(complete)


@pytest.mark.slow
def test_random_constants_are_computed_as_onnxruntime_does() -> None:
    compared = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        name, model, _ = random_node(random)
        # Masks of Dropout are all set, which onnxruntime leaves at zero; draws and means of nothing differ.
        if name in {"Dropout", "Bernoulli", "ReduceMean", "Unique"} or "Random" in name:
            continue
        complete = _as_constants(model, random)
        compared += complete is not None and _same_as_in_onnxruntime(complete)
    assert compared > 50
