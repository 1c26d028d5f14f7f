"""Loops, branches and sequences that contradict themselves or never end are listed, not begun."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frontend.graphs import array, graph, integers
from tpuflow.errors import ModelError
from tpuflow.frontend import check_model, load

IMAGE = [1, 4, 8, 8]
STEP = helper.make_tensor_value_info("step", TensorProto.INT64, [])
GO = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
GOES = helper.make_tensor_value_info("goes", TensorProto.BOOL, [])
STATE = helper.make_tensor_value_info("state", TensorProto.FLOAT, IMAGE)
NEXT = helper.make_tensor_value_info("next", TensorProto.FLOAT, IMAGE)
KEEP = helper.make_node("Identity", ["go"], ["goes"])
RELU = helper.make_node("Relu", ["state"], ["next"])


def _looped(trips: int, *, inputs: Any = (STEP, GO, STATE), outputs: Any = (GOES, NEXT)) -> onnx.ModelProto:
    proto = graph([("Relu", "x", "y")], {"x": IMAGE}, ["z"], {"n": np.array(trips, np.int64)})
    body = helper.make_graph([KEEP, RELU], "body", list(inputs), list(outputs))
    proto.graph.node.append(helper.make_node("Loop", ["n", "", "y"], ["z"], body=body, name="loop"))
    return proto


def test_a_loop_that_nothing_ends_is_listed() -> None:
    assert check_model(_looped(3)) == []
    for trips in (2**31, 2**62):
        found = [str(each) for each in check_model(_looped(trips))]
        assert any("never ends: its condition is always true" in each for each in found), found


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ((STEP, GO), (GOES, NEXT), "takes 2 values, 3 are handed in"),
        ((STEP, GO, STATE, STATE), (GOES, NEXT), "takes 4 values"),
        ((STEP, GO, STATE), (GOES,), "gives 1 values, 2 are handed out"),
    ],
)
def test_a_body_takes_and_gives_what_its_node_hands_over(inputs: Any, outputs: Any, expected: str) -> None:
    proto = _looped(3, inputs=inputs, outputs=outputs)
    if len(inputs) == 2:  # what the body reads then comes from outside
        proto.graph.initializer.append(numpy_helper.from_array(array(*IMAGE), "state"))
    if len(inputs) == 4:
        proto.graph.node[1].attribute[0].g.input[3].name = "other"
    found = [str(each) for each in check_model(proto)]
    assert any(expected in each for each in found), found


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"num_scan_inputs": 1, "scan_input_axes": [7]}, "7 is not an axis"),
        ({"num_scan_inputs": 1, "scan_input_axes": [0, 0]}, "has 2 entries, 1 are needed"),
        ({"num_scan_inputs": 1, "scan_output_axes": [0, 1]}, "has 2 entries, 1 are needed"),
        ({"num_scan_inputs": 1, "scan_input_directions": [5]}, "are not all 0 or 1"),
        ({"num_scan_inputs": 0}, "0 of 1 inputs"),
    ],
)
def test_a_scan_says_of_each_sequence_how_it_is_read(attributes: dict[str, Any], expected: str) -> None:
    row = helper.make_tensor_value_info("state", TensorProto.FLOAT, [4])
    made = helper.make_tensor_value_info("next", TensorProto.FLOAT, [4])
    body = helper.make_graph([RELU], "body", [row], [made])
    proto = graph([("Relu", "x", "y")], {"x": [3, 4]}, ["z"])
    proto.graph.node.append(helper.make_node("Scan", ["y"], ["z"], body=body, name="scan", **attributes))
    found = [str(each) for each in check_model(proto)]
    assert any(expected in each for each in found), found


@pytest.mark.parametrize("size", [0, -1, -(2**62)])
def test_parts_of_a_sequence_have_a_size(size: int) -> None:
    nodes = [("SplitToSequence", "x n", "s"), ("ConcatFromSequence", "s", "z", {"axis": 0})]
    proto = graph(nodes, {"x": [4, 4]}, ["z"], {"n": np.array(size, np.int64)})
    found = [str(each) for each in check_model(proto)]
    assert any("must be one number above 0" in each for each in found), found


def test_a_tensor_is_not_taken_apart_into_millions() -> None:
    nodes = [("SplitToSequence", "x", "s"), ("ConcatFromSequence", "s", "z", {"axis": 0})]
    before = time.process_time()
    check_model(graph(nodes, {"x": [1 << 20, 4]}, ["z"]))
    assert time.process_time() - before < 3


def test_channels_that_a_response_is_normalized_by_exist() -> None:
    proto = graph([("LRN", "x", "z", {"size": 2**31 - 1})], {"x": IMAGE}, ["z"])
    with pytest.raises(ModelError, match="2147483647 channels are named, there are 4"):
        load(proto)


def test_attributes_of_contributed_operators_are_of_their_types() -> None:
    for attributes in ({"kernel_shape": 1}, {"kernel_shape": [1, 1], "strides": "much"}):
        node = ("com.microsoft:QLinearAveragePool", "x s o s o", "z", attributes)
        constants = {"s": np.float32(0.5), "o": np.uint8(0)}
        proto = graph(
            [node], {"x": IMAGE}, ["z"], constants, types={"x": 2, "z": 2}, domains=["com.microsoft"]
        )
        found = [str(each) for each in check_model(proto)]
        assert any("is of the type" in each for each in found), found
    # Nor are those of a domain nobody knows taken for ONNX's own.
    node = ("com.microsoft:AveragePool", "x", "z", {"kernel_shape": 1})
    assert check_model(graph([node], {"x": IMAGE}, ["z"], domains=["com.microsoft"]))


def test_exponents_are_finite() -> None:
    for exponent in (np.inf, -np.inf):
        proto = graph([("Pow", "x e", "z")], {"x": IMAGE}, ["z"], {"e": np.float32(exponent)})
        assert any("is not finite" in str(each) for each in check_model(proto))


def test_constants_that_grow_beyond_what_is_folded_stay_as_they_are() -> None:
    before = time.process_time()
    for nodes, constants in (
        ([("ConstantOfShape", "n", "c"), ("Add", "x c", "z")], {"n": integers(1 << 16, 1 << 16)}),
        ([("Expand", "v n", "c"), ("Add", "x c", "z")], {"n": integers(1 << 17, 1 << 13), "v": array(1)}),
        ([("Tile", "v n", "c"), ("Add", "x c", "z")], {"n": integers(1 << 30), "v": array(1)}),
    ):
        check_model(graph(nodes, {"x": [1]}, ["z"], constants))
    assert time.process_time() - before < 3


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (("Range", "a n b", "z"), {"a": np.float32(0), "b": np.float32(1), "n": array(0)}),
        (("CumSum", "x n", "z"), {"n": integers()}),
        (("Trilu", "x n", "z"), {"n": integers(1, 2)}),
        (("TopK", "x n", "z i"), {"n": integers()}),
    ],
)
def test_what_must_be_one_number_is_one(node: tuple[Any, ...], constants: dict[str, Any]) -> None:
    found = [str(each) for each in check_model(graph([node], {"x": [4, 4]}, ["z"], constants, opset=18))]
    assert any("must be one number" in each for each in found), found


def test_a_loop_without_a_count_is_listed_not_given_to_the_host() -> None:
    proto = _looped(3)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(integers(), "n"))
    assert any("input 0): is not valid: must be one number" in str(each) for each in check_model(proto))
    with pytest.raises(ModelError, match="must be one number"):
        load(proto, host=True)


@pytest.mark.parametrize(("depth", "values"), [((), (0,)), ((0,), (2,)), ((), (3,))])
def test_one_hot_of_constants_is_not_evaluated_without_depth_and_values(depth: Any, values: Any) -> None:
    nodes = [("OneHot", "i d v", "h"), ("Add", "x h", "z")]
    constants = {"i": integers(1, 0), "d": np.full(depth, 4, np.int64), "v": array(*values)}
    with pytest.raises(ModelError, match="must be"):
        load(graph(nodes, {"x": [2, 4]}, ["z"], constants), host=True)


@pytest.mark.parametrize("operator", ["GlobalLpPool", "LpPool"])
def test_norms_are_of_an_order_of_at_least_one(operator: str) -> None:
    attributes = {"p": 0} | ({"kernel_shape": [2, 2]} if operator == "LpPool" else {})
    found = [
        str(each) for each in check_model(graph([(operator, "x", "z", attributes)], {"x": IMAGE}, ["z"]))
    ]
    assert any("0 is out of range (at least 1)" in each for each in found), found
