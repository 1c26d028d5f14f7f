"""Constraints of ONNX on the shapes of operands: they fit each other, and the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.constraints.indices import Constraint, Objection, shaped
from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

__all__ = [
    "blocks",
    "bounds",
    "concat",
    "dft",
    "elementwise",
    "gemm",
    "groups",
    "padding",
    "per_channel",
    "positions",
    "recurrent",
    "region",
    "repeats",
    "resize",
    "same_size",
    "scaled_axes",
    "steps",
    "to_first",
]


def per_channel(*indices: int) -> Constraint:
    """These inputs hold one number per channel."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        x = shape_of(input_at(node, 0))
        if x is None:
            return
        if len(x) < 2:
            yield "input 0", f"has the shape {list(x)}: batch and channels are needed"
            return
        for index in indices:
            shape = shape_of(input_at(node, index))
            if shape is not None and shape != (x[1],):
                yield (
                    f"input {index}",
                    f"has the shape {list(shape)}, not one number for each of {x[1]} channels",
                )

    return constraint


def groups(node: ir.Node) -> Iterator[Objection]:
    """Groups divide the channels, and scale and bias hold one number for each of either."""
    x, count = shape_of(input_at(node, 0)), node.attributes.get_int("num_groups", 1)
    if x is None:
        return
    if len(x) < 3 or x[1] % count:
        yield "num_groups", f"{count} does not divide the channels of the shape {list(x)}"
        return
    for index in (1, 2):
        shape = shape_of(input_at(node, index))
        if shape is not None and shape not in {(x[1],), (count,)}:
            yield f"input {index}", f"has the shape {list(shape)}, not one number for each of {x[1]} channels"


def scaled_axes(node: ir.Node) -> Iterator[Objection]:
    """Scale and bias of a norm broadcast to the axes it runs over, of which there is one at least."""
    x = shape_of(input_at(node, 0))
    if x is None:
        return
    if not x:
        yield "input 0", "has no axes"
        return
    axis = node.attributes.get_int("axis", -1)
    rest = x[axis % max(len(x), 1) :]
    for index in (1, 2):
        yield from broadcasts(node, index, rest)


def broadcasts(node: ir.Node, index: int, to: Sequence[int]) -> Iterator[Objection]:
    shape = shape_of(input_at(node, index))
    if shape is None:
        return
    lead = len(to) - len(shape)
    if lead < 0 or any(a not in (1, b) for a, b in zip(shape, to[lead:], strict=True)):
        yield f"input {index}", f"the shape {list(shape)} does not broadcast to {list(to)}"


def to_first(index: int) -> Constraint:
    """This input broadcasts to the first."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        x = shape_of(input_at(node, 0))
        if x is not None and (node.version is None or node.version >= 7):
            yield from broadcasts(node, index, x)

    return constraint


def bounds(node: ir.Node) -> Iterator[Objection]:
    """The bounds of a Clip are single numbers."""
    for index in (1, 2):
        shape = shape_of(input_at(node, index))
        if shape is not None and math.prod(shape) != 1:
            yield f"input {index}", f"must be one number, has the shape {list(shape)}"


def steps(node: ir.Node) -> Iterator[Objection]:
    """One scale, one by index of an axis, or one by block; zero points alike."""
    x, scale = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    zero, steps = shape_of(input_at(node, 2)), array_of(input_at(node, 1))
    if steps is not None and steps.dtype.kind == "f":
        # A channel of weights that are all zero may have steps of zero, but nothing is divided by them.
        stored = node.op_type == "DequantizeLinear" and array_of(input_at(node, 0)) is not None
        if not np.all(np.isfinite(steps)) or np.any(steps < 0) or (not stored and np.any(steps == 0)):
            yield "input 1", "a scale is not a finite number above 0"
            return
    if x is None or scale is None:
        return
    if zero is not None and zero != scale and math.prod(zero) * math.prod(scale) != 1:
        yield "input 2", f"zero points of the shape {list(zero)} do not fit scales of the shape {list(scale)}"
    if math.prod(scale) == 1:
        return
    axis = node.attributes.get_int("axis", 1)
    if len(scale) == 1:
        if not -len(x) <= axis < len(x) or x[axis] != scale[0]:
            yield "input 1", f"{scale[0]} scales do not fit axis {axis} of the shape {list(x)}"
    elif not fits_blocks(scale, x, node):
        yield "input 1", f"scales of the shape {list(scale)} do not fit the shape {list(x)}"


def fits_blocks(scale: Sequence[int], x: Sequence[int], node: ir.Node) -> bool:
    """Whether scales are by element along some axes, or by block along one."""
    if len(scale) != len(x):
        return False
    blocked = node.attributes.get_int("block_size", 0)
    axis = node.attributes.get_int("axis", 1) % len(x)
    return all(
        size in (1, extent) or (blocked > 0 and index == axis and size == -(-extent // blocked))
        for index, (size, extent) in enumerate(zip(scale, x, strict=True))
    )


def recurrent(node: ir.Node) -> Iterator[Objection]:
    """Weights of as many gates, directions and states as the operator has."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    x, w, r = (shape_of(input_at(node, index)) for index in (0, 1, 2))
    if x is None or w is None or r is None:
        return
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    if len(x) != 3 or len(r) != 3:
        yield "input 0", f"has the shape {list(x)}: time, batch and features are needed"
        return
    hidden = node.attributes.get_int("hidden_size", r[2])
    wanted: dict[int, tuple[int, ...] | None] = {
        1: (directions, gates * hidden, x[2]),
        2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden),
        7: (directions, 3 * hidden) if node.op_type == "LSTM" else None,
    }
    layout = node.attributes.get_int("layout", 0)
    batch = x[0] if layout else x[1]
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    wanted |= {4: (batch,), 5: state, 6: state if node.op_type == "LSTM" else None}
    for index, shape in wanted.items():
        given = shape_of(input_at(node, index))
        if shape is not None and given is not None and given != shape:
            yield f"input {index}", f"has the shape {list(given)}, {list(shape)} is needed"


def positions(node: ir.Node) -> Iterator[Objection]:
    """One position, of as many coordinates as images have axes, for each point of each image of the batch."""
    x, grid = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if x is None or grid is None:
        return
    if len(x) < 3 or len(grid) != len(x) or grid[0] != x[0] or grid[-1] != len(x) - 2:
        yield "input 1", f"positions of the shape {list(grid)} do not fit images of the shape {list(x)}"


def blocks(node: ir.Node) -> Iterator[Objection]:
    """Blocks divide the channels, or the rows and columns."""
    x, size = shape_of(input_at(node, 0)), node.attributes.get_int("blocksize", 1)
    if x is None:
        return
    if len(x) != 4:
        yield "input 0", f"must have 4 axes, has the shape {list(x)}"
    elif (node.op_type == "DepthToSpace" and x[1] % size**2) or (
        node.op_type == "SpaceToDepth" and (x[2] % size or x[3] % size)
    ):
        yield "blocksize", f"{size} does not divide the shape {list(x)}"


def padding(node: ir.Node) -> Iterator[Objection]:
    """Pads say how many elements precede and follow each axis."""
    x, pads = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if pads is None and "pads" in node.attributes:
        pads = list(node.attributes.get_ints("pads", []))
    axes = integers_of(input_at(node, 3))
    if x is None or pads is None:
        return
    if axes is not None and any(not -len(x) <= axis < len(x) for axis in axes):
        yield "input 3", f"{axes} are not axes of the shape {list(x)}"
        return
    places = list(range(len(x))) if axes is None else [axis % len(x) for axis in axes]
    if len(pads) != 2 * len(places):
        yield "input 1", f"{len(pads)} pads are given, {2 * len(places)} are needed"
        return
    mode = node.attributes.get_string("mode", "constant")
    for index, axis in enumerate(places):
        before, after = pads[index], pads[index + len(places)]
        if x[axis] + before + after < 0:
            yield "input 1", f"the pads {pads} leave nothing of the shape {list(x)}"
        if mode == "reflect" and max(before, after) >= max(x[axis], 1) and max(before, after) > 0:
            yield "input 1", f"the pads {pads} reflect more than the shape {list(x)} has"
        if mode in {"edge", "wrap"} and x[axis] == 0 and max(before, after) > 0:
            yield "input 1", "an axis without elements has no edge"
    fill = shape_of(input_at(node, 2))
    if fill is not None and math.prod(fill) != 1:
        yield "input 2", f"must be one number, has the shape {list(fill)}"


def resize(node: ir.Node) -> Iterator[Objection]:
    """Scales and sizes have one entry for each axis that is resized."""
    x = shape_of(input_at(node, 0))
    if x is None or (node.op_type == "Resize" and node.version is not None and node.version < 11):
        return
    axes = node.attributes.get_ints("axes", None)
    if axes and any(not -len(x) <= axis < len(x) for axis in axes):
        yield "axes", f"{list(axes)} are not axes of the shape {list(x)}"
        return
    count = len(axes) if axes else len(x)
    given = [array_of(input_at(node, index)) for index in ((2, 3) if node.op_type == "Resize" else (1,))]
    for index, array in enumerate(given, start=2 if node.op_type == "Resize" else 1):
        if array is None or not array.size:
            continue
        if array.shape != (count,):
            yield f"input {index}", f"has the shape {list(array.shape)}, {count} numbers are needed"
        elif not np.all(np.isfinite(array)) or np.any(array <= 0):
            yield f"input {index}", f"{array.ravel().tolist()} are not all positive"
    if (
        node.op_type == "Resize"
        and len(node.inputs) > 2
        and not any(
            value is not None and ((sizes := array_of(value)) is None or sizes.size)
            for value in node.inputs[2:4]
        )
    ):
        yield "input 2", "neither scales nor sizes are given"


LARGEST_PART = 1e6
"""Bounds of a part, in sizes of the whole, are far less: positions are counted in float32."""


def region(node: ir.Node) -> Iterator[Objection]:
    """The part of an operand that is resized has finite bounds, in one row."""
    roi = array_of(input_at(node, 1))
    if roi is not None and roi.size and roi.ndim != 1:
        yield "input 1", f"has the shape {list(roi.shape)}, one row of numbers is needed"
    if roi is not None and roi.dtype.kind == "f" and not np.all(np.abs(roi) < LARGEST_PART):
        yield "input 1", f"{roi.ravel().tolist()} are not all below {LARGEST_PART:g} and finite"


def dft(node: ir.Node) -> Iterator[Objection]:
    """A Fourier transform runs over an axis in front of that of real and imaginary parts."""
    x, axes = shape_of(input_at(node, 0)), integers_of(input_at(node, 2))
    if x is None:
        return
    axis = node.attributes.get_int("axis", axes[0] if axes else 0)
    if len(x) < 2 or x[-1] not in (1, 2):
        yield "input 0", f"has the shape {list(x)}: the last axis holds one or two parts"
    elif not -len(x) <= axis < len(x) or axis % len(x) == len(x) - 1:
        yield "axis", f"{axis} is not an axis of the shape {list(x)} in front of the last"


def concat(node: ir.Node) -> Iterator[Objection]:
    """Operands of a concatenation have the same shape, but for the axis."""
    shapes = [shape_of(value) for value in node.inputs]
    first = next((shape for shape in shapes if shape is not None), None)
    if first is None:
        return
    axis = node.attributes.get_int("axis", 0) % max(len(first), 1)
    for index, shape in enumerate(shapes):
        if shape is not None and (len(shape) != len(first) or without(shape, axis) != without(first, axis)):
            yield f"input {index}", f"the shape {list(shape)} does not fit {list(first)} but for axis {axis}"


def without(shape: Sequence[int], axis: int) -> Sequence[int]:
    return (*shape[:axis], *shape[axis + 1 :])


def same_size(node: ir.Node) -> Iterator[Objection]:
    """A reshaped tensor has as many elements as its operand."""
    x, result = shape_of(input_at(node, 0)), shape_of(node.outputs[0])
    if x is not None and result is not None and math.prod(x) != math.prod(result):
        yield "input 1", f"the shape {list(result)} has another number of elements than {list(x)}"


def elementwise(node: ir.Node) -> Iterator[Objection]:
    """Operands broadcast to each other, and make what the node says it makes."""
    shapes = [shape_of(value) for value in node.inputs if value is not None]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or "broadcast" in node.attributes:
        return
    try:
        made = np.broadcast_shapes(*known)
    except ValueError:
        yield None, f"the shapes {' and '.join(str(list(shape)) for shape in known)} do not broadcast"
        return
    result = shape_of(node.outputs[0])
    if result is not None and result != made:
        yield None, f"its output has the shape {list(result)}, its inputs broadcast to {list(made)}"


def gemm(node: ir.Node) -> Iterator[Objection]:
    """The addend of a product of matrices broadcasts to it."""
    result = shape_of(node.outputs[0])
    if result is not None and node.version is not None and node.version >= 7:
        yield from broadcasts(node, 2, result)


def repeats(node: ir.Node) -> Iterator[Objection]:
    """Repeats of a Tile have one entry for each axis."""
    x, repeats = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if (
        x is not None
        and repeats is not None
        and (len(repeats) != len(x) or any(each < 0 for each in repeats))
    ):
        yield "input 1", f"{repeats} does not say how often each axis of {shaped(x)} repeats"
