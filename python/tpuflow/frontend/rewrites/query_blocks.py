"""Attention by blocks of queries, each with the keys that its mask leaves in.

    softmax(Q K' + mask) V  ->  [softmax(Q1 K1' + mask11) V1; softmax(Q2 K2' + mask22) V2; ..]

Under a causal mask, or that of a window, no query of a block sees the keys behind its last query: their
shares are zeros, so nothing is lost with them. With as many keys as queries this leaves 5/8 of the products
and exponentials where there are four blocks, and the scores of a block fit a cache that those of all queries
do not.

What a mask leaves out must follow from constants, whatever the inputs are: a mask that is computed of the
causal one *and* of an input leaves out what the causal one does. A row that the inputs mask as a whole, as
those of padding in front of a text, has equal shares of its block's keys in place of all keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.values import MASKED, array_of, attributes_of, produced_by, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES", "blocks_of", "surely_left_out"]

BLOCK = 128
"""Queries of a block are a multiple of this, the rows of a full tile of the array."""
MOST_BLOCKS = 8
"""Blocks: an eighth of the queries sees a sixteenth of the keys too many on average."""
MOST_STEPS = 16
"""Nodes looked through, for the constant that a mask is made of and between scores and their softmax."""
BETWEEN = ("Add", "Sub", "Mul", "Div", "Where", "Tanh")
"""Operators between the product and the softmax that compute each score by itself."""

Truths = npt.NDArray[np.bool_]
NEVER: Truths = np.zeros((), np.bool_)


def _surely(value: ir.Value | None, *, truth: bool, steps: int = MOST_STEPS) -> Truths:
    """Where a condition has a truth value whatever the inputs are; broadcasts to its shape."""
    array = array_of(value)
    if array is not None:
        return np.asarray(array.astype(np.bool_) == truth)
    node = produced_by(value, "And", "Or", "Not", "Expand", "Cast")
    if node is None or steps == 0:
        return NEVER
    if node.op_type == "Not":
        return _surely(node.inputs[0], truth=not truth, steps=steps - 1)
    known = [_surely(operand, truth=truth, steps=steps - 1) for operand in node.inputs[:2]]
    if node.op_type in {"Expand", "Cast"}:
        return known[0]
    # One false operand makes "and" false, one true operand makes "or" true.
    either = truth == (node.op_type == "Or")
    result: Truths = known[0] | known[1] if either else known[0] & known[1]
    return result


def surely_left_out(value: ir.Value | None, steps: int = MOST_STEPS) -> Truths:
    """Where what goes into a softmax is at or below `MASKED` whatever the inputs are, scores being moderate.

    Returns:
        Truth values that broadcast to the shape of the value.
    """
    array = array_of(value)
    if array is not None:
        return np.asarray(array <= MASKED)
    node = produced_by(value, "Add", "Where", "Expand")
    if node is None or steps == 0:
        return NEVER
    if node.op_type == "Add":
        either: Truths = surely_left_out(node.inputs[0], steps - 1) | surely_left_out(
            node.inputs[1], steps - 1
        )
        return either
    if node.op_type == "Expand":
        return surely_left_out(node.inputs[0], steps - 1)
    condition, first, second = node.inputs
    one, other = surely_left_out(first, steps - 1), surely_left_out(second, steps - 1)
    both: Truths = one & other
    return both | (_surely(condition, truth=True) & one) | (_surely(condition, truth=False) & other)


def blocks_of(left_out: Truths, queries: int, keys: int) -> list[tuple[range, range]]:
    """Blocks of queries with the keys that any of them may see.

    Args:
        left_out: Broadcasts to `[.., queries, keys]`.
        queries: Rows of the mask.
        keys: Columns of the mask.
    """
    masks = np.broadcast_to(left_out, np.broadcast_shapes(left_out.shape, (queries, keys)))
    seen: Truths = np.any(~masks.reshape(-1, queries, keys), axis=0)
    size = BLOCK * -(-queries // (BLOCK * MOST_BLOCKS))
    found = []
    for first in range(0, queries, size):
        rows = range(first, min(first + size, queries))
        places = np.flatnonzero(seen[rows.start : rows.stop].any(axis=0))
        found.append((rows, range(int(places[0]), int(places[-1]) + 1) if places.size else range(keys)))
    return found


@dataclass(frozen=True)
class _Attention:
    """What softmax(f(Q K')) V consists of.

    Attributes:
        queries: `[batch, heads, queries, size]`.
        keys: K', `[batch, groups, size, keys]`.
        values: `[batch, groups, keys, size]`.
        between: Nodes from the product to the softmax, and which operand of each is computed of the product.
        scores: Shape of the scores, `[batch, heads, queries, keys]`.
    """

    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    between: list[tuple[ir.Node, int]]
    scores: tuple[int, int, int, int]


def _regrouped(value: ir.Value | None, shape: tuple[int, ...]) -> ir.Value | None:
    """A value of `shape`, seen through the Reshape that brings the heads of a group together, or apart."""
    reshape = produced_by(value, "Reshape")
    inner = None if reshape is None else reshape.inputs[0]
    found = [each for each in (value, inner) if each is not None and shape_of(each) == shape]
    return found[0] if found else None


def _product(value: ir.Value | None) -> ir.Node | None:
    """The product whose result, perhaps with heads brought together or apart, a value is."""
    reshape = produced_by(value, "Reshape")
    return produced_by(value if reshape is None else reshape.inputs[0], "MatMul")


def _attention(summed: ir.Value | None) -> _Attention | None:
    """Attention whose heads `[batch, heads, queries, size]` a value is."""
    whole, product = shape_of(summed), _product(summed)
    if product is None or whole is None or len(whole) != 4:
        return None
    values = product.inputs[1]
    inner = shape_of(values)
    if values is None or inner is None or len(inner) != 4 or inner[0] != whole[0] or whole[1] % inner[1]:
        return None
    scores = (whole[0], whole[1], whole[2], inner[2])
    softmax = produced_by(_regrouped(product.inputs[0], scores), "Softmax")
    if softmax is None or softmax.attributes.get_int("axis", -1) not in {-1, 3}:
        return None
    value: ir.Value | None = softmax.inputs[0]
    between: list[tuple[ir.Node, int]] = []
    while len(between) < MOST_STEPS and (first := _product(value)) is None:
        node = produced_by(value, *BETWEEN)
        made = [] if node is None else [at for at, x in enumerate(node.inputs) if shape_of(x) == scores]
        made = [at for at in made if node is not None and array_of(node.inputs[at]) is None]
        if node is None or not made:
            return None
        # A mask of the scores' own shape is not computed of a product.
        place = next((at for at in made if _leads_to_product(node.inputs[at])), made[0])
        between.insert(0, (node, place))
        value = node.inputs[place]
    first = _product(value)
    keys = None if first is None else first.inputs[1]
    turned = shape_of(keys)
    if first is None or keys is None or turned is None or len(turned) != 4 or shape_of(value) != scores:
        return None
    queries = _regrouped(first.inputs[0], (*whole[:3], turned[2]))
    if queries is None or turned[:2] != inner[:2] or turned[3] != inner[2]:
        return None
    return _Attention(queries, keys, values, between, scores)


def _leads_to_product(value: ir.Value | None) -> bool:
    """Whether a value is computed of a product, as far as the operands that come first tell."""
    for _ in range(MOST_STEPS):
        if _product(value) is not None:
            return True
        node = produced_by(value, *BETWEEN)
        if node is None:
            return False
        value = node.inputs[1 if node.op_type == "Where" else 0]
    return False


def query_blocks(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Divides attention whose heads this Reshape joins."""
    joined, merged = produced_by(node.inputs[0], "Transpose"), shape_of(node.outputs[0])
    if joined is None or attributes_of(joined).get("perm") != [0, 2, 1, 3] or merged is None:
        return None
    if any(use.node.op_type == "Concat" for use in node.outputs[0].uses()):
        return None  # a block
    attention = _attention(joined.inputs[0])
    if attention is None or not attention.between:
        return None
    batch, heads, queries, keys = attention.scores
    size = (shape_of(attention.values) or (0,))[-1]
    if merged != (batch, queries, heads * size) or queries < 2 * BLOCK:
        return None
    last, _ = attention.between[-1]
    blocks = blocks_of(surely_left_out(last.outputs[0]), queries, keys)
    if all(len(kept) == keys for _, kept in blocks):
        return None
    parts = [_block(attention, rows, kept, emit) for rows, kept in blocks]
    return emit("Concat", *parts, attributes={"axis": 1}, label="blocks")


def _block(attention: _Attention, rows: range, kept: range, emit: Emitter) -> ir.Value:
    """The joined heads `[batch, rows, heads * size]` of a block of queries."""
    batch, heads, queries, keys = attention.scores
    own = emit.slice(attention.keys, 3, kept, "keys")
    groups = (shape_of(attention.keys) or (0, 0))[1]
    shared = heads // groups

    def grouped(x: ir.Value, columns: int) -> ir.Value:
        return x if shared == 1 else emit.reshape(x, (batch, groups, shared * len(rows), columns), "grouped")

    def apart(x: ir.Value, columns: int) -> ir.Value:
        return x if shared == 1 else emit.reshape(x, (batch, heads, len(rows), columns), "heads")

    x = emit.slice(attention.queries, 2, rows, "queries")
    x = apart(emit("MatMul", grouped(x, (shape_of(x) or (0,))[-1]), own, label="scores"), len(kept))
    for node, place in attention.between:
        operands = [_part(operand, rows, kept, (queries, keys), emit) for operand in node.inputs]
        operands[place] = x
        x = emit(node.op_type, *operands, attributes=attributes_of(node), label=node.op_type.lower())
    x = emit("Softmax", x, attributes={"axis": -1}, label="shares")
    values = emit.slice(attention.values, 2, kept, "values")
    size = (shape_of(values) or (0,))[-1]
    x = apart(emit("MatMul", grouped(x, len(kept)), values, label="summed"), size)
    x = emit("Transpose", x, attributes={"perm": [0, 2, 1, 3]}, label="joined")
    return emit.reshape(x, (batch, len(rows), heads * size), "block")


def _part(
    operand: ir.Value | None, rows: range, kept: range, whole: tuple[int, int], emit: Emitter
) -> ir.Value | None:
    """The rows and columns of what is computed with scores that a block needs."""
    own = shape_of(operand)
    if operand is None or own is None:
        return operand
    for axis, needed, extent in [(-2, rows, whole[0]), (-1, kept, whole[1])]:
        if len(own) >= -axis and own[axis] == extent and len(needed) < extent:
            operand = emit.slice(operand, len(own) + axis, needed, "part")
    return operand


RULES: Rules = {"Reshape": [query_blocks]}
"""To be applied once all else has its final form."""
