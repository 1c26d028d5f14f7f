"""Writes Einsum of one or two operands as Transpose, Reshape, MatMul and ReduceSum.

For two operands every index is of one of four kinds: *batch* (in both operands and the result), *sum* (in
both, not in the result), *left* and *right* (in one operand and the result). An index in one operand only
and not in the result is summed beforehand. Then

    a  ->  [batch, left, sum]      b  ->  [batch, sum, right]      a @ b  ->  [batch, left, right]
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]


def einsum(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Rewrites an equation without ellipsis and without repeated indices within an operand."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    shapes = [shape_of(value) for value in node.inputs]
    if "." in equation or any(shape is None for shape in shapes) or len(operands) not in {1, 2}:
        return None
    if any(len(set(term)) != len(term) for term in [*operands, result]) or len(operands) != len(shapes):
        return None
    if not arrow:
        result = "".join(sorted(c for c in set("".join(operands)) if "".join(operands).count(c) == 1))
    sizes: dict[str, int] = {}
    for term, shape in zip(operands, shapes, strict=True):
        for c, d in zip(term, shape or (), strict=True):
            if sizes.setdefault(c, d) != d:  # an axis of size 1 broadcast against another
                return None
    values: list[ir.Value] = []
    for index, (term, value) in enumerate(zip(operands, node.inputs, strict=True)):
        others = set(result).union(*(operands[:index] + operands[index + 1 :]))
        alone = [k for k, c in enumerate(term) if c not in others]
        operands[index] = "".join(c for c in term if c in others)
        if value is None:
            return None
        values.append(
            emit("ReduceSum", value, emit.integers(alone, f"axes{index}"), attributes={"keepdims": 0})
            if alone
            else value
        )
    if len(values) == 1:
        return _ordered(values[0], operands[0], result, emit)
    a, b = operands
    batch = [c for c in result if c in a and c in b]
    left = [c for c in result if c in a and c not in b]
    right = [c for c in result if c in b and c not in a]
    summed = [c for c in a if c in b and c not in result]
    x = _block(values[0], a, batch, left, summed, sizes, emit)
    y = _block(values[1], b, batch, summed, right, sizes, emit)
    product = emit("MatMul", x, y)
    order = "".join([*batch, *left, *right])
    return _ordered(emit.reshape(product, [sizes[c] for c in order], "product"), order, result, emit)


def _ordered(value: ir.Value, term: str, result: str, emit: Emitter) -> ir.Value:
    return emit("Transpose", value, attributes={"perm": [term.index(c) for c in result]}, label="order")


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
    ordered = _ordered(value, term, "".join([*batch, *rows, *columns]), emit)
    shape = [sizes[c] for c in batch]
    shape += [math.prod(sizes[c] for c in rows), math.prod(sizes[c] for c in columns)]
    return emit.reshape(ordered, shape, "block")


RULES: Rules = {"Einsum": [einsum]}
