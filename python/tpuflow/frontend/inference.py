"""Infers types and shapes of one node at a time, by ONNX's own inference."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from tpuflow.frontend.outside import OUTSIDE, infer_outside

__all__ = ["DOMAIN", "infer_output"]

DOMAIN = "tpuflow"
"""Domain of the model-local functions a normalised model may call."""

SMALL = 64  # constants up to this many elements are shown to shape inference


def infer_output(node: ir.Node, versions: Mapping[str, int]) -> str | None:
    """Sets type and shape of the outputs of `node` from those of its inputs.

    Where an input is not known yet, or the operator is, the outputs are left as they are.

    Returns:
        What ONNX objects to in the node, in one line; None if nothing.
    """
    if node.domain == OUTSIDE:
        return infer_outside(node)
    first = next((value for value in node.inputs if value is not None), None)
    if node.domain == DOMAIN and first is not None:  # every function of ours is elementwise
        node.outputs[0].shape, node.outputs[0].type = first.shape, first.type
        return None
    types: dict[str, onnx.TypeProto] = {}
    constants: dict[str, onnx.TensorProto] = {}
    try:
        for value in node.inputs:
            if value is None:
                continue
            if value.type is None or value.name is None:
                return None
            types[value.name] = ir.serde.serialize_type(value.type)
            if value.shape is not None:
                ir.serde.serialize_shape_into(types[value.name], value.shape)
            if value.const_value is not None and value.const_value.size <= SMALL:
                constants[value.name] = ir.serde.serialize_tensor(value.const_value)
        version = versions.get(node.domain, 1) if node.version is None else node.version
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, constants
        )
    except onnx.defs.SchemaError:
        return None
    except (ir.serde.SerdeError, ValueError):
        return "an attribute or constant of it cannot be written"
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).strip().splitlines()[0].rpartition("Error] ")[2]
    for output in node.outputs:
        if output.name in inferred:
            output.type = ir.serde.deserialize_type_proto_for_type(inferred[output.name])
            output.shape = ir.serde.deserialize_type_proto_for_shape(inferred[output.name])
    return None
