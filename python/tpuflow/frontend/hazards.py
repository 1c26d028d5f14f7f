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

__all__ = ["DIVISORS", "reject_hazards"]

WIDE = frozenset({"value_int", "value_ints", "starts", "ends", "to", "seed", "high", "low"})
"""Whole numbers that may need more than 32 bits: `ends` says "to the end" by the largest there is."""

DIVISORS = frozenset(
    {"group", "blocksize", "num_groups", "num_heads", "q_num_heads", "kv_num_heads", "strides", "hidden_size"}
)
"""Attributes by which onnxruntime divides."""


def reject_hazards(proto: onnx.ModelProto, label: str) -> None:
    """Refuses whole numbers that no network has.

    Raises:
        ModelError: An attribute needs more than 32 bits, or a Split has other outputs than it counts.
    """
    for node in _nodes([*proto.graph.node, *(node for each in proto.functions for node in each.node)]):
        for attribute in node.attribute:
            wide = [n for n in (attribute.i, *attribute.ints) if not -(1 << 31) <= n < 1 << 31]
            if wide and attribute.name not in WIDE:
                raise ModelError(f"{_place(label, node, attribute.name)}: {wide[0]} is out of range")
            if attribute.name == "num_outputs" and attribute.i != len(node.output):
                counted = f"{attribute.i} is stated, the node has {len(node.output)} outputs"
                raise ModelError(f"{_place(label, node, attribute.name)}: {counted}")


def _place(label: str, node: onnx.NodeProto, attribute: str) -> str:
    return f'{label}: node "{node.name or next(iter(node.output), "")}" ({node.op_type}, {attribute})'


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes with all in their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body.node)
