"""Constraints of ONNX on operators with windows: kernels, strides and pads fit the images."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from tpuflow.frontend.constraints.indices import Objection, shaped
from tpuflow.frontend.values import input_at, shape_of

__all__ = ["convolution", "images", "pooling", "window"]

LARGEST_KERNEL = 1 << 22
"""Elements no window of a pool has."""


def window(node: ir.Node) -> Iterator[Objection]:
    """Kernel, strides, dilations and pads of as many axes as the images have."""
    shape = shape_of(input_at(node, 0))
    if shape is None:
        return
    axes = len(shape) - 2
    if axes < 1:
        yield "input 0", f"has the shape {list(shape)}: batch, channels and at least one more axis are needed"
        return
    counts = {**dict.fromkeys(WINDOW, axes), "pads": 2 * axes}
    for name, count in counts.items():
        given = node.attributes.get_ints(name, None)
        if given is not None and len(given) not in (0, count):
            yield name, f"has {len(given)} entries, {count} are needed"
            return
    result = shape_of(node.outputs[0])
    stated = node.attributes.get_ints("output_shape", None)
    if stated and result is not None and len(result) != len(shape):  # what inference leaves of such a node
        yield "output_shape", f"{list(stated)} cannot come of the shape {list(shape)}"
    elif result is not None and 0 not in shape and 0 in result:
        yield "kernel_shape", f"no window fits the shape {list(shape)}"


WINDOW = ("kernel_shape", "strides", "dilations", "output_shape", "output_padding")
"""Attributes of a window with one entry for each axis of the images."""


def images(node: ir.Node) -> Iterator[Objection]:
    """A batch of channels with at least one more axis."""
    shape = shape_of(input_at(node, 0))
    if shape is not None and len(shape) < 3:
        yield "input 0", f"has the shape {list(shape)}: batch, channels and at least one more axis are needed"


def pooling(node: ir.Node) -> Iterator[Objection]:
    """A pool has a kernel that is larger than its pads, and whose last window touches the image."""
    if not node.attributes.get_ints("kernel_shape", None):
        yield "kernel_shape", "is missing"
    kernel = node.attributes.get_ints("kernel_shape", [])
    if math.prod(kernel) > LARGEST_KERNEL:
        yield "kernel_shape", f"{list(kernel)} are more than {LARGEST_KERNEL} elements"
        return
    dilations = node.attributes.get_ints("dilations", []) or [1] * len(kernel)
    pads = list(node.attributes.get_ints("pads", []) or [0] * 2 * len(kernel))
    if len(pads) != 2 * len(kernel):
        yield "pads", f"has {len(pads)} entries, {2 * len(kernel)} are needed"
        return
    for axis, (size, dilation) in enumerate(zip(kernel, dilations, strict=False)):
        if max(pads[axis], pads[axis + len(kernel)]) >= (size - 1) * dilation + 1:
            yield "pads", f"{pads} leave windows of padding alone: they must be less than the kernel"
            return
    x, y = shape_of(input_at(node, 0)), shape_of(node.outputs[0])
    strides = node.attributes.get_ints("strides", []) or [1] * len(kernel)
    if x is None or y is None or not node.attributes.get_int("ceil_mode", 0):
        return
    for size, begin, stride, count in zip(x[2:], pads, strides, y[2:], strict=False):
        if (count - 1) * stride >= size + begin:
            yield "ceil_mode", "the last window lies wholly in the padding, and runtimes leave it out: use 0"
            return


def convolution(node: ir.Node) -> Iterator[Objection]:
    """Channels, groups and kernel as the weights have them."""
    x, w = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    group = node.attributes.get_int("group", 1)
    if w is None:
        return
    if len(w) < 3 or 0 in w or (x is not None and len(w) != len(x)):
        yield "input 1", f"weights of the shape {list(w)} do not fit {shaped(x)}"
        return
    transposed = node.op_type == "ConvTranspose"
    outputs, channels = (w[1] * group, w[0]) if transposed else (w[0], w[1] * group)
    if x is not None and x[1] != channels:
        yield (
            "group",
            f"{group} groups of weights of the shape {list(w)} take {channels} channels, not {x[1]}",
        )
        return
    if (channels if transposed else outputs) % group:
        yield "group", f"{group} does not divide the {channels if transposed else outputs} channels"
    kernel = node.attributes.get_ints("kernel_shape", None)
    if kernel and tuple(kernel) != w[2:]:
        yield "kernel_shape", f"{list(kernel)} is not that of the weights, {list(w[2:])}"
    bias = shape_of(input_at(node, 2))
    if node.op_type != "ConvInteger" and bias is not None and bias != (outputs,):
        yield "input 2", f"a bias of the shape {list(bias)} does not fit {outputs} channels"
