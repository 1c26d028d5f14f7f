"""Linear layers with constant weights as matrices: what they multiply, and putting new weights back.

A layer is `y[g] = W[g] x[g] + b` over its groups: `W` is `[groups, rows, k]` and `x[g]` one column of what a
window holds, `k` running over (channel, kh, kw) as ONNX stores kernels, or over the inner axis of a product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from tpuflow.frontend.values import array_of, attributes_of, input_at, shape_of, state_steps, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LinearLayer", "copy_model", "linear_layers"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearLayer:
    """A convolution, or a product with a constant on its right.

    Attributes:
        node: The operator.
        groups: Groups of a convolution, else 1.
    """

    node: ir.Node
    groups: int

    @property
    def name(self) -> str:
        """The node's name, or that of what it makes."""
        return self.node.name or self.node.outputs[0].name or ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names a configuration may match."""
        made = [value.name for value in self.node.outputs]
        bias = self._bias_node()
        if bias is not None:
            made += [bias.name, bias.outputs[0].name]
        return tuple(name for name in (self.node.name, *made) if name)

    @property
    def operand(self) -> str:
        """Name of the value it reads."""
        value = self.node.inputs[0]
        assert value is not None
        return value.name or ""

    @property
    def weights(self) -> Array:
        """`[groups, rows, k]`."""
        array = _constant(self.node.inputs[1]).astype(np.float64)
        if self.node.op_type == "MatMul":
            return array.T[np.newaxis]
        return array.reshape(self.groups, array.shape[0] // self.groups, -1)

    def columns(self, operand: NDArray[np.float32], most: int) -> NDArray[np.float32]:
        """Operand columns `[groups, columns, k]`, at most `most` positions spread over the operand."""
        if self.node.op_type == "MatMul":
            rows = operand.reshape(-1, operand.shape[-1])
            return _spread(rows, most)[np.newaxis]
        attributes = attributes_of(self.node)
        kernel = _constant(self.node.inputs[1]).shape[2:]
        pads, strides = _ints(attributes.get("pads", [0] * 4)), _ints(attributes.get("strides", [1, 1]))
        dilations = _ints(attributes.get("dilations", [1, 1]))
        top, left, bottom, right = pads
        padded = np.pad(operand, ((0, 0), (0, 0), (top, bottom), (left, right)))
        reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
        windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
        n, channels, height, width = windows.shape[:4]
        at = _spread(np.arange(n * height * width), most)
        sample, row, column = np.unravel_index(at, (n, height, width))
        taken = windows[sample, :, row, column].reshape(len(at), self.groups, channels // self.groups, -1)
        return np.ascontiguousarray(taken.reshape(len(at), self.groups, -1).transpose(1, 0, 2))

    def replace(self, weights: Array, steps: Array, shift: Array) -> None:
        """Puts weights on a grid in place of the old ones.

        Args:
            weights: `[groups, rows, k]`, whole multiples of `steps`.
            steps: `[groups, rows]`.
            shift: Added to the biases, `[groups, rows]`; without a bias to add to, one is made.
        """
        old = self.node.inputs[1]
        assert old is not None
        spread = np.broadcast_to(steps[:, :, np.newaxis], weights.shape)
        shape = _constant(old).shape
        if self.node.op_type == "MatMul":
            array, grid = weights[0].T, spread[0].T
        else:
            array, grid = weights.reshape(shape), spread.reshape(shape)
        value = self._constant(1, f"{old.name}/refined/{self.node.outputs[0].name}", array, self.node)
        state_steps(value, grid.astype(np.float32))
        self.add_to_bias(shift.reshape(-1))

    @property
    def summed(self) -> str:
        """Name of the value that holds its sums with their bias."""
        node = self._bias_node() or self.node
        return node.outputs[0].name or ""

    @property
    def has_bias(self) -> bool:
        """Whether a shift of the sums finds a place."""
        return self.node.op_type == "Conv" or self._bias_node() is not None

    @property
    def is_stated(self) -> bool:
        """Whether the model itself says what grid the weights are on."""
        return steps_of(self.node.inputs[1]) is not None

    def _bias_node(self) -> ir.Node | None:
        uses = list(self.node.outputs[0].uses())
        follower = uses[0].node if len(uses) == 1 and not self.node.outputs[0].is_graph_output() else None
        if self.node.op_type != "MatMul" or follower is None or follower.op_type != "Add":
            return None
        constant = [array for value in follower.inputs if (array := array_of(value)) is not None]
        columns = _constant(self.node.inputs[1]).shape[-1]
        return follower if constant and _is_row(constant[0].shape, columns) else None

    def add_to_bias(self, shift: Array) -> None:
        """Adds one number to every row's bias, where there is a place for it (`has_bias`)."""
        if self.node.op_type == "Conv":
            bias = input_at(self.node, 2)
            old = np.zeros(len(shift)) if bias is None else _constant(bias).astype(np.float64)
            self._constant(2, f"{self.node.outputs[0].name}/refined_bias", old + shift, self.node)
            return
        node = self._bias_node()
        if node is not None:
            index = next(i for i, value in enumerate(node.inputs) if array_of(value) is not None)
            old = _constant(node.inputs[index]).astype(np.float64).ravel()
            self._constant(index, f"{node.outputs[0].name}/refined_bias", old + shift, node)

    def _constant(self, index: int, name: str, array: Array, node: ir.Node) -> ir.Value:
        tensor = ir.tensor(np.ascontiguousarray(array, np.float32), name=name)
        value = ir.Value(
            name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT)
        )
        graph = self.node.graph
        assert isinstance(graph, ir.Graph)
        graph.initializers[name] = value
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        node.replace_input_with(index, value)
        return value


def copy_model(model: ir.Model) -> ir.Model:
    """A copy of a model; constants are shared, and what is noted about values."""
    made = model.clone()
    for name, value in model.graph.initializers.items():
        made.graph.initializers[name].meta.update(value.meta)
    for node, twin in zip(model.graph, made.graph, strict=True):
        for value, same in zip(node.outputs, twin.outputs, strict=True):
            same.meta.update(value.meta)
    return made


def linear_layers(graph: ir.Graph) -> Iterator[LinearLayer]:
    """The layers of a graph whose weights can be put back, in order."""
    for node in graph:
        weights = array_of(input_at(node, 1))
        value = input_at(node, 0)
        shape = None if value is None else shape_of(value)
        if weights is None or shape is None or weights.dtype.kind != "f":
            continue
        attributes = attributes_of(node)
        if node.op_type == "Conv" and weights.ndim == len(shape) == 4:
            groups = attributes.get("group", 1)
            assert isinstance(groups, int)
            yield LinearLayer(node, groups)
        elif node.op_type == "MatMul" and weights.ndim == 2 and len(shape) >= 2:
            yield LinearLayer(node, 1)


def _constant(value: ir.Value | None) -> NDArray[Any]:
    array = array_of(value)
    assert array is not None
    return array


def _is_row(shape: tuple[int, ...], columns: int) -> bool:
    """Whether a constant of that shape adds one number to every column, or the same to all."""
    return math.prod(shape) == 1 or (shape[-1] == columns and math.prod(shape) == columns)


def _ints(value: Any) -> list[int]:
    return [int(item) for item in value]


def _spread(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most `most` rows, at even distances."""
    if len(rows) <= most:
        return rows
    return rows[np.arange(most) * len(rows) // most]
