"""Layers with weights or windows: convolutions, products, pools, norms, resizing.

Images are `[n, h, w, c]` unless `data_format` says otherwise, filters `[h, w, in, out]`. "SAME" pads so that
a stride divides the image, with the odd pixel at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tpuflow.importers.graphdef.conversion import Context, ConversionError, converts
from tpuflow.importers.graphdef.messages import Message

__all__: list[str] = []

TO_FIRST, TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def channels_first(context: Context, node: Message) -> bool:
    """Whether a node's images are `[n, c, h, w]`."""
    layout = context.word(node, "data_format", "NHWC")
    if layout not in {"NHWC", "NCHW"}:
        raise ConversionError(f"data_format {layout} is not supported")
    return layout == "NCHW"


def plane(context: Context, node: Message, values: Sequence[int]) -> list[int]:
    """The entries of height and width in a list with one per axis."""
    if len(values) != 4:
        raise ConversionError(f"{list(values)} does not have one entry per axis")
    first = channels_first(context, node)
    others = [values[0], values[1 if first else 3]]
    if others != [1, 1]:
        raise ConversionError("batch and channels take no window, stride or dilation")
    return [int(value) for value in (values[2:] if first else values[1:3])]


def image(context: Context, node: Message, source: str) -> str:
    """An image operand as `[n, c, h, w]`."""
    if channels_first(context, node):
        return source
    return context.emit("Transpose", [source], f"{node.name}/nchw", perm=TO_FIRST)


def give(context: Context, node: Message, write: Callable[[str], str]) -> str:
    """Writes a result that is `[n, c, h, w]` under the name the node's layout asks for."""
    if channels_first(context, node):
        return write(f"{node.name}:0")
    return context.emit("Transpose", [write(f"{node.name}/out")], f"{node.name}:0", perm=TO_LAST)


def padding(context: Context, node: Message) -> dict[str, object]:
    """A node's padding as ONNX attributes."""
    kind = context.word(node, "padding", "VALID")
    if kind == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if kind == "VALID":
        return {}
    if kind == "EXPLICIT":
        pads = np.array(context.integers(node, "explicit_paddings")).reshape(-1, 2)
        pads = pads[2:] if channels_first(context, node) else pads[1:3]
        return {"pads": pads.T.ravel().tolist()}
    raise ConversionError(f"padding {kind} is not supported")


@converts("Conv2D", "DepthwiseConv2dNative")
def convolution(context: Context, node: Message) -> str:
    source = context.inputs_of(node)[0]
    filters = context.require_constant(node, 1, "the filter")
    height, width, channels, outputs = filters.shape
    group, weights = 1, filters.transpose(3, 2, 0, 1)
    if node.op == "DepthwiseConv2dNative":
        group = channels
        weights = filters.transpose(2, 3, 0, 1).reshape(channels * outputs, 1, height, width)
    dilations = plane(context, node, context.integers(node, "dilations", [1, 1, 1, 1]))
    pads = padding(context, node)
    spread = _dilation(context, node)
    if spread is not None:
        source, dilations, pads = spread
    x = image(context, node, source)
    if node.op == "Conv2D":
        given = context.sizes(x)[1:2]
        if given and given[0] is not None and given[0] != channels:
            group = given[0] // channels
    w = context.value(f"{node.name}/weights", np.ascontiguousarray(weights))
    options = {
        "kernel_shape": [height, width],
        "strides": plane(context, node, context.integers(node, "strides")),
        "dilations": dilations,
        "group": group,
    }
    return give(context, node, lambda name: context.emit("Conv", [x, w], name, **options, **pads))


def _dilation(context: Context, node: Message) -> tuple[str, list[int], dict[str, object]] | None:
    """Reads a convolution between SpaceToBatchND and BatchToSpaceND as a dilated one.

    Blocks become dilations, and what the one pads and the other crops is the padding.
    """
    before = context.producer(context.inputs_of(node)[0])
    if before is None or before.op != "SpaceToBatchND":
        return None
    after = _back_to_space(context, node)
    if after is None:
        raise ConversionError("SpaceToBatchND without a BatchToSpaceND behind the convolution")
    blocks = [context.require_constant(each, 1, "block_shape").tolist() for each in (before, after)]
    pads, crops = (
        context.require_constant(before, 2, "paddings"),
        context.require_constant(after, 2, "crops"),
    )
    strides = plane(context, node, context.integers(node, "strides"))
    effective = pads - crops
    whole = blocks[0] == blocks[1] and len(blocks[0]) == 2 and strides == [1, 1]
    if not whole or (effective < 0).any() or context.word(node, "padding", "VALID") != "VALID":
        raise ConversionError("SpaceToBatchND and BatchToSpaceND around it are not a dilation")
    context.replaced.add(after.name)
    return context.inputs_of(before)[0], blocks[0], {"pads": effective.T.ravel().tolist()}


def _back_to_space(context: Context, node: Message) -> Message | None:
    """The BatchToSpaceND that is reached through elementwise nodes alone."""
    while True:
        users = context.users.get(f"{node.name}:0", [])
        if len(users) != 1:
            return None
        node = users[0]
        if node.op == "BatchToSpaceND":
            return node
        others = context.inputs_of(node)[1:]
        constant = all((array := context.constant(name)) is not None and array.ndim <= 1 for name in others)
        if node.op not in {"BiasAdd", "Add", "AddV2", "Mul", "Relu", "Relu6", "Identity"} or not constant:
            return None


@converts("SpaceToBatchND")
def space_to_batch(context: Context, node: Message) -> str:
    users = context.users.get(f"{node.name}:0", [])
    if not users or any(user.op not in {"Conv2D", "DepthwiseConv2dNative"} for user in users):
        raise ConversionError("only supported around a convolution, where it is a dilation")
    return ""


@converts("BatchToSpaceND")
def batch_to_space(_context: Context, _node: Message) -> str:
    raise ConversionError("only supported around a convolution, where it is a dilation")


@converts("Conv2DBackpropInput")
def transposed_convolution(context: Context, node: Message) -> str:
    source = context.inputs_of(node)[2]
    filters = context.require_constant(node, 1, "the filter")
    strides = plane(context, node, context.integers(node, "strides"))
    if plane(context, node, context.integers(node, "dilations", [1, 1, 1, 1])) != [1, 1]:
        raise ConversionError("dilations are not supported")
    same = context.word(node, "padding", "VALID") == "SAME"
    if not same and context.word(node, "padding", "VALID") != "VALID":
        raise ConversionError("explicit padding is not supported")
    pads, extra = [], []
    for axis, (kernel, stride) in enumerate(zip(filters.shape[:2], strides, strict=True)):
        size = _output_size(context, node, axis)
        if size is None:  # what layers that do not state one compute
            total = kernel - stride if same else min(0, kernel - stride)
        else:
            steps = -(-size // stride) if same else -(-(size - kernel + 1) // stride)
            total = stride * (steps - 1) + kernel - size
        pads.append((max(total, 0) // 2, max(total, 0) - max(total, 0) // 2))
        extra.append(max(-total, 0))
    x = image(context, node, source)
    w = context.value(f"{node.name}/weights", np.ascontiguousarray(filters.transpose(3, 2, 0, 1)))
    options = {
        "kernel_shape": list(filters.shape[:2]),
        "strides": strides,
        "pads": np.array(pads).T.ravel().tolist(),
        "output_padding": extra,
    }
    return give(context, node, lambda name: context.emit("ConvTranspose", [x, w], name, **options))


def _output_size(context: Context, node: Message, axis: int) -> int | None:
    """Height (axis 0) or width of the image a transposed convolution is to make, if it is stated."""
    place = axis + (2 if channels_first(context, node) else 1)
    sizes = context.inputs_of(node)[0]
    array = context.constant(sizes)
    if array is not None:
        return int(array[place])
    packed = context.producer(sizes)
    if packed is not None and packed.op == "Pack":
        array = context.constant(context.inputs_of(packed)[place])
        return None if array is None else int(array)
    return None


@converts("BiasAdd", "BiasAddV1")
def bias(context: Context, node: Message) -> str:
    x, b = context.inputs_of(node)
    if channels_first(context, node):
        array = context.require_constant(node, 1, "the bias")
        b = context.value(f"{node.name}/bias", array.reshape(-1, 1, 1))
    return context.emit("Add", [x, b], f"{node.name}:0")


@converts("MatMul")
def product(context: Context, node: Message) -> str:
    operands = [
        _transposed_operand(context, node, index, [1, 0])
        if context.flag(node, f"transpose_{letter}")
        else name
        for index, (letter, name) in enumerate(zip("ab", context.inputs_of(node), strict=True))
    ]
    return context.emit("MatMul", operands, f"{node.name}:0")


@converts("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batched_product(context: Context, node: Message) -> str:
    operands = []
    for index, (letter, name) in enumerate(zip("xy", context.inputs_of(node), strict=True)):
        if not context.flag(node, f"adj_{letter}"):
            operands.append(name)
            continue
        rank = context.rank(name)
        if rank is None:
            raise ConversionError(f"the number of axes of operand {index} is not known")
        operands.append(_transposed_operand(context, node, index, [*range(rank - 2), rank - 1, rank - 2]))
    return context.emit("MatMul", operands, f"{node.name}:0")


def _transposed_operand(context: Context, node: Message, index: int, perm: list[int]) -> str:
    """An operand with permuted axes; a constant one as a constant."""
    name, source = f"{node.name}/turned{index}", context.inputs_of(node)[index]
    array = context.constant(source)
    if array is not None:
        return context.value(name, np.ascontiguousarray(array.transpose(perm)))
    return context.emit("Transpose", [source], name, perm=perm)


@converts("MaxPool", "AvgPool")
def pool(context: Context, node: Message) -> str:
    x = image(context, node, context.inputs_of(node)[0])
    options = {
        "kernel_shape": plane(context, node, context.integers(node, "ksize")),
        "strides": plane(context, node, context.integers(node, "strides")),
        **padding(context, node),
    }
    operator = "MaxPool" if node.op == "MaxPool" else "AveragePool"
    return give(context, node, lambda name: context.emit(operator, [x], name, **options))


@converts("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(context: Context, node: Message) -> str:
    if context.flag(node, "is_training", default=True):
        raise ConversionError("it is in training mode: freeze the graph for inference")
    source, *others = context.inputs_of(node)
    x, epsilon = image(context, node, source), context.number(node, "epsilon", 1e-4)

    def write(name: str) -> str:
        return context.emit("BatchNormalization", [x, *others], name, epsilon=epsilon)

    return give(context, node, write)


@converts("LRN")
def local_response(context: Context, node: Message) -> str:
    size = 2 * context.integer(node, "depth_radius", 5) + 1
    options = {
        "size": size,
        "alpha": context.number(node, "alpha", 1.0) * size,  # ONNX divides it by the size
        "beta": context.number(node, "beta", 0.5),
        "bias": context.number(node, "bias", 1.0),
    }
    x = image(context, node, context.inputs_of(node)[0])
    return give(context, node, lambda name: context.emit("LRN", [x], name, **options))


@converts("ResizeBilinear", "ResizeNearestNeighbor")
def resize(context: Context, node: Message) -> str:
    linear = node.op == "ResizeBilinear"
    coordinates, nearest = "asymmetric", "floor"
    if context.flag(node, "align_corners"):
        coordinates, nearest = "align_corners", "round_prefer_ceil"
    elif context.flag(node, "half_pixel_centers"):
        coordinates, nearest = "half_pixel", "round_prefer_ceil"
    x, name = image(context, node, context.inputs_of(node)[0]), node.name
    others = context.emit("Shape", [x], f"{name}/others", start=0, end=2)
    plane_sizes = context.int64(node, 1, "plane")
    sizes = context.emit("Concat", [others, plane_sizes], f"{name}/sizes", axis=0)
    options = {
        "mode": "linear" if linear else "nearest",
        "coordinate_transformation_mode": coordinates,
        **({} if linear else {"nearest_mode": nearest}),
    }
    return give(context, node, lambda name: context.emit("Resize", [x, "", "", sizes], name, **options))


@converts("DepthToSpace", "SpaceToDepth")
def regroup(context: Context, node: Message) -> str:
    x, size = image(context, node, context.inputs_of(node)[0]), context.integer(node, "block_size", 0)
    mode = {"mode": "DCR"} if node.op == "DepthToSpace" else {}
    return give(context, node, lambda name: context.emit(node.op, [x], name, blocksize=size, **mode))
