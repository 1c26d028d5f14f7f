"""Questions lowering asks about nodes and values of the float model; nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.values import bound_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "attribute",
    "constant",
    "float_constant",
    "index_bound",
    "input_or_none",
    "is_constant",
    "operator",
    "shape_of",
    "sole_user",
]

T = TypeVar("T")

MOVES = frozenset({"Cast", "Expand", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})
"""Operators that leave indices as they are."""


def attribute(node: ir.Node, name: str, default: T) -> T:
    """An attribute's value, `default` where it is left out."""
    found = node.attributes.get(name)
    if found is None:
        return default
    value = found.value
    if isinstance(default, tuple) and value is not None:
        return cast("T", tuple(value))
    return cast("T", value)


def input_or_none(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def index_bound(value: ir.Value | None) -> int | None:
    """A number that indices lie below, of an input that says so or a largest element; None if unknown."""
    while value is not None and (bound := bound_of(value)) is None:
        node = value.producer()
        if node is None:
            return None
        if node.op_type in {"ArgMax", "ArgMin"}:
            operand = node.inputs[0]
            if operand is None:
                return None
            extents = shape_of(operand)
            return extents[attribute(node, "axis", 0) % len(extents)]
        if node.op_type == "Concat":
            bounds = [index_bound(each) for each in node.inputs]
            known = [each for each in bounds if each is not None]
            return max(known) if known and len(known) == len(bounds) else None
        if node.op_type not in MOVES:
            return None
        value = node.inputs[0]
    return None if value is None else bound


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value's elements are known now."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def constant(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """The elements of a constant, None for anything else."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return np.asarray(value.const_value.numpy())


def float_constant(value: ir.Value | None) -> npt.NDArray[np.float64] | None:
    """The elements of a constant as float64, None for anything else."""
    array = constant(value)
    return None if array is None else array.astype(np.float64)


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The static shape.

    Raises:
        ValueError: If it is not static; normalised models have no such value.
    """
    if value.shape is None or not value.shape.is_static():
        raise ValueError(f'tensor "{value.name}" has no static shape')
    return tuple(int(extent) for extent in value.shape.numpy())


def operator(node: ir.Node) -> str:
    """Operator type, with its domain unless that is ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def sole_user(value: ir.Value) -> ir.Node | None:
    """The only node that reads the value, once; None where there are others or it is a graph output."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node
