"""Attributes that the libraries beneath do not survive, found before these see a model.

ONNX's shape inference and onnxruntime narrow, divide by and allocate for numbers of a file without a look at
them; a process that ends there can say nothing. All else that is wrong with a node is listed by
`tpuflow.frontend.validity`, node by node.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import onnx

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["DIVISORS", "all_nodes", "reject_hazards"]

WIDE = frozenset({"value_int", "value_ints", "starts", "ends", "to", "seed", "high", "low"})
"""Whole numbers that may need more than 32 bits: `ends` says "to the end" by the largest there is."""

DIVISORS = frozenset(
    {"group", "blocksize", "num_groups", "num_heads", "q_num_heads", "kv_num_heads", "strides", "hidden_size"}
)
"""Attributes by which onnxruntime divides."""

OWN = ("", "ai.onnx")
"""Names of ONNX's own domain."""

LEAST = {"batch_dims": 0, "num_scan_inputs": 0}
"""The least of counts that ONNX's inference subtracts from others, or counts axes by."""

TYPES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})
"""Attributes that name an element type, or by 0 leave it open."""

ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
"""The numbers of the element types there are."""


EQUATION = re.compile(rb"[A-Za-z.,> -]*")
"""Einstein summations: at other characters ONNX's inference does not end."""

OF_MAPS = frozenset({("ai.onnx.ml", "CastMap"), ("ai.onnx.ml", "DictVectorizer")})
"""Operators of maps: ONNX's inference does not survive a tensor in place of one."""


def reject_hazards(proto: onnx.ModelProto, label: str) -> None:
    """Refuses attributes of other types than their operator has, and whole numbers that no network has.

    Raises:
        ModelError: An attribute is of another type, or needs more than 32 bits, a count is negative or of
            more than there is, an attribute or constant is of an element type unknown to ONNX, a Split
            has other outputs than it counts, an Einsum has no equation of letters, or an operator takes maps.
    """
    _check_types(proto.graph.initializer, f"{label}: initialiser")
    functions = {(function.domain, function.name) for function in proto.functions}
    for node in all_nodes([*proto.graph.node, *(node for each in proto.functions for node in each.node)]):
        if (node.domain, node.op_type) in OF_MAPS:
            raise ModelError(f"{_place(label, node, 'input 0')}: takes maps, which are not supported")
        for attribute in node.attribute:
            wide = [n for n in (attribute.i, *attribute.ints) if not -(1 << 31) <= n < 1 << 31]
            if wide and attribute.name not in WIDE:
                raise ModelError(f"{_place(label, node, attribute.name)}: {wide[0]} is out of range")
            kinds = _attribute_types(node.op_type).get(attribute.name) if node.domain in OWN else None
            kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
            if kinds is not None and kind not in kinds and (node.domain, node.op_type) not in functions:
                place = _place(label, node, attribute.name)
                raise ModelError(f"{place}: is of the type {kind}, not {' or '.join(sorted(kinds))}")
            if attribute.i < LEAST.get(attribute.name, attribute.i):
                raise ModelError(f"{_place(label, node, attribute.name)}: {attribute.i} is negative")
            if attribute.name == "num_scan_inputs" and attribute.i > len(node.input):
                raise ModelError(
                    f"{_place(label, node, attribute.name)}: {attribute.i} of {len(node.input)} inputs"
                )
            if not node.domain and attribute.name in TYPES and attribute.i not in (*ELEMENT_TYPES, 0):
                raise ModelError(f"{_place(label, node, attribute.name)}: {attribute.i} is no element type")
            tensors = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]
            _check_types(tensors, f"{_place(label, node, attribute.name)}: tensor")
            for body in (attribute.g, *attribute.graphs):
                _check_types(body.initializer, f"{_place(label, node, attribute.name)}: initialiser")
            if (
                node.op_type == "Einsum"
                and attribute.name == "equation"
                and not EQUATION.fullmatch(attribute.s)
            ):
                place = _place(label, node, attribute.name)
                raise ModelError(f"{place}: has other characters than letters, commas, dots and ->")
            if attribute.name == "num_outputs" and attribute.i != len(node.output):
                counted = f"{attribute.i} is stated, the node has {len(node.output)} outputs"
                raise ModelError(f"{_place(label, node, attribute.name)}: {counted}")


@cache
def _attribute_types(operator: str) -> Mapping[str, frozenset[str]]:
    """The types that attributes of an operator of ONNX's own have or had, by name."""
    found: dict[str, frozenset[str]] = {}
    version = onnx.defs.onnx_opset_version()
    while version > 0:
        try:
            schema: Any = onnx.defs.get_schema(operator, version, "")
        except onnx.defs.SchemaError:
            break
        for name, attribute in schema.attributes.items():
            found[name] = found.get(name, frozenset()) | {attribute.type.name}
        version = schema.since_version - 1
    return found


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
