"""One form for operators that only move elements, and none that move nothing.

    Flatten, Squeeze, Unsqueeze, Reshape with 0 or -1  ->  Reshape to the full shape
    Transpose that moves only axes of size 1           ->  Reshape
    Reshape(Reshape), Transpose(Transpose)             ->  one
    Split, Gather of evenly spaced indices             ->  Slice
    Slice, Pad, Gather, Concat                         ->  axes and bounds stated, counted from the front
    Identity, Dropout, Expand to the same shape, ...   ->  gone

An operator over one input that works element by element is moved in front of a Reshape, so that it meets
the operator it can be fused with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.rewrite import may_become_output
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    input_at,
    integers_of,
    produced_by,
    scalar_of,
    shape_of,
    sole_user,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["AT_THE_END", "RULES", "SINKING"]


def identity(node: ir.Node, emit: Emitter) -> Sequence[ir.Value] | None:
    """Drops an operator that passes its first input on, but for an Identity an output needs."""
    del emit
    x = node.inputs[0]
    rest = [output for output in node.outputs[1:] if output.uses() or output.is_graph_output()]
    training = node.op_type == "Dropout" and input_at(node, 2) is not None
    if x is None or rest or (training and scalar_of(input_at(node, 2)) != 0.0):
        return None
    if node.op_type == "Identity" and node.outputs[0].is_graph_output() and not may_become_output(x):
        return None
    return [x] * len(node.outputs)


def output_reshape(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Makes the Identity an output needs a Reshape, so that Identity need not be supported."""
    y = shape_of(node.outputs[0])
    return None if node.inputs[0] is None or y is None else emit.reshape(node.inputs[0], y, "shape")


def same_shape(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops an operator that would change the shape but does not (a graph output keeps a Reshape)."""
    del emit
    x, y = node.inputs[0], node.outputs[0]
    return x if x is not None and shape_of(x) is not None and shape_of(x) == shape_of(y) else None


def plain_reshape(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Makes any operator that keeps the order of elements a Reshape to a stated shape."""
    x, y = node.inputs[0], shape_of(node.outputs[0])
    if x is None or y is None:
        return None
    source = produced_by(x, "Reshape")
    if source is not None and source.inputs[0] is not None:
        return emit.reshape(source.inputs[0], y, "shape")
    if node.op_type == "Reshape" and integers_of(input_at(node, 1)) == list(y) and not node.attributes:
        return None
    return emit("Reshape", x, emit.integers(y, "shape"))


def plain_transpose(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Merges transposes, and drops those that change nothing."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if x is None or shape is None or shape_of(node.outputs[0]) is None:
        return None
    perm = list(node.attributes.get_ints("perm", []) or reversed(range(len(shape))))
    inner = produced_by(x, "Transpose")
    if inner is not None and inner.inputs[0] is not None:
        first = list(inner.attributes.get_ints("perm", []) or reversed(range(len(shape))))
        return emit("Transpose", inner.inputs[0], attributes={"perm": [first[axis] for axis in perm]})
    moving = [axis for axis in perm if shape[axis] != 1]
    if perm == sorted(perm):
        return x
    if moving == sorted(moving):
        return emit.reshape(x, [shape[axis] for axis in perm], "shape")
    return None if "perm" in node.attributes else emit("Transpose", x, attributes={"perm": perm})


def split(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Replaces a Split by one Slice per part."""
    x = node.inputs[0]
    shape = shape_of(x)
    if x is None or shape is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    sizes = list(node.attributes.get_ints("split", [])) or integers_of(input_at(node, 1))
    if not sizes:
        if input_at(node, 1) is not None:
            return None
        part = math.ceil(shape[axis] / len(node.outputs))
        sizes = [part] * (len(node.outputs) - 1)
        sizes.append(shape[axis] - sum(sizes))
    if sum(sizes) != shape[axis] or len(sizes) != len(node.outputs):
        return None
    bounds = [0, *np.cumsum(sizes).tolist()]
    return [
        _slice(x, {axis: (bounds[k], bounds[k + 1], 1)}, f"part{k}", emit) for k in range(len(node.outputs))
    ]


def _slice(x: ir.Value, ranges: dict[int, tuple[int, int, int]], label: str, emit: Emitter) -> ir.Value:
    axes = sorted(ranges)
    parts = [
        emit.integers([ranges[axis][k] for axis in axes], f"{label}_{name}")
        for k, name in enumerate(("starts", "ends", "steps"))
    ]
    return emit("Slice", x, parts[0], parts[1], emit.integers(axes, f"{label}_axes"), parts[2], label=label)


def plain_slice(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States starts, ends, axes and steps within the bounds of the axes, and drops axes taken whole."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if (
        x is None
        or shape is None
        or any(value is not None and array_of(value) is None for value in node.inputs[1:])
    ):
        return None
    starts, ends = integers_of(input_at(node, 1)), integers_of(input_at(node, 2))
    if starts is None or ends is None or shape_of(node.outputs[0]) is None:
        return None
    axes = integers_of(input_at(node, 3)) or list(range(len(starts)))
    steps = integers_of(input_at(node, 4)) or [1] * len(starts)
    ranges = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis]
        indices = range(size)[slice(start, end, step)]
        if step == 1 and len(indices) == size:
            continue
        stop = indices.stop if step > 0 or indices.stop >= 0 else -size - 1
        ranges[axis % len(shape)] = (indices.start, stop, step)
    if not ranges:
        return x
    wanted = [[ranges[axis][k] for axis in sorted(ranges)] for k in range(3)]
    if [starts, ends, steps, axes] == [*wanted, sorted(ranges)] and input_at(node, 4) is not None:
        return None
    return _slice(x, ranges, "slice", emit)


def gather(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes constant indices: evenly spaced ones are a Slice, others are counted from the front."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    indices = array_of(node.inputs[1])
    if x is None or shape is None or y is None or indices is None or indices.size == 0:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if not -shape[axis] <= indices.min() <= indices.max() < shape[axis]:
        return None
    places = np.where(indices < 0, indices + shape[axis], indices).astype(np.int64)
    steps = np.unique(np.diff(places.ravel()))
    if places.size == 1 or (steps.size == 1 and steps[0] > 0):
        step = int(steps[0]) if steps.size else 1
        first, last = int(places.flat[0]), int(places.flat[-1])
        part = _slice(x, {axis: (first, last + 1, step)}, "slice", emit)
        return part if shape_of(part) == y else emit.reshape(part, y, "shape")
    if places.ndim == 1 and np.array_equal(places, indices) and node.attributes.get_int("axis", 0) == axis:
        return None
    taken = emit("Gather", x, emit.integers(places.ravel().tolist(), "indices"), attributes={"axis": axis})
    return taken if places.ndim == 1 else emit.reshape(taken, y, "shape")


def sliced_concat(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """A Slice of whole operands of a Concat: these operands."""
    joined = produced_by(node.inputs[0], "Concat")
    starts, ends, axes, steps = (integers_of(input_at(node, place)) for place in (1, 2, 3, 4))
    whole = None if joined is None else shape_of(joined.outputs[0])
    if joined is None or whole is None or not starts or not ends or not axes or len(axes) > 1:
        return None
    axis = joined.attributes.get_int("axis", 0) % len(whole)
    if axes[0] % len(whole) != axis or (steps or [1]) != [1]:
        return None
    first, last, _ = slice(starts[0], ends[0]).indices(whole[axis])
    kept, at = [], 0
    for value in joined.inputs:
        shape = shape_of(value)
        if value is None or shape is None:
            return None
        if first <= at and at + shape[axis] <= last:
            kept.append(value)
        elif at < last and first < at + shape[axis]:
            return None
        at += shape[axis]
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else emit("Concat", *kept, attributes={"axis": axis})


def plain_concat(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops empty operands, and a Concat of one."""
    shapes = [shape_of(value) for value in node.inputs]
    y = shape_of(node.outputs[0])
    if y is None or any(shape is None for shape in shapes):
        return None
    axis = node.attributes.get_int("axis", 0)
    full = [value for value, shape in zip(node.inputs, shapes, strict=True) if 0 not in (shape or ())]
    if len(full) == 1 and full[0] is not None:
        return full[0]
    if len(full) == len(node.inputs) and axis >= 0:
        return None
    return emit("Concat", *full, attributes={"axis": axis % len(y)}) if full else None


def plain_pad(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States the pads of all axes; drops a Pad of nothing; negative pads become a Slice."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    given, axes = integers_of(input_at(node, 1)), input_at(node, 3)
    if x is None or shape is None or given is None or shape_of(node.outputs[0]) is None:
        return None
    rank = len(shape)
    over = list(range(rank)) if axes is None else integers_of(axes)
    if over is None:
        return None
    pads = [0] * (2 * rank)
    for k, axis in enumerate(over):
        pads[axis % rank], pads[axis % rank + rank] = given[k], given[k + len(over)]
    if not any(pads):
        return x
    mode, value = node.attributes.get_string("mode", "constant"), input_at(node, 2)
    if min(pads) < 0:
        ranges = {
            axis: (max(0, -pads[axis]), shape[axis] - max(0, -pads[axis + rank]), 1)
            for axis in range(rank)
            if min(pads[axis], pads[axis + rank]) < 0
        }
        x = _slice(x, ranges, "crop", emit)
        pads = [max(0, pad) for pad in pads]
        if not any(pads):
            return x
    elif axes is None and (mode != "constant" or value is not None):
        return None
    if mode == "constant" and value is None:
        value = emit.constant(0.0, "value", like=x)
    attributes = {"mode": mode or "constant"}
    return emit("Pad", x, emit.integers(pads, "pads"), value, attributes=attributes)


def plain_expand(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States the shape an Expand leads to."""
    y, stated = shape_of(node.outputs[0]), integers_of(input_at(node, 1))
    if y is None or stated is None or stated == list(y):
        return None
    return emit("Expand", node.inputs[0], emit.integers(y, "shape"))


def needless_expand(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Lets an operator broadcast by itself what an Expand in front of it broadcasts.

    Leading axes of size 1 that only the Expand adds become those of a Reshape.
    """
    y = shape_of(node.outputs[0])
    for index, value in enumerate(node.inputs):
        expand = produced_by(value, "Expand")
        source = None if expand is None else expand.inputs[0]
        if source is None or y is None:
            continue
        operands = [*node.inputs[:index], source, *node.inputs[index + 1 :]]
        shapes = [shape for operand in operands if (shape := shape_of(operand)) is not None]
        if len(shapes) < len(operands):
            continue
        broadcast = np.broadcast_shapes(*shapes)
        if (1,) * (len(y) - len(broadcast)) + broadcast != y:
            continue
        if len(broadcast) < len(y):
            own = shapes[index]
            operands[index] = emit.reshape(source, (1,) * (len(y) - len(own)) + own, "shape")
        return emit(node.op_type, *operands)
    return None


def cast(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops a Cast to the same type, and between integers that only pick table rows."""
    del emit
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.dtype is None:
        return None
    if x.dtype == node.attributes.get_int("to", 0):
        return x
    indices = all(use.node.op_type == "Gather" and use.idx == 1 for use in y.uses())
    wide = {ir.DataType.INT32, ir.DataType.INT64}
    if x.dtype in wide and y.dtype in wide and y.uses() and indices and not y.is_graph_output():
        return x
    return None


def move_before_reshape(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Moves an elementwise operator of one input in front of a Reshape only it reads."""
    reshape = produced_by(node.inputs[0], "Reshape")
    if reshape is None or node.inputs[0] is None or not sole_user(node.inputs[0]) or len(node.outputs) > 1:
        return None
    source, y = reshape.inputs[0], shape_of(node.outputs[0])
    if (
        source is None
        or y is None
        or produced_by(source, "Conv", "ConvTranspose", "MaxPool", "AveragePool") is None
    ):
        return None
    attributes = attributes_of(node)
    inner = emit(node.op_type, source, *node.inputs[1:], attributes=attributes, domain=node.domain)
    return emit.reshape(inner, y, "shape")


ELEMENTWISE = (
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "HardSwish",
    "Gelu",
    "Mish",
    "Elu",
    "Silu",
)

RULES: Rules = {
    "Identity": [identity],
    "Dropout": [identity],
    "Cast": [cast],
    "Flatten": [same_shape, plain_reshape],
    "Squeeze": [same_shape, plain_reshape],
    "Unsqueeze": [same_shape, plain_reshape],
    "Reshape": [same_shape, plain_reshape],
    "Transpose": [plain_transpose],
    "Split": [split],
    "Slice": [sliced_concat, plain_slice],
    "Gather": [gather],
    "Concat": [plain_concat],
    "Pad": [plain_pad],
    "Expand": [same_shape, plain_expand],
    "Tile": [same_shape],
    **{name: [needless_expand] for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Where")},
}

AT_THE_END: Rules = {"Identity": [output_reshape]}

SINKING: Rules = {name: [move_before_reshape] for name in ELEMENTWISE}
