"""Operators that move elements or compute with shapes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tpuflow.importers.graphdef.conversion import Context, ConversionError, converts
from tpuflow.importers.graphdef.messages import Message

__all__: list[str] = []

FARTHEST = np.iinfo(np.int64).max


@converts("Reshape", "ExpandDims", "Tile")
def with_integers(context: Context, node: Message) -> str:
    operator = {"Reshape": "Reshape", "ExpandDims": "Unsqueeze", "Tile": "Tile"}[node.op]
    target = context.int64(node, 1, "integers")
    return context.emit(operator, [context.inputs_of(node)[0], target], f"{node.name}:0")


@converts("Squeeze")
def squeeze(context: Context, node: Message) -> str:
    axes = context.integers(node, "squeeze_dims") or context.integers(node, "axis")
    inputs = context.inputs_of(node)
    if axes:
        inputs.append(context.value(f"{node.name}/axes", np.array(axes, np.int64)))
    return context.emit("Squeeze", inputs, f"{node.name}:0")


@converts("Transpose")
def transpose(context: Context, node: Message) -> str:
    perm = context.require_constant(node, 1, "the permutation")
    return context.emit("Transpose", context.inputs_of(node)[:1], f"{node.name}:0", perm=perm.tolist())


@converts("Concat", "ConcatV2")
def concatenation(context: Context, node: Message) -> str:
    place = 0 if node.op == "Concat" else -1
    axis = int(context.require_constant(node, place, "the axis"))
    inputs = context.inputs_of(node)
    inputs.pop(place)
    return context.emit("Concat", inputs, f"{node.name}:0", axis=axis)


@converts("Split", "SplitV")
def split(context: Context, node: Message) -> str:
    by_sizes = node.op == "SplitV"
    axis = int(context.require_constant(node, 2 if by_sizes else 0, "the axis"))
    parts = context.integer(node, "num_split", 1)
    names = [f"{node.name}:{index}" for index in range(parts)]
    inputs = context.inputs_of(node)
    if not by_sizes:
        return context.emit("Split", [inputs[1]], names, axis=axis, num_outputs=parts)
    sizes = context.require_constant(node, 1, "the sizes")
    if (sizes < 0).any():
        whole = context.sizes(inputs[0])
        length = whole[axis] if whole else None
        if length is None:
            raise ConversionError("one of the sizes is left open, and the length of the axis is not known")
        sizes = np.where(sizes < 0, length - sizes[sizes >= 0].sum(), sizes)
    given = context.value(f"{node.name}/sizes", sizes.astype(np.int64))
    return context.emit("Split", [inputs[0], given], names, axis=axis)


@converts("Pack")
def pack(context: Context, node: Message) -> str:
    axis = context.integer(node, "axis", 0)
    where = context.value(f"{node.name}/axis", np.array([axis], np.int64))
    rows = [
        context.emit("Unsqueeze", [name, where], f"{node.name}/row{index}")
        for index, name in enumerate(context.inputs_of(node))
    ]
    return context.emit("Concat", rows, f"{node.name}:0", axis=axis)


@converts("Unpack")
def unpack(context: Context, node: Message) -> str:
    axis, count = context.integer(node, "axis", 0), context.integer(node, "num", 1)
    where = context.value(f"{node.name}/axis", np.array([axis], np.int64))
    rows = [f"{node.name}/row{index}" for index in range(count)]
    context.emit("Split", context.inputs_of(node), rows, axis=axis, num_outputs=count)
    names = [context.emit("Squeeze", [row, where], f"{node.name}:{index}") for index, row in enumerate(rows)]
    return names[0]


@converts("Shape")
def shape(context: Context, node: Message) -> str:
    wanted, last = context.onnx_type(node, "out_type", 3), f"{node.name}:0"
    name = last if wanted == TensorProto.INT64 else f"{node.name}/shape"
    found = context.emit("Shape", context.inputs_of(node), name)
    return found if found == last else context.emit("Cast", [found], last, to=wanted)


@converts("Fill")
def fill(context: Context, node: Message) -> str:
    target = context.int64(node, 0, "shape")
    return context.emit("Expand", [context.inputs_of(node)[1], target], f"{node.name}:0")


@converts("BroadcastTo")
def broadcast(context: Context, node: Message) -> str:
    target = context.int64(node, 1, "shape")
    return context.emit("Expand", [context.inputs_of(node)[0], target], f"{node.name}:0")


@converts("Range")
def ramp(context: Context, node: Message) -> str:
    return context.emit("Range", context.inputs_of(node), f"{node.name}:0")


@converts("Gather", "GatherV2")
def gather(context: Context, node: Message) -> str:
    axis = int(context.require_constant(node, 2, "the axis")) if node.op == "GatherV2" else 0
    if context.integer(node, "batch_dims", 0):
        raise ConversionError("batch_dims is not supported")
    return context.emit("Gather", context.inputs_of(node)[:2], f"{node.name}:0", axis=axis)


@converts("Pad", "PadV2", "MirrorPad")
def pad(context: Context, node: Message) -> str:
    pads = context.require_constant(node, 1, "the paddings")
    options = {}
    if node.op == "MirrorPad":
        mode = context.word(node, "mode", "REFLECT")
        if mode == "SYMMETRIC" and pads.max(initial=0) > 1:
            raise ConversionError("mode SYMMETRIC is only supported for one element at each border")
        options["mode"] = "edge" if mode == "SYMMETRIC" else "reflect"
    inputs = context.inputs_of(node)
    given = [context.value(f"{node.name}/pads", pads.astype(np.int64).T.ravel())]
    if node.op == "PadV2":
        given.append(inputs[2])
    return context.emit("Pad", [inputs[0], *given], f"{node.name}:0", **options)


@converts("Slice")
def cut(context: Context, node: Message) -> str:
    begin, size = (
        np.int64(context.require_constant(node, i, what)) for i, what in ((1, "begin"), (2, "size"))
    )
    ends = np.where(size < 0, FARTHEST, begin + size)
    parts = {"starts": begin, "ends": ends, "axes": np.arange(begin.size)}
    given = [context.value(f"{node.name}/{name}", np.int64(array)) for name, array in parts.items()]
    return context.emit("Slice", [context.inputs_of(node)[0], *given], f"{node.name}:0")


@converts("StridedSlice")
def strided_slice(context: Context, node: Message) -> str:
    """An index expression: bounds per axis, `...`, new axes, single elements.

    Axes behind `...` are counted from the end, so that the number of axes need not be known.
    """
    lists = [
        context.require_constant(node, index, what)
        for index, what in enumerate(("begin", "end", "strides"), 1)
    ]
    begin, end, strides = (array.astype(np.int64).tolist() for array in lists)
    masks = {
        name: context.integer(node, f"{name}_mask", 0)
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def said(mask: str, place: int) -> bool:
        return bool(masks[mask] >> place & 1)

    count = len(begin)
    gap = next((place for place in range(count) if said("ellipsis", place)), None)
    slices: list[tuple[int, int, int, int]] = []
    dropped: list[int] = []
    added: list[int] = []
    for place in range(count):
        if place == gap:
            continue
        behind = gap is not None and place > gap
        kept = [p for p in range(count) if p != gap and not said("new_axis", p)]
        made = [p for p in range(count) if p != gap and not said("shrink_axis", p)]
        axis = kept.index(place) - len(kept) if behind and place in kept else sum(p < place for p in kept)
        if said("new_axis", place):
            added.append(made.index(place) - len(made) if behind else sum(p < place for p in made))
            continue
        if said("shrink_axis", place):
            start = begin[place]
            slices.append((start, start + 1 if start != -1 else FARTHEST, axis, 1))
            dropped.append(axis)
            continue
        step = strides[place]
        start = (0 if step > 0 else FARTHEST) if said("begin", place) else begin[place]
        stop = (FARTHEST if step > 0 else -FARTHEST) if said("end", place) else end[place]
        if (start, stop, step) != (0, FARTHEST, 1):
            slices.append((start, stop, axis, step))
    x = context.inputs_of(node)[0]
    if slices:
        columns = zip(("starts", "ends", "axes", "steps"), zip(*slices, strict=True), strict=True)
        given = [context.value(f"{node.name}/{name}", np.array(column, np.int64)) for name, column in columns]
        x = context.emit("Slice", [x, *given], f"{node.name}/slice")
    for operator, axes in (("Squeeze", dropped), ("Unsqueeze", added)):
        if axes:
            where = context.value(f"{node.name}/{operator.lower()}", np.array(axes, np.int64))
            x = context.emit(operator, [x, where], f"{node.name}/{operator.lower()}d")
    return context.emit("Identity", [x], f"{node.name}:0")
