"""Constraints of ONNX on nodes that have bodies, or that take tensors apart into sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.frontend.values import input_at, integers_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    from tpuflow.frontend.constraints.indices import Objection

__all__ = ["branches_fit", "loop_fits", "parts_fit", "scan_fits"]


def _takes_and_gives(node: ir.Node, name: str, takes: int, gives: int) -> Iterator[Objection]:
    """A body takes as many values as its node hands in, and gives at least what it hands out."""
    body = node.attributes.get(name)
    if body is None:
        yield name, "is missing"
        return
    graph = body.as_graph()
    if len(graph.inputs) != takes:
        yield name, f"takes {len(graph.inputs)} values, {takes} are handed in"
    elif len(graph.outputs) < gives:
        yield name, f"gives {len(graph.outputs)} values, {gives} are handed out"


def branches_fit(node: ir.Node) -> Iterator[Objection]:
    """Branches take nothing and give what the node gives."""
    handed_out = len(node.outputs)
    for name in ("then_branch", "else_branch"):
        yield from _takes_and_gives(node, name, 0, handed_out)
        body = node.attributes.get(name)
        if body is not None and len(body.as_graph().outputs) > handed_out:
            yield name, f"gives {len(body.as_graph().outputs)} values, {handed_out} are handed out"


def loop_fits(node: ir.Node) -> Iterator[Objection]:
    """The body takes step, condition and states, and gives condition, states and what is collected."""
    states = max(len(node.inputs) - 2, 0)
    gives = 1 + max(len(node.outputs), states)
    yield from _takes_and_gives(node, "body", 2 + states, gives)


def scan_fits(node: ir.Node) -> Iterator[Objection]:
    """The body takes states and elements; axes and directions are stated for each sequence, or for none."""
    if node.version is not None and node.version < 9:
        return
    count = node.attributes.get_int("num_scan_inputs", 0)
    states = len(node.inputs) - count
    if not 1 <= count <= len(node.inputs):
        yield "num_scan_inputs", f"{count} of {len(node.inputs)} inputs"
        return
    yield from _takes_and_gives(node, "body", len(node.inputs), max(len(node.outputs), states))
    body = node.attributes.get("body")
    collected = 0 if body is None else len(body.as_graph().outputs) - states
    for name, many in (("input", count), ("output", collected)):
        axes = node.attributes.get_ints(f"scan_{name}_axes", None)
        directions = node.attributes.get_ints(f"scan_{name}_directions", None)
        for given, what in ((axes, "axes"), (directions, "directions")):
            if given is not None and len(given) != many:
                yield f"scan_{name}_{what}", f"has {len(given)} entries, {many} are needed"
        if directions is not None and not set(directions) <= {0, 1}:
            yield f"scan_{name}_directions", f"{list(directions)} are not all 0 or 1"
    axes = node.attributes.get_ints("scan_input_axes", None) or [0] * count
    for index, axis in enumerate(axes[:count], start=states):
        shape = shape_of(input_at(node, index))
        if shape is not None and not -len(shape) <= axis < len(shape):
            yield "scan_input_axes", f"{axis} is not an axis of the shape {list(shape)}"


def parts_fit(node: ir.Node) -> Iterator[Objection]:
    """A tensor is taken apart along an axis it has, into parts that add up to it."""
    x, sizes = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if x is None:
        return
    axis = node.attributes.get_int("axis", 0)
    if not -len(x) <= axis < len(x):
        yield "axis", f"{axis} is not an axis of the shape {list(x)}"
    elif sizes is not None and shape_of(input_at(node, 1)) == ():
        if sizes[0] < 1:
            yield "input 1", f"{sizes[0]}: must be one number above 0"
    elif sizes is not None and (sum(sizes) != x[axis] or min(sizes, default=0) < 0):
        yield "input 1", f"{sizes} do not add up to axis {axis} of the shape {list(x)}"
