"""Nodes that ONNX allows and that no runtime finishes: found by arithmetic, before anything runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    from tpuflow.frontend.constraints.indices import Objection

__all__ = ["distribution_exists", "neighbors_exist", "steps_end"]

MOST_NEIGHBORS = 1 << 10
"""Channels a response may be normalised by where there are fewer."""
MOST_TRIPS = 1 << 20
"""Steps that a loop may count which nothing else ends."""


def neighbors_exist(node: ir.Node) -> Iterator[Objection]:
    """A response is normalised by no more channels than exist: runtimes take time for each."""
    x, size = shape_of(input_at(node, 0)), node.attributes.get_int("size", 1)
    if x is not None and len(x) < 2:
        yield "input 0", f"has the shape {list(x)}: batch and channels are needed"
    elif x is not None and size > max(2 * x[1], MOST_NEIGHBORS):
        yield "size", f"{size} channels are named, there are {x[1]}"


def distribution_exists(node: ir.Node) -> Iterator[Objection]:
    """Random numbers come from an interval, or around a mean: runtimes end the process at others."""
    low, high = node.attributes.get_float("low", 0.0), node.attributes.get_float("high", 1.0)
    if node.op_type.startswith("RandomUniform") and low > high:
        yield "low", f"{low:g} is above high, {high:g}"
    if node.op_type.startswith("RandomNormal") and not node.attributes.get_float("scale", 1.0) > 0:
        yield "scale", f"{node.attributes.get_float('scale'):g} is not above 0"


def steps_end(node: ir.Node) -> Iterator[Objection]:
    """A loop that nothing ends but its count is not endless."""
    count, condition = input_at(node, 0), input_at(node, 1)
    body, trips = node.attributes.get("body"), integers_of(count)
    if body is None or (count is not None and (not trips or trips[0] <= MOST_TRIPS)):
        return  # a count that is no constant is known at run time
    go = None if condition is None else array_of(condition)
    if condition is not None and (go is None or not np.all(go)):
        return  # whether it begins is known at run time
    graph = body.as_graph()
    last: ir.Value | None = graph.outputs[0] if graph.outputs else None
    while last is not None and (maker := last.producer()) is not None and maker.op_type == "Identity":
        last = maker.inputs[0]
    if last is None or len(graph.inputs) < 2:
        return
    constant = last.const_value
    if last is graph.inputs[1] or (constant is not None and np.all(constant.numpy())):
        yield "body", "never ends: its condition is always true"
