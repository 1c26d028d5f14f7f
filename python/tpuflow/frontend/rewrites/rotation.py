"""Rotations of pairs of features: signs in the table of sines, and one movement.

    Concat(-b, a) * s                     ->  Concat(b, a) * (s * [-1 ..., 1 ...])
    Concat(x[half:], x[:half])            ->  the two halves of x in reverse order, which is a view
    Stack(x[1::2], x[::2])                ->  pairs of x in reverse order, likewise
    (halves of x in reverse order) * s    ->  Concat(x[half:] * s[:half], x[:half] * s[half:])

The last is for halves that are words of the machine's memory: each is then read where it lies, and nothing is
moved in front of the product.

`s` is constant or a function of positions alone, so that the signs go into its elements or, by `tables`,
into its rows: what is rotated needs no negation of its own. Of nothing else are signs moved, as they would
need a layer there. The rules come before those of tables, so that what rotates queries and keys of all
layers becomes one table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.rewrites.tables import is_function
from tpuflow.frontend.values import array_of, produced_by, shape_of, sliced, sole_user, steps_of

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

WIDE = 64
"""Channels from which on a half is a word of the cache, of 16-bit elements as rotated values have."""
MOST_SIGNS = 1 << 22
"""Elements of a tensor whose signs are followed through a change of shape."""


def signs_in_table(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies a constant or what depends on positions alone by the signs of parts of the other operand."""
    for place in range(2):
        rotated, factor = node.inputs[place], node.inputs[1 - place]
        shape, parts = shape_of(rotated), produced_by(rotated, "Concat")
        flat = produced_by(rotated, "Reshape")
        joined = None if flat is None else flat.inputs[0]
        if joined is not None:
            parts = produced_by(joined, "Concat") if sole_user(joined) else None
        if parts is None or rotated is None or factor is None or not shape or not sole_user(rotated):
            continue
        negated = [_negated(part) for part in parts.inputs]
        if (
            all(each is None for each in negated)
            or shape_of(node.outputs[0]) != shape
            or not _takes_signs(factor)
        ):
            continue
        signs = _signs(parts, [-1.0 if each is not None else 1.0 for each in negated], shape)
        if signs is None:
            continue
        operands = [
            part if each is None else emit.reshape(each, list(shape_of(part) or ()), "part")
            for part, each in zip(parts.inputs, negated, strict=True)
        ]
        axis = parts.attributes.get_int("axis", 0)
        whole = emit("Concat", *operands, attributes={"axis": axis}, label="unsigned")
        if flat is not None:
            whole = emit.reshape(whole, list(shape), "flat")
        signed = emit("Mul", factor, emit.constant(signs, "signs", like=factor), label="signed")
        return emit("Mul", whole, signed)
    return None


def _negated(part: ir.Value | None) -> ir.Value | None:
    """What a part is the negative of, reshaped or as it is."""
    reshaped = produced_by(part, "Reshape")
    negation = produced_by(part if reshaped is None else reshaped.inputs[0], "Neg")
    return None if negation is None else negation.inputs[0]


def _signs(parts: ir.Node, signs: list[float], shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Signs of parts of a concatenation in another shape, of extent 1 along axes where they do not change."""
    joined = shape_of(parts.outputs[0])
    shapes = [shape_of(part) for part in parts.inputs]
    if joined is None or math.prod(joined) > MOST_SIGNS:
        return None
    axis = parts.attributes.get_int("axis", 0) % len(joined)
    along = np.repeat(signs, [0 if part is None else part[axis] for part in shapes])
    every = np.broadcast_to(along.reshape([-1, *(1 for _ in joined[axis + 1 :])]), joined).reshape(shape)
    for place in range(len(shape)):
        first = every.take([0], place)
        every = first if np.array_equal(np.broadcast_to(first, every.shape), every) else every
    leading = next((place for place, extent in enumerate(every.shape) if extent > 1), len(shape) - 1)
    kept: NDArray[np.float64] = every.reshape(every.shape[leading:])
    return kept


def _takes_signs(factor: ir.Value) -> bool:
    """Whether signs need no layer: in constants, but for those on a stated grid, and tables of positions."""
    return is_function(factor) if array_of(factor) is None else steps_of(factor) is None


def in_reverse(x: ir.Value, axis: int, emit: Emitter) -> ir.Value:
    """The two halves of `x` along an axis, the second first."""
    shape = list(shape_of(x) or ())
    halves = emit.reshape(x, [*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]], "halves")
    return emit.reshape(_reversed(halves, axis, emit), shape, "joined")


def _reversed(pairs: ir.Value, axis: int, emit: Emitter) -> ir.Value:
    """Two along an axis, the second first."""
    return emit.slice(pairs, axis, range(1, -1, -1), "reversed")


def exchange_pairs(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Exchanges neighbours along the last axis by a view."""
    shape = shape_of(node.outputs[0])
    parts = [produced_by(value, "Reshape") for value in node.inputs]
    if not shape or shape[-1] != len(parts) or len(parts) != 2 or None in parts:
        return None
    if node.attributes.get_int("axis", 0) % len(shape) != len(shape) - 1:
        return None
    slices = [produced_by(part.inputs[0], "Slice") for part in parts if part is not None]
    second, first = (None if each is None else _slice_of(each, len(shape) - 2) for each in slices)
    if second is None or first is None or first[0] is not second[0]:
        return None
    x, extent = first[0], 2 * shape[-2]
    if shape_of(x) != (*shape[:-2], extent) or (second[1], first[1]) != (
        range(1, extent, 2),
        range(0, extent, 2),
    ):
        return None
    return _reversed(emit.reshape(x, list(shape), "pairs"), len(shape) - 1, emit)


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
    exchanged = (first[1], second[1]) == (range(half), range(half, 2 * half))
    return in_reverse(first[0], axis, emit) if exchanged else None


def product_by_halves(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Multiplies wide halves in reverse order one by one, so that neither is moved."""
    shape = shape_of(node.outputs[0])
    if not shape or shape[-1] < 2 * WIDE or shape[-1] % 2:
        return None
    half, axis = shape[-1] // 2, len(shape) - 1
    for place in range(2):
        x, factor = _unreversed(node.inputs[place]), node.inputs[1 - place]
        if x is None or factor is None or shape_of(x) != shape or (shape_of(factor) or (0,))[-1] != shape[-1]:
            continue
        halves = [range(half), range(half, 2 * half)]
        rank = len(shape_of(factor) or ())
        parts = [
            emit(
                "Mul",
                emit.slice(x, axis, theirs, "half"),
                emit.slice(factor, rank - 1, own, "factor"),
                label="product",
            )
            for own, theirs in zip(halves, reversed(halves), strict=True)
        ]
        return emit("Concat", *parts, attributes={"axis": axis}, label="products")
    return None


def _unreversed(value: ir.Value | None) -> ir.Value | None:
    """What a value is with the halves of its last axis exchanged, where nothing else reads it so."""
    shape, joined = shape_of(value), produced_by(value, "Reshape")
    exchanged = None if joined is None else produced_by(joined.inputs[0], "Slice")
    halves = None if exchanged is None else produced_by(exchanged.inputs[0], "Reshape")
    if value is None or not shape or exchanged is None or halves is None or not sole_user(value):
        return None
    pairs = (*shape[:-1], 2, shape[-1] // 2)
    is_exchanged = _slice_of(exchanged, len(shape) - 1) == (exchanged.inputs[0], range(1, -1, -1))
    x = halves.inputs[0]
    return x if is_exchanged and shape_of(halves.outputs[0]) == pairs and shape_of(x) == shape else None


def _slice_of(node: ir.Node, along: int) -> tuple[ir.Value, range] | None:
    """Operand and indices of a Slice along one axis."""
    found = sliced(node)
    return None if found is None or found[1] != along else (found[0], found[2])


RULES: Rules = {"Mul": [signs_in_table, product_by_halves], "Concat": [exchange_halves, exchange_pairs]}
