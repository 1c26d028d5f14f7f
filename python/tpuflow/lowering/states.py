"""Caches that stay on the device: inputs stored row by row, and outputs whose rows are appended to them.

A cache `[1, heads, rows, channels]` is stored as `[1, rows, heads, channels]`, so that the new rows of a run
follow those that are there. Caches of other forms are inputs and outputs like others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.frontend.values import state_output
from tpuflow.lowering.nodes import is_constant, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.layout import Shape

__all__ = ["ROWS", "ROW_ORDER", "states_of"]

ROW_ORDER: Shape = (0, 2, 1, 3)
"""The axis order in which a cache is stored."""
ROWS = 1
"""The axis of its rows in that order."""


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
