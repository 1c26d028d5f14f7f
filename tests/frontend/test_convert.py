"""The import as one call: its signature, what it leaves, what it moves, what it names."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from frontend.graphs import array, graph, integers
from tpuflow import onnx_to_tf
from tpuflow.errors import ModelError
from tpuflow.frontend import FloatSession, load


def foldable(batch: int | str = 1) -> onnx.ModelProto:
    """A convolution behind shape arithmetic, identities and two reshapes that are one."""
    return graph(
        [
            ("Identity", "x", "i"),
            ("Conv", "i w", "c"),
            ("BatchNormalization", "c s t m v", "n"),
            ("Shape", "n", "shape"),
            ("Gather", "shape first", "batch"),
            ("Concat", "batch rest", "to", {"axis": 0}),
            ("Reshape", "n to", "r"),
            ("Reshape", "r again", "q"),
            ("Add", "q b", "z"),
        ],
        {"x": [batch, 3, 5, 4], "b": [36]},
        ["z"],
        {
            "w": array(6, 3, 3, 3), "s": array(6), "t": array(6), "m": array(6), "v": np.abs(array(6)) + 0.5,
            "first": integers(0), "rest": integers(6, -1), "again": integers(0, 36),
        },
    )  # fmt: skip


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@pytest.mark.feature("IMP-03")
def test_signature_and_mapping() -> None:
    parameters = inspect.signature(onnx_to_tf).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "onnx_model": inspect.Parameter.empty,
        "input_shape": None,
        "try_simplify": False,
        "onnxsim_fixed_point_iters": 100,
        "keep_arrangement": None,
    }
    proto = foldable("N")
    model, names = onnx_to_tf(proto, {"x": [2, 3, 5, 4]}, True, 100, {"x": (0, 1, 2, 3)})
    present = ir.convenience.create_value_mapping(model.graph)
    assert {"x", "b", "z"} <= names.keys()
    assert set(names.values()) <= present.keys()
    feeds = {"x": array(2, 3, 5, 4), "b": array(36)}
    expected = FloatSession(proto).run(feeds)["z"]
    found = FloatSession(model).run({names[name]: value for name, value in feeds.items()})[names["z"]]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert load(model).outputs[0].shape == (2, 36)


@pytest.mark.feature("IMP-05")
def test_simplification_has_a_limit() -> None:
    proto = foldable()
    keep = {"x": None}
    feeds = {"x": array(1, 3, 5, 4), "b": array(36)}
    expected = FloatSession(proto).run(feeds)["z"]
    counts = {}
    for simplify, rounds in ((False, 100), (True, 0), (True, 1), (True, 100)):
        model, _ = onnx_to_tf(proto, None, simplify, rounds, keep)
        counts[simplify, rounds] = len(model.graph)
        found = FloatSession(model).run(feeds)["z"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert counts[False, 100] == counts[True, 0] == len(proto.graph.node)
    assert counts[True, 100] == 3  # convolution, reshape, addition
    assert counts[True, 100] <= counts[True, 1] < counts[True, 0]
    with pytest.raises(ModelError, match="must not be negative"):
        onnx_to_tf(proto, onnxsim_fixed_point_iters=-1)


@pytest.mark.feature("IMP-06")
def test_inputs_that_keep_their_arrangement() -> None:
    proto = foldable()
    image, bias = array(1, 3, 5, 4), array(36)
    last, _ = onnx_to_tf(proto)
    kept, _ = onnx_to_tf(proto, keep_arrangement={"x": [0, 1, 2, 3]})
    shaped, _ = onnx_to_tf(proto, keep_arrangement={"x": [1, 3, 5, 4]})
    turned, _ = onnx_to_tf(proto, keep_arrangement={"x": [3, 0, 1, 2]})
    assert [operators(model)["Transpose"] for model in (last, kept, shaped, turned)] == [1, 0, 0, 1]
    expected = FloatSession(proto).run({"x": image, "b": bias})["z"]
    for model, order in ((last, (0, 2, 3, 1)), (kept, (0, 1, 2, 3)), (turned, (3, 0, 1, 2))):
        found = FloatSession(model).run({"x": image.transpose(order), "b": bias})["z"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for wish, words in (
        ({"q": None}, 'no input is called "q"'),
        ({"x": [0, 1, 1, 2]}, "no permutation of 4"),
    ):
        with pytest.raises(ModelError, match=words):
            onnx_to_tf(proto, keep_arrangement=wish)
