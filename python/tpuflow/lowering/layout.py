"""Where values of the model lie in tensors of the graph, and in which order they are best stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuflow.lowering.nodes import attribute, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.registry import VIEWS, UnsupportedNodeError
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.view import Loop, View

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Run", "Shape", "StoredValue", "input_order", "natural_order", "rearrangement", "runs"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StoredValue:
    """A value of the model inside a tensor of the graph.

    Attributes:
        tensor: Index of the tensor.
        shape: The tensor's shape.
        view: How the value lies in it.
        quant: What the codes mean; None for int32 indices.
    """

    tensor: int
    shape: Shape
    view: View
    quant: Quant | None

    @property
    def grid(self) -> Quant:
        """The quantisation of an activation.

        Raises:
            UnsupportedNodeError: For integers.
        """
        if self.quant is None:
            raise UnsupportedNodeError("operand holds integers where numbers are expected")
        return self.quant

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


def rearrangement(stored: StoredValue, loops: Sequence[Loop]) -> Op:
    """The operator that writes a value out densely by the loops of its view in some order."""
    loops = loops or ((1, 1),)
    return Op.rearrange(
        input=stored.tensor,
        dims=[extent for extent, _ in loops],
        strides=[stride for _, stride in loops],
        offset=stored.view.offset,
    )


def natural_order(view: View) -> Shape:
    """The axis order in which a view walks through its tensor; axes that do not move come first."""
    stride = [max((step for _, step in loops), default=0) for loops in view.axes]
    moves = [bool(loops) and stride[axis] > 0 for axis, loops in enumerate(view.axes)]
    return tuple(sorted(range(len(view.axes)), key=lambda a: (moves[a], -stride[a], a)))


@dataclass(frozen=True)
class Run:
    """Axes of a value that lie together in axes of its tensor, both outermost first.

    Attributes:
        axes: Axes of the value.
        places: Axes of the tensor, of as many elements.
    """

    axes: Shape
    places: Shape


def runs(stored: StoredValue, order: Sequence[int]) -> list[Run] | None:
    """The shortest runs of a value that is dense in `order` and the whole tensor; None where it is not.

    Tokens that are the pixels of an image and heads that are parts of its channels are two runs:
    `[heads, d, tokens]` in `[h, w, heads d]`.
    """
    extents = stored.view.shape
    if stored.view != View.dense(extents, order):
        return None
    found: list[Run] = []
    axes_left, places_left = list(order), list(range(len(stored.shape)))
    while axes_left or places_left:
        axes = [axes_left.pop(0)] if axes_left else []
        places = [] if axes else [places_left.pop(0)]
        while (a := math.prod(extents[k] for k in axes)) != (b := math.prod(stored.shape[k] for k in places)):
            short, left = (axes, axes_left) if a < b else (places, places_left)
            if not left:
                return None
            short.append(left.pop(0))
        found.append(Run(tuple(axes), tuple(places)))
    return found


CHANNELS_LAST = frozenset(
    {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize",
     "DepthToSpace", "SpaceToDepth"}
)  # fmt: skip
"""Operators that read `[n, c, h, w]` as `[n, h, w, c]`."""


def input_order(value: ir.Value) -> Shape:
    """The axis order in which to store a value that has none yet: what the first consumer that cares wants.

    Consumers are asked depth first, without recursion: networks may be deeper than Python's stack. Behind a
    Transpose nobody else is asked: dense behind it is better than dense in front of it.
    """
    order = tuple(range(len(shape_of(value))))
    met = {value}
    waiting = [(use.node, use.idx, order) for use in value.uses()][::-1]
    while waiting:
        node, index, axes = waiting.pop()
        if node.op_type in CHANNELS_LAST and len(axes) == 4 and index == 0:
            return tuple(axes[axis] for axis in (0, 2, 3, 1))
        if node.op_type == "Transpose":
            order = axes = tuple(axes[axis] for axis in attribute(node, "perm", range(len(axes))[::-1]))
            waiting = []
        elif not _keeps_order(node, len(axes)):
            continue
        made = node.outputs[0]
        if made not in met:
            met.add(made)
            waiting += [(use.node, use.idx, axes) for use in made.uses()][::-1]
    return order


def _keeps_order(node: ir.Node, rank: int) -> bool:
    """Whether what a node makes of a value is best stored in the order of that value."""
    return (
        bool(node.outputs)
        and node.op_type not in VIEWS
        and node.op_type not in {"MatMul", "Softmax"}
        and len(shape_of(node.outputs[0])) == rank
    )
