"""Neighbouring pixels side by side, in rows and columns of the array that would stay empty.

The array makes up to 128 sums at once, and takes a row of its time for each pixel whether it makes 128 or 16.

    3 x 3 window, stride 1, 16 channels:           |a b c|         16 columns, a row for each pixel
    8 pixels at once, one window over all of their windows:
                                                   |a b c . . . . . . .|
                                                   |. a b c . . . . . .|    128 columns, a row for 8 pixels
                                                   |. . a b c . . . . .|
                                                    ...

The kernel of each pixel is shifted by a stride, zeros stand elsewhere. The results of the pixels lie behind
each other in one wide pixel as they do in pixels of their own, so nothing is moved. Sums are equal to the
bit, of integers; of floats a zero times infinity would be none, and they are left as they are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from tpuflow.lowering.layout import natural_order
from tpuflow.lowering.nodes import attribute, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.registry import VIEWS
from tpuflow.lowering.sums import sums
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant
    from tpuflow.lowering.sums import Codes, LinearParameters, Weights

__all__ = ["is_pointwise", "pixels_at_once", "product_of_neighbors", "shifted_kernels"]

LANES = 64
"""Bytes that the elementwise unit moves in a cycle."""
TILES = 2
"""Tiles of the array below which layers could not begin with the first half of an image."""


def is_pointwise(node: ir.Node, weights: Weights) -> bool:
    """Whether a convolution looks at all channels of one pixel at a time."""
    return (
        weights.shape[2:] == (1, 1)
        and attribute(node, "group", 1) == 1
        and {*attribute(node, "strides", (1, 1))} == {1}
        and {*attribute(node, "pads", (0, 0, 0, 0))} == {0}
    )


def pixels_at_once(
    context: Lowering, step: Step, stored: StoredValue, weights: Weights, target: Quant
) -> int:
    """How many neighbours of a row a convolution computes side by side.

    As many as take the least time, where channels fill their pixels, so that nothing is moved afterwards but
    what a Concat joins with others.

    Args:
        context: The walk.
        step: The convolution.
        stored: Its operand `[n, h, w, c]`.
        weights: `[m, c, h, w]`.
        target: What it results in.
    """
    node, side = step.node, context.columns
    n, channels, height, width = shape_of(step.output)
    payload = channels * np.dtype(target.dtype).itemsize
    is_plain = attribute(node, "group", 1) == 1 and attribute(node, "dilations", (1, 1))[1] == 1
    if target.is_float or stored.grid.is_float or not is_plain or not _is_power_of_two(payload):
        return 1
    copied = payload / LANES if _is_joined(step.output) else 0.0
    rows, across = weights.shape[2:]
    stride = attribute(node, "strides", (1, 1))[1]
    pixel = stored.shape[-1] * np.dtype(stored.grid.dtype).itemsize
    in_word = side // (1 << (pixel - 1).bit_length()) if pixel < side else 1
    words = math.ceil(pixel / side)

    def cycles(count: int) -> float:
        taps = rows * (across + stride * (count - 1))
        blocks = math.ceil(taps / in_word) * words
        loaded = taps * stored.shape[-1] * count * channels
        moved = n * height * width * copied if count > 1 else 0.0
        return float(n * height * width // count * blocks + loaded / context.bytes_worth_a_cycle + moved)

    most = side // channels
    counts = [1 << k for k in range(1, most.bit_length()) if width % (1 << k) == 0]
    long = [count for count in counts if n * height * width >= TILES * side * count]
    return min([1, *long], key=cycles)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _is_joined(value: ir.Value) -> bool:
    """Whether a Concat reads a value, or some view of it."""
    waiting = [value]
    while waiting:
        for node in (use.node for use in waiting.pop().uses()):
            if node.op_type == "Concat":
                return True
            if node.op_type in VIEWS:
                waiting += node.outputs
    return False


def shifted_kernels(weights: Codes | Weights, count: int, stride: int, zero_point: int) -> Codes | Weights:
    """Kernels `[m, h, w, c]` of so many pixels at once: `[count m, h, w + (count - 1) stride, c]`."""
    if count == 1:
        return weights
    outputs, rows, across, channels = weights.shape
    shape = (count, outputs, rows, across + stride * (count - 1), channels)
    wide = np.full_like(weights, zero_point, shape=shape)
    for place in range(count):
        wide[place, :, :, place * stride : place * stride + across] = weights
    return cast("Codes", wide.reshape(count * outputs, *shape[2:]))


def product_of_neighbors(
    context: Lowering, step: Step, axis: int, real: LinearParameters, name: str, *, is_moved: bool
) -> bool:
    """Lowers a product of few terms and columns with those of neighbours that lie together already.

    Where the terms of neighbours along another axis lie directly behind each other, as a head's behind those
    of the head before, they are one row of the array, and its weights blocks on a diagonal.

    Args:
        context: The walk.
        step: The product or pointwise convolution.
        axis: Of the terms in the operand, and of the columns in the result.
        real: The weights `[terms, columns]` and the bias.
        name: Of the weights.
        is_moved: Whether the operand would have to be moved otherwise; else pixels with padding stay.

    Returns:
        Whether it was worth it.
    """
    value = context.operand(step.node, 0)
    stored = context.stored[value]
    terms, columns = real.weights.shape
    extents = stored.view.shape
    axis %= len(extents)
    if stored.grid.is_float or context.grids.target(step).is_float or extents[axis] != terms:
        return False
    if stored.view.axes[axis] != ((terms, 1),) or not stored.view.covers(stored.elements):
        return False
    loops = stored.view.axes
    beside = next((a for a, n in enumerate(extents) if n > 1 and loops[a] == ((n, terms),)), None)
    if beside is None:
        return False
    if not is_moved and not (_is_power_of_two(terms) and _is_power_of_two(columns)):
        return False
    side = context.columns
    most = side // max(terms, columns)
    count = next((n for n in range(most, 1, -1) if extents[beside] % n == 0), 1)
    rows = stored.elements // (count * terms)
    if count == 1 or rows < TILES * side:
        return False
    others = [a for a in natural_order(stored.view) if a not in {beside, axis}]
    mean = context.mean(value, axis)
    made = sums(context, step, stored, replace(real, mean=None if mean is None else mean[:, np.newaxis]))
    blocks = np.full_like(made.weights, made.zero_point, shape=(count, terms, count, columns))
    for place in range(count):
        blocks[place, :, place] = made.weights
    weights = cast("Codes", blocks.reshape(count * terms, count * columns))
    constants = made.constants(context, step, name, weights, times=count)
    wide = context.rearrange(value, (*others, beside, axis), (rows, count * terms))
    op = Op.mat_mul(a=wide.tensor, b=constants.weights, bias=constants.bias, epilogue=constants.epilogue)
    view = View.dense([columns if a == axis else n for a, n in enumerate(extents)], (*others, beside, axis))
    context.emit(step, op, (rows, count * columns), view, constants.target)
    context.builder.terms(terms)
    return True
