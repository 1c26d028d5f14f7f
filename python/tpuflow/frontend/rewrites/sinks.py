"""Attention with sinks: scores of no key, which stand beside those of the keys and take a share.

    softmax(x - max(x))                          ->  softmax(x)
    softmax([x + Where(c, 0, mask), s])          ->  softmax(Where([c, true], [x, s], mask))
    softmax([Where(c, x, mask), s])              ->  the same

Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv:2309.17453); gpt-oss learns a
score for each head. A mask in front of the concatenation would have to lie on the grid of the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.attention import LOWEST, chosen_addend
from tpuflow.frontend.values import (
    attributes_of,
    integers_of,
    leaves_out,
    produced_by,
    shape_of,
    sole_user,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]


def unshifted(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes no maximum off first: a softmax does that itself."""
    shape = shape_of(node.inputs[0])
    shifted = produced_by(node.inputs[0], "Sub")
    largest = None if shifted is None else produced_by(shifted.inputs[1], "ReduceMax")
    if shifted is None or largest is None or not shape or largest.inputs[0] is not shifted.inputs[0]:
        return None
    axis = node.attributes.get_int("axis", -1) % len(shape)
    axes = integers_of(largest.inputs[1]) if len(largest.inputs) > 1 else None
    if axes is None or [each % len(shape) for each in axes] != [axis]:
        return None
    if largest.attributes.get_int("keepdims", 1) != 1:
        return None
    return emit("Softmax", shifted.inputs[0], attributes=attributes_of(node))


def _parts(value: ir.Value | None, emit: Emitter) -> tuple[ir.Value, ir.Value] | None:
    """The condition of a masked operand, true where it is kept, and its scores; None if it has no mask."""
    shape = shape_of(value)
    if value is None or shape is None or not sole_user(value):
        return None
    if (found := chosen_addend(value, emit)) is not None:
        return found
    choice = produced_by(value, "Where")
    if choice is None or choice.inputs[0] is None or choice.inputs[1] is None:
        return None
    if not leaves_out(choice.inputs[2]) or shape_of(choice.inputs[1]) != shape:
        return None
    return choice.inputs[0], choice.inputs[1]


def masked_beside(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Chooses behind a concatenation along the softmax what was masked in front of it."""
    joined, shape = produced_by(node.inputs[0], "Concat"), shape_of(node.inputs[0])
    if joined is None or not shape or node.inputs[0] is None or not sole_user(node.inputs[0]):
        return None
    axis = node.attributes.get_int("axis", -1) % len(shape)
    if joined.attributes.get_int("axis", 0) % len(shape) != axis:
        return None
    parts = [_parts(value, emit) for value in joined.inputs]
    if all(part is None for part in parts):
        return None
    scores, conditions = [], []
    for value, part in zip(joined.inputs, parts, strict=True):
        own = shape_of(value)
        if value is None or own is None:
            return None
        condition, x = part if part is not None else (None, value)
        scores.append(x)
        known = (1,) * len(own) if condition is None else shape_of(condition)
        if known is None:
            return None
        conditions.append((condition, [1] * (len(own) - len(known)) + list(known), own[axis]))
    # Each part of the condition has its own length along the axis, and one shape with the others else.
    common = [max(known[at] for _, known, _ in conditions) for at in range(len(shape))]
    truths = []
    for condition, _, length in conditions:
        wanted = [length if at == axis else extent for at, extent in enumerate(common)]
        truths.append(
            emit.constant(np.ones(wanted, np.bool_), "always")
            if condition is None
            else emit("Expand", condition, emit.integers(wanted, "truths"), label="truths")
        )
    x = emit("Concat", *scores, attributes={"axis": axis}, label="scores")
    condition = emit("Concat", *truths, attributes={"axis": axis}, label="conditions")
    low = emit.constant(np.array(LOWEST), "low", like=x)
    return emit("Softmax", emit("Where", condition, x, low, label="masked"), attributes=attributes_of(node))


RULES: Rules = {"Softmax": [unshifted, masked_beside]}
