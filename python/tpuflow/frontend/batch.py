"""Another batch size for a model whose file fixes one.

    four = change_batch(model, "model.onnx", 4)      # the file says 1

Every shape is followed from the inputs on, once as the file has it and once with the new batch: where the two
differ is where the samples lie. Nodes that hold the old size in a constant get the new one where the layout
proves that it is the batch:

    Reshape, Expand, Resize    the target shape
    Concat                     constants beside samples are repeated (a class token)
    Slice                      an end that is the whole batch
    RNN, LSTM, GRU             initial states

What loses samples, mixes them or cannot be followed is an error that names the node. A last doubt stays where
a shape can be read in two ways, so the result is run beside the original, sample by sample.

A batch lies in one axis, which may also hold other things: `outer * batch * inner`. `outer` is kept here,
`inner` follows from the size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.inference import infer_output
from tpuflow.frontend.normalize import with_known_shapes
from tpuflow.frontend.samples import drawn_feeds
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["change_batch", "sizes_of_batch"]

Array = npt.NDArray[Any]
TOLERANCE = 1e-3
"""Relative difference a matrix product of other sizes may make in float32."""


def sizes_of_batch(model: ir.Model) -> set[int]:
    """Sizes of the first axes of the inputs; of those with further axes alone, if there are any."""
    shapes = [shape for value in model.graph.inputs if (shape := shape_of(value))]
    return {shape[0] for shape in shapes if len(shape) > 1} or {shape[0] for shape in shapes}


def change_batch(model: ir.Model, label: str, batch: int) -> ir.Model:
    """A copy of `model`, whose inputs have static shapes, for a batch of another size.

    Shape arithmetic is evaluated in it, and its opset is the one of normalised models; tensors keep their
    names.

    Raises:
        ModelError: If the samples of a batch cannot be followed through the model, or meet in it.
    """
    sizes = sizes_of_batch(model)
    batched = any(len(shape_of(value) or ()) > 1 for value in model.graph.inputs)
    if len(sizes) != 1 or not batched:
        raise ModelError(
            f"{label}: a batch of {batch} makes no sense, the inputs "
            + ("differ in their first axis" if batched else "have no batch axis")
        )
    old = sizes.pop()
    before = with_known_shapes(model)
    after = before.clone()
    _BatchConversion(after, label, old, batch).run()
    _prove(before, after, label, (old, batch))
    return after


class _BatchConversion:
    """Follows the samples of a batch through a model, and makes room for more of them."""

    def __init__(self, model: ir.Model, label: str, old: int, batch: int) -> None:
        self._graph, self._label = model.graph, label
        self._old, self._batch = old, batch
        self._versions = model.graph.opset_imports
        self.lies: dict[ir.Value, tuple[int, int]] = {}
        """By value: the axis the samples lie in, and how much lies outside of them in that axis."""
        self._shapes = {
            value: shape_of(value) for node in self._graph for value in [*node.inputs, *node.outputs] if value
        }

    def run(self) -> None:
        for value in self._graph.inputs:
            shape = shape_of(value)
            if shape is not None and len(shape) > 1:
                value.shape = ir.Shape([self._batch, *shape[1:]])
                self.lies[value] = (0, 1)
        for node in list(self._graph):
            if any(value in self.lies for value in node.inputs):
                self._convert_node(node)

    def _fail(self, node: ir.Node, why: str) -> ModelError:
        return ModelError(
            f"{self._label}: cannot be made for a batch of {self._batch} instead of {self._old}: node "
            f'"{node.name}" ({node.op_type}) {why}; export the model with an open batch axis'
        )

    def _shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape a value that carries samples has in the file."""
        shape = self._shapes[value]
        assert shape is not None, "values that carry samples have shapes"
        return shape

    def _convert_node(self, node: ir.Node) -> None:
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule is not None:
            why = rule(self, node)
            if why:
                raise self._fail(node, why)
        shapes = [self._shapes.get(value) for value in node.outputs]
        for value in node.outputs:
            value.shape = None
        objection = infer_output(node, self._versions)
        if objection:
            raise self._fail(node, f"does not take it: {objection}")
        for value, shape in zip(node.outputs, shapes, strict=True):
            if value.name and (value.uses() or value.is_graph_output()):
                self.lies[value] = self._place(node, value, shape)

    def _place(self, node: ir.Node, value: ir.Value, old: tuple[int, ...] | None) -> tuple[int, int]:
        """Where the samples lie in an output, from its shapes before and after."""
        new = shape_of(value)
        if old is None or new is None or len(old) != len(new):
            raise self._fail(node, "has a result of unknown shape")
        changed = [axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if not changed:
            raise self._fail(node, f'loses the samples: "{value.name}" has the same shape for every batch')
        axis = changed[0]
        if len(changed) > 1 or new[axis] * self._old != old[axis] * self._batch:
            raise self._fail(node, f"mixes samples: {list(old)} becomes {list(new)}")
        if node.op_type in {"Reshape", "Flatten"}:
            ahead = self._ahead(node.inputs[0])
            return axis, max(1, ahead // math.prod(old[:axis]))
        return axis, next(self.lies[value][1] for value in node.inputs if value in self.lies)

    def _ahead(self, value: ir.Value | None) -> int:
        """How many runs of elements lie outside the samples of a value."""
        assert value is not None, "the first operand carries the samples"
        axis, outer = self.lies[value]
        shape = self._shape(value)
        return math.prod(shape[:axis]) * outer

    # What single operators hold constants for. Each returns what is wrong, or "".

    def reshape(self, node: ir.Node) -> str:
        value, target = node.inputs[0], self._shapes.get(node.outputs[0])
        if value is None or value not in self.lies or target is None or input_at(node, 1) is None:
            return "has a target shape that cannot be known"
        axis, outer = self.lies[value]
        shape = self._shape(value)
        ahead, behind = self._ahead(value), math.prod(shape[axis:]) // outer // self._old
        found: list[tuple[bool, bool, int]] = []
        for place in range(len(target)):
            before, after = math.prod(target[:place]), math.prod(target[place + 1 :])
            if not before or ahead % before or not after or behind % after:
                continue
            out, inner = ahead // before, behind // after
            if target[place] == out * self._old * inner:
                found.append((out * inner > 1, place != axis, place))
        if not found:
            return f"does not keep samples apart: {list(shape)} becomes {list(target)}"
        place = min(found)[2]
        sizes = [size * self._batch // self._old if i == place else size for i, size in enumerate(target)]
        self._constant(node, 1, np.array(sizes, np.int64))
        return ""

    def expand(self, node: ir.Node) -> str:
        value, target = node.inputs[0], self._shapes.get(node.outputs[0])
        shape = self._shapes.get(value) if value is not None else None
        if value is None or value not in self.lies or target is None or shape is None:
            return "has a target shape that cannot be known"
        axis = self.lies[value][0] + len(target) - len(shape)
        if target[axis] != shape[self.lies[value][0]]:
            return "repeats samples"
        sizes = [size * self._batch // self._old if i == axis else size for i, size in enumerate(target)]
        self._constant(node, 1, np.array(sizes, np.int64))
        return ""

    def resize(self, node: ir.Node) -> str:
        sizes, value = integers_of(input_at(node, 3)), node.inputs[0]
        if sizes and value is not None and value in self.lies:
            axis = self.lies[value][0]
            sizes[axis] = sizes[axis] * self._batch // self._old
            self._constant(node, 3, np.array(sizes, np.int64))
        return ""

    def concat(self, node: ir.Node) -> str:
        carrier = next(value for value in node.inputs if value in self.lies)
        assert carrier is not None, "a node without samples is not followed"
        axis, rank = self.lies[carrier][0], len(self._shape(carrier))
        if node.attributes.get_int("axis", 0) % rank == axis:
            return "appends to the batch"
        for index, value in enumerate(node.inputs):
            array = array_of(value)
            if value not in self.lies and array is None:
                return "joins samples with something that is no sample"
            if array is not None and not self._repeat(node, index, axis):
                return f"holds a constant ({value.name if value else ''}) that differs by sample"
        return ""

    def states(self, node: ir.Node) -> str:
        if node.attributes.get_int("layout", 0):
            return "has layout 1"
        for index, axis in ((4, 0), (5, 1), (6, 1)):
            if array_of(input_at(node, index)) is not None and not self._repeat(node, index, axis):
                return "has initial states that differ by sample"
        return ""

    def slice(self, node: ir.Node) -> str:
        value = node.inputs[0]
        starts, ends = integers_of(input_at(node, 1)), integers_of(input_at(node, 2))
        if value is None or value not in self.lies or starts is None or ends is None:
            return "is cut where only the run knows"
        shape = self._shape(value)
        axes = integers_of(input_at(node, 3)) or list(range(len(starts)))
        axis, size = self.lies[value][0], shape[self.lies[value][0]]
        for index, each in enumerate(axes):
            if each % len(shape) == axis:
                steps = integers_of(input_at(node, 4))
                if starts[index] not in (0, -size) or ends[index] < size or (steps and steps[index] != 1):
                    return "picks some of the samples"
                ends[index] = np.iinfo(np.int64).max
                self._constant(node, 2, np.array(ends, np.int64))
        return ""

    def _repeat(self, node: ir.Node, index: int, axis: int) -> bool:
        """Gives a constant operand as many samples as the others have, if all of its own are alike."""
        array = array_of(node.inputs[index])
        if array is None or array.ndim <= axis or array.shape[axis] != self._old:
            return False
        first = array.take([0], axis)
        if not np.array_equal(np.broadcast_to(first, array.shape), array):
            return False
        self._constant(node, index, np.repeat(first, self._batch, axis))
        return True

    def _constant(self, node: ir.Node, index: int, array: Array) -> None:
        name = f"{node.name}/batch{index}"
        value = ir.Value(
            name=name,
            const_value=ir.tensor(np.ascontiguousarray(array), name=name),
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        )
        self._graph.register_initializer(value)
        node.replace_input_with(index, value)


RULES: dict[str, Callable[[_BatchConversion, ir.Node], str]] = {
    "Reshape": _BatchConversion.reshape,
    "Expand": _BatchConversion.expand,
    "Resize": _BatchConversion.resize,
    "Concat": _BatchConversion.concat,
    "Slice": _BatchConversion.slice,
    **dict.fromkeys(["RNN", "LSTM", "GRU"], _BatchConversion.states),
}


def _prove(before: ir.Model, after: ir.Model, label: str, sizes: Sequence[int]) -> None:
    """Runs both on the same samples: a batch must give what its samples give alone."""
    old, batch = sizes
    single, many = FloatSession(before), FloatSession(after)
    feeds = drawn_feeds(after.graph.inputs, 1, 0)[0]
    together = many.run(feeds)
    batched = {v.name for v in after.graph.inputs if v.shape is not None and v.shape.rank() > 1}
    for index in range(batch):
        alone = single.run(
            {
                name: np.repeat(array[index : index + 1], old, 0) if name in batched else array
                for name, array in feeds.items()
            }
        )
        for name, expected in alone.items():
            found = together[name]
            axes = [a for a, (x, y) in enumerate(zip(expected.shape, found.shape, strict=True)) if x != y]
            if axes:
                step = expected.shape[axes[0]] // old
                found = found.take(range(index * step, (index + 1) * step), axes[0])
                expected = expected.take(range(step), axes[0])  # noqa: PLW2901 - the first of equal samples
            slack = TOLERANCE * max(1e-6, float(np.abs(expected, dtype=np.float64).max(initial=0)))
            if not np.allclose(found, expected, rtol=TOLERANCE, atol=slack):
                raise ModelError(
                    f"{label}: cannot be made for a batch of {batch} instead of {old}: samples of a batch "
                    f'meet on the way to output "{name}"; export the model with an open batch axis'
                )
