"""Convolutions and pools over three spatial axes, written with those over two.

A convolution takes one slice of the volume per tap along the depth; the slices become channels, the depth
becomes part of the batch:

    [n, c, d, h, w]  ->  taps of [n, c, d', h, w]  ->  [n d', taps c, h, w]  ->  Conv  ->  [n, o, d', h', w']

A transposed convolution puts zeros between the slices first, and runs through its taps backwards. Pools are
separable: over height and width with the depth among the channels, then over the depth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuflow.frontend.values import array_of, attributes_of, input_at, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["RULES"]

NO_DEPTH = ("kernel_shape", "strides", "dilations", "output_padding")
SWAP = {"perm": [0, 2, 1, 3, 4]}


def _flat_window(node: ir.Node) -> dict[str, Attribute]:
    """The attributes along height and width."""
    attributes = attributes_of(node)
    for name in NO_DEPTH:
        if name in attributes:
            attributes[name] = list(node.attributes.get_ints(name, []))[1:]
    pads = node.attributes.get_ints("pads", [0] * 6)
    attributes["pads"] = [pads[1], pads[2], pads[4], pads[5]]
    return attributes


def _tap(x: ir.Value, start: int, count: int, stride: int, emit: Emitter) -> ir.Value:
    return emit.slice(x, 2, range(start, start + (count - 1) * stride + 1, stride), "tap")


def _pad_depth(x: ir.Value, before: int, after: int, emit: Emitter) -> ir.Value:
    if not before and not after:
        return x
    pads = emit.integers([0, 0, before, 0, 0, 0, 0, after, 0, 0], "depth_pads")
    return emit("Pad", x, pads, emit.constant(0.0, "zero", like=x), label="deep")


def _as_images(taps: Sequence[ir.Value], groups: int, emit: Emitter) -> ir.Value:
    """Taps [n, c, d, h, w] as [n d, taps c, h, w], the taps within each group of channels."""
    n, c, d, h, w = shape_of(taps[0]) or (0, 0, 0, 0, 0)
    if groups > 1 and len(taps) > 1:
        grouped = [emit.reshape(tap, (n, groups, c // groups, d, h * w), "groups") for tap in taps]
        joined = emit.reshape(
            emit("Concat", *grouped, attributes={"axis": 2}), (n, c * len(taps), d, h, w), "channels"
        )
    else:
        joined = taps[0] if len(taps) == 1 else emit("Concat", *taps, attributes={"axis": 1})
    turned = emit("Transpose", joined, attributes=SWAP, label="by_depth")
    return emit.reshape(turned, (n * d, c * len(taps), h, w), "images")


def _as_volume(images: ir.Value, n: int, emit: Emitter) -> ir.Value:
    nd, c, h, w = shape_of(images) or (0, 0, 0, 0)
    return emit("Transpose", emit.reshape(images, (n, nd // n, c, h, w), "volume"), attributes=SWAP)


def _volume(node: ir.Node) -> tuple[ir.Value, tuple[int, ...], tuple[int, ...], Sequence[int]] | None:
    """Input, its shape, the output's and the pads of a window over three axes whose geometry is known."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or shape is None or y is None or len(shape) != 5 or "pads" not in node.attributes:
        return None
    return x, shape, y, node.attributes.get_ints("pads", [])


def convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Conv over depth, height and width."""
    volume, weights = _volume(node), array_of(input_at(node, 1))
    if volume is None or weights is None:
        return None
    x, shape, y, pads = volume
    group = node.attributes.get_int("group", 1)
    stride, step = node.attributes.get_ints("strides", [])[0], node.attributes.get_ints("dilations", [])[0]
    deep = _pad_depth(x, pads[0], pads[3], emit)
    taps = [_tap(deep, k * step, y[2], stride, emit) for k in range(weights.shape[2])]
    images = _as_images(taps, group, emit)
    kernel = weights.transpose(0, 2, 1, 3, 4).reshape(weights.shape[0], -1, *weights.shape[3:])
    flat = emit(
        "Conv", images, emit.constant(kernel, "kernel"), *node.inputs[2:], attributes=_flat_window(node)
    )
    return _as_volume(flat, shape[0], emit)


def transposed_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """ConvTranspose over depth, height and width."""
    volume, weights = _volume(node), array_of(input_at(node, 1))
    if volume is None or weights is None:
        return None
    x, shape, y, pads = volume
    group = node.attributes.get_int("group", 1)
    stride, step = node.attributes.get_ints("strides", [])[0], node.attributes.get_ints("dilations", [])[0]
    n, c, d, h, w = shape
    if stride > 1:
        slots = emit.reshape(x, (n, c, d, 1, h * w), "slots")
        width = emit.integers([0, 0, 0, 0, 0, 0, 0, 0, stride - 1, 0], "slot_pads")
        spread = emit("Pad", slots, width, emit.constant(0.0, "nothing", like=x), label="spread")
        x = emit.reshape(spread, (n, c, d * stride, h, w), "sparse")
    reach = (weights.shape[2] - 1) * step
    before, after = reach - pads[0], y[2] + pads[0] - d * stride
    deep = _pad_depth(x, before, after, emit)
    taps = [_tap(deep, reach - k * step, y[2], 1, emit) for k in range(weights.shape[2])]
    images = _as_images(taps, group, emit)
    grouped = weights.reshape(group, c // group, *weights.shape[1:]).transpose(0, 3, 1, 2, 4, 5)
    kernel = grouped.reshape(-1, weights.shape[1], *weights.shape[3:])
    constant = emit.constant(kernel, "kernel")
    flat = emit("ConvTranspose", images, constant, *node.inputs[2:], attributes=_flat_window(node))
    return _as_volume(flat, n, emit)


def pool(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """MaxPool and AveragePool over depth, height and width."""
    volume = _volume(node)
    if volume is None or len(node.outputs) > 1:
        return None
    x, (n, c, d, h, w), y, pads = volume
    images = emit.reshape(x, (n, c * d, h, w), "images")
    flat = emit(node.op_type, images, attributes=_flat_window(node), label="flat")
    lines = emit.reshape(flat, (n, c, d, math.prod(y[3:])), "lines")
    attributes = attributes_of(node)
    for name in NO_DEPTH:
        if name in attributes:
            attributes[name] = [node.attributes.get_ints(name, [])[0], 1]
    attributes["pads"] = [pads[0], 0, pads[3], 0]
    return emit.reshape(emit(node.op_type, lines, attributes=attributes, label="deep"), y, "shape")


RULES: Rules = {
    "Conv": [convolution],
    "ConvTranspose": [transposed_convolution],
    "MaxPool": [pool],
    "AveragePool": [pool],
}
"""To be applied once constants behind convolutions are folded, which the reshapes would hide."""
