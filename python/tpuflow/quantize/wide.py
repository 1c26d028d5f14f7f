"""Values that have 16 bits although their layers have 8: what norms and softmax work on.

A norm divides by a deviation and a softmax makes relative errors of absolute ones, so a step of 8 bits in
what they read weighs more there than anywhere else; and the shares a softmax gives are small numbers on a
grid that reaches to 1. Of a transformer that is the stream every block adds to:

    stream --> Add --> norm --> MatMul ...       wide: stream, Add's output, scores, shares
                ^                                8 bits: what norms give, queries, keys, values
    ... MatMul -+

Wide is what such an operator reads, and what that is made of by operators that only join, average, scale by
constants or move numbers; but nothing a convolution or product with constant weights reads, which is where
cycles go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from tpuflow.quantize.nodes import is_constant
from tpuflow.quantize.plan import LINEAR

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["AVERAGES", "NORMS", "wide_values"]

NORMS = frozenset({"LayerNormalization", "RMSNormalization"})

MOVES = frozenset(
    {
        "Concat", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split",
        "Squeeze", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators that round nothing."""

JOINS = frozenset({"Add", "Sub", "Where"})

AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
"""Operators that average: of sums over places as much as of what they are made of."""

SCALES = frozenset({"Mul", "Div"})
"""Operators that may stand in between where all but one of their operands are constant."""


def wide_values(nodes: Iterable[ir.Node], *, norms: bool, softmax: bool) -> frozenset[ir.Value]:
    """The values of a graph that have 16 bits.

    Args:
        nodes: Of the graph.
        norms: What norms read is wide.
        softmax: What softmax reads is, and the shares it gives.
    """
    ordered = list(nodes)
    heads = (NORMS if norms else frozenset()) | ({"Softmax"} if softmax else frozenset())
    found = _behind([node for node in ordered if node.op_type in heads])
    shares = {node.outputs[0] for node in ordered if softmax and node.op_type == "Softmax"}
    return frozenset(found | shares)


def _behind(heads: Collection[ir.Node]) -> set[ir.Value]:
    """What nodes read first, and what that is made of."""
    found: set[ir.Value] = set()
    waiting = [node.inputs[0] for node in heads]
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if value is None or node is None or value in found or not _is_number(value) or _is_read(value):
            continue
        found.add(value)
        operands = [operand for operand in node.inputs if operand is not None and _is_number(operand)]
        if node.op_type in MOVES | JOINS | AVERAGES or (node.op_type in SCALES and len(operands) == 1):
            waiting += operands
    return found


def _is_number(value: ir.Value) -> bool:
    """Whether a value is computed, and of a floating type."""
    return not is_constant(value) and value.dtype is not None and value.dtype.is_floating_point()


def _is_read(value: ir.Value) -> bool:
    """Whether a layer with constant weights reads a value, perhaps in another order."""
    for node, index in value.uses():
        if node.op_type in LINEAR and index == 0 and is_constant(node.inputs[1]):
            return True
        if node.op_type in MOVES and any(_is_read(output) for output in node.outputs):
            return True
    return False
