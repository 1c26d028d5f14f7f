"""Masks computed at run time: what a softmax leaves out counts for no range.

    softmax(scores + mask)        softmax(Where(mask, scores, -1e9))

A mask makes a score hugely negative, and a softmax gives nothing to what lies far below the largest of its
row, however far. On a grid that reached that far all honest scores would be one code. So scores more than
`DEEP` below the largest of their row count as just that deep; rows that are masked as a whole do not count.
What is added to scores counts as `-FAR` where it lies below, and its grid reaches no further than from the
largest score to the least (`reaching_masks`). Grids saturate there, which masks as well. Masks that are
constants need none of this: there they are part of the softmax (`lowering.plan`).

    scores of a row, masked       3  1  -9999  2          observed as       3  1  -13  2

A log softmax gives of such scores numbers just as far below zero, and of honest ones some below `-DEEP`: what
lies more than `FAR` below the largest of its row, in front of it or behind, does not count.

What a mask is scaled from counts alike: `m - 1` in `scores + (m - 1) * 1e9` reaches no further than to -1e-6,
and saturates there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibration.ranges import Range
from tpuflow.frontend.values import MASKED, array_of, attributes_of, scalar_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

__all__ = ["DEEP", "FAR", "Masks", "reaching_masks", "unseen_masks"]

FAR = 1e3
"""No honest score lies so far below zero."""

DEEP = 16.0
"""So far below the largest of its row a score has a ten millionth of its weight: 16 bits make 0 of it."""

NARROWEST = 2.0**-20
"""No range is made narrower: a grid of less would say nothing (`lowering.scheme`)."""

PASSING = frozenset({"Add", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that may stand between a mask and what it is added to."""

BOUNDING = frozenset({"Clip", "Max", "Min"})
"""Operators that keep scores from being hugely negative, or large."""

Rows = tuple[int, float]
"""The axis of rows in front of a softmax, and what a difference of 1 is in them."""


@dataclass(frozen=True)
class Masks:
    """Where masks act in a network.

    Attributes:
        scores: What nothing but softmax reads, perhaps scaled, unless a constant masks it.
        added: What is added to scores, perhaps scaled, and to nothing else, with how much of it is a
            difference of 1 in those.
        logarithms: What a log softmax reads and makes, with the axis of its rows.
    """

    scores: Mapping[str, Rows]
    added: Mapping[str, float]
    logarithms: Mapping[str, int]

    @classmethod
    def of(cls, graph: ir.Graph) -> Masks:
        """The scores of a normalised network, and what is added to them."""
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        scores: dict[ir.Value, Rows] = {}
        added: dict[ir.Value, float] = {}
        logarithms: dict[ir.Value, int] = {}
        for value in values:
            logarithms |= _log_softmax(value)
        for value in reversed(values):  # readers first
            if value in logarithms:
                scores[value] = logarithms[value], 1.0
            if value.is_graph_output() or value in logarithms:
                continue
            if (rows := _rows(value, scores)) is not None:
                scores[value] = rows
            if (unit := _unit(value, scores, added)) is not None:
                added[value] = unit
        return cls(
            {value.name or "": rows for value, rows in scores.items() if not _masked_by_constant(value)},
            {value.name or "": unit for value, unit in added.items()},
            {value.name or "": axis for value, axis in logarithms.items()},
        )

    def far(self, name: str) -> float:
        """From how far below zero on numbers of a tensor are masks; infinite where it holds none."""
        return FAR * max(self.added.get(name, 0.0), self.scores.get(name, (0, 0.0))[1]) or math.inf

    def left_out(self, activations: Mapping[str, NDArray[np.float32]]) -> Mapping[str, NDArray[np.float32]]:
        """The activations with what is masked as it counts for ranges; NaN stays."""
        return {name: self._left_out(name, array) for name, array in activations.items()}

    def _left_out(self, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        if name in self.added:
            return np.maximum(array, np.float32(-FAR * self.added[name]))
        if name not in self.scores or not array.size:
            return array
        if name in self.logarithms:
            top = array.max(self.logarithms[name], keepdims=True)
            return np.where(array < top - np.float32(FAR), top - np.float32(DEEP), array)
        axis, unit = self.scores[name]
        far, deep = np.float32(FAR * unit), np.float32(DEEP * unit)
        if not array.max() - array.min() > deep:  # NaN is refused later
            return array
        top = array.max(axis, keepdims=True)
        return np.where(top < -far, np.float32(0), np.maximum(array, top - deep))


def unseen_masks(graph: ir.Graph, ranges: Mapping[str, Range]) -> tuple[dict[str, Range], list[str]]:
    """Ranges of masks that masked nothing in any sample, as if they had.

    Returns:
        The ranges, by name, of such masks and of the scores they act on; and the names of the masks
        themselves, inputs of the network or what it computes of them.
    """
    masks = Masks.of(graph)
    found: dict[str, Range] = {}
    roots = []
    reached: set[str] = set()
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    for value in values:
        name, node = value.name or "", value.producer()
        behind = node is not None and any(each is not None and each.name in reached for each in node.inputs)
        if name not in ranges:  # of what only a clamp reads
            reached |= {name} if behind and name in masks.scores else set()
            continue
        low, high = (
            extreme(pair[side] for pair in ranges[name].pairs) for side, extreme in enumerate((min, max))
        )
        if name in masks.added:
            if behind or (low == high == 0 and (node is None or node.op_type != "MatMul")):
                found[name] = Range(low - FAR * masks.added[name], high)
                roots += [] if behind else [name]
        elif name in masks.scores and (behind or (unset := _unset_choice(node, low, ranges)) is not None):
            found[name] = Range(low - DEEP * masks.scores[name][1], high)
            roots += [] if behind or unset is None else [unset]
        reached |= {name} & found.keys()
    return found, roots


def reaching_masks(graph: ir.Graph, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges of masks, no further down than it takes to bring the largest score to the least.

    A grid that reached as far as the masks' own numbers would leave the sum of both few of the scores' bits:
    a sum is aligned to the coarser of its operands. Below the least score a sum saturates in any case.
    """
    masks = Masks.of(graph)
    found: dict[str, Range] = {}
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    for value in reversed(values):  # readers first
        name = value.name or ""
        if name not in masks.added or name not in ranges:
            continue
        spans = []
        for use in value.uses():
            made = _clamp_result_name(use.node.outputs[0], ranges)
            pairs = [*(found.get(made) or ranges[made]).pairs] if made in ranges else []
            if use.node.op_type == "Add":
                other = use.node.inputs[1 - use.idx]
                if other is not None and (reached := ranges.get(other.name or "")) is not None:
                    pairs += [(high, high) for _, high in reached.pairs]
            span = max(high for _, high in pairs) - min(low for low, _ in pairs) if pairs else None
            spans += [] if span is None else [span / (_factor(use.node) or 1.0)]
        low, high = min(low for low, _ in ranges[name].pairs), max(high for _, high in ranges[name].pairs)
        if spans and low < -max(*spans, NARROWEST):
            found[name] = Range(-max(*spans, NARROWEST), high)
    return found


def _clamp_result_name(value: ir.Value, ranges: Mapping[str, Range]) -> str:
    """The name of a value, or of what clamps make of it where only they read it and it has no range."""
    while value.name not in ranges and (uses := list(value.uses())):
        value = uses[0].node.outputs[0]
    return value.name or ""


def _unset_choice(node: ir.Node | None, low: float, ranges: Mapping[str, Range]) -> str | None:
    """The condition of a choice between scores and a mask, if no sample chose the mask."""
    if node is None or node.op_type != "Where" or not node.inputs[0]:
        return None
    if all(use.node.op_type == "Softmax" for use in node.outputs[0].uses()):
        return None  # which leaves them out itself
    arrays = [array_of(value) for value in node.inputs[1:]]
    masks = [array is not None and bool(np.all(array <= MASKED)) for array in arrays]
    others = [value for value, mask in zip(node.inputs[1:], masks, strict=True) if not mask]
    if len(others) != 1 or others[0] is None or (scores := ranges.get(others[0].name or "")) is None:
        return None
    return node.inputs[0].name if low >= min(least for least, _ in scores.pairs) else None


def _rows(value: ir.Value, scores: Mapping[ir.Value, Rows]) -> Rows | None:
    """The rows every reader of a value makes of it, if all are softmax, or scale what only softmax reads."""
    found: set[Rows | None] = set()
    for node, index in value.uses():
        factor = _factor(node) if index == 0 or node.op_type == "Mul" else None
        if node.op_type == "Softmax":
            axis = attributes_of(node).get("axis", -1)
            found.add((axis, 1.0) if isinstance(axis, int) else None)
        elif factor is not None and node.outputs[0] in scores:
            axis, unit = scores[node.outputs[0]]
            found.add((axis, unit / factor))
        elif node.op_type in BOUNDING or (node.op_type == "Where" and index > 0):
            found.add(scores.get(node.outputs[0]))
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _log_softmax(value: ir.Value) -> dict[ir.Value, int]:
    """Operand, difference from the maximum, and result of a log softmax as it is written here."""
    uses = list(value.uses())
    maxima = [use.node for use in uses if use.node.op_type == "ReduceMax"]
    if len(uses) != 2 or len(maxima) != 1 or len(maxima[0].inputs) != 2:
        return {}
    axes = array_of(maxima[0].inputs[1])
    less = next((use.node for use in uses if use.node.op_type == "Sub" and use.idx == 0), None)
    if axes is None or axes.size != 1 or less is None or less.inputs[1] is not maxima[0].outputs[0]:
        return {}
    uses = list(less.outputs[0].uses())
    made = [use.node.outputs[0] for use in uses if use.node.op_type == "Sub" and use.idx == 0]
    if len(uses) != 2 or len(made) != 1 or not any(use.node.op_type == "Exp" for use in uses):
        return {}
    return dict.fromkeys((value, less.outputs[0], made[0]), int(axes.item()))


def _factor(node: ir.Node) -> float | None:
    """By what positive constant a node multiplies its other operand; None if it does not."""
    if node.op_type not in {"Mul", "Div"}:
        return None
    constants = [scalar for each in node.inputs if (scalar := scalar_of(each)) is not None]
    if len(constants) != 1 or not constants[0] > 0 or (node.op_type == "Div" and scalar_of(node.inputs[0])):
        return None
    return constants[0] if node.op_type == "Mul" else 1 / constants[0]


def _unit(value: ir.Value, scores: Mapping[ir.Value, Rows], added: Mapping[ir.Value, float]) -> float | None:
    """How much of a value is a difference of 1 in the scores it is added to; None if it is read otherwise."""
    found: set[float | None] = set()
    for node, index in value.uses():
        made = node.outputs[0]
        passes = node.op_type == "Add" or (node.op_type in PASSING and index == 0)
        if node.op_type == "Add" and made in scores:
            found.add(scores[made][1])
        elif made in added and (factor := _factor(node)) is not None:
            found.add(max(added[made] / factor, NARROWEST))
        else:
            found.add(added.get(made) if passes else None)
    return None if not found or None in found else max(each for each in found if each is not None)


def _masked_by_constant(value: ir.Value) -> bool:
    """Whether a value is the sum with a constant, or chosen by one."""
    node = value.producer()
    if node is None or node.op_type not in {"Add", "Where"}:
        return False
    return any(array_of(each) is not None for each in node.inputs[: 1 if node.op_type == "Where" else 2])
