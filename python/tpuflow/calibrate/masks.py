"""Masks computed at run time: what a softmax leaves out counts for no range.

    softmax(scores + mask)        softmax(Where(mask, scores, -1e9))

A mask makes a score hugely negative, and a softmax gives nothing to what lies far below the largest of its
row, however far. On a grid that reached that far all honest scores would be one code. So scores more than
`FAR` below the largest of their row are taken for masked, and count as `DEEP` below it; rows that are masked
as a whole do not count. What is added to scores counts as `-FAR` where it lies below. Grids saturate there,
which masks as well. Masks that are constants need none of this: there they are part of the softmax
(`quantize.plan`).

    scores of a row, masked       3  1  -9999  2          observed as       3  1  -13  2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

__all__ = ["DEEP", "FAR", "Masks"]

FAR = 1e3
"""No honest score lies so far below the largest of its row."""

DEEP = 16.0
"""So far below the largest of its row a score has a ten millionth of its weight."""

REARRANGING = frozenset({"Expand", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose results lie on the grid of their operand."""


@dataclass(frozen=True)
class Masks:
    """Where masks act in a network.

    Attributes:
        scores: What nothing but softmax reads, with the axis of its rows, unless a constant masks it.
        added: What is added to scores, and to nothing else.
    """

    scores: Mapping[str, int]
    added: frozenset[str]

    @classmethod
    def of(cls, graph: ir.Graph) -> Masks:
        """The scores of a normalised network, and what is added to them."""
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        scores = {value: axis for value in values if (axis := _axis_of_rows(value)) is not None}
        sums = {value for value in scores if (node := value.producer()) is not None and node.op_type == "Add"}
        added = {value for value in values if all(_added(value, sums)) and value.uses()}
        return cls(
            {value.name or "": axis for value, axis in scores.items()},
            frozenset(value.name or "" for value in added),
        )

    def left_out(self, activations: Mapping[str, NDArray[np.float32]]) -> Mapping[str, NDArray[np.float32]]:
        """The activations with what is masked as it counts for ranges; NaN stays."""
        return {name: self._left_out(name, array) for name, array in activations.items()}

    def _left_out(self, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        if name in self.added:
            return np.maximum(array, np.float32(-FAR))
        axis = self.scores.get(name)
        if axis is None or not array.size or not array.min() < -FAR:
            return array
        top = array.max(axis, keepdims=True)
        found = np.where(array < top - np.float32(FAR), top - np.float32(DEEP), array)
        return np.where(top < -np.float32(FAR), np.float32(0), found)


def _axis_of_rows(value: ir.Value) -> int | None:
    """The axis along which every reader of a value is a softmax; None where one is not."""
    axes = {
        attributes_of(use.node).get("axis", -1) if use.node.op_type == "Softmax" else None
        for use in value.uses()
    }
    axis = axes.pop() if len(axes) == 1 and not value.is_graph_output() else None
    return axis if isinstance(axis, int) and not _masked_by_constant(value) else None


def _masked_by_constant(value: ir.Value) -> bool:
    """Whether a value is the sum with a constant, or chosen by one."""
    node = value.producer()
    if node is None or node.op_type not in {"Add", "Where"}:
        return False
    return any(array_of(each) is not None for each in node.inputs[: 1 if node.op_type == "Where" else 2])


def _added(value: ir.Value, sums: set[ir.Value]) -> Iterator[bool]:
    """Of every reader of a value, whether it adds it to scores, perhaps in another shape."""
    yield not value.is_graph_output()
    for use in value.uses():
        made = use.node.outputs[0]
        if use.node.op_type in REARRANGING and use.idx == 0:
            yield from _added(made, sums)
        else:
            yield made in sums
