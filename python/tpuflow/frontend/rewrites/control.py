"""Control flow and sequences that are decided when the model is loaded: nothing of them is left.

    Loop of a constant number of steps       ->  its body, once per step
    Scan                                     ->  its body, once per element
    If                                       ->  a branch; both and Where, if the condition is computed
    SplitToSequence, SequenceInsert, ...     ->  the tensors themselves
    Optional, OptionalGetElement             ->  their operand

Source: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, input_at, integers_of, produced_by, scalar_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LATE", "RULES"]

MOST_STEPS = 1024
"""Times a body may be repeated, and parts a tensor may be split into."""
MOST_NODES = 1 << 16
"""Nodes a graph may have once a body is repeated."""


def _body(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.as_graph()


def _is_too_long(node: ir.Node, body: ir.Graph, steps: int) -> bool:
    """Whether repeating a body would make more nodes than a network has; bodies within count as one."""
    return steps > MOST_STEPS or len(node.graph or ()) + steps * len(body) > MOST_NODES


def _never_ends(body: ir.Graph) -> bool:
    """Whether the body of a Loop never ends it: its condition is passed on, or constantly true."""
    value: ir.Value | None = body.outputs[0]
    while (node := produced_by(value, "Identity")) is not None:
        value = node.inputs[0]
    if value is body.inputs[1]:
        return True
    constant = None if value is None else ir.convenience.get_const_tensor(value)
    return constant is not None and bool(np.all(constant.numpy()))


def loop(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Repeats the body of a Loop."""
    body, trips, condition = _body(node, "body"), input_at(node, 0), input_at(node, 1)
    count = scalar_of(trips)
    states = list(node.inputs[2:])
    if body is None or count is None or any(state is None for state in states):
        return None
    go = None if condition is None else array_of(condition)
    if condition is not None and go is None:
        return None
    steps = max(int(count), 0) if go is None or bool(np.all(go)) else 0
    if _is_too_long(node, body, steps) or (steps > 1 and not _never_ends(body)):
        return None
    scanned: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(states) :]]
    true = emit.constant(np.array(True), "condition")
    for step in range(steps):
        number = emit.constant(np.array(step, np.int64), f"step{step}")
        results = emit.inline(body, [number, true, *states], f"step{step}")
        states = list(results[1 : 1 + len(states)])
        for values, value in zip(scanned, results[1 + len(states) :], strict=True):
            values.append(value)
    stacked = [_stack(values, 0, emit) for values in scanned]
    return _all([*states, *stacked], len(node.outputs))


def _all(values: Sequence[ir.Value | None], count: int) -> list[ir.Value] | None:
    """The first `count` values; None where any is missing."""
    found = [value for value in values if value is not None]
    return found[:count] if len(found) == len(values) else None


def _stack(values: Sequence[ir.Value], axis: int, emit: Emitter) -> ir.Value | None:
    """Tensors along a new axis; None where there are none, or their shape is not known yet."""
    if not values or any(shape_of(value) is None for value in values):
        return None
    rows = []
    for value in values:
        shape = shape_of(value) or ()
        place = axis % (len(shape) + 1)
        rows.append(emit.reshape(value, (*shape[:place], 1, *shape[place:]), "row"))
    return emit("Concat", *rows, attributes={"axis": axis % len(shape_of(rows[0]) or (1,))})


def scan(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Repeats the body of a Scan for every element of its sequences."""
    body, count = _body(node, "body"), node.attributes.get_int("num_scan_inputs", 0)
    inputs = list(node.inputs)
    if body is None or any(shape_of(value) is None for value in inputs) or (node.version or 21) < 9:
        return None
    states, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    outputs = len(body.outputs) - len(states)
    axes = list(node.attributes.get_ints("scan_input_axes", [0] * count))
    backwards = list(node.attributes.get_ints("scan_input_directions", [0] * count))
    out_axes = list(node.attributes.get_ints("scan_output_axes", [0] * outputs))
    out_backwards = list(node.attributes.get_ints("scan_output_directions", [0] * outputs))
    lengths = {(shape_of(value) or (0,))[axis] for value, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1 or _is_too_long(node, body, max(lengths)):
        return None
    length = lengths.pop()
    scanned: list[list[ir.Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        elements = []
        for value, axis, back in zip(sequences, axes, backwards, strict=True):
            elements.append(_element(value, axis, length - 1 - step if back else step, emit))
        results = emit.inline(body, [*states, *elements], f"step{step}")
        states = list(results[: len(states)])
        for values, value in zip(scanned, results[len(states) :], strict=True):
            values.append(value)
    ends = [
        _stack(values[::-1] if back else values, axis, emit)
        for values, axis, back in zip(scanned, out_axes, out_backwards, strict=True)
    ]
    return _all([*states, *ends], len(node.outputs))


def _element(value: ir.Value | None, axis: int, index: int, emit: Emitter) -> ir.Value:
    picked = emit.constant(np.array(index, np.int64), "index")
    return emit("Gather", value, picked, attributes={"axis": axis}, label="element")


def branch(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Takes the branch of a constant condition."""
    condition = array_of(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    body = _body(node, "then_branch" if bool(condition.item()) else "else_branch")
    return None if body is None else emit.inline(body, [], "branch")


def both_branches(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Computes both branches and chooses."""
    condition = node.inputs[0]
    bodies = _body(node, "then_branch"), _body(node, "else_branch")
    if condition is None or bodies[0] is None or bodies[1] is None:
        return None
    left, right = emit.inline(bodies[0], [], "then"), emit.inline(bodies[1], [], "else")
    for a, b in zip(left, right, strict=True):
        if shape_of(a) is None or shape_of(a) != shape_of(b) or a.dtype != b.dtype:
            return None
    choice = condition if shape_of(condition) == () else emit.reshape(condition, (), "condition")
    return [emit("Where", choice, a, b) for a, b in zip(left, right, strict=True)]


def _items(value: ir.Value | None) -> list[ir.Value] | None:
    """The tensors of a sequence."""
    node = produced_by(value, "SequenceConstruct", "SequenceEmpty")
    if node is None or any(item is None for item in node.inputs):
        return None
    return [item for item in node.inputs if item is not None]


def sequence_length(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The number of tensors."""
    items = _items(node.inputs[0])
    return None if items is None else emit.constant(np.array(len(items), np.int64), "length")


def sequence_at(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """One tensor of a sequence."""
    del emit
    items, index = _items(node.inputs[0]), scalar_of(node.inputs[1])
    if not items or index is None or not -len(items) <= index < len(items):
        return None
    return items[int(index)]


def sequence_insert(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """A sequence with one tensor more."""
    items, new, place = _items(node.inputs[0]), node.inputs[1], input_at(node, 2)
    index = None if place is None else scalar_of(place)
    if items is None or new is None or (place is not None and index is None):
        return None
    position = len(items) if index is None else int(index)
    if not -len(items) <= position <= len(items):
        return None
    items.insert(position + len(items) if position < 0 else position, new)
    return emit("SequenceConstruct", *items)


def sequence_erase(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """A sequence with one tensor less."""
    items, place = _items(node.inputs[0]), input_at(node, 1)
    index = -1.0 if place is None else scalar_of(place)
    if items is None or index is None or len(items) < 2 or not -len(items) <= index < len(items):
        return None
    del items[int(index)]
    return emit("SequenceConstruct", *items)


def joined_sequence(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """ConcatFromSequence."""
    items, axis = _items(node.inputs[0]), node.attributes.get_int("axis", 0)
    if not items:
        return None
    if node.attributes.get_int("new_axis", 0):
        return _stack(items, axis, emit)
    return emit("Concat", *items, attributes={"axis": axis})


def split_to_sequence(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """SplitToSequence with constant sizes."""
    x, shape, given = node.inputs[0], shape_of(node.inputs[0]), input_at(node, 1)
    sizes = integers_of(given)
    if x is None or not shape or (given is not None and sizes is None):
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    drop = sizes is None and node.attributes.get_int("keepdims", 1) == 0
    size = 1 if sizes is None else sizes[0] if shape_of(given) == () and sizes else 0
    if size and -(-shape[axis] // size) > MOST_STEPS:
        return None
    if size:
        sizes = [min(size, shape[axis] - start) for start in range(0, shape[axis], size)]
    if sizes is None or len(sizes) > MOST_STEPS:
        return None
    parts: list[ir.Value] = []
    start = 0
    for size in sizes:
        part = emit.slice(x, axis, range(start, start + size), "part")
        parts.append(emit.reshape(part, (*shape[:axis], *shape[axis + 1 :]), "item") if drop else part)
        start += size
    return emit("SequenceConstruct", *parts) if parts else None


def operand(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Optional values that are there."""
    del emit
    return node.inputs[0] if node.inputs else None


def present(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Whether there is a value."""
    x = input_at(node, 0)
    if x is not None and isinstance(x.type, ir.OptionalType):
        return None
    return emit.constant(np.array(x is not None), "present")


RULES: Rules = {
    "Loop": [loop],
    "Scan": [scan],
    "If": [branch],
    "SequenceLength": [sequence_length],
    "SequenceAt": [sequence_at],
    "SequenceInsert": [sequence_insert],
    "SequenceErase": [sequence_erase],
    "ConcatFromSequence": [joined_sequence],
    "SplitToSequence": [split_to_sequence],
    "Optional": [operand],
    "OptionalGetElement": [operand],
    "OptionalHasElement": [present],
}

LATE: Rules = {"If": [both_branches]}
"""To be applied once no condition can become constant any more."""
