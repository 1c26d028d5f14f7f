"""Resizing of images: nearest picks rows and columns, linear weighs two of each."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from tpuflow.quantize.layout import Stored
from tpuflow.quantize.nodes import attribute, constant, given, shape_of
from tpuflow.quantize.registry import UnsupportedNodeError, lowers
from tpuflow.quantize.view import View

if TYPE_CHECKING:
    from tpuflow.quantize.lowering import Lowering
    from tpuflow.quantize.plan import Step

WEIGHT_ONE = 2048
"""Linear weights have eleven bits."""


@lowers("Resize")
def resize(context: Lowering, step: Step) -> None:
    """Nearest or linear, every coordinate rule but cropping; the codes keep their meaning."""
    node = step.node
    stored = context.images(context.operand(node, 0))
    n, c, height, width = shape_of(step.output)
    if (n, c) != (stored.shape[0], stored.shape[3]):
        raise UnsupportedNodeError("batch and channels cannot be resized", "sizes")
    sources = [_sources(step, axis, stored.shape[1 + axis], out) for axis, out in enumerate((height, width))]
    view = View.dense((n, c, height, width), (0, 2, 3, 1))
    mode = attribute(node, "mode", "nearest")
    if mode == "linear":
        taps = [_taps(places, stored.shape[1 + axis]) for axis, places in enumerate(sources)]
        op = {"op": "resize_linear", "input": stored.tensor, "rows": taps[0], "columns": taps[1]}
        context.emit(step, op, (n, height, width, c), view, stored.quant)
        return
    if mode != "nearest":
        raise UnsupportedNodeError(f'"{mode}" is not supported', "mode")
    rule = attribute(node, "nearest_mode", "round_prefer_floor")
    rows, columns = (
        [_nearest(place, rule, stored.shape[1 + axis]) for place in places]
        for axis, places in enumerate(sources)
    )
    if rows != list(range(stored.shape[1])):
        shape = (n, height, stored.shape[2], c)
        op = {"op": "gather", "input": stored.tensor, "axis": 1, "indices": rows}
        tensor = context.hidden_layer(f"{step.output.name}/rows", op, shape, stored.grid, [node.name or ""])
        stored = Stored(tensor, shape, View.dense((n, c, height, shape[2]), (0, 2, 3, 1)), stored.quant)
    op = {"op": "gather", "input": stored.tensor, "axis": 2, "indices": columns}
    context.emit(step, op, (n, height, width, c), view, stored.quant)


def _sources(step: Step, axis: int, size: int, out: int) -> list[Fraction]:
    """The place in the operand, in cells, of every output cell along one axis."""
    node = step.node
    scale = Fraction(out, size)
    scales = constant(given(node, 2))
    if scales is not None and scales.size:
        stated = Fraction(float(scales.ravel()[2 + axis - 4 + scales.size]))
        # A stated scale only differs where it does not divide evenly, or was rounded to float32.
        scale = stated if abs(stated - scale) > Fraction(1, 1 << 16) else scale
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    half = Fraction(1, 2)
    if mode == "asymmetric":
        return [i / scale for i in range(out)]
    if mode == "align_corners":
        return [Fraction(i * (size - 1), out - 1) if out > 1 else Fraction(0) for i in range(out)]
    if mode == "pytorch_half_pixel" and out == 1:
        return [Fraction(0)]
    if mode in {"half_pixel", "pytorch_half_pixel"}:
        return [(i + half) / scale - half for i in range(out)]
    if mode == "half_pixel_symmetric":
        shift = Fraction(size, 2) * (1 - Fraction(out) / (scale * size))
        return [shift + (i + half) / scale - half for i in range(out)]
    if mode == "tf_half_pixel_for_nn":
        return [(i + half) / scale for i in range(out)]
    raise UnsupportedNodeError(f'"{mode}" is not supported', "coordinate_transformation_mode")


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


def _taps(places: list[Fraction], size: int) -> list[dict[str, int]]:
    taps = []
    for place in places:
        inside = min(max(place, Fraction(0)), Fraction(size - 1))
        first = math.floor(inside)
        weight = math.floor(WEIGHT_ONE * (inside - first) + Fraction(1, 2))
        taps.append({"first": first, "second": min(first + 1, size - 1), "weight": weight})
    return taps
