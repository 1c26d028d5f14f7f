"""Makes a model of another float type compute in float32, the only one behind the frontend.

Weights are converted, casts between float types go, and inputs and outputs keep the types the user's model
gives them, with a Cast behind or in front.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import all_bodies

__all__ = ["to_float32", "weights_to_float32"]

OTHERS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def to_float32(model: ir.Model) -> bool:
    """Converts `model` in place; True if there was anything to convert.

    Constants must be initialisers, and types of inputs, outputs and initialisers stated.
    """
    graph = model.graph
    changed = weights_to_float32(model)
    for value in graph.inputs:
        if value.dtype in OTHERS:
            _cast_input(graph, value)
            changed = True
    for index, value in enumerate(graph.outputs):
        producer = value.producer()
        if value.dtype in OTHERS and producer is not None and producer.op_type != "Cast":
            _cast_output(graph, index, value)
            changed = True
    return changed


def weights_to_float32(model: ir.Model) -> bool:
    """Converts constants and what nodes say of types; inputs and outputs keep theirs."""
    graph = model.graph
    changed = False
    for value in graph.initializers.values():
        if value.dtype in OTHERS and value.const_value is not None and not _is_returned(value):
            array = value.const_value.numpy().astype(np.float32)
            value.const_value, value.dtype = ir.tensor(array, name=value.name), ir.DataType.FLOAT
            changed = True
    for body in all_bodies(graph):
        changed = _convert_body(body) or changed
    for node in graph:
        ends = any(output.is_graph_output() for output in node.outputs)
        changed = _convert_attributes(node, ends=ends) or changed
        for output in node.outputs:
            if output.dtype in OTHERS and not output.is_graph_output():
                output.type = None
    return changed


def _is_returned(value: ir.Value) -> bool:
    """Whether a constant is what the model returns."""
    if value.is_graph_output():
        return True
    passing = [use.node for use in value.uses() if use.node.op_type in {"Identity", "Reshape"}]
    return any(output.is_graph_output() for node in passing for output in node.outputs)


def _convert_body(body: ir.Graph) -> bool:
    """Lets the body of a branch or loop compute in float32."""
    changed = False
    for value in (*body.inputs, *body.outputs, *body.initializers.values()):
        if value.dtype in OTHERS:
            if value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            changed = True
    for node in body:
        changed = _convert_attributes(node, ends=False) or changed
        for output in node.outputs:
            if output.dtype in OTHERS:
                output.type = ir.TensorType(ir.DataType.FLOAT)
    return changed


def _convert_attributes(node: ir.Node, *, ends: bool) -> bool:
    """Lets Cast, Constant and ConstantOfShape make float32, but for the cast that makes an output."""
    if node.domain:
        return False
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) in OTHERS and not ends:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
        return True
    fill = node.attributes.get("value")
    if (
        node.op_type in {"Constant", "ConstantOfShape"}
        and fill is not None
        and fill.as_tensor().dtype in OTHERS
    ):
        array = fill.as_tensor().numpy().astype(np.float32)
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
        return True
    return False


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    wide = _cast(value, f"{value.name}/float", ir.DataType.FLOAT)
    cast = wide.producer()
    users = [use for use in value.uses() if use.node is not cast]
    for use in users:
        use.node.replace_input_with(use.idx, wide)
    if cast is not None and users:
        graph.insert_before(graph[0], cast)


def _cast_output(graph: ir.Graph, index: int, value: ir.Value) -> None:
    name, kind = value.name, value.dtype
    value.name, value.type = f"{name}/float", None
    narrow = _cast(value, name, kind or ir.DataType.FLOAT)
    graph.outputs[index] = narrow
    cast = narrow.producer()
    if cast is not None:
        graph.append(cast)


def _cast(value: ir.Value, name: str | None, kind: ir.DataType) -> ir.Value:
    output = ir.Value(name=name, type=ir.TensorType(kind), shape=value.shape)
    ir.Node("", "Cast", [value], [ir.AttrInt64("to", kind)], outputs=[output], name=name)
    return output
