"""Writes Einsum of any number of operands as Transpose, Reshape, MatMul and ReduceSum.

Every operand is first brought to a plain term: an ellipsis becomes letters, an index it has twice is a
diagonal, an axis of size 1 that others broadcast is dropped, and an index no one else has is summed. Two
operands are then multiplied at a time. Of their indices each is of one of four kinds: *batch* (in both, and
needed later), *sum* (in both, and not needed), *left* and *right* (in one only):

    a  ->  [batch, left, sum]      b  ->  [batch, sum, right]      a @ b  ->  [batch, left, right]

Source: Einsum of https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from typing import TYPE_CHECKING

from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

Term = tuple["ir.Value", str]
"""A tensor and the letters of its axes."""


def einsum(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Rewrites any equation over tensors of numbers."""
    equation = _parse_equation(node)
    y = shape_of(node.outputs[0])
    if equation is None or any(value is None or value.dtype is None for value in node.inputs):
        return None
    if not all(value.dtype.is_floating_point() for value in node.inputs if value is not None and value.dtype):
        return None
    terms, result = equation
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs, strict=True):
        for letter, size in zip(term, shape_of(value) or (), strict=True):
            if sizes.setdefault(letter, size) != size:
                if 1 not in {size, sizes[letter]}:
                    return None
                sizes[letter] = max(size, sizes[letter])
    if any(letter not in sizes for letter in result) or len(set(result)) != len(result):
        return None
    work: list[Term] = []
    for index, (term, value) in enumerate(zip(terms, node.inputs, strict=True)):
        if value is None:
            return None
        others = set(result).union(*(terms[:index] + terms[index + 1 :]))
        work.append(_plain(value, term, sizes, others, emit))
    while len(work) > 1:
        later = set(result).union(*(term for _, term in work[2:]))
        work[:2] = [_product(work[0], work[1], later, sizes, emit)]
    value, term = work[0]
    shape = tuple(sizes[letter] for letter in term)
    if shape_of(value) != shape:
        value = emit.reshape(value, shape, "whole")
    if any(letter not in term for letter in result):
        return None
    ordered = _reorder(value, term, result, emit)
    return ordered if y is None or shape_of(ordered) == y else emit.reshape(ordered, y, "shape")


def _parse_equation(node: ir.Node) -> tuple[list[str], str] | None:
    """One string of letters per operand, and that of the result."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(node.inputs):
        return None
    free = [letter for letter in string.ascii_letters if letter not in equation]
    widest = 0
    for index, (term, value) in enumerate(zip(terms, node.inputs, strict=True)):
        shape = shape_of(value)
        if shape is None:
            return None
        hidden = len(shape) - len(term.replace("...", ""))
        if ("..." not in term and hidden) or not 0 <= hidden <= len(free):
            return None
        widest = max(widest, hidden)
        terms[index] = term.replace("...", "".join(free[:hidden][::-1]))
    everything = "".join(terms)
    spread = "".join(free[:widest][::-1])
    if arrow:
        return terms, result.replace("...", spread)
    counts = Counter(everything)
    return terms, spread + "".join(sorted(c for c in counts if counts[c] == 1 and c not in spread))


def _plain(value: ir.Value, term: str, sizes: dict[str, int], others: set[str], emit: Emitter) -> Term:
    """Takes diagonals, drops axes that others broadcast, sums what only this operand has."""
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        value, term = _diagonal(value, term, letter, emit)
    shape = shape_of(value) or ()
    kept = [k for k, c in enumerate(term) if shape[k] == sizes[c] or c not in others]
    if len(kept) < len(term):
        value = emit.reshape(value, [shape[k] for k in kept], "narrow")
        term = "".join(term[k] for k in kept)
    alone = [k for k, c in enumerate(term) if c not in others]
    if alone:
        value = emit("ReduceSum", value, emit.integers(alone, "alone"), attributes={"keepdims": 0})
    return value, "".join(c for c in term if c in others)


def _diagonal(value: ir.Value, term: str, letter: str, emit: Emitter) -> Term:
    """The elements whose two indices called `letter` are equal, that axis last."""
    first, second = (k for k, c in enumerate(term) if c == letter and term[:k].count(letter) < 2)
    rest = [k for k in range(len(term)) if k not in {first, second}]
    shape = shape_of(value) or ()
    last = emit("Transpose", value, attributes={"perm": [*rest, first, second]}, label="square")
    size = shape[first]
    outer = [shape[k] for k in rest]
    flat = emit.reshape(last, (*outer, size * size), "flat")
    line = emit.slice(flat, len(rest), range(0, size * size, size + 1), "diagonal")
    return line, "".join(term[k] for k in rest) + letter


def _product(a: Term, b: Term, later: set[str], sizes: dict[str, int], emit: Emitter) -> Term:
    (left_value, left_term), (right_value, right_term) = a, b
    shared = [c for c in left_term if c in right_term]
    batch = [c for c in shared if c in later]
    summed = [c for c in shared if c not in later]
    left = [c for c in left_term if c not in right_term]
    right = [c for c in right_term if c not in left_term]
    x = _block(left_value, left_term, batch, left, summed, sizes, emit)
    y = _block(right_value, right_term, batch, summed, right, sizes, emit)
    order = "".join([*batch, *left, *right])
    product = emit("MatMul", x, y)
    return emit.reshape(product, [sizes[c] for c in order], "product"), order


def _reorder(value: ir.Value, term: str, result: str, emit: Emitter) -> ir.Value:
    perm = [term.index(c) for c in result]
    return (
        value if perm == sorted(perm) else emit("Transpose", value, attributes={"perm": perm}, label="order")
    )


def _block(
    value: ir.Value,
    term: str,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
    emit: Emitter,
) -> ir.Value:
    """`value` as [batch, rows, columns], each of rows and columns flattened to one axis."""
    ordered = _reorder(value, term, "".join([*batch, *rows, *columns]), emit)
    shape = [sizes[c] for c in batch]
    shape += [math.prod(sizes[c] for c in rows), math.prod(sizes[c] for c in columns)]
    return emit.reshape(ordered, shape, "block")


RULES: Rules = {"Einsum": [einsum]}
