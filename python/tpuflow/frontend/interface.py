"""Settles what a model takes and gives: static input shapes, and where to cut it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["cut", "fix_input_shapes"]


def fix_input_shapes(
    model: ir.Model, label: str, shapes: Mapping[str, Sequence[int]], batch: int | None
) -> None:
    """Gives every input of `model` a static shape, in place.

    Args:
        model: The model.
        label: What to call it in messages.
        shapes: Shapes by input name; they decide before anything else.
        batch: Size of a first axis the model leaves open; 1 when None. Axes elsewhere that carry the same
            symbol follow.

    Raises:
        ModelError: If a name is not an input's, a shape has another number of axes or another size than the
            model states, a size is below 1, or an axis other than the first stays open.
    """
    names = [value.name or "" for value in model.graph.inputs]
    for name in shapes:
        if name not in names:
            raise ModelError(f'{label}: no input is called "{name}" (inputs: {", ".join(names)})')
    if batch is not None and batch < 1:
        raise ModelError(f"{label}: batch must be at least 1, not {batch}")
    symbols = {
        value.shape[0].value: batch or 1
        for value in model.graph.inputs
        if value.name not in shapes and value.shape and isinstance(value.shape[0], ir.SymbolicDim)
    }
    symbols.pop(None, None)
    for value in model.graph.inputs:
        wanted = shapes.get(value.name or "")
        if wanted is None:
            value.shape = ir.Shape(_sizes(value, label, symbols, batch))
        else:
            value.shape = ir.Shape(_checked(value, label, wanted))


def _sizes(value: ir.Value, label: str, symbols: Mapping[str | None, int], batch: int | None) -> list[int]:
    where = f'{label}: input "{value.name}"'
    if value.shape is None:
        raise ModelError(f"{where} has no shape; give one with --input-shape {value.name}=...")
    sizes = []
    for axis, size in enumerate(value.shape):
        if isinstance(size, int) and size > 0:
            if axis == 0 and batch is not None and size != batch and value.shape.rank() > 1:
                raise ModelError(f"{where} has a fixed batch of {size}; a batch of {batch} was asked for")
            sizes.append(size)
        elif axis == 0:
            sizes.append(batch or 1)
        elif isinstance(size, ir.SymbolicDim) and size.value in symbols:
            sizes.append(symbols[size.value])
        else:
            symbol = f' ("{size.value}")' if isinstance(size, ir.SymbolicDim) and size.value else ""
            raise ModelError(
                f"{where}: axis {axis}{symbol} has no fixed size; "
                f"give the whole shape with --input-shape {value.name}=..."
            )
    return sizes


def _checked(value: ir.Value, label: str, wanted: Sequence[int]) -> list[int]:
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


def cut(
    model: ir.Model,
    label: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    inferred: Callable[[ir.Model], Mapping[str, ir.Value]],
) -> ir.Model:
    """The part of `model` between `inputs` and `outputs`, tensors by name.

    Inputs of the model that the part still needs stay, after those given. No outputs means the model's own.

    Args:
        model: The model.
        label: What to call it in messages.
        inputs: Tensors that become inputs.
        outputs: Tensors that become outputs.
        inferred: Gives the values of a model by name, with types and shapes as far as they can be known.

    Raises:
        ModelError: If a tensor does not exist, or the outputs do not depend on the inputs.
    """
    values = ir.convenience.create_value_mapping(model.graph)
    for name in [*inputs, *outputs]:
        if name not in values:
            raise ModelError(f'{label}: cannot cut at "{name}": there is no such tensor')
    if inputs:
        known = inferred(model)
        for name in inputs:
            if values[name].shape is None and name in known:
                values[name].shape, values[name].type = known[name].shape, known[name].type
    kept = [*inputs, *(value.name or "" for value in model.graph.inputs if value.name not in inputs)]
    wanted = list(outputs) or [value.name or "" for value in model.graph.outputs]
    try:
        graph = ir.convenience.extract(model.graph, kept, wanted)
    except ValueError as error:
        raise ModelError(f"{label}: cannot be cut there: {error}") from error
    unused = [value for value in graph.inputs if not value.uses() and not value.is_graph_output()]
    for value in unused:
        if value.name in inputs:
            raise ModelError(f'{label}: cannot cut at "{value.name}": no output depends on it')
        graph.inputs.remove(value)
    return ir.Model(graph, ir_version=model.ir_version, functions=tuple(model.functions.values()))
