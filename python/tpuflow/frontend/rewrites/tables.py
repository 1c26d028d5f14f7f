"""Functions of integers of known bounds become rows of a table.

    cos(angles * float(position))    ->  Gather(table of cosines, position)
    Where(mask > 0, 0, -inf)         ->  Gather([-inf, 0], mask)

An input whose metadata says that its values lie below a bound (`state_bound`: positions below a context,
masks below 2) takes no more than that many values. What is computed of it alone, element by element, is
evaluated for all of them here, in float32 as the model would; so nothing of it needs a grid but the result,
and that grid follows from the table, not from the samples that were seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.rewrites import opset
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.values import array_of, attributes_of, bound_of, integers_of, maker_of, shape_of

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LARGEST_TABLE", "RULES", "function_rows", "is_function"]

Array = npt.NDArray[Any]

POINTWISE = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Pow", "Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Tanh", "Where", "Xor",
))  # fmt: skip
"""Operators of which every element of the result needs one element of each operand."""
MOVING = frozenset({"Concat", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})

MOST_NODES = 64
"""Nodes looked through for the input."""
LARGEST_TABLE = 1 << 24
"""Elements of a table."""
LOWEST = -1e30
"""Replacement of numbers below it: sums of two masks stay finite, and a softmax leaves both out."""

Axes = tuple[int, ...]


class _Function:
    """The nodes that compute a value, if they depend on one bounded input alone.

    Attributes:
        source: The input; None as long as there are constants only.
        nodes: The nodes between, the value's own last.
        axes: Where the axes of the input that have more than one element lie in the value.
    """

    def __init__(self, value: ir.Value) -> None:
        self.source: ir.Value | None = None
        self.nodes: dict[ir.Node, None] = {}
        self._axes: dict[ir.Value, Axes | None] = {}
        self.axes = self._of(value)

    def _of(self, value: ir.Value) -> Axes | None:
        """The axes of the input in a value; None where this is no such function."""
        if value not in self._axes:
            self._axes[value] = None  # until it is known
            self._axes[value] = self._axes_in(value)
        return self._axes[value]

    def _axes_in(self, value: ir.Value) -> Axes | None:
        shape, node = shape_of(value), maker_of(value)
        if shape is None or len(self.nodes) > MOST_NODES:
            return None
        if node is None:
            if bound_of(value) is None or self.source not in {None, value}:
                return None
            self.source = value
            return tuple(axis for axis, size in enumerate(shape) if size > 1)
        if node.op_type == "Gather" and not node.domain and array_of(node.inputs[0]) is not None:
            return self._gathered_axes(node)
        if node.domain or len(node.outputs) > 1 or node.op_type not in POINTWISE | MOVING:
            return None
        operands = [each for each in node.inputs if each is not None and array_of(each) is None]
        if not operands:
            return None
        places = [self._of(each) for each in operands]
        known = [axes for axes in places if axes is not None]
        if len(known) < len(places):
            return None
        found = (
            _moved_axes(node, known, shape)
            if node.op_type in MOVING
            else _pointwise_axes(node, operands, known, shape)
        )
        self.nodes[node] = None
        return found

    def _gathered_axes(self, node: ir.Node) -> Axes | None:
        """The axes of the input in rows that it picks of a constant."""
        places = node.inputs[1]
        if places is None or array_of(places) is not None or attributes_of(node).get("axis", 0) != 0:
            return None
        self.nodes[node] = None
        return self._of(places)

    @property
    def computes(self) -> bool:
        """Whether its nodes do more than move elements, and compare rows as `tabulate` leaves it."""
        computing = [node.op_type for node in self.nodes if node.op_type in POINTWISE]
        picking = any(node.op_type == "Gather" for node in self.nodes)
        return bool(computing) and not (picking and computing == ["Less"])


def _pointwise_axes(
    node: ir.Node, operands: list[ir.Value], places: list[Axes], shape: tuple[int, ...]
) -> Axes | None:
    """The axes behind an operator of single elements, whose operands all have them at one place."""
    found = {
        tuple(axis + len(shape) - len(shape_of(value) or ()) for axis in axes)
        for value, axes in zip(operands, places, strict=True)
    }
    constants = [array for value in node.inputs if (array := array_of(value)) is not None]
    axes = found.pop()
    wide = any(
        array.ndim + axis - len(shape) >= 0 and array.shape[axis - len(shape)] > 1
        for array in constants
        for axis in axes
    )
    return None if found or wide else axes


def _moved_axes(node: ir.Node, places: list[Axes], shape: tuple[int, ...]) -> Axes | None:
    """The axes behind an operator that moves elements, if it leaves them whole."""
    axes, before = places[0], shape_of(node.inputs[0]) or ()
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", tuple(reversed(range(len(shape)))))
        return tuple(list(order).index(axis) for axis in axes)
    if node.op_type == "Concat":
        along = node.attributes.get_int("axis", 0) % len(shape)
        constant = any(array_of(value) is not None for value in node.inputs)
        return axes if set(places) == {axes} and along not in axes and not (constant and axes) else None
    if node.op_type == "Slice":
        return axes if all(before[axis] == shape[axis] for axis in axes) and _forward(node) else None
    if node.op_type == "Expand":
        return tuple(axis + len(shape) - len(before) for axis in axes)
    if [size for size in before if size > 1] != [size for size in shape if size > 1]:
        return None
    wide = [axis for axis, size in enumerate(before) if size > 1]
    after = [axis for axis, size in enumerate(shape) if size > 1]
    return tuple(after[wide.index(axis)] for axis in axes)


def _forward(node: ir.Node) -> bool:
    """Whether a Slice walks forward along all its axes."""
    steps = integers_of(node.inputs[4]) if len(node.inputs) > 4 else []
    return steps is not None and all(step > 0 for step in steps)


def tabulate(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """The last value that is a function of a bounded input, as the rows of a table."""
    value = node.outputs[0]
    if value.dtype not in {ir.DataType.FLOAT, ir.DataType.BOOL}:
        return None
    if node.graph is not None and all(bound_of(each) is None for each in node.graph.inputs):
        return None  # at once, since looking for the input may lead through the whole network
    function = _Function(value)
    source, axes = function.source, function.axes
    if source is None or axes is None or not function.computes or not _is_last(value):
        return None
    bound, shape, taken = bound_of(source) or 0, shape_of(value) or (), shape_of(source) or ()
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    if bound * math.prod(rest) > LARGEST_TABLE:
        return None
    table = _evaluate(function, source, value, bound)
    if table is None:
        return None
    rows = emit("Gather", emit.constant(table, "table"), source, attributes={"axis": 0}, label="rows")
    wide = [size for size in taken if size > 1]
    split = emit.reshape(rows, (*wide, *rest), "split")
    order = [*axes, *(axis for axis in range(len(shape)) if axis not in axes)]
    if order != sorted(order):
        split = emit("Transpose", split, attributes={"perm": [order.index(k) for k in range(len(order))]})
    if value.dtype == ir.DataType.BOOL:
        return emit("Less", emit.constant(np.float32(0.5), "half"), split, label="truth")
    return split if tuple(shape_of(split) or ()) == shape else emit.reshape(split, shape, "shaped")


def is_function(value: ir.Value) -> bool:
    """Whether a value is computed of one bounded input alone."""
    function = _Function(value)
    return function.source is not None and function.axes is not None


def function_rows(value: ir.Value) -> tuple[ir.Value, Array] | None:
    """The bounded input that alone a value is computed of, and its elements for every number below the bound.

    Only of an input of one element, so that a row holds all of the value.
    """
    bound = bound_of(value)
    if bound is not None:
        return (value, np.arange(bound, dtype=np.float32)[:, np.newaxis]) if shape_of(value) == (1,) else None
    function = _Function(value)
    source = function.source
    if source is None or function.axes != () or math.prod(shape_of(source) or (0,)) != 1:
        return None
    bound = bound_of(source) or 0
    if bound * math.prod(shape_of(value) or ()) > LARGEST_TABLE:
        return None
    table = _evaluate(function, source, value, bound)
    return None if table is None else (source, table)


def _is_last(value: ir.Value) -> bool:
    """Whether something that is no such function reads a value."""
    return value.is_graph_output() or any(_Function(use.node.outputs[0]).axes is None for use in value.uses())


def _evaluate(function: _Function, source: ir.Value, value: ir.Value, bound: int) -> Array | None:
    """A row of the value's elements for every number below the bound; None where it cannot be evaluated."""
    inputs = dict.fromkeys(each for node in function.nodes for each in node.inputs if each is not None)
    constants = [each for each in inputs if each.is_initializer()]
    part = ir.GraphView(
        (source,), (value,), nodes=tuple(function.nodes), initializers=constants,
        opset_imports={"": opset.TARGET},
    )  # fmt: skip
    alone = ir.Model(part.clone(), ir_version=10)
    alone.graph.name = "table"
    alone.graph.opset_imports[""] = opset.needed_opset(alone)
    try:
        session = FloatSession(alone, once=True, threads=1)
        taken, kind = shape_of(source) or (), (source.dtype or ir.DataType.INT64).numpy()
        count, rows, axes = math.prod(taken), [], function.axes or ()
        for first in range(0, bound, count):
            numbers = np.minimum(np.arange(first, first + count), bound - 1).astype(kind)
            found = session.run({source.name or "": numbers.reshape(taken)})[value.name or ""]
            rows.append(np.moveaxis(found, axes, range(len(axes))).reshape(count, -1))
    except ModelError:
        return None
    table = np.concatenate(rows)[:bound].astype(np.float32)
    if not axes and math.prod(shape_of(value) or ()) != table.shape[1]:
        return None
    return None if np.isnan(table).any() else np.maximum(table, np.float32(LOWEST))


RULES: Rules = {operator: [tabulate] for operator in sorted(POINTWISE | MOVING)}
