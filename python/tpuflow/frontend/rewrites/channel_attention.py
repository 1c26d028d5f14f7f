"""Attention between channels, and linear attention: all heads in one product.

    softmax(s Q K') V    Q, V [heads, d, tokens], K' [heads, tokens, d]    El-Nouby, arXiv:2106.09681
    Q (K' V)             Q, V [heads, tokens, d], K' [heads, d, tokens]    Katharopoulos, arXiv:2006.16236

Between both products stands a d x d matrix for each head. The array takes a whole pass for each, and where
the channels of all heads lie together behind each token, every operand is copied to part them. So all
channels meet all channels, pairs of different heads are left out (by the mask of the softmax, or replaced
by zeros), and the second product takes all channels of a token at once: its weights are block-diagonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.movement import ELEMENTWISE
from tpuflow.frontend.rewrites.parts import axes_behind
from tpuflow.frontend.values import array_of, produced_by, shape_of, sole_user

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

LONGEST = 16
"""Nodes between channels and their use."""
SIDE = 128
"""Rows and columns of the array."""
LEFT_OUT = -1e9
"""What is added to scores of channels of different heads."""
MOVING = frozenset({"Reshape", "Transpose"})
SAME_SHAPE = frozenset({"Add", "Div", "Mul", "Softmax", *ELEMENTWISE})


def _channel_axes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The axes of a value that are together the columns of a product, or channels of images."""
    nodes: list[ir.Node] = []
    node = None if value is None else value.producer()
    while node is not None and node.op_type in {"Pad", "Slice", *MOVING, *SAME_SHAPE}:
        source = node.inputs[0]
        if source is None or len(nodes) == LONGEST:
            return None
        nodes.insert(0, node)
        node = source.producer()
    shape = None if node is None else shape_of(node.outputs[0])
    if node is None or shape is None or node.op_type not in {"Concat", "Conv", "MatMul"}:
        return None
    if node.op_type == "Concat" and (len(shape) != 4 or node.attributes.get_int("axis", 0) != 1):
        return None
    axes: tuple[int, ...] | None = (len(shape) - 1,) if node.op_type == "MatMul" else (1,)
    for each in nodes:
        after = shape_of(each.outputs[0])
        if after is None or axes is None:
            return None
        if each.op_type in MOVING:
            axes = axes_behind(each, shape, axes, after)
        elif each.op_type in {"Pad", "Slice"}:
            changed = {axis for axis, (a, b) in enumerate(zip(shape, after, strict=True)) if a != b}
            axes = axes if changed <= {*axes} else None
        elif shape != after:
            return None
        shape = after
    return axes


@dataclass(frozen=True)
class _Heads:
    """Two products with a small matrix for each head between them.

    Attributes:
        lead: Extents in front of the heads.
        heads: How many there are.
        rows: Rows of a head's matrix, and
        columns: its columns: channels of a head.
        tokens: Terms of the first product, and rows of the second one's result.
        factor: What the matrix is multiplied by, one number or one for each head; None for nothing.
    """

    lead: tuple[int, ...]
    heads: int
    rows: int
    columns: int
    tokens: tuple[int, int]
    factor: npt.NDArray[np.floating] | None

    def matrix(self, left: ir.Value, right: ir.Value, emit: Emitter) -> ir.Value:
        """The product of [.., heads, rows, tokens] and [.., heads, tokens, columns] of all heads."""
        k, lead = len(self.lead), list(self.lead)
        apart = emit("Transpose", right, attributes={"perm": [*range(k), k + 1, k, k + 2]}, label="right")
        terms = self.tokens[0]
        x = emit(
            "MatMul",
            emit.reshape(left, [*lead, self.heads * self.rows, terms], "left_channels"),
            emit.reshape(apart, [*lead, terms, self.heads * self.columns], "right_channels"),
            label="channels",
        )
        if self.factor is None:
            return x
        each = self.factor.reshape(-1)
        if each.size > 1:
            each = np.repeat(each, self.rows)[:, np.newaxis]
        return emit("Mul", x, emit.constant(each, "factor", like=x), label="scaled")

    def of_one_head(self) -> npt.NDArray[np.bool_]:
        """Which elements of the matrix belong to a head."""
        head = np.arange(self.heads)
        return np.asarray(np.repeat(head, self.rows)[:, np.newaxis] == np.repeat(head, self.columns))

    def is_worth(self, *, transposed: bool) -> bool:
        """Whether the array takes no longer for all heads at once than for one after the other.

        `transposed`: the second product of a head has the matrix as its left operand.
        """
        terms, others = self.tokens
        rows, columns = self.heads * self.rows, self.heads * self.columns
        first = _passes(terms, self.columns, self.rows)
        second = (
            _passes(self.columns, others, self.rows)
            if transposed
            else _passes(self.rows, self.columns, others)
        )
        at_once = _passes(columns, rows, others) if transposed else _passes(rows, columns, others)
        return _passes(terms, columns, rows) + at_once <= self.heads * (first + second)


def _passes(terms: int, columns: int, rows: int) -> int:
    """Rows that the array takes for a product, of a pass as many as it has at least."""
    return math.ceil(terms / SIDE) * math.ceil(columns / SIDE) * max(rows, SIDE)


def _heads(matrix: ir.Value | None, others: int) -> tuple[_Heads, ir.Node] | None:
    """What `matrix` [.., heads, rows, columns] is, and its product; `others`: tokens of the second one."""
    shape, factor = shape_of(matrix), None
    scaled = produced_by(matrix, "Mul")
    if matrix is None or shape is None or len(shape) < 3 or not sole_user(matrix):
        return None
    if scaled is not None:
        factor, matrix = array_of(scaled.inputs[1]), scaled.inputs[0]
        if factor is None or (factor.size > 1 and factor.shape[-3:] != (shape[-3], 1, 1)):
            return None
        if factor.size not in {1, shape[-3]} or shape_of(matrix) != shape:
            return None
        if matrix is None or not sole_user(matrix):
            return None
    product = produced_by(matrix, "MatMul")
    if product is None:
        return None
    left, right = (shape_of(value) for value in product.inputs)
    if left is None or right is None or left[:-2] != shape[:-2] or right[:-2] != shape[:-2] or shape[-3] == 1:
        return None
    return _Heads(shape[:-3], shape[-3], shape[-2], shape[-1], (left[-1], others), factor), product


def channel_attention(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies shares of channels with channels, for all heads at once."""
    shares, v, y = node.inputs[0], node.inputs[1], shape_of(node.outputs[0])
    softmax = produced_by(shares, "Softmax")
    if softmax is None or shares is None or v is None or y is None or not sole_user(shares):
        return None
    found = _heads(softmax.inputs[0], y[-1])
    if found is None or softmax.attributes.get_int("axis", -1) % len(y) != len(y) - 1:
        return None
    heads, product = found
    left, right = product.inputs
    head, before, last = (len(y) - k for k in (3, 2, 1))
    if (
        left is None
        or right is None
        or (shape_of(v) or ())[:-2] != y[:-2]
        or not heads.is_worth(transposed=True)
    ):
        return None
    if _channel_axes(left) != (head, before) or _channel_axes(v) != (head, before):
        return None
    if _channel_axes(right) != (head, last):
        return None
    lead = list(heads.lead)
    x = heads.matrix(left, right, emit)
    mask = emit.constant(np.where(heads.of_one_head(), 0.0, LEFT_OUT), "mask", like=x)
    x = emit("Softmax", emit("Add", x, mask, label="masked"), attributes={"axis": before}, label="shares")
    turned = emit("Transpose", x, attributes={"perm": [*range(head), before, head]}, label="weights")
    tokens = emit("Transpose", v, attributes={"perm": [*range(head), last, head, before]}, label="tokens")
    tokens = emit.reshape(tokens, [*lead, y[-1], heads.heads * heads.columns], "values")
    result = emit.reshape(emit("MatMul", tokens, turned), [*lead, y[-1], heads.heads, heads.rows], "heads")
    return emit(
        "Transpose", result, attributes={"perm": [*range(head), before, last, head]}, label="tokens_last"
    )


def linear_attention(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies the channels of tokens with the matrices of all heads at once."""
    q, y = node.inputs[0], shape_of(node.outputs[0])
    found = None if y is None or len(y) < 3 else _heads(node.inputs[1], y[-2])
    if q is None or y is None or found is None or (shape_of(q) or ())[:-2] != y[:-2]:
        return None
    heads, product = found
    left, right = product.inputs
    head, before, last = (len(y) - k for k in (3, 2, 1))
    if left is None or right is None or not heads.is_worth(transposed=False):
        return None
    if _channel_axes(q) != (head, last) or _channel_axes(right) != (head, last):
        return None
    if _channel_axes(left) != (head, before):
        return None
    lead = list(heads.lead)
    x = heads.matrix(left, right, emit)
    # Chosen, not multiplied: in half precision channels of two heads may overflow, and 0 * infinity is no 0.
    zero = emit.constant(np.array(0.0), "zero", like=x)
    x = emit("Where", emit.constant(heads.of_one_head(), "of_one_head"), x, zero, label="blocks")
    tokens = emit("Transpose", q, attributes={"perm": [*range(head), before, head, last]}, label="tokens")
    tokens = emit.reshape(tokens, [*lead, y[-2], heads.heads * heads.rows], "queries")
    result = emit.reshape(emit("MatMul", tokens, x), [*lead, y[-2], heads.heads, heads.columns], "heads")
    return emit(
        "Transpose", result, attributes={"perm": [*range(head), before, head, last]}, label="tokens_second"
    )


RULES: Rules = {"MatMul": [channel_attention, linear_attention]}
"""To be applied where the scale of attention is folded."""
