"""Values that have 16 bits although their layers have 8: of norms, softmax, positions, tails, parts of sums.

A norm divides by a deviation and a softmax makes relative errors of absolute ones, so a step of 8 bits in
what they read weighs more there than anywhere else; and the shares a softmax gives are small numbers on a
grid that reaches to 1. Of a transformer that is the stream every block adds to:

    stream --> Add --> norm --> MatMul ...       wide: stream, Add's output, scores, shares
                ^                                8 bits: what norms give, queries, keys, values
    ... MatMul -+

Wide is what such an operator reads, and what that is made of by operators that only join, average, scale by
constants or move numbers; but nothing a convolution or product with constant weights reads, which is where
cycles go.

Positions that turn queries and keys multiply each by a cosine and a sine and add the two: roundings of which
none need have 8 bits. What is turned, the angles and both products are wide; queries and keys behind the
sum are not, since they are operands of a product.

What is rounded to whole numbers is wide as well: a step of 8 bits there decides between two of them. So are
computed numbers that are compared with each other, as those are of which the largest are looked for.

Nor does it cost much where a network ends: what its last layers sum up and what is computed of that, such as
boxes of offsets and sizes of logarithms, is small beside its layers and goes straight into the outputs. And a
sum that is only added to another one need not be rounded to 8 bits first, for the result is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from tpuflow.frontend.values import bound_of
from tpuflow.lowering.nodes import is_constant
from tpuflow.lowering.plan import LINEAR, TO_WHOLE

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["AVERAGES", "NORMS", "added_values", "head_values", "int16_values"]

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

COMPARISONS = frozenset({"Less", "LessOrEqual", "Equal"})

SCALES = frozenset({"Mul", "Div"})
"""Operators that may stand in between where all but one of their operands are constant."""


def int16_values(nodes: Iterable[ir.Node], *, norms: bool, softmax: bool) -> frozenset[ir.Value]:
    """The values of a graph that have 16 bits.

    Args:
        nodes: Of the graph.
        norms: Operands of norms are wide.
        softmax: Operands and results of softmax are.
    """
    ordered = list(nodes)
    heads = (NORMS if norms else frozenset()) | ({"Softmax"} if softmax else frozenset())
    found = _transitive_sources(
        [node.inputs[0] for node in ordered if node.op_type in heads], MOVES | JOINS | AVERAGES
    )
    found |= _transitive_sources([node.inputs[0] for node in ordered if node.op_type in TO_WHOLE], MOVES)
    found |= _transitive_sources(
        [
            value
            for node in ordered
            if node.op_type in COMPARISONS and not any(map(is_constant, node.inputs))
            for value in node.inputs
        ],
        MOVES,
    )
    shares = {node.outputs[0] for node in ordered if softmax and node.op_type == "Softmax"}
    return frozenset(found | shares | (_rotary_values(ordered) if softmax else set()))


def _rotary_values(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Values multiplied by rows of a table of positions, these rows, and the products, also joined."""
    rows: set[ir.Value] = set()
    operands: list[ir.Value | None] = []
    products: set[ir.Value] = set()
    for node in nodes:
        if (
            node.op_type == "Gather"
            and is_constant(node.inputs[0])
            and node.inputs[1] is not None
            and bound_of(node.inputs[1]) is not None
        ) or (node.op_type in MOVES and any(value in rows for value in node.inputs)):
            rows.update(node.outputs)
        elif node.op_type == "Mul" and any(value in rows for value in node.inputs):
            operands += node.inputs
            products.update(node.outputs)
        elif node.op_type == "Concat" and all(value in products for value in node.inputs):
            products.update(node.outputs)
    return _transitive_sources(operands, MOVES | {"Neg"}) | products


def head_values(nodes: Iterable[ir.Node]) -> frozenset[ir.Value]:
    """The values behind a graph's last layers: what these sum up, and what is made of it for the outputs.

    Each depends on a layer with constant weights, and no convolution, product or average depends on it: the
    roundings of all that an average reads cancel, and there is much of that.

    Args:
        nodes: Of the graph, in topological order.
    """
    ordered = list(nodes)
    summed: set[ir.Value] = set()
    for node in ordered:
        layer = node.op_type in LINEAR and is_constant(node.inputs[1])
        if layer or any(value in summed for value in node.inputs if value is not None):
            summed.update(node.outputs)
    read: set[ir.Value] = set()
    for node in reversed(ordered):
        if node.op_type in LINEAR | AVERAGES or any(value in read for value in node.outputs):
            read.update(value for value in node.inputs if value is not None)
    return frozenset(value for value in summed - read if _is_number(value))


def added_values(nodes: Iterable[ir.Node]) -> frozenset[ir.Value]:
    """The sums of a graph that nothing but additions of computed values read, perhaps in another order.

    Args:
        nodes: Of the graph.
    """
    makers = LINEAR | JOINS
    sums = (value for node in nodes if node.op_type in makers for value in node.outputs)
    return frozenset(value for value in sums if _is_number(value) and _is_added(value))


def _is_added(value: ir.Value) -> bool:
    """Whether additions read a value, and nothing else does."""
    readers = [node for node, _ in value.uses()]
    if not readers or value.is_graph_output():
        return False
    return all(
        _is_addition(node) or (node.op_type in MOVES and all(map(_is_added, node.outputs)))
        for node in readers
    )


def _is_addition(node: ir.Node) -> bool:
    """Whether a node joins computed values: what adds a constant belongs to the layer in front of it."""
    return node.op_type in JOINS and not any(is_constant(value) for value in node.inputs)


def _transitive_sources(values: Iterable[ir.Value | None], passing: Collection[str]) -> set[ir.Value]:
    """Values, and what they are made of by operators that are passed and scales that are constant."""
    found: set[ir.Value] = set()
    read: dict[ir.Value, bool] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value is None or value in found or not _is_number(value) or _is_read(value, read):
            continue
        node = value.producer()
        if node is None:
            continue
        found.add(value)
        operands = [operand for operand in node.inputs if operand is not None and _is_number(operand)]
        if node.op_type in passing or (node.op_type in SCALES and len(operands) == 1):
            waiting += operands
    return found


def _is_number(value: ir.Value) -> bool:
    """Whether a value is computed, and of a floating type."""
    return not is_constant(value) and value.dtype is not None and value.dtype.is_floating_point()


def _is_read(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether a layer with constant weights reads a value, perhaps in another order.

    Args:
        value: In question.
        known: What was found of values before, which this adds to.
    """
    waiting = [value]
    while waiting:
        asked = waiting[-1]
        uses = list(asked.uses())
        moved = [out for node, _ in uses if node.op_type in MOVES for out in node.outputs]
        layer = any(
            node.op_type in LINEAR and index == 0 and is_constant(node.inputs[1]) for node, index in uses
        )
        unknown = [] if layer else [out for out in moved if out not in known]
        if unknown:
            waiting += unknown
            continue
        known[waiting.pop()] = layer or any(known[out] for out in moved)
    return known[value]
