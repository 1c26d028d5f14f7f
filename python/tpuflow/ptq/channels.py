"""Which channels of which values can be scaled without the network computing anything else.

Dividing channel `c` of a value by a factor `s[c]` changes nothing if what makes the value gives it divided (a
convolution, a product or a norm, whose rows of weights and biases are divided) and what reads it takes it so
(columns of weights multiplied). In between may stand what commutes with positive factors: Relu, pooling,
views. Where two values are added, or one is concatenated, their channels share factors.

A product of two computed matrices, as in attention, takes operands whose factors cancel along its sums:
scores `q k^T` stay what they are if a channel of `q` is divided by what that of `k` is multiplied with; what
shares of softmax are multiplied with, `v`, hands its factors on to the layer that reads the result.

Every channel gets a number; channels that must share a factor share the number, number 0 is the factor 1, and
`-n` is the inverse of the factor of `n`. A value's numbers stand in an array of its rank, longer than 1 along
one axis, or along several of what views and products of matrices make (heads).

    channels = Channels.of(model.graph)
    channels.ids["conv1_out"]               # [1, 64, 1, 1]
    at_ids(factors, channels.ids["k_out"])  # factors of channels, by number

Source of the idea: M. Nagel et al., "Data-free quantization through weight equalization and bias
correction", 2019; here for any graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.frontend.values import array_of, attributes_of, input_at, shape_of, steps_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Channels", "Product", "Reader", "at_ids", "note_ids"]

Ids = NDArray[np.int64]

PASSES = frozenset(
    {
        "Relu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
        "Dropout",
    }
)  # fmt: skip
"""Operators of one operand that commute with positive factors by channel and keep the axes."""

NORMS = frozenset({"LayerNormalization", "RMSNormalization"})

POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
"""Of these, those that join places, but not channels."""

SPREAD = frozenset(
    {"Div", "Flatten", "MatMul", "Mul", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results may have numbers that differ along several axes."""


@dataclass(frozen=True)
class Reader:
    """A linear layer that takes divided operands.

    Attributes:
        node: The layer.
        ids: Numbers of its operand's channels, `[channels]`.
    """

    node: ir.Node
    ids: Ids


@dataclass(frozen=True)
class Product:
    """A product of two computed matrices along whose sums factors cancel.

    Attributes:
        node: The product, of `[..., rows, k]` and `[..., k, columns]`.
        left: Numbers of the first operand, in its shape or shorter, `[..., 1, k]`.
        right: Of the second, `[..., k, 1]`.
    """

    node: ir.Node
    left: Ids
    right: Ids


def at_ids(by_number: NDArray[np.float64], ids: Ids) -> NDArray[np.float64]:
    """Factors of channels: by their numbers, inverse where these are negative."""
    found = by_number[np.abs(ids)]
    return np.where(ids < 0, 1.0 / found, found)


def note_ids(by_number: NDArray[np.float64], ids: Ids, factors: NDArray[np.float64]) -> None:
    """Writes down the factors of channels by their numbers; a number's own goes before its inverse's."""
    for chosen, own in ((ids < 0, 1.0 / factors), (ids >= 0, factors)):
        by_number[np.abs(ids[chosen])] = own[chosen]


def _with_sign(numbers: Ids, ids: Ids) -> Ids:
    """`numbers` at `ids`, with the sign of these."""
    return np.where(ids < 0, -numbers[np.abs(ids)], numbers[np.abs(ids)])


@dataclass
class Channels:
    """Numbers of all channels.

    Attributes:
        ids: By value; values without an entry are not to be scaled.
        makers: Nodes that give their output divided.
        readers: Nodes that take their operand divided.
        products: Those of two matrices whose factors cancel.
        constants: Nodes that add a constant, with the place of the constant, which is divided too.
        count: Numbers there are.
    """

    ids: dict[ir.Value, Ids] = field(default_factory=dict)
    makers: list[ir.Node] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    constants: list[tuple[ir.Node, int]] = field(default_factory=list)
    count: int = 1

    @classmethod
    def of(cls, graph: ir.Graph, fixed: Collection[str] = ()) -> Channels:
        """The channels of a graph; nodes whose names are `fixed` keep all they read and make."""
        walk = _Walk(set(fixed))
        for value in graph.inputs:
            walk.ids[value] = np.zeros((1,) * len(shape_of(value) or ()), np.int64)
        for node in graph:
            walk.visit(node)
        for value in graph.outputs:
            walk.freeze(value)
        root = np.array([walk.find(number) for number in range(len(walk.parents))])
        return cls(
            {value: _with_sign(root, ids) for value, ids in walk.ids.items() if value.name},
            walk.makers,
            [Reader(reader.node, _with_sign(root, reader.ids)) for reader in walk.readers],
            [
                Product(each.node, _with_sign(root, each.left), _with_sign(root, each.right))
                for each in walk.products
            ],
            walk.constants,
            len(root),
        )

    def members(self) -> Iterator[tuple[Ids, list[ir.Value], list[Reader], list[Product]]]:
        """Sets of channels that meet in some value: their numbers, the values, readers and products."""
        parents = list(range(self.count))

        def find(number: int) -> int:
            while parents[number] != number:
                parents[number] = parents[parents[number]]
                number = parents[number]
            return number

        used = {value: np.unique(np.abs(ids[ids != 0])) for value, ids in self.ids.items()}
        for numbers in used.values():
            for number in numbers[1:]:
                parents[find(int(number))] = find(int(numbers[0]))
        sets: dict[int, tuple[list[ir.Value], list[Reader], list[Product]]] = {}
        for value, numbers in used.items():
            if len(numbers):
                sets.setdefault(find(int(numbers[0])), ([], [], []))[0].append(value)
        for reader in self.readers:
            numbers = np.abs(reader.ids[reader.ids != 0])
            if len(numbers):
                sets.setdefault(find(int(numbers[0])), ([], [], []))[1].append(reader)
        for product in self.products:
            numbers = np.abs(product.left[product.left != 0])
            if len(numbers):
                sets.setdefault(find(int(numbers[0])), ([], [], []))[2].append(product)
        for values, readers, products in sets.values():
            if readers or products:
                numbers = np.unique(np.concatenate([used[value] for value in values]))
                yield numbers, values, readers, products


class _Walk:
    """One pass in topological order; numbers that must be equal are joined as they meet."""

    def __init__(self, fixed: set[str]) -> None:
        self.parents = [0]
        self.ids: dict[ir.Value, Ids] = {}
        self.makers: list[ir.Node] = []
        self.readers: list[Reader] = []
        self.products: list[Product] = []
        self.constants: list[tuple[ir.Node, int]] = []
        self._fixed = fixed

    def find(self, number: int) -> int:
        """The smallest number a number equals, negative where it is its inverse."""
        sign = -1 if number < 0 else 1
        number = abs(number)
        while self.parents[number] != number:
            parent = self.parents[number]
            above = self.parents[abs(parent)]
            self.parents[number] = -above if parent < 0 else above
            sign, number = (-sign if self.parents[number] < 0 else sign), abs(self.parents[number])
        return sign * number

    def join(self, a: Ids, b: Ids) -> None:
        """Numbers of two arrays that broadcast are equal, element by element."""
        left, right = np.broadcast_arrays(a, b)
        for x, y in set(zip(left.ravel().tolist(), right.ravel().tolist(), strict=True)):
            low, high = sorted((self.find(x), self.find(y)), key=abs)
            if low == -high:  # equal to its own inverse
                low = 0
            self.parents[abs(high)] = -low if high < 0 else low

    def freeze(self, value: ir.Value | None) -> None:
        """A value keeps its factors at 1."""
        if value in self.ids:
            self.join(self.ids[value], np.zeros((), np.int64))

    def fresh(self, value: ir.Value, axis: int) -> None:
        """New numbers along an axis of a value."""
        shape = shape_of(value) or ()
        channels = shape[axis]
        numbers = np.arange(len(self.parents), len(self.parents) + channels)
        self.parents.extend(numbers.tolist())
        place = [1] * len(shape)
        place[axis] = channels
        self.ids[value] = numbers.reshape(place)

    def along(self, value: ir.Value, axis: int) -> Ids | None:
        """Numbers along one axis; None if they differ along another."""
        ids, shape = self.ids[value], shape_of(value) or ()
        axis %= len(shape)
        if any(size > 1 for at, size in enumerate(ids.shape) if at != axis):
            return None
        return np.broadcast_to(ids.reshape(-1), shape[axis])

    def visit(self, node: ir.Node) -> None:
        """Numbers of what a node makes; what it cannot take scaled is frozen."""
        known = node.name not in self._fixed and all(shape_of(value) is not None for value in node.outputs)
        rule = RULES.get(node.op_type)
        if known and rule is not None and rule(self, node):
            made = self.ids[node.outputs[0]]
            if node.op_type in SPREAD or sum(size > 1 for size in made.shape) <= 1:
                return
        for value in node.inputs:
            self.freeze(value)
        for value in node.outputs:
            if value in self.ids:
                self.freeze(value)
            self.ids[value] = np.zeros((1,) * len(shape_of(value) or ()), np.int64)

    # Rules by operator: whether numbers were given to the output.

    def linear(self, node: ir.Node) -> bool:
        """A convolution or product with constant weights: fresh numbers, for operand and result apart."""
        value, weights = input_at(node, 0), array_of(input_at(node, 1))
        product = node.op_type == "MatMul"
        if product and input_at(node, 1) in self.ids:
            return self.matrix_product(node)
        if value not in self.ids or weights is None or weights.ndim != (2 if product else 4):
            return False
        bias = input_at(node, 2)
        if steps_of(input_at(node, 1)) is not None or (bias is not None and array_of(bias) is None):
            return False
        axis = -1 if product else 1
        found = self.along(value, axis)
        if found is None:
            self.freeze(value)
        else:
            self.readers.append(Reader(node, found))
        self.fresh(node.outputs[0], axis)
        self.makers.append(node)
        return True

    def matrix_product(self, node: ir.Node) -> bool:
        """A product of two computed matrices: factors cancel along its sums, or pass from the second one."""
        a, b, out = input_at(node, 0), input_at(node, 1), node.outputs[0]
        rank = len(shape_of(out) or ())
        if a not in self.ids or b not in self.ids or rank < 2:
            return False
        if any(len(shape_of(each) or ()) != rank for each in (a, b)):
            return False
        left, right = self.ids[a], self.ids[b]
        if not any(map(self.find, np.unique(left).tolist())) and right.shape[-2] == 1:
            self.ids[out] = right
            return True
        if left.shape[-2] != 1 or right.shape[-1] != 1:
            return False
        self.join(left.swapaxes(-1, -2), -right)
        self.products.append(Product(node, left, right))
        self.ids[out] = np.zeros((1,) * rank, np.int64)
        return True

    def slice_of_value(self, node: ir.Node) -> bool:
        """Part of a value: numbers follow their elements."""
        value, out = input_at(node, 0), node.outputs[0]
        starts, ends, axes, steps = (array_of(input_at(node, at)) for at in (1, 2, 3, 4))
        if value not in self.ids or starts is None or ends is None or axes is None:
            return False
        ids, rank = self.ids[value], len(shape_of(value) or ())
        taken = [slice(None)] * rank
        for at, axis in enumerate(axes.ravel().tolist()):
            if ids.shape[axis] > 1:
                step = None if steps is None else int(steps.ravel()[at])
                taken[int(axis)] = slice(int(starts.ravel()[at]), int(ends.ravel()[at]), step)
        found = ids[tuple(taken)]
        if any(size not in {1, whole} for size, whole in zip(found.shape, shape_of(out) or (), strict=True)):
            return False
        self.ids[out] = found
        return True

    def norm(self, node: ir.Node) -> bool:
        """A norm over the last axis: its gain and bias give what is divided."""
        value, out = input_at(node, 0), node.outputs[0]
        axis = attributes_of(node).get("axis", -1)
        rank = len(shape_of(out) or ())
        constants = [array_of(input_at(node, at)) for at in (1, 2) if input_at(node, at) is not None]
        if axis not in {-1, rank - 1} or any(each is None or each.ndim != 1 for each in constants):
            return False
        if len(node.outputs) > 1 or not constants:
            return False
        self.freeze(value)
        self.fresh(out, -1)
        self.makers.append(node)
        return True

    def same(self, node: ir.Node) -> bool:
        """Something of one operand that keeps the axes."""
        value = input_at(node, 0)
        if value not in self.ids or len(shape_of(value) or ()) != len(shape_of(node.outputs[0]) or ()):
            return False
        if node.op_type in POOLS and any(size > 1 for size in self.ids[value].shape[2:]):
            return False
        self.ids[node.outputs[0]] = self.ids[value]
        return len(node.outputs) == 1

    def reduction(self, node: ir.Node) -> bool:
        """A mean, sum or extremum over axes along which factors do not differ."""
        value, axes = input_at(node, 0), array_of(input_at(node, 1))
        if value not in self.ids or axes is None:
            return False
        ids, over = self.ids[value], tuple(int(axis) for axis in axes)
        if any(ids.shape[axis] > 1 for axis in over):
            return False
        keeps = attributes_of(node).get("keepdims", 1)
        self.ids[node.outputs[0]] = ids if keeps else ids.squeeze(over)
        return True

    def addition(self, node: ir.Node) -> bool:
        """A sum: equal factors on both sides; a constant is divided."""
        out = node.outputs[0]
        rank = len(shape_of(out) or ())
        places = [at for at, value in enumerate(node.inputs) if array_of(value) is None]
        values = [node.inputs[at] for at in places]
        if any(value not in self.ids or len(shape_of(value) or ()) != rank for value in values):
            return False
        if len(values) == 2:
            a, b = (self.ids[value] for value in values if value is not None)
            self.join(a, b)
            self.ids[out] = np.broadcast_arrays(a, b)[0]
            return True
        if len(values) != 1 or values[0] is None or shape_of(values[0]) != shape_of(out):
            return False
        self.ids[out] = self.ids[values[0]]
        self.constants.append((node, 1 - places[0]))
        return True

    def product(self, node: ir.Node) -> bool:
        """A product with a value of its own shape keeps that one's factors; the other's are 1."""
        a, b = node.inputs[0], node.inputs[1]
        out = node.outputs[0]
        for value, other in ((a, b), (b, a)):
            if node.op_type == "Div" and value is not a:
                continue
            if value in self.ids and shape_of(value) == shape_of(out):
                self.freeze(other)
                self.ids[out] = self.ids[value]
                return True
        return False

    def concatenation(self, node: ir.Node) -> bool:
        """Numbers beside each other, where they run along the axis, else joined."""
        out = node.outputs[0]
        rank = len(shape_of(out) or ())
        axis = attributes_of(node).get("axis", 0)
        if not isinstance(axis, int) or any(value not in self.ids for value in node.inputs):
            return False
        axis %= rank
        parts = [(self.ids[value], shape_of(value) or ()) for value in node.inputs if value is not None]
        if all(size == 1 for ids, _ in parts for at, size in enumerate(ids.shape) if at != axis):
            spread = [np.broadcast_to(ids, _only(axis, shape)) for ids, shape in parts]
            self.ids[out] = np.concatenate(spread, axis)
            return True
        for ids, _ in parts[1:]:
            if ids.shape != parts[0][0].shape:
                return False
            self.join(parts[0][0], ids)
        self.ids[out] = parts[0][0]
        return bool(parts[0][0].shape[axis] == 1)

    def transposition(self, node: ir.Node) -> bool:
        """Axes in another order."""
        value = input_at(node, 0)
        if value not in self.ids:
            return False
        order: Any = attributes_of(node).get("perm")
        self.ids[node.outputs[0]] = np.transpose(self.ids[value], order)
        return True

    def reshaping(self, node: ir.Node) -> bool:
        """Other axes: numbers follow their elements; what then differs along two axes is frozen."""
        value, out = input_at(node, 0), node.outputs[0]
        if value not in self.ids:
            return False
        shape, target = shape_of(value) or (), shape_of(out) or ()
        spread = np.broadcast_to(self.ids[value], shape).reshape(target)
        for axis in range(len(target)):
            first = spread.take([0], axis=axis)
            if target[axis] > 1 and np.array_equal(np.broadcast_to(first, spread.shape), spread):
                spread = first
        self.ids[out] = spread
        return True


def _only(axis: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if at == axis else 1 for at, size in enumerate(shape))


RULES = {
    "Conv": _Walk.linear,
    "MatMul": _Walk.linear,
    "Add": _Walk.addition,
    "Sub": _Walk.addition,
    "Mul": _Walk.product,
    "Div": _Walk.product,
    "Concat": _Walk.concatenation,
    "Slice": _Walk.slice_of_value,
    "Transpose": _Walk.transposition,
    "Reshape": _Walk.reshaping,
    "Flatten": _Walk.reshaping,
    "Squeeze": _Walk.reshaping,
    "Unsqueeze": _Walk.reshaping,
    "ReduceMean": _Walk.reduction,
    "ReduceSum": _Walk.reduction,
    "ReduceMax": _Walk.reduction,
    **dict.fromkeys(PASSES, _Walk.same),
    **dict.fromkeys(NORMS, _Walk.norm),
}
