"""The demands on a value's grid of its readers and their other operands.

mask + x         a mask that was zero throughout has the step of x, for its own range says nothing
pad(x, 3)        3 belongs to the grid, whether a sample shows it or not
where(c, y, k) + x    of k no more than the sum tells apart: it saturates at what it reached
mask * x, where(mask, x, 0)   of zeros and one number: x reaches as far as what is left of it
1 - mask         1 is a code, so that the difference is 0 where the mask is 1
floor(255 x)     all multiples of 1/255 are codes, for a 4 that rounds to 3.99 becomes 3
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import MASKED, bound_of
from tpuflow.lowering import scheme
from tpuflow.lowering.nodes import attribute, constant, float_constant, input_or_none, sole_user
from tpuflow.lowering.plan import CLAMPS, TO_WHOLE
from tpuflow.lowering.registry import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import onnx_ir as ir

    from tpuflow.calibration import Range

__all__ = ["CODES_PASS", "Neighbors", "added_numbers", "introduced_numbers", "padding", "whole_numbers"]

JOINING = frozenset({"Add", "Sub", "Max", "Min", "Where", "Concat"})
"""Operators whose operands stand on one scale, or on scales that are brought to one."""

CODES_PASS = frozenset({"MaxPool", "GlobalMaxPool", "Pad", "Resize", "Gather", "ReduceMax", "ReduceMin"})
"""Operators whose output keeps its operand's quantisation; so do all views."""

KEEPING = frozenset({"Abs", "Add", "Max", "Min", "Neg", "Sub", *CLAMPS})
"""Operators that make whole numbers of whole numbers, and would not of those beside them."""

MOST_NUMBERS = 4
"""Of so many numbers multiples are to be codes; any larger ones are none that matter."""

NOTHING = 32.0
"""What lies so far below others has a share of e^-32: nothing on any grid of a softmax."""

FAR = 1e3
"""Numbers so far below zero are no angles: a table that holds some is one of masks."""


class Neighbors:
    """The ranges of a network, asked for what they say of values beside or in front of them."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self._ranges = ranges

    def neighbor_range(self, value: ir.Value) -> tuple[float, float] | None:
        """The range of what a value of zero range is joined with: a step of its own would say nothing.

        A scale of 1 beside a far smaller one would leave the other operand of a sum few codes, or none.
        """
        found: list[tuple[float, float]] = []
        for use in value.uses():
            node = use.node
            if node.op_type in JOINING:
                first = 1 if node.op_type == "Where" else 0
                others = [each for each in (*node.inputs[first:], *node.outputs) if each is not value]
                found += [pair for each in others if (pair := self.observed_range(each)) is not None]
            elif (node.op_type in VIEWS or node.op_type in CODES_PASS) and use.idx == 0:
                further = self.neighbor_range(node.outputs[0])
                found += [] if further is None else [further]
            elif node.op_type == "Mul" and (factor := _constant_factor(node, use.idx)):
                # What is multiplied is aligned with its factor: a step of 1 would be one of the factor.
                made = node.outputs[0]
                low, high = self.observed_range(made) or (0.0, 0.0)
                unknown = high - low < scheme.SMALLEST_SPAN
                further = (self.distinguished_range(made) or self.neighbor_range(made)) if unknown else None
                found += [] if further is None else [(further[0] / factor, further[1] / factor)]
        usable = [(low, high) for low, high in found if high - low >= scheme.SMALLEST_SPAN]
        return (min(low for low, _ in usable), max(high for _, high in usable)) if usable else None

    def distinguished_range(self, value: ir.Value) -> tuple[float, float] | None:
        """The numbers that what reads a value tells apart; None where that is not known.

        A sum saturates at what it reached, so whatever takes it further, with the other operand at either of
        its ends, is as good as any number further off. Of two operands a maximum never gives what lies
        below the least, nor a minimum what lies above the largest of its results.
        """
        found: list[tuple[float, float]] = []
        for node, index in value.uses():
            if node.op_type in VIEWS and index == 0:
                further = self.distinguished_range(node.outputs[0])
            else:
                further = self._distinguished_by(node, index)
            if further is None:
                return None
            found.append(further)
        if not found or value.is_graph_output():
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def kept_range(self, value: ir.Value) -> tuple[float, float]:
        """The range of what constant masks leave of a value, zeros elsewhere, if nothing else reads it."""
        found = []
        for node, index in value.uses():
            factor, kept = _kept_factor(node, index), self.observed_range(node.outputs[0])
            if factor is None or kept is None:
                return -math.inf, math.inf
            found += [bound / factor for bound in kept]
        return (min(found), max(found)) if found and not value.is_graph_output() else (-math.inf, math.inf)

    def range_beside_masks(self, value: ir.Value) -> tuple[float, float] | None:
        """The range of a Where's operands other than its mask, extended downwards in front of a softmax.

        None without a mask, or if the range of another operand is not known.
        """
        node = value.producer()
        if node is None or node.op_type != "Where":
            return None
        masks = [(array := float_constant(each)) is not None and array.size and array.max() <= MASKED
                 for each in node.inputs[1:]]  # fmt: skip
        found = [
            self.observed_range(each) for each, mask in zip(node.inputs[1:], masks, strict=True) if not mask
        ]
        known = [each for each in found if each is not None]
        if not any(masks) or not known or len(known) < len(found):
            return None
        low, high = min(low for low, _ in known), max(high for _, high in known)
        return (low - NOTHING if _reaches_softmax(value) else low), high

    def _distinguished_by(self, node: ir.Node, index: int) -> tuple[float, float] | None:
        """The numbers that an operator of two operands tells apart in one of them."""
        if node.op_type not in {"Add", "Sub", "Max", "Min"} or node.inputs[0] is node.inputs[1]:
            return None
        made, clamped = node.outputs[0], sole_user(node.outputs[0])
        if clamped is not None and clamped.op_type in CLAMPS:
            made = clamped.outputs[0]
        reached, beside = self.observed_range(made), self.observed_range(node.inputs[1 - index])
        if reached is None or beside is None:
            return None
        (low, high), (least, largest) = reached, beside
        if node.op_type in {"Max", "Min"}:
            return low, high
        if node.op_type == "Add":
            return low - largest, high - least
        return (low + least, high + largest) if index == 0 else (least - high, largest - low)

    def observed_range(self, value: ir.Value | None) -> tuple[float, float] | None:
        """The range calibration found of a value, or that of a constant's elements; None without any."""
        if value is None:
            return None
        array = constant(value)
        if array is not None:
            numbers = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            return (min(float(numbers.min()), 0.0), max(float(numbers.max()), 0.0)) if numbers.size else None
        pairs = [] if (stated := self._ranges.get(value.name or "")) is None else stated.pairs
        finite = [pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1])]
        return (min(low for low, _ in finite), max(high for _, high in finite)) if finite else None


def added_numbers(value: ir.Value) -> Iterator[float]:
    """The numbers that are added to a value, or that it is subtracted from, as in `1 - x`."""
    for node, index in value.uses():
        if node.op_type in {"Add", "Sub"}:
            array = float_constant(node.inputs[1 - index])
            if array is not None and array.size and np.all(array == array.flat[0]):
                yield float(array.flat[0])
        elif (node.op_type in VIEWS or node.op_type in CODES_PASS) and index == 0:
            yield from added_numbers(node.outputs[0])


def whole_numbers(nodes: Iterable[ir.Node]) -> dict[ir.Value, Sequence[float]]:
    """The numbers of which values of a graph are multiples, as far as readers tell these apart, or makers do.

    A whole number that rounds to a code just below it becomes the next lower one; a half that does is no tie.

    Args:
        nodes: Of the graph, in topological order.
    """
    found: dict[ir.Value, Sequence[float]] = {}
    for node in reversed(list(nodes)):
        for index, value in enumerate(node.inputs):
            if value is not None and (numbers := _whole_numbers(node, index, found)):
                found[value] = sorted({*found.get(value, ()), *numbers})[:MOST_NUMBERS]
        if node.op_type in TO_WHOLE:
            found[node.outputs[0]] = sorted({1.0, *found.get(node.outputs[0], ())})
    return found


def _whole_numbers(node: ir.Node, index: int, found: Mapping[ir.Value, Sequence[float]]) -> Sequence[float]:
    """Those of an operand, by what is known of its result."""
    known = found.get(node.outputs[0], ())
    if node.op_type in TO_WHOLE:
        return (0.5, 1.0) if node.op_type == "Round" else (1.0,)
    if node.op_type in KEEPING or ((node.op_type in VIEWS or node.op_type in CODES_PASS) and index == 0):
        return known
    if known and (node.op_type == "Mul" or (node.op_type == "Div" and index == 0)):
        array = float_constant(node.inputs[1 - index])
        factor = 0.0 if array is None or array.size != 1 else float(array.item())
        if 0 < factor < math.inf:
            return [number / factor if node.op_type == "Mul" else number * factor for number in known]
    return ()


def _constant_factor(node: ir.Node, index: int) -> float | None:
    """The largest magnitude of the constants that a product multiplies an operand by; None if it has none."""
    array = float_constant(node.inputs[1 - index])
    return None if array is None or not array.size else float(np.abs(array).max())


def _kept_factor(node: ir.Node, index: int) -> float | None:
    """The factor of an operand's elements where a constant mask keeps them; None of other nodes."""
    if node.op_type == "Where":
        zero = float_constant(node.inputs[2])
        known = index == 1 and constant(node.inputs[0]) is not None and zero is not None and not np.any(zero)
        return 1.0 if known else None
    array = float_constant(node.inputs[1 - index]) if node.op_type == "Mul" else None
    factors = np.empty(0) if array is None else np.unique(array)
    return float(factors.sum()) if factors.size == 2 and np.any(factors == 0) else None


def padding(node: ir.Node) -> float | None:
    """The constant other than zero that a node pads with, if it does."""
    if node.op_type != "Pad" or attribute(node, "mode", "constant") != "constant":
        return None
    fill = constant(input_or_none(node, 2))
    return None if fill is None or not fill.size else float(fill.item()) or None


def _reaches_softmax(value: ir.Value) -> bool:
    """Whether a softmax reads a value, perhaps in another shape or chosen beside others."""
    return any(
        node.op_type == "Softmax"
        or (
            ((node.op_type in VIEWS and index == 0) or (node.op_type == "Where" and index > 0))
            and _reaches_softmax(node.outputs[0])
        )
        for node, index in value.uses()
    )


def introduced_numbers(node: ir.Node) -> tuple[float, ...]:
    """The least and the largest number a node puts beside what it is given, but for masks: none if none."""
    if node.op_type == "Where":
        return _honest([array for value in node.inputs[1:] if (array := constant(value)) is not None])
    if node.op_type == "Gather" and node.inputs[1] is not None and bound_of(node.inputs[1]) is not None:
        table = float_constant(
            node.inputs[0]
        )  # every row may be asked for: positions, and what follows from them
        honest = table is not None and float(table.min(initial=0.0)) >= -FAR
        return _honest([table]) if table is not None and honest else ()
    fill = padding(node)
    return () if fill is None or not math.isfinite(fill) else (fill,)


def _honest(arrays: Sequence[npt.NDArray[np.generic]]) -> tuple[float, ...]:
    """The least and the largest number that is no mask: none if there is none."""
    numbers = np.concatenate([array.ravel() for array in arrays]) if arrays else np.zeros(0)
    numbers = numbers[np.abs(numbers) < -MASKED]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else ()
