"""Products whose columns different readers take apart: each reader gets a product of its own.

    MatMul(x, w) + b -> [f] -> [Reshape, Transpose] -> Slice   ->   MatMul(x, w') + b' -> [f] -> [...]

`w'` and `b'` are the columns that the Slice takes: Q, K and V of attention, halves of gated units. Channels
of convolutions are alike. Each part then has ranges of its own, its reader waits for it alone, a function of
one part goes into its product, and pixels of few channels lie dense. Nothing is computed twice: parts that
overlap stay together, and so do those that would take noticeably more passes of the array or that one Concat
joins again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.movement import ELEMENTWISE
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    input_at,
    shape_of,
    sliced,
    sole_user,
    steps_of,
    use_count,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES", "axes_behind"]

LONGEST = 8
"""Nodes between a product and a Slice."""
MOST_PARTS = 16
COLUMNS = 128
"""Outputs that the array computes at once."""
WORTH, WORTH_DENSE = 1.25, 2.0
"""How many times as many passes of the array the parts of a product may take; where readers gain by dense
pixels and a pass is short, more. Convolutions whose readers gain nothing take no more passes than before."""
SHORT = 256
"""Terms of a sum up to which a pass is short."""
MOST_PADDING = 1 << 14
"""Elements that rows of weights may grow by, which have as many columns as divide a pass or fill some."""
INDIFFERENT = frozenset({"Add", "Concat", "Conv", "ConvTranspose", "MatMul"})
"""Readers that take some channels of wide pixels (almost) as quickly as pixels of those alone."""


@dataclass(frozen=True)
class _Chain:
    """How a value comes from a product or convolution.

    Attributes:
        linear: The MatMul or Conv.
        nodes: What follows it, in order; each is the only user of what it reads.
        axes: For the linear operator's result and after each node, the axes that are its channels together.
    """

    linear: ir.Node
    nodes: tuple[ir.Node, ...]
    axes: tuple[tuple[int, ...], ...]

    @property
    def channels(self) -> int:
        """Outputs of the product, or of the convolution."""
        shape = shape_of(self.linear.outputs[0]) or ()
        return shape[self.axes[0][0]]


def _grouped(before: Sequence[int], axes: tuple[int, ...], after: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of `after` whose elements are those of `axes` of `before`; None where they mix with others."""
    if len(axes) == 1:
        lead, size = math.prod(before[: axes[0]]), before[axes[0]]
        products = [math.prod(after[:k]) for k in range(len(after) + 1)]
        if size == 1 or lead not in products or lead * size not in products:
            return None
        first = len(products) - 1 - products[::-1].index(lead)  # without axes of size 1 in front and behind
        return tuple(range(first, products.index(lead * size)))
    kept = [axis for axis, size in enumerate(before) if size != 1]
    placed = [axis for axis, size in enumerate(after) if size != 1]
    if [before[axis] for axis in kept] != [after[axis] for axis in placed] or not {*axes} <= {*kept}:
        return None
    return tuple(placed[kept.index(axis)] for axis in axes)


def _chain_to(value: ir.Value) -> _Chain | None:
    """The chain that ends in `value`, of which only the last value may have several users."""
    nodes: list[ir.Node] = []
    node = value.producer()
    while node is not None and node.op_type in {"Reshape", "Transpose", "Add", *ELEMENTWISE}:
        source = node.inputs[0]
        if source is None or not sole_user(source) or len(node.outputs) > 1 or len(nodes) == LONGEST:
            return None
        nodes.insert(0, node)
        node = source.producer()
    if node is None or node.op_type not in {"MatMul", "Conv"}:
        return None
    shape, weights = shape_of(node.outputs[0]), array_of(node.inputs[1])
    if shape is None or weights is None or node.inputs[1] is None or not sole_user(node.inputs[1]):
        return None  # weights of several products, steps of a recurrence, stay those of all
    is_product = node.op_type == "MatMul"
    if node.attributes.get_int("group", 1) > 1 or weights.ndim != (2 if is_product else len(shape)):
        return None
    axes: list[tuple[int, ...]] = [(len(shape) - 1,) if is_product else (1,)]
    outputs, bias = weights.shape[1 if is_product else 0], input_at(node, 2)
    if outputs != shape[axes[0][0]] or (bias is not None and shape_of(bias) != (outputs,)):
        return None  # a mistake in the model, which is told where its nodes are checked
    if bias is not None and array_of(bias) is None:
        return None
    for each in nodes:
        after = shape_of(each.outputs[0])
        following = None if after is None else axes_behind(each, shape, axes[-1], after)
        if following is None or after is None:
            return None
        axes.append(following)
        shape = after
    return _Chain(node, tuple(nodes), tuple(axes))


def axes_behind(
    node: ir.Node, before: Sequence[int], axes: tuple[int, ...], after: Sequence[int]
) -> tuple[int, ...] | None:
    """The axes of a node's result, of shape `after`, that are together the axes `axes` of its operand."""
    if node.op_type == "Reshape":
        return _grouped(before, axes, after)
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", []))
        return tuple(order.index(axis) for axis in axes)
    if node.op_type != "Add":
        return axes
    constant = array_of(node.inputs[1])
    if constant is None or tuple(before) != tuple(after) or constant.ndim > len(before) or len(axes) > 1:
        return None
    along = (1,) * (len(before) - constant.ndim) + constant.shape
    return axes if all(size == 1 for axis, size in enumerate(along) if axis != axes[0]) else None


def _taken(node: ir.Node) -> tuple[int, range] | None:
    """The axis and indices of a Slice of neighbours along a single one."""
    found = sliced(node)
    return None if found is None or found[2].step != 1 else found[1:]


def _is_worth(chain: _Chain, value: ir.Value) -> bool:
    """Whether all that read `value` take different channels, and the array takes few more columns for it."""
    shape, parts = shape_of(value) or (), []
    if use_count(value) > MOST_PARTS:
        return False
    for use in value.uses():
        found = _taken(use.node) if use.node.op_type == "Slice" and use.idx == 0 else None
        if found is None or found[0] not in chain.axes[-1]:
            return False
        parts.append(found)
    if value.is_graph_output() or len({axis for axis, _ in parts}) != 1:
        return False
    ranges = sorted((indices.start, indices.stop) for _, indices in parts)
    if any(stop > start for (_, stop), (start, _) in pairwise(ranges)):
        return False
    results = [use.node.outputs[0] for use in value.uses()]
    if _are_joined_again(results):
        return False
    each = chain.channels // shape[parts[0][0]]
    columns = [(stop - start) * each for start, stop in ranges]
    passes = sum(math.ceil(count / COLUMNS) for count in columns)
    weights = shape_of(chain.linear.inputs[1]) or ()
    is_product = chain.linear.op_type == "MatMul"
    terms = weights[0] if is_product else math.prod(weights[1:])
    is_dense = terms <= SHORT and any(map(_is_read_by_element, results))
    if (sum(map(_stored, columns)) - _stored(chain.channels)) * terms > MOST_PADDING:
        return False
    worth = WORTH_DENSE if is_dense else WORTH if is_product else 1.0
    return passes <= worth * math.ceil(chain.channels / COLUMNS)


def _stored(columns: int) -> int:
    """Columns that weights of so many take in memory: those of the last pass are padded to a power of two."""
    whole, rest = divmod(columns, COLUMNS)
    return whole * COLUMNS + ((1 << (rest - 1).bit_length()) if rest else 0)


def _is_read_by_element(part: ir.Value) -> bool:
    """Whether another unit than the array works on it: functions, products, norms, depthwise convolutions."""
    for node in (use.node for use in part.uses()):
        if node.op_type in {"Reshape", "Transpose"}:
            if _is_read_by_element(node.outputs[0]):
                return True
        elif node.op_type not in INDIFFERENT or node.attributes.get_int("group", 1) > 1:
            return True
    return False


def _are_joined_again(parts: Sequence[ir.Value]) -> bool:
    """Whether one Concat reads all of several parts: then they lie where they belong as they are."""
    if len(parts) < 2:
        return False
    joins = [{use.node for use in part.uses() if use.node.op_type == "Concat"} for part in parts]
    return bool(set.intersection(*joins))


def own_product(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Computes what a Slice takes of a product's columns, or a convolution's channels, by itself."""
    value, found = node.inputs[0], _taken(node)
    chain = None if value is None or found is None else _chain_to(value)
    if value is None or found is None or chain is None or not _is_worth(chain, value):
        return None
    axis, indices = found
    place = chain.axes[-1].index(axis)
    last = shape_of(value) or ()
    factors = [last[each] for each in chain.axes[-1]]
    columns = np.arange(chain.channels).reshape(factors).take(indices, place).ravel()
    part = _linear(chain.linear, columns, emit)
    for each, axes in zip(chain.nodes, chain.axes[1:], strict=True):
        shape = list(shape_of(each.outputs[0]) or ())
        if each.op_type == "Reshape":
            # The channels are one axis still, or those axes among which the Slice has its own.
            shape[axes[place] if len(axes) > 1 else axes[0]] = len(indices) if len(axes) > 1 else len(columns)
            part = emit.reshape(part, shape)
        elif each.op_type == "Add":
            constant = array_of(each.inputs[1])
            assert constant is not None
            behind = constant.ndim - (len(shape) - axes[0])
            varies = behind >= 0 and constant.shape[behind] > 1
            own = constant.take(columns, behind) if varies else constant
            part = emit("Add", part, emit.constant(own, "bias", like=each.inputs[1]))
        else:
            rest = each.inputs[1:]
            part = emit(each.op_type, part, *rest, attributes=attributes_of(each), domain=each.domain)
    return part


def _linear(node: ir.Node, columns: np.ndarray, emit: Emitter) -> ir.Value:
    """The product or convolution with those of its outputs alone."""
    weights, steps, bias = array_of(node.inputs[1]), steps_of(node.inputs[1]), array_of(input_at(node, 2))
    assert weights is not None
    axis = 1 if node.op_type == "MatMul" else 0
    own = emit.constant(
        weights.take(columns, axis),
        "weights",
        like=node.inputs[1],
        steps=None if steps is None else steps.take(columns, axis),
    )
    rest = [] if bias is None else [emit.constant(bias.take(columns), "bias", like=node.inputs[2])]
    return emit(node.op_type, node.inputs[0], own, *rest, attributes=attributes_of(node))


RULES: Rules = {"Slice": [own_product]}
"""To be applied where scales and shifts are folded."""
