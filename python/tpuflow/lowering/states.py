"""Caches that stay on the device: inputs stored row by row, and outputs whose rows are appended to them.

A cache `[1, heads, rows, channels]` is stored as `[1, 1, rows, heads * channels]`: the new rows of a run
follow those that are there, and a row is one pixel, so that narrow heads share words. Caches of other forms
are inputs and outputs like others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.frontend.values import state_output
from tpuflow.lowering.nodes import is_constant, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.layout import Shape

__all__ = ["ROWS", "ROW_ORDER", "row_shape", "states_of"]

ROW_ORDER: Shape = (0, 2, 1, 3)
"""The axis order in which a cache is stored."""
ROWS = 2
"""The axis of its rows in the tensor it is stored as."""


def row_shape(shape: Shape) -> Shape:
    """The shape in which a cache is stored, all heads of a row in one pixel."""
    _, heads, rows, channels = shape
    return (1, 1, rows, heads * channels)


def states_of(graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """The caches of a graph that can stay on the device: the inputs, and the outputs with their new rows."""
    outputs = {value.name: value for value in graph.outputs}
    found = {}
    for value in graph.inputs:
        output = outputs.get(state_output(value) or "")
        if output is None or is_constant(value):
            continue
        past, new = shape_of(value), shape_of(output)
        alike = len(past) == len(new) == len(ROW_ORDER) and (*past[:2], past[3]) == (*new[:2], new[3])
        if alike and past[0] == 1:
            found[value] = output
    return found
