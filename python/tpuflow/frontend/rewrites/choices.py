"""The largest elements of an axis, by comparing each with each.

    TopK(x)  ->  rank of x[i] = sum over j of (x[j] > x[i] or (x[j] = x[i] and j < i))
                 index k = ArgMax(rank = k), value k = sum of where(rank = k, x, 0)

No two elements have one rank, whatever the grid they are compared on: of equal ones the first counts as
larger, as ONNX has it. All ranks are found at once, where one maximum after the other would wait for the one
before.

Only a choice that the machine itself goes on with is made there: one that products with constant weights
follow, or by which rows of a constant are picked. Others, such as those of classes and boxes, are left to the
host, which does not compare in pairs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LATE", "largest_elements"]

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
MOST_NODES = 1 << 10
"""Nodes looked through for a product behind a choice."""

FLOAT = int(ir.DataType.FLOAT)
MOST_COMPARED = 1 << 24
"""Comparisons of elements."""


def largest_elements(
    x: ir.Value, count: int, emit: Emitter, *, largest: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The `count` largest (or smallest) elements along the last axis of `[.., n]` floats, in order.

    Returns:
        Values `[.., count]`, indices `[.., count]` (int64) and truths `[.., count, n]`, whether an element is
        the one of that rank; None where there are too many to compare.
    """
    shape = shape_of(x)
    if not shape or not 0 < count <= shape[-1] or math.prod(shape) * shape[-1] > MOST_COMPARED:
        return None
    *outer, size = shape
    column = emit.reshape(x, (*outer, size, 1), "column")
    row = emit.reshape(x, (*outer, 1, size), "row")
    before = emit.constant(np.tri(size, k=-1, dtype=np.bool_), "before")
    beyond = emit("Less", *((column, row) if largest else (row, column)), label="beyond")
    tied = emit("And", emit("Equal", row, column, label="equal"), before, label="tied")
    beaten = emit("Cast", emit("Or", beyond, tied, label="beaten"), attributes={"to": FLOAT}, label="counted")
    axes = emit.integers([len(outer) + 1], "axes")
    rank = emit("ReduceSum", beaten, axes, attributes={"keepdims": 0}, label="rank")
    # On a grid without whole numbers a rank is near one: it lies between the halves below and above.
    halves = np.arange(count, dtype=np.float32).reshape(count, 1)
    ranks = emit.reshape(rank, (*outer, 1, size), "rank_row")
    above = emit("Less", emit.constant(halves - np.float32(0.5), "halves_below"), ranks, label="above")
    below = emit("Less", ranks, emit.constant(halves + np.float32(0.5), "halves_above"), label="below")
    here = emit("And", above, below, label="here")
    number = emit("Cast", here, attributes={"to": FLOAT}, label="number")
    index = emit("ArgMax", number, attributes={"axis": len(outer) + 1, "keepdims": 0}, label="index")
    kept = emit("Where", here, row, emit.constant(np.zeros((), np.float32), "zero"), label="kept")
    return emit("ReduceSum", kept, axes, attributes={"keepdims": 0}, label="value"), index, here


def _goes_on(choice: ir.Node) -> bool:
    """Whether layers with constant weights follow a choice, or rows of a constant are picked by it."""
    waiting, seen = [choice], {choice}
    while waiting and len(seen) < MOST_NODES:
        for output in waiting.pop().outputs:
            for node, place in output.uses():
                if node.op_type in PRODUCTS and array_of(input_at(node, 1)) is not None:
                    return True
                picks = node.op_type in {"Gather", "GatherND"} and place == 1
                if picks and array_of(node.inputs[0]) is not None:
                    return True
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
    return False


def top(node: ir.Node, emit: Emitter) -> Sequence[ir.Value] | None:
    """TopK of floats along any axis."""
    x, shape, count = node.inputs[0], shape_of(node.inputs[0]), integers_of(input_at(node, 1))
    if x is None or not shape or x.dtype != ir.DataType.FLOAT or array_of(x) is not None or not count:
        return None
    if not _goes_on(node):
        return None
    axis = node.attributes.get_int("axis", -1) % len(shape)
    order = [*(k for k in range(len(shape)) if k != axis), axis]
    last = emit("Transpose", x, attributes={"perm": order}) if axis != len(shape) - 1 else x
    found = largest_elements(last, count[0], emit, largest=bool(node.attributes.get_int("largest", 1)))
    if found is None:
        return None
    back = [order.index(k) for k in range(len(shape))]
    made: Sequence[ir.Value] = found[:2]
    if axis != len(shape) - 1:
        made = tuple(emit("Transpose", each, attributes={"perm": back}, label="back") for each in found[:2])
    return made[: len(node.outputs)]


LATE: Rules = {"TopK": [top]}
"""To be applied once no operand can become constant any more."""
