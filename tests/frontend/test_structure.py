"""Models whose parts refer to what is not there, or in a circle, are refused before libraries follow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from frontend.graphs import array, graph
from tpuflow.errors import ModelError
from tpuflow.frontend import load

IMAGE = [1, 4, 8, 8]
OPSET = helper.make_opsetid("", 17)
LOCAL = helper.make_opsetid("local", 1)


def _function(name: str, *nodes: onnx.NodeProto, opset: int = 17) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), LOCAL]
    return helper.make_function("local", name, ["a"], ["b"], list(nodes), imports)


def _call(name: str, source: str = "a", target: str = "b") -> onnx.NodeProto:
    return helper.make_node(name, [source], [target], domain="local", name=f"call_{target}")


def _calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    proto = graph([("local:First", "x", "z")], {"x": IMAGE}, ["z"], domains=["local"])
    proto.functions.extend(functions)
    return proto


def _relu() -> onnx.NodeProto:
    return helper.make_node("Relu", ["a"], ["b"])


def _of_itself() -> onnx.ModelProto:
    return _calling(_function("First", _call("First")))


def _in_a_circle() -> onnx.ModelProto:
    return _calling(_function("First", _call("Second")), _function("Second", _call("First")))


def _twice() -> onnx.ModelProto:
    return _calling(_function("First", _relu()), _function("First", _relu()))


def _of_another_opset() -> onnx.ModelProto:
    return _calling(_function("First", _relu(), opset=12))


def _multiplying() -> onnx.ModelProto:
    functions = [_function("Last", _relu())]
    names = ["First", *(f"Level{depth}" for depth in range(8)), "Last"]
    for name, inner in itertools.pairwise(names):
        calls = [_call(inner, "a", "b" if k == 0 else f"unused{k}") for k in range(10)]
        functions.append(_function(name, *calls))
    return _calling(*functions)


def _multiplying_beside() -> onnx.ModelProto:
    proto = _multiplying()
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Relu", ""
    return proto


def _reading_nothing() -> onnx.ModelProto:
    return _calling(_function("First", helper.make_node("Add", ["a", "nowhere"], ["b"])))


def _computing_nothing() -> onnx.ModelProto:
    return _calling(_function("First", helper.make_node("Relu", ["a"], ["c"])))


def _with_more_inputs() -> onnx.ModelProto:
    proto = _calling(_function("First", _relu()))
    proto.graph.node[0].input.append("x")
    return proto


def _referring() -> onnx.ModelProto:
    proto = graph([("Softmax", "x", "z", {"axis": 1})], {"x": IMAGE}, ["z"])
    proto.graph.node[0].attribute[0].CopyFrom(
        AttributeProto(name="axis", type=AttributeProto.INT, ref_attr_name="outer")
    )
    return proto


def _referring_in_a_branch() -> onnx.ModelProto:
    made = helper.make_tensor_value_info("o", TensorProto.FLOAT, IMAGE)
    branch = helper.make_graph(_referring().graph.node, "branch", [], [made])
    branch.node[0].output[0] = "o"
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch, name="choice")
    proto = graph([("Relu", "x", "y")], {"x": IMAGE, "c": []}, ["z"], types={"c": TensorProto.BOOL})
    proto.graph.node.append(choice)
    return proto


def _attribute_twice() -> onnx.ModelProto:
    proto = graph([("Softmax", "x", "z", {"axis": 1})], {"x": IMAGE}, ["z"])
    proto.graph.node[0].attribute.add().CopyFrom(proto.graph.node[0].attribute[0])
    return proto


def _with_a_graph_of_nothing() -> onnx.ModelProto:
    proto = _calling(_function("First", helper.make_node("Relu", ["a"], ["b"])))
    proto.graph.node[0].attribute.append(AttributeProto(name="body", type=AttributeProto.GRAPH))
    return proto


def _of_no_version() -> onnx.ModelProto:
    proto = graph([("Relu", "x", "z")], {"x": IMAGE}, ["z"])
    proto.opset_import.append(helper.make_opsetid("local", 2**62))
    return proto


def _of_two_versions() -> onnx.ModelProto:
    proto = graph([("Relu", "x", "z")], {"x": IMAGE}, ["z"])
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 12))
    return proto


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_of_itself, "functions call each other in a circle: local::First -> local::First"),
        (_in_a_circle, "functions call each other in a circle: local::"),
        (_twice, 'function "local::First" is defined twice'),
        (_of_another_opset, 'is of opset 12 of domain "", the model of 17'),
        (_multiplying, "with its functions in place it has more than 65536 nodes"),
        (_multiplying_beside, "with its functions in place it has more than 65536 nodes"),
        (_reading_nothing, 'function "local::First": node "b" (Add) reads "nowhere"'),
        (_computing_nothing, 'function "local::First": nothing computes output "b"'),
        (_with_more_inputs, 'calls "local::First" with more inputs or outputs than it has'),
        (_referring, '(Softmax, axis): refers to the attribute "outer" of a function'),
        (_referring_in_a_branch, '(Softmax, axis): refers to the attribute "outer" of a function'),
        (_attribute_twice, 'two attributes "axis"'),
        (_of_two_versions, 'two versions of domain "ai.onnx" are stated'),
        (_with_a_graph_of_nothing, 'calls "local::First" with a graph as attribute'),
        (_of_no_version, 'is no version of domain "local"'),
    ],
)
def test_references_that_lead_nowhere_are_refused(make: Callable[[], onnx.ModelProto], expected: str) -> None:
    proto = make()
    before = time.process_time()
    with pytest.raises(ModelError) as error:
        load(proto, host=True)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert time.process_time() - before < 2


def test_functions_within_functions_are_put_in_place() -> None:
    attribute = AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(attribute)
    second = helper.make_function("local", "Second", ["a"], ["b"], [leaky], [OPSET, LOCAL], ["slope"])
    call = helper.make_node("Second", ["a"], ["b"], domain="local", slope=0.25)
    loaded = load(_calling(_function("First", call), second))
    assert [node.op_type for node in loaded.model.graph] == ["LeakyRelu"]


@pytest.mark.parametrize(
    ("name", "value"), [("batch_dims", -1), ("batch_dims", -(2**31)), ("batch_dims", 2**31 - 1)]
)
def test_counts_that_inference_subtracts_are_not_negative(name: str, value: int) -> None:
    node = ("GatherND", "x i", "z", {name: value})
    proto = graph([node], {"x": [2, 2], "i": [2, 1]}, ["z"], types={"i": TensorProto.INT64})
    with pytest.raises(ModelError, match=name if value < 0 else "GatherND"):
        load(proto, host=True)


def test_more_inputs_or_outputs_than_an_operator_has_are_listed() -> None:
    for node in (("Relu", "x x", "z"), ("Relu", "x", "z y"), ("Swish", "x", "z y"), ("Clip", "x a a a", "z")):
        proto = graph([node], {"x": IMAGE}, ["z"], {"a": array(1)}, opset=24)
        with pytest.raises(ModelError):
            load(proto)
