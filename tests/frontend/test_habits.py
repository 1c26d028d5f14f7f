"""What exporters of different kinds and ages write; random networks; models written and read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from frontend.graphs import Node, array, graph, integers, normalized, operators
from models.make_models import MODELS, random_model
from tpuflow.evaluation.import_check import verify_import
from tpuflow.frontend import FloatSession, generate_samples, load

if TYPE_CHECKING:
    from pathlib import Path

CLASSIFIER = [
    ("Conv", "x w b", "c", {"pads": [1, 1, 1, 1]}),
    ("BatchNormalization", "c s o m v", "n"),
    ("Relu", "n", "r"),
    ("MaxPool", "r", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("GlobalAveragePool", "p", "g"),
    ("Flatten", "g", "f"),
    ("Gemm", "f d e", "l", {"transB": 1}),
    ("Softmax", "l", "z", {"axis": 1}),
]
WEIGHTS = {
    "w": array(8, 3, 3, 3),
    "b": array(8),
    "s": array(8, seed=1),
    "o": array(8, seed=2),
    "m": array(8, seed=3),
    "v": np.abs(array(8, seed=4)) + 0.1,
    "d": array(10, 8),
    "e": array(10),
}


def classifier(opset: int = 17) -> onnx.ModelProto:
    """A small classifier as any opset can write it."""
    return graph(CLASSIFIER, {"x": ["N", 3, 8, 8]}, ["z"], WEIGHTS, opset=opset)


@pytest.mark.parametrize("opset", range(7, 23))
def test_every_opset(opset: int) -> None:
    expected = dict.fromkeys(
        ["Conv", "Relu", "MaxPool", "GlobalAveragePool", "Reshape", "MatMul", "Add", "Softmax"], 1
    )
    assert operators(normalized(classifier(opset))) == expected


def test_initializers_listed_as_inputs() -> None:
    proto = classifier(8)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert [port.name for port in normalized(proto).inputs] == ["x"]


def test_constants_as_nodes() -> None:
    proto = classifier(13)
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in proto.graph.initializer
    ]
    nodes.append(helper.make_node("Constant", [], ["k"], value_float=2.0))
    nodes.append(helper.make_node("Constant", [], ["i"], value_ints=[1, 0]))
    proto.graph.node.append(helper.make_node("Mul", ["z", "k"], ["y"]))
    proto.graph.node.append(helper.make_node("Gather", ["y", "i"], ["t"], axis=1))
    proto.graph.output[0].name = "t"
    del proto.graph.initializer[:]
    for node in reversed(nodes):
        proto.graph.node.insert(0, node)
    kinds = operators(normalized(proto))
    assert "Constant" not in kinds
    assert kinds["Gather"] == 1


def test_nodes_without_names_are_called_after_their_results() -> None:
    proto = classifier()
    for node in proto.graph.node:
        node.name = ""
        node.domain = "ai.onnx" if node.op_type == "Relu" else ""
    names = [node.name for node in normalized(proto).model.graph]
    assert names == ["n", "r", "p", "g", "f", "l/matmul", "l", "z"]


@pytest.mark.feature("IMP-07")
def test_tensors_that_survive_keep_their_names() -> None:
    model = normalized(classifier())
    names = [node.outputs[0].name for node in model.model.graph]
    assert names == ["n", "r", "p", "g", "f", "l/matmul", "l", "z"]
    assert set(model.model.graph.initializers) >= {"w", "b", "d", "e"}


def test_functions_of_the_model_are_inlined() -> None:
    proto = graph([("custom:Twice", "x", "a"), ("Relu", "a", "z")], {"x": [2, 3]}, ["z"], domains=["custom"])
    body = [helper.make_node("Add", ["u", "u"], ["v"])]
    proto.functions.append(
        helper.make_function("custom", "Twice", ["u"], ["v"], body, [helper.make_opsetid("", 17)])
    )
    assert operators(normalized(proto)) == {"Add": 1, "Relu": 1}


def test_branches_on_constants_are_decided() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["x"], [f"{name}_out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)],
        )
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    }
    proto = graph([("If", "c", "a", branches), ("Exp", "a", "z")], {"x": [2, 3]}, ["z"], {"c": np.bool_(1)})
    assert operators(normalized(proto)) == {"Relu": 1, "Exp": 1}


@pytest.mark.parametrize("fake", [False, True])
def test_quantized_weights_become_weights_again(*, fake: bool) -> None:
    weights = np.clip(np.round(array(6, 3, 1, 1) * 40), -127, 127).astype(np.int8)
    scale = np.full(6, 0.025, np.float32)
    constants = {
        "w": weights.astype(np.float32) * 0.025 if fake else weights,
        "s": scale,
        "z": np.zeros(6, np.int8),
        "t": np.float32(0.05),
        "o": np.int8(3),
    }
    nodes = [
        ("QuantizeLinear", "x t o", "q"),
        ("DequantizeLinear", "q t o", "f"),
        *([("QuantizeLinear", "w s z", "w8", {"axis": 0})] if fake else []),
        ("DequantizeLinear", "w8 s z" if fake else "w s z", "d", {"axis": 0}),
        ("Conv", "f d", "y"),
    ]
    model = normalized(graph(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants))
    assert operators(model) == {"QuantizeLinear": 1, "DequantizeLinear": 1, "Conv": 1}


@pytest.mark.parametrize(("kind", "tolerance"), [("float16", 2e-2), ("double", 1e-5)])
@pytest.mark.parametrize("cast", [False, True])
def test_other_float_types(kind: str, tolerance: float, *, cast: bool) -> None:
    number = getattr(TensorProto, kind.upper())
    weights = {"w": array(4, 5), "b": array(5), "k": array(1) + 3}
    constants = {name: value.astype(kind) for name, value in weights.items()}
    nodes: list[Node] = [("MatMul", "x w", "a"), ("Add", "a b", "c"), ("Tanh", "c", "t"), ("Div", "t k", "z")]
    if cast:  # inputs and outputs stay float, as converters to half precision leave them
        nodes = [("Cast", "x", "h", {"to": number}), ("MatMul", "h w", "a"), *nodes[1:3]]
        nodes += [("Div", "t k", "y"), ("Cast", "y", "z", {"to": TensorProto.FLOAT})]
    types = {} if cast else {"x": number, "z": number}
    model = normalized(graph(nodes, {"x": ["N", 4]}, ["z"], constants, types=types), tolerance=tolerance)
    assert operators(model)["Cast"] == (0 if cast else 2)
    assert model.inputs[0].dtype == (np.float32 if cast else np.dtype(kind))
    floats = [node.outputs[0].dtype for node in model.model.graph if node.outputs[0].name != "z"]
    assert set(floats) == {ir.DataType.FLOAT}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.feature("IMP-09")
def test_named_networks_are_normalized(name: str) -> None:
    normalized(MODELS[name]())


@settings(max_examples=20)
@given(st.integers(0, 10_000))
@pytest.mark.feature("IMP-09")
def test_random_networks_are_normalized(seed: int) -> None:
    normalized(random_model(seed), tolerance=1e-4)


UNARY = [
    "Abs", "Atan", "Ceil", "Clip", "Cos", "Elu", "Erf", "Floor", "Flatten", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh",
    "Transpose",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
STEP = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.none(), st.none()),
    st.tuples(st.sampled_from(BINARY), st.sampled_from([-2.0, 0.0, 0.5, 1.0, 3.0]), st.booleans()),
    st.tuples(st.just("Self"), st.sampled_from(BINARY), st.booleans()),
    st.tuples(st.just("Shift"), st.sampled_from([(2, 6), (12, 1), (1, 3, 4), (4, 3)]), st.none()),
)


@settings(max_examples=80)
@given(st.lists(STEP, min_size=1, max_size=9))
@pytest.mark.feature("IMP-09")
def test_random_chains_are_normalized(steps: list[Node]) -> None:
    """Chains that provoke merging: repeated operators, neutral constants, values used twice."""
    nodes: list[Node] = []
    constants: dict[str, object] = {}
    names = ["x"]
    for k, (operator, argument, flag) in enumerate(steps):
        last, new = names[-1], f"t{k}"
        if operator == "Shift":
            constants[f"c{k}"] = integers(*argument)
            nodes.append(("Reshape", f"{last} c{k}", new))
        elif operator == "Self":
            nodes.append((argument, f"{last} {last}", new))
        elif argument is not None:
            constants[f"c{k}"] = argument
            nodes.append((operator, f"c{k} {last}" if flag else f"{last} c{k}", new))
        else:
            nodes.append((operator, last, new))
        names.append(new)
    outputs = [names[-1]] if len(names) % 2 else sorted({names[-1], names[len(names) // 2]} - {"x"})
    normalized(graph(nodes, {"x": [3, 4]}, outputs, constants, opset=20), tolerance=1e-4)


def test_written_and_read_again(tmp_path: Path) -> None:
    nodes = [
        ("Conv", "x w", "c"),
        ("Sigmoid", "c", "s"),
        ("Mul", "c s", "m"),
        ("GlobalAveragePool", "m", "z"),
    ]
    model = load(graph(nodes, {"x": ["N", 3, 5, 5]}, ["z"], {"w": array(4, 3, 1, 1)}))
    model.save(tmp_path / "canonical.onnx")
    again = load(tmp_path / "canonical.onnx")
    assert [str(node) for node in again.model.graph] == [str(node) for node in model.model.graph]
    assert operators(again)["Silu"] == 1
    verify_import(again, tolerance=(0.999999, 0.999999))


@pytest.mark.feature("IMP-01")
def test_a_model_in_any_form_gives_the_same(tmp_path: Path) -> None:
    proto = classifier()
    onnx.save(proto, tmp_path / "m.onnx")
    texts = [
        [str(node) for node in load(source).model.graph]
        for source in (proto, ir.from_proto(proto), tmp_path / "m.onnx", str(tmp_path / "m.onnx"))
    ]
    assert texts[1:] == texts[:-1]


def test_values_forget_the_branches_not_taken() -> None:
    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], ["of " + operator])
        return helper.make_graph(
            [node], operator, [], [helper.make_tensor_value_info("of " + operator, TensorProto.FLOAT, None)]
        )

    nodes: list[Node] = [("If", "c", "y", {"then_branch": branch("Relu"), "else_branch": branch("Abs")})]
    model = load(graph([*nodes, ("Neg", "y", "z")], {"x": [2, 4]}, ["z"], {"c": np.array(True)}))
    (x,) = model.model.graph.inputs
    assert [use.node.op_type for use in x.uses()] == ["Relu"]


def test_values_of_weights_survive() -> None:
    model = load(graph([("MatMul", "x w", "z")], {"x": [2, 4]}, ["z"], {"w": array(4, 3)}))
    weight = model.model.graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), array(4, 3))
    np.testing.assert_array_equal(numpy_helper.to_array(model.original.graph.initializer[0]), array(4, 3))


def test_doubles_run_in_floats_where_onnxruntime_has_none() -> None:
    """It convolves no doubles; what the model takes and gives stays double."""
    constants = {"w": array(4, 3, 3, 3).astype(np.float64)}
    types = {"x": TensorProto.DOUBLE, "z": TensorProto.DOUBLE}
    nodes: list[Node] = [("Conv", "x w", "c"), ("Relu", "c", "z")]
    proto = graph(nodes, {"x": [2, 3, 5, 5]}, ["z"], constants, types=types)
    model = load(proto)
    (feeds,) = generate_samples(model, 1)
    found = FloatSession(model.origin, "all").run(feeds)
    assert found["z"].dtype == np.float64
    single = graph(nodes, {"x": [2, 3, 5, 5]}, ["z"], {"w": array(4, 3, 3, 3)})
    expected = FloatSession(single).run({"x": feeds["x"].astype(np.float32)})["z"]
    np.testing.assert_allclose(found["z"], expected, rtol=1e-5)
    assert verify_import(model)


def test_nodes_of_one_name() -> None:
    proto = classifier()
    for node in proto.graph.node:
        node.name = "node"
    before = proto.SerializeToString()
    assert verify_import(load(proto))
    assert FloatSession(proto).outputs == ("z",)
    assert proto.SerializeToString() == before
