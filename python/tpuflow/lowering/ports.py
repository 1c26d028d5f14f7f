"""Inputs and outputs of the network, and the caches among them that stay on the device."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import onnx_ir as ir

from tpuflow.lowering import scheme
from tpuflow.lowering.grids import TRUTH, code_grid, qinvariant, stated_input
from tpuflow.lowering.layout import StoredValue, input_order, natural_order, rearrangement
from tpuflow.lowering.nodes import is_constant, shape_of
from tpuflow.lowering.registry import UnsupportedNodeError
from tpuflow.lowering.states import ROW_ORDER, ROWS, row_shape
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.scheme import Quant

__all__ = ["Ports"]

BOOL = ir.DataType.BOOL


class Ports:
    """The ports of the graph that a context builds, in the order they are added."""

    def __init__(self, context: Lowering) -> None:
        self._context = context
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._states = {new: past for past, new in context.states.items()}
        self._written: dict[ir.Value, StoredValue] = {}

    def add_input(self, value: ir.Value) -> None:
        """Adds an input of the network, unless it is constant."""
        context = self._context
        if is_constant(value):
            return
        shape = shape_of(value)
        is_state = context.is_state(value)
        order = ROW_ORDER if is_state else input_order(value)
        view = View.dense(shape, order)
        stored_shape = row_shape(shape) if is_state else tuple(shape[axis] for axis in order)
        if value.dtype is not None and value.dtype.is_floating_point():
            quant: Quant | None = stated_input(value)
            config = context.settings.of((value.name or "",))
            if value.name in config.qinvariant and not scheme.is_float(config.dtype):
                quant = qinvariant(config)
            quant = quant or context.grids.own_quant((value.name or "",), value, config)
        else:
            quant = TRUTH if value.dtype == BOOL else code_grid(value)
        name = value.name or "input"
        tensor, _ = context.tensor_fields(stored_shape, (value, order), quant)
        index = context.builder.input(context.unique(name), **tensor)
        self._inputs.append(value)
        context.sources[index] = value.name or ""
        context.stored[value] = StoredValue(index, stored_shape, view, quant)

    def add_output(self, value: ir.Value) -> None:
        """Makes a value an output of the network, written out if it is no tensor of its own name.

        Raises:
            UnsupportedNodeError: It is constant, has no elements, or another shape than what computes it.
        """
        if value not in self._written:
            self._written[value] = self._write(value)
        stored = self._written[value]
        if value in self._states:
            self._context.stored[value] = stored
        self._context.builder.output(stored.tensor)
        self._outputs.append(value)

    def write_rows(self, value: ir.Value) -> None:
        """Writes the new rows of a cache out, if that is what a value is: no later layer reads them there."""
        if value in self._states and value not in self._written and value in self._context.stored:
            with suppress(UnsupportedNodeError):  # which is told with the outputs
                self._written[value] = self._write(value)

    def _write(self, value: ir.Value) -> StoredValue:
        context = self._context
        if value not in context.stored:
            raise UnsupportedNodeError("is constant")
        if 0 in shape_of(value):
            raise UnsupportedNodeError("has no elements")
        stored = context.stored[value]
        if stored.view.shape != shape_of(value):
            made = list(stored.view.shape)
            raise UnsupportedNodeError(f"has the shape {list(shape_of(value))}, its node makes {made}")
        named = context.sources.get(stored.tensor) == value.name
        is_state = value in self._states
        if is_state and (grid := context.stored[self._states[value]].quant) not in {None, stored.quant}:
            # Rows that are part of another tensor, as of queries, keys and values in one, lie on its grid.
            stored = context.requantize(value, grid)
        order = ROW_ORDER if is_state else natural_order(stored.view)
        extents = stored.view.shape
        shape = row_shape(extents) if is_state else tuple(extents[axis] for axis in order)
        view = View.dense(extents, order)
        in_rows = stored.shape == shape and stored.view == view
        if not named or stored.view.permutation(stored.elements) is None or (is_state and not in_rows):
            moved = context.find_arranged(stored, view, shape)
            if moved is not None and context.sources.get(moved.tensor) == value.name:
                return moved
            op = rearrangement(stored, stored.view.transpose(order).loops)
            stored = context.layer(f"{value.name}/output", op, value, shape, view, stored.quant, [])
        return stored

    def declare_states(self) -> None:
        """Declares the caches that stay on the device: those whose new rows lie on the grid of the past."""
        context = self._context
        for past, new in context.states.items():
            if context.stored[past].quant == context.stored[new].quant:
                context.builder.state(self._inputs.index(past), self._outputs.index(new), ROWS)
