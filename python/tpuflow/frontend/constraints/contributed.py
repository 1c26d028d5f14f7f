"""What onnxruntime demands of the inputs of its own operators, in the domain `com.microsoft`.

ONNX's inference does not know them. A constraint that cannot be looked at, for want of a shape or a constant,
is not violated.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.constraints.indices import Constraint, Objection, one_number, shaped
from tpuflow.frontend.values import array_of, input_at, shape_of

__all__ = ["contributed_violations"]

WIDTHS = (2, 4, 8)
"""Bits of packed codes."""


def contributed_violations(node: ir.Node) -> Iterator[Objection]:
    """The constraints a node of onnxruntime's domain does not keep."""
    for constraint in CONSTRAINTS.get(node.op_type, ()):
        yield from constraint(node)


def _at_least_one(*names: str) -> Constraint:
    """These attributes are stated, and at least 1."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        for name in names:
            if node.attributes.get_int(name, 0) < 1:
                yield name, f"{node.attributes.get_int(name, 0)} is out of range (at least 1)"

    return constraint


def _has_size(node: ir.Node, index: int, sizes: Sequence[int], what: str) -> Iterator[Objection]:
    shape = shape_of(input_at(node, index))
    if shape is not None and math.prod(shape) not in sizes:
        yield f"input {index}", f"has the shape {list(shape)}, {what} are needed"


def _packed_width(node: ir.Node) -> Iterator[Objection]:
    bits = node.attributes.get_int("bits", 4)
    if bits not in WIDTHS:
        yield "bits", f"{bits} is not one of {', '.join(map(str, WIDTHS))}"
    if node.attributes.get_int("block_size", 128) < 1:
        yield "block_size", f"{node.attributes.get_int('block_size')} is out of range (at least 1)"


def _product_of_codes(node: ir.Node) -> Iterator[Objection]:
    """Codes, scales and zero points of K x N weights, in blocks along K."""
    k, n = (node.attributes.get_int(name, 0) for name in ("K", "N"))
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
    if min(k, n, block) < 1 or bits not in WIDTHS:
        return
    x, blocks = shape_of(input_at(node, 0)), math.ceil(k / block)
    if x is not None and (not x or x[-1] != k):
        yield "K", f"{k} is not the last axis of {shaped(x)}"
    codes = n * blocks * math.ceil(block * bits / 8)
    yield from _has_size(node, 1, [codes], f"{codes} bytes of codes")
    yield from _has_size(node, 2, [n * blocks], f"{n * blocks} scales")
    yield from _has_size(node, 3, [n * blocks, n * math.ceil(blocks * bits / 8)], f"{n * blocks} zero points")
    order = array_of(input_at(node, 4))
    yield from _has_size(node, 4, [0, k], f"{k} numbers of blocks")
    if order is not None and order.size and not 0 <= int(order.min()) <= int(order.max()) < blocks:
        yield "input 4", f"names a block outside the {blocks} there are"
    yield from _has_size(node, 5, [n], f"{n} numbers")


def _table_of_codes(node: ir.Node) -> Iterator[Objection]:
    """A table in codes with scales, of as many axes, along one of them in blocks."""
    table, scales, zeros = (shape_of(input_at(node, index)) for index in (0, 2, 3))
    if table is None:
        return
    for name, default in (("quantize_axis", 1), ("gather_axis", 0)):
        axis = node.attributes.get_int(name, default)
        if not -len(table) <= axis < len(table):
            yield name, f"{axis} is not an axis of {shaped(table)}"
    if scales is not None and (len(scales) != len(table) or 0 in scales):
        yield "input 2", f"scales of the shape {list(scales)} do not fit {shaped(table)}"
    elif (
        scales is not None and zeros is not None and (len(zeros) != len(scales) or zeros[:-1] != scales[:-1])
    ):
        yield "input 3", f"zero points of the shape {list(zeros)} do not fit scales of {list(scales)}"


def _angles(node: ir.Node, places: tuple[int, int], width: int) -> Iterator[Objection]:
    """Cosines and sines: tables of one shape, a row for each position, of at most half of the features."""
    shapes = [shape_of(input_at(node, place)) for place in places]
    for place, shape in zip(places, shapes, strict=True):
        if shape is not None and (len(shape) != 2 or not 0 < 2 * shape[1] <= width):
            yield f"input {place}", f"has the shape {list(shape)}, does not fit {width} features"
            return
    if None not in shapes and shapes[0] != shapes[1]:
        yield f"input {places[1]}", f"sines of the shape {shapes[1]} do not fit cosines of {shapes[0]}"


def _rotation(node: ir.Node) -> Iterator[Objection]:
    """[batch, sequence, features] or [batch, heads, sequence, features], with positions of the sequence."""
    x, at = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if x is None:
        return
    if len(x) not in (3, 4) or 0 in x:
        yield "input 0", f"has the shape {list(x)}: batch, sequence and features are needed"
        return
    sequence = x[2] if len(x) == 4 else x[1]
    if at is not None and (len(at) > 2 or math.prod(at) not in (1, x[0] * sequence)):
        yield "input 1", f"positions of the shape {list(at)} do not fit {shaped(x)}"
    heads, width = node.attributes.get_int("num_heads", 0), x[-1]
    if len(x) == 3:
        if heads < 0 or (heads and x[2] % heads):
            yield "num_heads", f"{heads} heads do not divide {shaped(x)}"
            return
        table = shape_of(input_at(node, 2))
        turned = 2 * table[1] if table is not None and len(table) == 2 else 0
        if not heads and turned and x[2] % turned:
            yield "input 2", f"angles of {turned} features do not divide {shaped(x)}"
            return
        width = x[2] // heads if heads else x[2]
    yield from _angles(node, (2, 3), width)
    yield from _exist(node, 1, 2)


def _exist(node: ir.Node, places: int, table: int) -> Iterator[Objection]:
    """Positions are rows of a table."""
    known, rows = array_of(input_at(node, places)), shape_of(input_at(node, table))
    if known is not None and rows and known.size and not 0 <= int(known.min()) <= int(known.max()) < rows[0]:
        yield f"input {places}", f"names a position outside the {rows[0]} there are"


def _attention(node: ir.Node) -> Iterator[Objection]:
    """Queries, keys and values of [batch, sequence, features], a past of [batch, heads, length, features]."""
    heads, shared = (node.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
    query, key, value, *past = (shape_of(input_at(node, index)) for index in range(5))
    if heads < 1 or shared < 1 or query is None:
        return
    packed = input_at(node, 1) is None or input_at(node, 2) is None
    columns = heads + 2 * shared if packed else heads
    if heads % shared:
        yield "kv_num_heads", f"{shared} heads of keys do not divide {heads} heads of queries"
    if len(query) != 3 or 0 in query or query[2] % columns:
        yield "input 0", f"has the shape {list(query)}, which {columns} heads do not divide"
        return
    batch, sequence, width = query[0], query[1], query[2] // columns
    for index, shape in ((1, key), (2, value)):
        if not packed and shape is not None and shape != (batch, sequence, shared * width):
            yield (
                f"input {index}",
                f"has the shape {list(shape)}, {[batch, sequence, shared * width]} is needed",
            )
    for index, shape in enumerate(past, start=3):
        if shape is not None and (len(shape) != 4 or (shape[:2], shape[3]) != ((batch, shared), width)):
            yield f"input {index}", f"a past of the shape {list(shape)} does not fit {shaped(query)}"
    if None not in past and past[0] != past[1]:
        yield "input 4", f"a past of the shape {past[1]} does not fit the keys' {past[0]}"
    if node.attributes.get_int("do_rotary", 0):
        yield from _angles(node, (7, 8), width)
        at = shape_of(input_at(node, 9))
        if at is not None and math.prod(at) != batch * sequence:
            yield "input 9", f"positions of the shape {list(at)} do not fit {shaped(query)}"
        yield from _exist(node, 9, 7)


def _skipped(node: ir.Node) -> Iterator[Objection]:
    """What is added has the shape of the input, factors and bias are of its last axis."""
    x, skip = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if x is None:
        return
    if len(x) not in (2, 3):
        yield "input 0", f"has the shape {list(x)}: batch, sequence and features are needed"
        return
    if skip is not None and (len(skip) > len(x) or not _broadcasts(skip, x)):
        yield "input 1", f"has the shape {list(skip)}, does not fit {shaped(x)}"
    for index in range(2, len(node.inputs)):
        yield from _has_size(node, index, [x[-1]], f"{x[-1]} numbers")


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(to)) == tuple(to)
    except ValueError:
        return False


def _triples(node: ir.Node) -> Iterator[Objection]:
    """Operands with scale and zero point each, behind those of the result."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        yield "inputs", f"{len(node.inputs)} are no operands with a scale and a zero point each"
        return
    first = shape_of(node.inputs[2])
    axis = node.attributes.get_int("axis", 0)
    if first is not None and not -len(first) <= axis < len(first):
        yield "axis", f"{axis} is not an axis of {shaped(first)}"
    yield from one_number(*(place for place in range(len(node.inputs)) if place < 2 or place % 3 != 2))(node)


def _general_product(node: ir.Node) -> Iterator[Objection]:
    """One scale of the first operand; one, or one by column, of the second."""
    a, b = shape_of(input_at(node, 0)), shape_of(input_at(node, 3))
    for index, shape in ((0, a), (3, b)):
        if shape is not None and len(shape) != 2:
            yield f"input {index}", f"has the shape {list(shape)}: rows and columns are needed"
            return
    yield from one_number(1, 2, 7, 8)(node)
    if b is not None:
        columns = b[0 if node.attributes.get_int("transB", 0) else 1]
        yield from _has_size(node, 4, [1, columns], f"1 or {columns} scales")


def _mixture(layers: Sequence[tuple[int, int]]) -> Constraint:
    """Tokens with as many shares as experts; weights `[experts, outputs, inputs]`, biases beside them."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        x, routes = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
        if x is not None and (len(x) not in (2, 3) or 0 in x):
            yield "input 0", f"has the shape {list(x)}: tokens and features are needed"
            return
        if routes is None:
            return
        if len(routes) != 2 or (x is not None and routes[0] != math.prod(x[:-1])):
            yield "input 1", f"shares of the shape {list(routes)} do not fit {shaped(x)}"
            return
        experts, count = routes[1], node.attributes.get_int("k", 1)
        if not 1 <= count <= experts:
            yield "k", f"{count} of {experts} experts cannot be chosen"
        for weights, bias in layers:
            shape, added = shape_of(input_at(node, weights)), shape_of(input_at(node, bias))
            if shape is not None and (len(shape) != 3 or shape[0] != experts or 0 in shape):
                yield f"input {weights}", f"weights of the shape {list(shape)} do not fit {experts} experts"
            elif shape is not None and added is not None and added != shape[:2]:
                yield f"input {bias}", f"has the shape {list(added)}, {list(shape[:2])} is needed"

    return constraint


CONSTRAINTS: Mapping[str, Sequence[Constraint]] = {
    "MatMulNBits": (_at_least_one("K", "N", "block_size"), _packed_width, _product_of_codes),
    "GatherBlockQuantized": (_packed_width, _table_of_codes),
    "RotaryEmbedding": (_rotation,),
    "GroupQueryAttention": (_at_least_one("num_heads", "kv_num_heads"), _attention),
    "MoE": (_mixture(((2, 3), (4, 5), (6, 7))),),
    "QMoE": (_mixture(((2, 4), (5, 7), (8, 10))),),
    "SkipLayerNormalization": (_skipped,),
    "SkipSimplifiedLayerNormalization": (_skipped,),
    "QLinearAdd": (one_number(1, 2, 4, 5, 6, 7),),
    "QLinearMul": (one_number(1, 2, 4, 5, 6, 7),),
    **dict.fromkeys(
        (
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
            "QLinearLeakyRelu",
            "QLinearSigmoid",
            "QLinearSoftmax",
        ),
        (one_number(1, 2, 3, 4),),
    ),
    "QLinearConcat": (_triples,),
    "QGemm": (_general_product,),
}
"""What the inputs of an operator must be."""
