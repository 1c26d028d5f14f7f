"""Attributes that the libraries beneath do not survive, found before these see a model.

ONNX's shape inference and onnxruntime narrow, divide by and allocate for numbers of a file without a look at
them; a process that ends there can say nothing. All else that is wrong with a node is listed by
`tpuflow.frontend.validity`, node by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["DIVISORS", "all_nodes", "reject_hazards"]

WIDE = frozenset({"value_int", "value_ints", "starts", "ends", "to", "seed", "high", "low"})
"""Whole numbers that may need more than 32 bits: `ends` says "to the end" by the largest there is."""

DIVISORS = frozenset(
    {"group", "blocksize", "num_groups", "num_heads", "q_num_heads", "kv_num_heads", "strides", "hidden_size"}
)
"""Attributes by which onnxruntime divides."""


TYPES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})
"""Attributes that name an element type, or by 0 leave it open."""

ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
"""The numbers of the element types there are."""


def reject_hazards(proto: onnx.ModelProto, label: str) -> None:
    """Refuses whole numbers that no network has.

    Raises:
        ModelError: An attribute needs more than 32 bits, an attribute or constant is of an element type that
            ONNX does not have, or a Split has other outputs than it counts.
    """
    _check_types(proto.graph.initializer, f"{label}: initialiser")
    for node in all_nodes([*proto.graph.node, *(node for each in proto.functions for node in each.node)]):
        for attribute in node.attribute:
            wide = [n for n in (attribute.i, *attribute.ints) if not -(1 << 31) <= n < 1 << 31]
            if wide and attribute.name not in WIDE:
                raise ModelError(f"{_place(label, node, attribute.name)}: {wide[0]} is out of range")
            if not node.domain and attribute.name in TYPES and attribute.i not in (*ELEMENT_TYPES, 0):
                raise ModelError(f"{_place(label, node, attribute.name)}: {attribute.i} is no element type")
            tensors = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]
            _check_types(tensors, f"{_place(label, node, attribute.name)}: tensor")
            for body in (attribute.g, *attribute.graphs):
                _check_types(body.initializer, f"{_place(label, node, attribute.name)}: initialiser")
            if attribute.name == "num_outputs" and attribute.i != len(node.output):
                counted = f"{attribute.i} is stated, the node has {len(node.output)} outputs"
                raise ModelError(f"{_place(label, node, attribute.name)}: {counted}")


def _check_types(tensors: Iterable[onnx.TensorProto], what: str) -> None:
    for tensor in tensors:
        if tensor.data_type not in ELEMENT_TYPES:
            raise ModelError(f'{what} "{tensor.name}": {tensor.data_type} is no element type')


def _place(label: str, node: onnx.NodeProto, attribute: str) -> str:
    return f'{label}: node "{node.name or next(iter(node.output), "")}" ({node.op_type}, {attribute})'


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, each with all in its bodies behind it."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from all_nodes(body.node)
