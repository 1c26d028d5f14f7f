"""Rotations of pairs of features: signs in the table of sines, and one movement.

    Concat(-b, a) * s                     ->  Concat(b, a) * (s * [-1 ..., 1 ...])
    Concat(x[half:], x[:half])            ->  the two halves of x in reverse order, which is a view

`s` is constant or a function of positions alone, so that the signs go into its elements or, by `tables`,
into its rows: what is rotated needs no negation of its own. Of nothing else are signs moved, as they would
need a layer there. The rules come before those of tables, so that what rotates queries and keys of all
layers becomes one table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.tables import is_function
from tpuflow.frontend.values import array_of, integers_of, produced_by, shape_of, sole_user, steps_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]


def signs_in_table(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies a constant or what depends on positions alone by the signs of parts of the other operand."""
    for place in range(2):
        rotated, factor = node.inputs[place], node.inputs[1 - place]
        parts, shape = produced_by(rotated, "Concat"), shape_of(rotated)
        if parts is None or rotated is None or factor is None or not shape or not sole_user(rotated):
            continue
        negated = [produced_by(part, "Neg") for part in parts.inputs]
        if not any(negated) or shape_of(node.outputs[0]) != shape:
            continue
        if not _takes_signs(factor):
            continue
        axis = parts.attributes.get_int("axis", 0) % len(shape)
        extents = [(shape_of(part) or shape)[axis] for part in parts.inputs]
        signs = np.repeat([1.0 if each is None else -1.0 for each in negated], extents)
        signs = signs.reshape([-1, *(1 for _ in shape[axis + 1 :])])
        operands = [
            part if each is None else each.inputs[0] for part, each in zip(parts.inputs, negated, strict=True)
        ]
        whole = emit("Concat", *operands, attributes={"axis": axis}, label="unsigned")
        signed = emit("Mul", factor, emit.constant(signs, "signs", like=factor), label="signed")
        return emit("Mul", whole, signed)
    return None


def _takes_signs(factor: ir.Value) -> bool:
    """Whether signs need no layer: in constants, but for those on a stated grid, and tables of positions."""
    return is_function(factor) if array_of(factor) is None else steps_of(factor) is None


def in_reverse(x: ir.Value, axis: int, emit: Emitter) -> ir.Value:
    """The two halves of `x` along an axis, the second first."""
    shape = list(shape_of(x) or ())
    halves = emit.reshape(x, [*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]], "halves")
    bounds = [
        emit.integers([number], name)
        for name, number in (("first", 1), ("last", -3), ("axis", axis), ("step", -1))
    ]
    return emit.reshape(emit("Slice", halves, *bounds, label="reversed"), shape, "joined")


def exchange_halves(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Exchanges the halves of one tensor by a view."""
    shape = shape_of(node.outputs[0])
    if not shape or len(node.inputs) != 2:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    half, rest = divmod(shape[axis], 2)
    parts = [produced_by(value, "Slice") for value in node.inputs]
    if rest or any(part is None for part in parts):
        return None
    second, first = (_slice_of(part, axis) for part in parts if part is not None)
    if second is None or first is None or first[0] is not second[0] or shape_of(first[0]) != shape:
        return None
    exchanged = (first[1], second[1]) == ((0, half), (half, 2 * half))
    return in_reverse(first[0], axis, emit) if exchanged else None


def _slice_of(node: ir.Node, along: int) -> tuple[ir.Value, tuple[int, int]] | None:
    """Operand and range of a Slice with step one along a single axis."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    numbers = [integers_of(value) for value in node.inputs[1:]]
    if x is None or shape is None or len(numbers) != 4:  # `movement` states all of them
        return None
    first, last, axes, steps = numbers
    if first is None or last is None or axes != [along] or steps != [1]:
        return None
    begin, end, _ = slice(first[0], last[0]).indices(shape[along])
    return x, (begin, end)


RULES: Rules = {"Mul": [signs_in_table], "Concat": [exchange_halves]}
