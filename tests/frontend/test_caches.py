"""Caches of a fixed length whose rows are written at places known at run time or before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tpuflow
from frontend.graphs import array, operators
from tpuflow.errors import UnsupportedModelError
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE, SIZE = [1, 2, 6, 4], 6
# Several rows of a ring at a place known at run time alone: some may lie at its end, others at its start.
WRAPPED = ("circular", 3, False)


def _model(
    nodes: list[Any], inputs: Mapping[str, list[int]], constants: dict[str, Any], opset: int
) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(o, i.split(), [y], **a) for o, i, y, a in nodes],
            "cache",
            [
                helper.make_tensor_value_info(
                    name, TensorProto.INT64 if name == "w" else TensorProto.FLOAT, shape
                )
                for name, shape in inputs.items()
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )


def _bounded(proto: onnx.ModelProto) -> FloatModel:
    model = ir.from_proto(proto)
    for value in model.graph.inputs:
        if value.name == "w":
            value.metadata_props["tpuflow.bound"] = str(SIZE)
    return tpuflow.load(model)


def _compared(
    proto: onnx.ModelProto, loaded: FloatModel, places: list[int], rows: list[int]
) -> list[dict[str, Any]]:
    session, reference, feeds = FloatSession(loaded.model), ReferenceEvaluator(proto), []
    for place in places:
        feed: dict[str, Any] = {"c": array(*CACHE, seed=place), "u": array(*rows, seed=place + 20)}
        feed |= {"w": np.array([place])} if any(v.name == "w" for v in proto.graph.input) else {}
        wanted: Any = reference.run(None, feed)
        np.testing.assert_allclose(session.run(feed)["y"], wanted[0], atol=1e-6)
        feeds.append(feed)
    return feeds


def _tensor_scatter(mode: str, rows: list[int], *, known: bool) -> onnx.ModelProto:
    inputs = {"c": CACHE, "u": rows} | ({} if known else {"w": [1]})
    constants = {"w": np.array([2])} if known else {}
    return _model([("TensorScatter", "c u w", "y", {"mode": mode, "axis": -2})], inputs, constants, 24)


@pytest.mark.parametrize(
    ("mode", "count", "known"),
    [
        (m, c, k)
        for m in ("linear", "circular")
        for c in (1, 3)
        for k in (True, False)
        if (m, c, k) != WRAPPED
    ],
)
def test_tensor_scatter(mode: str, count: int, *, known: bool) -> None:
    rows = [1, 2, count, 4]
    proto = _tensor_scatter(mode, rows, known=known)
    loaded = _bounded(proto)
    assert "TensorScatter" not in operators(loaded)
    _compared(proto, loaded, [0, 2, SIZE - count], rows)


def test_rows_that_may_wrap_around_at_run_time_are_refused() -> None:
    mode, count, known = WRAPPED
    with pytest.raises(UnsupportedModelError, match=r'node "y" \(TensorScatter\): operator is not supported'):
        _bounded(_tensor_scatter(mode, [1, 2, count, 4], known=known))


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_one_row_is_scattered_and_the_integers_agree(operator: str) -> None:
    nodes: list[Any]
    if operator == "ScatterElements":
        nodes = [
            ("Reshape", "w four", "i", {}),
            ("Expand", "i shape", "j", {}),
            ("ScatterElements", "c j u", "y", {"axis": 2}),
        ]
        constants: dict[str, Any] = {"four": np.array([1, 1, 1, 1]), "shape": np.array([1, 2, 1, 4])}
    else:
        nodes = [
            ("Transpose", "c", "ct", {"perm": [2, 0, 1, 3]}),
            ("Transpose", "u", "ut", {"perm": [2, 0, 1, 3]}),
            ("Unsqueeze", "w last", "i", {}),
            ("ScatterND", "ct i ut", "z", {}),
            ("Transpose", "z", "y", {"perm": [1, 2, 0, 3]}),
        ]
        constants = {"last": np.array([-1])}
    proto = _model(nodes, {"c": CACHE, "u": [1, 2, 1, 4], "w": [1]}, constants, 18)
    loaded = _bounded(proto)
    assert operator not in operators(loaded)
    feeds = _compared(proto, loaded, list(range(SIZE)), [1, 2, 1, 4])
    samples = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
    level = GraphLevel(tpuflow.quantize(loaded, samples=samples))
    for feed in feeds:
        wanted: Any = ReferenceEvaluator(proto).run(None, feed)
        np.testing.assert_allclose(level.run(feed)["y"], wanted[0], atol=0.05)
