"""One form for attention: scale folded away, mask next to the softmax, heads not repeated.

    softmax(s Q K' + mask) V      Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762)

Exporters scale Q, K (by the root of s each) or the product, before or after the mask, and repeat the heads of
K and V where several heads of Q share one. What is left here is MatMul, [Add,] Softmax, MatMul:

    (a Q) (b K)'                             ->  (a b) (Q K')
    s y                                      ->  y, where what makes y has a constant factor to take s in
    softmax(s (x + mask))                    ->  softmax(s x + mask)           likewise with Where
    softmax(x + Where(c, 0, mask))           ->  softmax(Where(c, x, mask))    c computed
    softmax(x + (bias and mask in one))      ->  softmax((x + bias) + mask)
    softmax of x masked, then reshaped       ->  softmax of x reshaped, then masked
    Where(c, mask, x)                        ->  Where(not c, x, mask)
    Where(p = p, p, 0), p = softmax(x)       ->  p, where no row of x can be masked as a whole
    Q (K repeated for each head of a group)  ->  (the rows of a group as one) K
    V p', p = softmax(x)                     ->  (p V')'

A mask is a constant of zeros and numbers at or below `MASKED`: whatever stands in front of it, a softmax
leaves these elements out, so a positive factor does nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.values import (
    MASKED,
    array_of,
    attributes_of,
    is_mask,
    leaves_out,
    maker_of,
    produced_by,
    scalar_of,
    shape_of,
    sole_user,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LOWEST", "RULES", "chosen_addend"]

LOWEST = -1e30
"""What stands for a score that is left out."""
MOST_STEPS = 16
"""Nodes looked through for a constant that can take a factor in."""

MOVING = ("Reshape", "Transpose", "Slice", "Expand", "Neg", "ReduceSum", "ReduceMean")
"""Operators whose result is multiplied by a factor when their first input is."""
WEIGHTED = ("MatMul", "Conv", "ConvTranspose", "LayerNormalization", "RMSNormalization", "Mul")
"""Operators whose result is multiplied by a factor when all their constants are."""


def _path(value: ir.Value | None) -> list[ir.Node] | None:
    """The nodes from `value` back to the one with constants that can take a factor in; each is used once."""
    open_ends = [value]
    path: list[ir.Node] = []
    for _ in range(MOST_STEPS):
        if not open_ends:
            return path
        value = open_ends.pop()
        if array_of(value) is not None:
            continue
        node = None if value is None or not sole_user(value) else maker_of(value)
        if node is None or node.domain not in {"", DOMAIN} or len(node.outputs) > 1:
            return None
        path.append(node)
        if node.op_type in MOVING:
            open_ends.append(node.inputs[0])
        elif node.op_type in {"Add", "Sub", "Concat"}:
            open_ends += node.inputs
        elif node.op_type not in WEIGHTED or not _has_constants(node):
            return None
    return None


def _has_constants(node: ir.Node) -> bool:
    given = [value for value in node.inputs[1:] if value is not None]
    arrays = [array_of(value) for value in given]
    return bool(arrays) and all(
        array is not None and np.issubdtype(array.dtype, np.floating) for array in arrays
    )


def _scaled_constant(value: ir.Value, factor: float, emit: Emitter) -> ir.Value:
    array, steps = array_of(value), steps_of(value)
    if array is None:
        raise ValueError("not a constant")
    scaled = (array.astype(np.float64) * factor).astype(array.dtype)
    return emit.folded(value, scaled, None if steps is None else (steps * abs(factor)).astype(steps.dtype))


def _again(value: ir.Value, factor: float, path: list[ir.Node], emit: Emitter) -> ir.Value:
    """Makes `value`, which the nodes of `path` compute, once more with a factor."""
    node = value.producer()
    if node is None or node not in path:
        return _scaled_constant(value, factor, emit)
    inputs = list(node.inputs)
    if node.op_type in MOVING:
        places = [0]
    elif node.op_type in WEIGHTED:
        places = list(range(1, len(inputs)))
    else:
        places = list(range(len(inputs)))
    for place in places:
        operand = inputs[place]
        if operand is not None:
            inputs[place] = _again(operand, factor, path, emit)
    made = emit(node.op_type, *inputs, attributes=attributes_of(node), label="scaled", domain=node.domain)
    producer = made.producer()
    if producer is not None:
        producer.name = node.name  # `node` had this user only, and goes
    return made


def fold_factor(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds a factor into the constants of what computes the other operand, Q before K."""
    value, factor = node.inputs[0], scalar_of(node.inputs[1])
    if value is None or factor is None or not np.isfinite(factor) or factor == 0.0:
        return None
    if shape_of(value) is None or shape_of(value) != shape_of(node.outputs[0]):
        return None
    path = _path(value)
    if path is not None:
        return _again(value, factor, path, emit) if path else None
    outer: list[ir.Node] = []  # what only moves the product
    while value is not None and sole_user(value) and len(outer) < MOST_STEPS:
        mover = produced_by(value, *MOVING)
        if mover is None:
            break
        outer.append(mover)
        value = mover.inputs[0]
    product = produced_by(value, "MatMul")
    if product is None or value is None or not sole_user(value):
        return None
    for place, operand in enumerate(product.inputs):
        path = _path(operand)
        if path and operand is not None:
            inputs = list(product.inputs)
            inputs[place] = _again(operand, factor, path, emit)
            result = emit("MatMul", *inputs, label="scaled")
            for kept in (product, *reversed(outer)):
                if kept is not product:
                    others = kept.inputs[1:]
                    result = emit(kept.op_type, result, *others, attributes=attributes_of(kept))
                producer = result.producer()
                if producer is not None:
                    producer.name = kept.name
            return result
    return None


def scale_result(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies a product once instead of its operands."""
    operands, factor = list(node.inputs), 1.0
    if any(array_of(value) is not None for value in operands):
        return None
    for place, value in enumerate(operands):
        scaled = produced_by(value, "Mul")
        number = None if scaled is None else scalar_of(scaled.inputs[1])
        if scaled is None or number is None or value is None or not sole_user(value):
            continue
        if shape_of(scaled.inputs[0]) == shape_of(value):
            operands[place], factor = scaled.inputs[0], factor * number
    if operands == list(node.inputs):
        return None
    product = emit("MatMul", *operands)
    return emit("Mul", product, emit.constant(np.array(factor), "scale", like=product), label="scaled")


def _mask_of(value: ir.Value | None) -> tuple[ir.Node, ir.Value, npt.NDArray[Any]] | None:
    """(node, x, mask) of x + mask or Where(constant, x, mask), which nothing else reads."""
    node = produced_by(value, "Add", "Where")
    if node is None or value is None or not sole_user(value):
        return None
    place = 1 if node.op_type == "Where" else 0
    x, constant = node.inputs[place], array_of(node.inputs[place + 1])
    if x is None or constant is None or shape_of(x) is None or shape_of(x) != shape_of(value):
        return None
    if node.op_type == "Where":
        return (node, x, constant) if np.all(constant <= MASKED) else None
    return (node, x, constant) if is_mask(constant) else None


def _softmax(node: ir.Node, x: ir.Value, emit: Emitter) -> ir.Value:
    return emit("Softmax", x, attributes=attributes_of(node))


def scaled_mask(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes a positive factor between mask and softmax in front of the mask."""
    scaled = produced_by(node.inputs[0], "Mul")
    factor = None if scaled is None else scalar_of(scaled.inputs[1])
    found = None if scaled is None else _mask_of(scaled.inputs[0])
    if scaled is None or found is None or factor is None or factor <= 0 or not np.isfinite(factor):
        return None
    mask, x, constant = found
    if node.inputs[0] is None or shape_of(node.inputs[0]) != shape_of(x):
        return None
    # What is left out must stay so.
    if np.any((constant <= MASKED) & (constant * factor > -1e3)):
        return None
    inner = emit("Mul", x, scaled.inputs[1], label="scaled")
    operands = [inner, mask.inputs[1]] if mask.op_type == "Add" else [mask.inputs[0], inner, mask.inputs[2]]
    return _softmax(node, emit(mask.op_type, *operands, label="masked"), emit)


def chosen_addend(value: ir.Value | None, emit: Emitter) -> tuple[ir.Value, ir.Value] | None:
    """Condition and x of x + Where(condition, 0, mask), or of the reverse choice; None of others."""
    add, whole = produced_by(value, "Add"), shape_of(value)
    for place, operand in enumerate(() if add is None else add.inputs):
        choice = produced_by(operand, "Where")
        x = None if add is None else add.inputs[1 - place]
        if choice is None or x is None or array_of(choice.inputs[0]) is not None:
            continue
        constants = [array_of(each) for each in choice.inputs[1:]]
        nothing = [array is not None and not np.any(array) for array in constants]
        out = [leaves_out(each) for each in choice.inputs[1:]]
        condition, shape = choice.inputs[0], shape_of(x)
        same = shape is not None and shape == whole
        if condition is None or not same or sorted(nothing) != [False, True] or sorted(out) != [False, True]:
            continue
        return (emit("Not", condition, label="kept") if out[0] else condition), x
    return None


def chosen_scores(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Leaves scores out where a condition says so, in place of adding nothing or a mask by it."""
    found = chosen_addend(node.inputs[0], emit)
    if found is None:
        return None
    condition, x = found
    low = emit.constant(np.array(LOWEST), "low", like=x)
    return _softmax(node, emit("Where", condition, x, low, label="masked"), emit)


def split_mask(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Separates a mask from the numbers it was added up with."""
    add = produced_by(node.inputs[0], "Add")
    both = None if add is None else array_of(add.inputs[1])
    if (
        add is None
        or both is None
        or is_mask(both)
        or node.inputs[0] is None
        or not sole_user(node.inputs[0])
    ):
        return None
    out = both <= MASKED
    if not np.any(out) or np.all(out):
        return None
    bias = emit.constant(np.where(out, 0.0, both), "bias", like=add.inputs[1])
    mask = emit.constant(np.where(out, both, 0.0), "mask", like=add.inputs[1])
    biased = emit("Add", add.inputs[0], bias, label="biased")
    return _softmax(node, emit("Add", biased, mask, label="masked"), emit)


def _equivalent_broadcast(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[int] | None:
    """The shape that broadcasts to `after` as `shape` does to `before`, if these differ in ones only."""
    full = [1] * (len(before) - len(shape)) + list(shape)
    if [extent for extent in before if extent != 1] != [extent for extent in after if extent != 1]:
        return None
    left = iter([extent for extent, whole in zip(full, before, strict=True) if whole != 1])
    return [1 if whole == 1 else next(left) for whole in after]


def reshaped_mask(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Masks behind a Reshape that adds or drops axes of size 1, in front of which it was done."""
    value = node.inputs[0]
    reshape, after = produced_by(value, "Reshape"), shape_of(value)
    found = None if reshape is None or value is None or not sole_user(value) else _mask_of(reshape.inputs[0])
    before = None if found is None else shape_of(found[1])
    if found is None or after is None or before is None or after[-1:] != before[-1:]:
        return None
    mask, x, _ = found
    operands = mask.inputs[1:] if mask.op_type == "Add" else (mask.inputs[0], mask.inputs[2])
    placed: list[ir.Value] = []
    for operand in operands:
        array, own = array_of(operand), shape_of(operand)
        shape = None if own is None else _equivalent_broadcast(own, before, after)
        if operand is None or shape is None:
            return None
        placed.append(
            emit.reshape(operand, shape, "mask")
            if array is None
            else emit.constant(array.reshape(shape), "mask")
        )
    placed.insert(0 if mask.op_type == "Add" else 1, emit.reshape(x, after, "moved"))
    return _softmax(node, emit(mask.op_type, *placed, label="masked"), emit)


def constant_last(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Chooses the constant where a constant condition does not hold, and a mask where any does not."""
    condition = array_of(node.inputs[0])
    if array_of(node.inputs[1]) is None or array_of(node.inputs[2]) is not None:
        return None
    if condition is not None:
        return emit("Where", emit.constant(~condition, "condition"), node.inputs[2], node.inputs[1])
    if not leaves_out(node.inputs[1]):
        return None
    return emit("Where", emit("Not", node.inputs[0], label="kept"), node.inputs[2], node.inputs[1])


def always_a_number(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops what guards a softmax against rows without any element, if there are none."""
    del emit
    same, p = produced_by(node.inputs[0], "Equal"), node.inputs[1]
    softmax = produced_by(p, "Softmax")
    if same is None or softmax is None or p is None or any(operand is not p for operand in same.inputs):
        return None
    if array_of(node.inputs[2]) is None or shape_of(p) != shape_of(node.outputs[0]):
        return None
    mask, shape = produced_by(softmax.inputs[0], "Add", "Where"), shape_of(p)
    if mask is None:
        return p
    left_out = array_of(mask.inputs[1 if mask.op_type == "Add" else 0])
    if left_out is None or shape is None or (mask.op_type == "Where" and array_of(mask.inputs[2]) is None):
        return None
    kept = left_out > -np.inf if mask.op_type == "Add" else left_out
    axis = softmax.attributes.get_int("axis", -1)
    return p if np.all(np.any(np.broadcast_to(kept, shape), axis=axis)) else None


def _repeated_heads(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """(x, n): each of the second axis of x `[b, h, s, d]` is there n times in a row."""
    merged = produced_by(value, "Reshape")
    repeated = None if merged is None else produced_by(merged.inputs[0], "Expand")
    single = None if repeated is None else produced_by(repeated.inputs[0], "Reshape")
    if merged is None or repeated is None or single is None or single.inputs[0] is None:
        return None
    x, one = shape_of(single.inputs[0]), shape_of(single.outputs[0])
    many, y = shape_of(repeated.outputs[0]), shape_of(merged.outputs[0])
    if x is None or one is None or many is None or y is None or len(x) != 4 or len(many) != 5:
        return None
    count = many[2]
    fits = one == (*x[:2], 1, *x[2:]) and many == (*x[:2], count, *x[2:])
    return (single.inputs[0], count) if fits and y == (x[0], x[1] * count, *x[2:]) else None


def grouped_heads(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies the rows of all heads of a group at once by what they share."""
    rows, shared, y = shape_of(node.inputs[0]), node.inputs[1], shape_of(node.outputs[0])
    turned = produced_by(shared, "Transpose")
    if turned is not None and list(turned.attributes.get_ints("perm", [])) != [0, 1, 3, 2]:
        return None
    found = _repeated_heads(shared if turned is None else turned.inputs[0])
    if found is None or rows is None or y is None or len(rows) != 4 or rows[:2] != y[:2]:
        return None
    x, count = found
    groups = (rows[0], rows[1] // count, count * rows[2])
    grouped = emit.reshape(node.inputs[0], (*groups, rows[3]), "grouped")  # type: ignore[arg-type]
    if turned is not None:
        x = emit("Transpose", x, attributes={"perm": [0, 1, 3, 2]}, label="shared")
    return emit.reshape(emit("MatMul", grouped, x), y, "heads")


def turned_values(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Turns values and their sums in place of what a softmax makes, of which there is more."""
    values, turned = node.inputs[0], produced_by(node.inputs[1], "Transpose")
    shape, y = shape_of(values), shape_of(node.outputs[0])
    if values is None or turned is None or shape is None or y is None or array_of(values) is not None:
        return None
    rank = len(shape)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    p = turned.inputs[0]
    if p is None or rank < 2 or list(turned.attributes.get_ints("perm", [])) != swap:
        return None
    of_softmax, own = produced_by(p, "Softmax") is not None, shape_of(p)
    if not of_softmax or own is None or not (sole_user(p) and sole_user(turned.outputs[0])):
        return None
    if np.prod(own) <= np.prod(shape) + np.prod(y):
        return None
    sums = emit("MatMul", p, emit("Transpose", values, attributes={"perm": swap}, label="turned"))
    return emit("Transpose", sums, attributes={"perm": swap}, label="sums")


RULES: Rules = {
    "Softmax": [scaled_mask, split_mask, reshaped_mask, chosen_scores],
    "Where": [constant_last, always_a_number],
    "MatMul": [scale_result, grouped_heads, turned_values],
    "Mul": [fold_factor],
}
"""To be applied once decomposed activations are recognised, whose constants this would absorb."""
