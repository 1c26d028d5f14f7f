"""Graphs as ONNX of integers: onnxruntime and ONNX's own evaluator give the graph's bits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from conftest import slow_except
from end_to_end.levels import DType
from lowering.quantized import lowered, normal
from models.builder import Builder
from test_operators import CASES, made
from tpuflow import _core
from tpuflow.errors import ModelError
from tpuflow.export import integer_onnx

Codes = dict[str, NDArray[Any]]


def arranged(graph: _core.Graph, numbers: list[int], stored: Codes, *, back: bool) -> Codes:
    """Codes in the axis order of the model instead of the graph's (or `back`)."""
    found = {}
    for number in numbers:
        tensor = graph.tensors[number]
        source = json.loads(tensor.source_json or "{}")
        shape = source.get("shape", tensor.shape)
        permutation = source.get("permutation", list(range(len(shape))))
        name = source.get("name", tensor.name)
        if back:
            found[tensor.name] = stored[name].transpose(permutation).reshape(tensor.shape)
        else:
            moved = stored[tensor.name].reshape([shape[axis] for axis in permutation])
            found[name] = np.ascontiguousarray(moved.transpose(np.argsort(permutation)))
    return found


def drawn(graph: _core.Graph, seed: int) -> Codes:
    generator = np.random.default_rng(seed)
    found = {}
    for number in graph.inputs:
        tensor = graph.tensors[number]
        limits = np.iinfo(tensor.dtype)
        found[tensor.name] = generator.integers(
            limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True
        )
    return found


def runtime(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def check(graph: _core.Graph, *, slowly: bool = False) -> None:
    """Codes drawn evenly, which clip and saturate."""
    model = integer_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    session = runtime(model)
    codes = drawn(graph, 0)
    wanted = graph.run(codes)
    feed = arranged(graph, graph.inputs, codes, back=False)
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
    if slowly:
        evaluated = ReferenceEvaluator(model).run(None, feed)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(evaluated, found.values(), strict=True))
    for name, array in arranged(graph, graph.outputs, found, back=True).items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("dtype", slow_except(["int8"], ["int8", "int16"]))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.feature("MSC-06")
def test_every_operator_in_standard_nodes(name: str, dtype: DType) -> None:
    network, _ = made(CASES[name], dtype)
    check(network.graph)


@pytest.mark.feature("NUM-12")
def test_two_roundings_in_standard_nodes() -> None:
    b = Builder("twice")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 8))
    flat = b.node("Reshape", x, b.constant(np.array([1, 8, 16])))
    b.output(b.node("MatMul", flat, b.node("Transpose", flat, perm=[0, 2, 1])), b.gemm(b.conv(x, 4), 5))
    settings = {"dtype": "int16", "unify_shifts": True, "remain_shift": 10}
    graph = lowered(b.model(), normal(b), {"quantize": settings}).graph
    assert sum("first_shift" in layer.op_json for layer in graph.layers) == 4
    check(graph)


@pytest.mark.parametrize("name", sorted(CASES)[::40])
@pytest.mark.feature("MSC-06")
def test_another_runtime_gives_the_same(name: str) -> None:
    check(made(CASES[name], "int8")[0].graph, slowly=True)


@pytest.mark.feature("MSC-06")
def test_floats_and_odd_words_are_refused() -> None:
    whole = made(CASES["flatten"], "int8")[0].graph
    model = integer_onnx(whole, 32)
    kept = {entry.key: entry.value for entry in model.metadata_props}
    assert kept["cache_word_length"] == "32"
    # It is stored as the model has it: 10 channels take 16 bytes, 2 pixels are a word, 9 pixels a row of 6.
    assert json.loads(kept["words"])["x"] == 6 * 5
    with pytest.raises(ModelError, match="power of two"):
        integer_onnx(whole, 48)
    with pytest.raises(ModelError, match="is a float"):
        integer_onnx(made(CASES["flatten"], "float16")[0].graph)
