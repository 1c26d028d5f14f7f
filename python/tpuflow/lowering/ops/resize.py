"""Resizing of images: nearest picks rows and columns, linear weighs two of each."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.lowering.layout import StoredValue
from tpuflow.lowering.nodes import attribute, constant, input_or_none, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.upsampling import is_quicker, places_of, upsample
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuflow.lowering.layout import Shape
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.operators import LinearTapFields
    from tpuflow.lowering.plan import Step

LONGEST = 1 << 16
"""Rows or columns of a resized image at most: each has a place, and a place in a table, of its own."""
WEIGHT_ONE = 2048
"""Linear weights of codes have eleven bits."""


@lowers("Resize")
def resize(context: Lowering, step: Step) -> None:
    """Nearest or linear, every coordinate rule but cropping; the codes keep their meaning."""
    node = step.node
    stored = context.images(context.operand(node, 0))
    n, c, height, width = shape_of(step.output)
    if (n, c) != (stored.shape[0], stored.shape[3]):
        raise UnsupportedNodeError("batch and channels cannot be resized", "sizes")
    if max(height, width) > LONGEST:
        raise UnsupportedNodeError(f"gives {height} x {width} pixels, at most {LONGEST} each way", "sizes")
    view = View.dense((n, c, height, width), (0, 2, 3, 1))
    mode = attribute(node, "mode", "nearest")
    context.settings.honors(step.names, "to resize")
    if mode in {"linear", "cubic"} and context.rules.resize_degrade_to_nearest:
        mode = "nearest"
    # Runtimes compute places in float32. Weights do not tell the difference, but where a place comes to lie
    # on either side of a border between two cells, nearest does.
    number: Callable[[Any], Any] = Fraction if mode == "linear" else np.float32
    sources = [
        _sources(step, axis, stored.shape[1 + axis], out, number) for axis, out in enumerate((height, width))
    ]
    if mode == "linear" and not stored.grid.is_float:
        down, across = (places_of(places, stored.shape[1 + axis]) for axis, places in enumerate(sources))
        if down is not None and across is not None and is_quicker(context, stored, down, across):
            upsample(context, step, stored, down, across)
            return
    if mode == "linear":
        whole = 1 if stored.grid.is_float else WEIGHT_ONE
        taps = [_taps(places, stored.shape[1 + axis], whole) for axis, places in enumerate(sources)]
        op = Op.resize_linear(input=stored.tensor, rows=taps[0], columns=taps[1])
        context.emit(step, op, (n, height, width, c), view, stored.quant)
        return
    if mode != "nearest":
        raise UnsupportedNodeError(f'"{mode}" is not supported', "mode")
    _nearest_cells(context, step, stored, sources)


def _nearest_cells(
    context: Lowering, step: Step, stored: StoredValue, sources: Sequence[list[Fraction]]
) -> None:
    """Picks rows, then columns; where all are repeated equally often, the operand is seen so."""
    rule = attribute(step.node, "nearest_mode", "round_prefer_floor")
    rows, columns = (
        [_nearest(place, rule, stored.shape[1 + axis]) for place in places]
        for axis, places in enumerate(sources)
    )
    n, c, height, width = shape_of(step.output)
    down, across = _repeats(rows, stored.shape[1]), _repeats(columns, stored.shape[2])
    if down is not None and across is not None:
        context.alias(step, _repeated_cells(stored.shape, down, across), stored)
        return
    if rows != list(range(stored.shape[1])):
        shape = (n, height, stored.shape[2], c)
        op = Op.gather(input=stored.tensor, axis=1, indices=rows)
        tensor = context.hidden_layer(
            f"{step.output.name}/rows", op, shape, stored.grid, [step.node.name or ""]
        )
        stored = StoredValue(tensor, shape, View.dense((n, c, height, shape[2]), (0, 2, 3, 1)), stored.quant)
    op = Op.gather(input=stored.tensor, axis=2, indices=columns)
    view = View.dense((n, c, height, width), (0, 2, 3, 1))
    context.emit(step, op, (n, height, width, c), view, stored.quant)


def _repeats(places: list[int], size: int) -> int | None:
    """How often each cell of an axis is repeated; None where not all are equally often, in their order."""
    times = len(places) // size
    return times if places == [cell for cell in range(size) for _ in range(times)] else None


def _repeated_cells(shape: Shape, down: int, across: int) -> View:
    """An image `[n, h, w, c]` as `[n, c, h down, w across]`, every row and column repeated so often."""
    n, height, width, c = shape
    batch, channels, rows, columns = View.dense((n, c, height, width), (0, 2, 3, 1)).axes
    repeated = [((times, 0),) if times > 1 else () for times in (down, across)]
    return View((batch, channels, (*rows, *repeated[0]), (*columns, *repeated[1])))


def _sources(step: Step, axis: int, size: int, out: int, number: Callable[[Any], Any]) -> list[Fraction]:
    """The place in the operand, in cells, of every output cell along one axis, computed in `number`."""
    node = step.node
    scale: Any = number(out) / number(size)
    scales = constant(input_or_none(node, 2))
    if scales is not None and scales.size:
        stated = float(scales.ravel()[2 + axis - 4 + scales.size])
        # A stated scale only differs where it does not divide evenly, or was rounded to float32.
        if number is np.float32 or abs(Fraction(stated) - scale) > Fraction(1, 1 << 16):
            scale = number(stated)
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    cells: list[Any] = [number(i) for i in range(out)]
    half, last = number(0.5), number(size - 1)
    if mode == "asymmetric":
        places = [i / scale for i in cells]
    elif mode == "align_corners":
        places = [i * last / number(out - 1) for i in cells] if out > 1 else [number(0)]
    elif mode == "pytorch_half_pixel" and out == 1:
        places = [number(0)]
    elif mode in {"half_pixel", "pytorch_half_pixel"}:
        places = [(i + half) / scale - half for i in cells]
    elif mode == "half_pixel_symmetric":
        shift = number(size) / number(2) * (number(1) - number(out) / (scale * number(size)))
        places = [shift + (i + half) / scale - half for i in cells]
    else:
        raise UnsupportedNodeError(f'"{mode}" is not supported', "coordinate_transformation_mode")
    return [Fraction(float(place)) if number is np.float32 else place for place in places]


def _nearest(place: Fraction, rule: str, size: int) -> int:
    half = Fraction(1, 2)
    rules = {
        "round_prefer_floor": lambda: math.ceil(place - half),
        "round_prefer_ceil": lambda: math.floor(place + half),
        "floor": lambda: math.floor(place),
        "ceil": lambda: math.ceil(place),
    }
    if rule not in rules:
        raise UnsupportedNodeError(f'"{rule}" is not supported', "nearest_mode")
    return min(max(rules[rule](), 0), size - 1)


def _taps(places: list[Fraction], size: int, whole: int) -> list[LinearTapFields]:
    """Neighbours and weights of every place; with `whole` above 1, weights are multiples of `1 / whole`."""
    taps: list[LinearTapFields] = []
    for place in places:
        inside = min(max(place, Fraction(0)), Fraction(size - 1))
        first = math.floor(inside)
        weight = float(np.float32(inside - first))
        if whole > 1:
            weight = math.floor(whole * (inside - first) + Fraction(1, 2)) / whole
        taps.append({"first": first, "second": min(first + 1, size - 1), "weight": weight})
    return taps
