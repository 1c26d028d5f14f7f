"""Settles what a model takes: a static shape for every input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["fix_input_shapes"]

LARGEST_INPUT = 1 << 26
"""Elements of one input: 256 MiB of floats, of which every stage holds several copies."""


def fix_input_shapes(
    model: ir.Model,
    label: str,
    shapes: Mapping[str, Sequence[int]],
    batch: int | None,
    *,
    partial: bool = False,
) -> None:
    """Gives every input of `model` a static shape, in place.

    A first axis the model fixes stays as it is, and open ones follow it.

    Args:
        model: The model.
        label: What to call it in messages.
        shapes: Shapes by input name; they decide before anything else.
        batch: Size of a first axis the model leaves open; 1 when None. Axes elsewhere that carry the same
            symbol follow.
        partial: Leave open what stays open, and names alone that are no input's, instead of raising.

    Raises:
        ModelError: If a name is not an input's, a shape has another number of axes or another size than the
            model states, a size is below 1, or an axis other than the first stays open.
    """
    names = [value.name or "" for value in model.graph.inputs]
    for name in shapes:
        if name not in names and not partial:
            raise ModelError(f'{label}: no input is called "{name}" (inputs: {", ".join(names)})')
    if batch is not None and batch < 1:
        raise ModelError(f"{label}: batch must be at least 1, not {batch}")
    size = _first_axis(model, shapes) or batch or 1
    symbols = {
        value.shape[0].value: size
        for value in model.graph.inputs
        if value.name not in shapes and value.shape and isinstance(value.shape[0], ir.SymbolicDim)
    }
    symbols.pop(None, None)
    for value in model.graph.inputs:
        wanted = shapes.get(value.name or "")
        if wanted is None:
            try:
                value.shape = ir.Shape(_sizes(value, label, symbols, size))
            except ModelError:
                if not partial:
                    raise
        else:
            value.shape = ir.Shape(_check_shape(value, label, wanted))
        sizes = [size for size in value.shape or () if isinstance(size, int)]
        if math.prod(sizes) > LARGEST_INPUT:
            raise ModelError(
                f'{label}: input "{value.name}" of the shape {sizes} has more than {LARGEST_INPUT} elements; '
                f"give a smaller one with --input-shape {value.name}=..."
            )


def _first_axis(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """The first axis all inputs agree on that fix one; those of one axis say nothing about a batch."""
    firsts = {
        value.shape[0]
        for value in model.graph.inputs
        if value.name not in shapes and value.shape is not None and value.shape.rank() > 1
    }
    sizes = {size for size in firsts if isinstance(size, int) and size > 0}
    return sizes.pop() if len(sizes) == 1 else None


def _sizes(value: ir.Value, label: str, symbols: Mapping[str | None, int], batch: int) -> list[int]:
    where = f'{label}: input "{value.name}"'
    if value.shape is None:
        raise ModelError(f"{where} has no shape; give one with --input-shape {value.name}=...")
    sizes = []
    for axis, size in enumerate(value.shape):
        if isinstance(size, int) and size > 0:
            sizes.append(size)
        elif axis == 0:
            sizes.append(batch)
        elif isinstance(size, ir.SymbolicDim) and size.value in symbols:
            sizes.append(symbols[size.value])
        else:
            symbol = f' ("{size.value}")' if isinstance(size, ir.SymbolicDim) and size.value else ""
            raise ModelError(
                f"{where}: axis {axis}{symbol} has no fixed size; "
                f"give the whole shape with --input-shape {value.name}=..."
            )
    return sizes


def _check_shape(value: ir.Value, label: str, wanted: Sequence[int]) -> list[int]:
    where = f'{label}: input "{value.name}"'
    if any(size < 1 for size in wanted):
        raise ModelError(f"{where}: shape {list(wanted)} has a size below 1")
    if value.shape is None:
        return list(wanted)
    if value.shape.rank() != len(wanted):
        raise ModelError(
            f"{where} has {value.shape.rank()} axes, the shape {list(wanted)} given for it has {len(wanted)}"
        )
    for axis, (size, new) in enumerate(zip(value.shape, wanted, strict=True)):
        if isinstance(size, int) and size > 0 and size != new:
            raise ModelError(f"{where}: axis {axis} is fixed to {size} by the model; {new} was asked for")
    return list(wanted)
