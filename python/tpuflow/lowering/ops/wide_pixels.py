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

A K block is as many pixels of the window as a word has, and the row feeder takes words of one bank one by
one. Where windows begin inside a word, blocks need two words each; columns of zeros in front of the window
and behind it make them words:

    words:     |a b|c d|e f|      2 pixels a word, 4 results at once, a pixel of padding
    blocks:  |. a|b c|d e|        3 blocks of two words a line: 6 cycles
             |. .|a b|c d|e f|    4 blocks of one
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
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

__all__ = [
    "WideWindow",
    "cycles_of_result",
    "is_pointwise",
    "product_of_neighbors",
    "shifted_kernels",
    "wide_window",
]

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


@dataclass(frozen=True, order=True)
class WideWindow:
    """How a convolution goes over neighbours of a row.

    Attributes:
        count: Pixels it computes side by side.
        before: Columns of zeros in front of their windows, so that these begin where a word does.
        behind: And behind them.
    """

    count: int = 1
    before: int = 0
    behind: int = 0


def wide_window(
    context: Lowering, step: Step, stored: StoredValue, weights: Weights, target: Quant
) -> WideWindow:
    """The window that takes the array the fewest cycles.

    Neighbours are computed side by side where channels fill their pixels, so that nothing is moved afterwards
    but what a Concat joins with others.

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
    if target.is_float or stored.grid.is_float or not is_plain:
        return WideWindow()
    copied = payload / LANES if _is_joined(step.output) else 0.0
    rows, across = weights.shape[2:]
    stride, pad = attribute(node, "strides", (1, 1))[1], attribute(node, "pads", (0, 0, 0, 0))[1]
    pixel = stored.shape[-1] * np.dtype(stored.grid.dtype).itemsize
    in_word = side // (1 << (pixel - 1).bit_length()) if 0 < pixel < side else 1
    words = math.ceil(pixel / side)

    def cycles(window: WideWindow) -> float:
        count, before, behind = window.count, window.before, window.behind
        reach = before + across + stride * (count - 1) + behind
        held = words * cycles_of_result(rows, reach, -(pad + before) % in_word, stride * count, in_word)
        loaded = rows * reach * stored.shape[-1] * count * channels
        moved = n * height * width * copied if count > 1 else 0.0
        return float(n * height * width // count * held + loaded / context.bytes_worth_a_cycle + moved)

    def windows_of(count: int) -> list[WideWindow]:
        found = []
        for before in {0, -pad % in_word}:
            reach = before + across + stride * (count - 1)
            found += [WideWindow(count, before, behind) for behind in {0, -reach % in_word}]
        return found

    most = side // channels if _is_power_of_two(payload) else 1
    counts = [1 << k for k in range(most.bit_length()) if width % (1 << k) == 0]
    long = [count for count in counts if n * height * width >= TILES * side * count]
    windows = [window for count in long for window in windows_of(count)]
    # Of equals the one with the fewest zeros.
    return min([WideWindow(), *windows], key=lambda window: (cycles(window), window))


@cache
def cycles_of_result(rows: int, reach: int, start: int, step: int, in_word: int) -> float:
    """Cycles for which a result of a convolution holds the array on average.

    A K block is as many taps as a word has pixels. The row feeder takes the words under them that it does not
    have from the result before one by one, since they lie in one bank.

    Args:
        rows: Of the window.
        reach: Its columns.
        start: Pixel of a word at which the first window begins.
        step: Pixels from one window to the next.
        in_word: Pixels of a word.
    """
    taps = [divmod(tap, reach) for tap in range(rows * reach)]
    blocks = [taps[first : first + in_word] for first in range(0, len(taps), in_word)]
    if in_word == 1:
        return float(len(blocks))
    results = in_word // math.gcd(step, in_word)

    def read(block: list[tuple[int, int]], at: int) -> set[tuple[int, int]]:
        return {(line, (at + column) // in_word) for line, column in block}

    total = 0
    for result in range(results):
        at = start + result * step
        for block in blocks:
            total += max(1, len(read(block, at) - read(block, at - step)))
    return total / results


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


def shifted_kernels(
    weights: Codes | Weights, window: WideWindow, stride: int, zero_point: int
) -> Codes | Weights:
    """Kernels `[m, h, w, c]` in a wide window.

    Their shape is `[count m, h, before + w + (count - 1) stride + behind, c]`.
    """
    if window == WideWindow():
        return weights
    count, before, behind = window.count, window.before, window.behind
    outputs, rows, across, channels = weights.shape
    shape = (count, outputs, rows, before + across + stride * (count - 1) + behind, channels)
    wide = np.full_like(weights, zero_point, shape=shape)
    for place in range(count):
        first = before + place * stride
        wide[place, :, :, first : first + across] = weights
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
