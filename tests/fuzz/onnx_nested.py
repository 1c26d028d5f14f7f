"""Mutations that nest: a node in a function or a body, whole or broken, in a circle, endless, deep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper

__all__ = ["into_body", "into_function"]

Random = np.random.Generator


def _pick(random: Random, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def into_function(model: onnx.ModelProto, random: Random) -> str | None:
    """Calls a function in place of a node: as it is, of itself, in a circle, twice, or of other values."""
    graph = model.graph
    if not graph.node:
        return None
    node = _pick(random, graph.node)
    way = int(random.integers(9))
    inputs, outputs = [f"i{k}" for k in range(len(node.input))], [f"o{k}" for k in range(len(node.output))]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    inner.input[:], inner.output[:] = inputs, outputs
    version = model.opset_import[0].version if model.opset_import else 17
    function = model.functions.add(name="Wrapped", domain=_pick(random, ["local", "local", "", "tpuflow"]))
    function.input.extend(inputs)
    function.output.extend(outputs)
    function.node.append(inner)
    function.opset_import.append(
        helper.make_opsetid("", int(random.integers(1, 29)) if way == 7 else version)
    )
    function.opset_import.append(helper.make_opsetid(function.domain, 1))
    if way == 1:
        inner.op_type, inner.domain = "Wrapped", function.domain
    elif way == 2:
        other = model.functions.add()
        other.CopyFrom(function)
        other.name = "Other"
        inner.op_type, inner.domain = "Other", function.domain
        other.node[0].op_type, other.node[0].domain = "Wrapped", function.domain
    elif way == 3:
        model.functions.add().CopyFrom(function)
    elif way == 4 and function.input:
        function.input.pop()
    elif way == 5:
        function.output.append("missing")
    elif way == 8 and function.output:
        _multiply(model, function)
    elif way == 6 and inner.attribute:
        attribute = inner.attribute[0]
        function.attribute.append(attribute.name)
        attribute.CopyFrom(
            AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=attribute.name)
        )
    if function.domain and all(each.domain != function.domain for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(function.domain, 1))
    name = node.op_type
    node.op_type, node.domain = "Wrapped", function.domain
    if way != 6:
        del node.attribute[:]
    return f"{name} in a function ({way})"


def _multiply(model: onnx.ModelProto, function: onnx.FunctionProto) -> None:
    """Has a function call ten functions, each of which calls ten others, and so on."""
    inner = function.node[0]
    for depth in range(9):
        other = model.functions.add()
        other.CopyFrom(function)
        other.name = f"Level{depth}"
        del other.node[:]
        last = depth == 8
        for _ in range(1 if last else 10):
            other.node.add().CopyFrom(inner)
            if not last:
                other.node[-1].op_type, other.node[-1].domain = f"Level{depth + 1}", function.domain
                del other.node[-1].attribute[:]
        for k, call in enumerate(other.node[:-1]):
            call.output[:] = [f"unused{k}_{name}" for name in call.output]
    inner.op_type, inner.domain = "Level0", function.domain
    del inner.attribute[:]


def into_body(model: onnx.ModelProto, random: Random) -> str | None:
    """Puts a node into branches or a loop: deep, endless, empty, or with other inputs and outputs."""
    graph = model.graph
    if not graph.node:
        return None
    index = int(random.integers(len(graph.node)))
    node = graph.node[index]
    if not node.output:
        return None
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    inner.output[:] = [f"{name}_inner" if name else "" for name in inner.output]
    given = [onnx.ValueInfoProto(name=name) for name in inner.output if name]
    for value in given:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    count = len(graph.initializer)
    if random.integers(2):
        truth = np.array(_pick(random, [True, False, [True], [True, False], []]), np.bool_)
        graph.initializer.append(numpy_helper.from_array(truth, f"truth{count}"))
        body = helper.make_graph([inner], "branch", [], given)
        leaf = body
        for _ in range(int(_pick(random, [0, 0, 1, 4, 20]))):
            wide = body if body.ByteSize() < 1 << 11 else leaf
            nested = helper.make_node(
                "If", [f"truth{count}"], list(inner.output), then_branch=body, else_branch=wide
            )
            body = helper.make_graph([nested], "branch", [], given)
            if body.ByteSize() > 1 << 15:
                break
        made = helper.make_node(
            "If", [f"truth{count}"], list(node.output), then_branch=body, else_branch=leaf
        )
        if random.integers(4) == 0:
            _break_body(made.attribute[int(random.integers(2))].g, random)
    else:
        trips = np.array(_pick(random, [0, 1, 3, -1, 2**31, 2**62, [2], []]), np.int64)
        graph.initializer.append(numpy_helper.from_array(trips, f"trips{count}"))
        truth = numpy_helper.from_array(np.array(True), f"truth{count}")
        graph.initializer.append(truth)
        keep = helper.make_node("Identity", ["truth_in"], ["truth_out"])
        body = helper.make_graph(
            [keep, inner],
            "loop",
            [
                helper.make_tensor_value_info("trip", TensorProto.INT64, []),
                helper.make_tensor_value_info("truth_in", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("truth_out", TensorProto.BOOL, []), *given],
        )
        condition = _pick(random, [f"truth{count}", ""])
        made = helper.make_node(
            "Loop", [f"trips{count}", condition], [x for x in node.output if x], body=body
        )
        if random.integers(4) == 0:
            _break_body(made.attribute[0].g, random)
    made.name = f"body{count}"
    graph.node[index].CopyFrom(made)
    return f"{inner.op_type} in a {made.op_type}"


def _break_body(body: GraphProto, random: Random) -> None:
    way = int(random.integers(5))
    if way == 0 and body.output:
        body.output.pop()
    elif way == 1 and body.node:
        body.node.pop()
    elif way == 2:
        body.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [2**40]))
    elif way == 3 and body.node and body.node[0].output:
        body.node.add().CopyFrom(body.node[0])
    elif body.output:
        body.output[0].name = _pick(random, ["", "nowhere"])
