"""Resampling on fixed positions: Resize of any axes in any mode, and GridSample on a constant grid.

Along one axis resizing is linear, so it is a constant matrix: two entries per column for linear, four for
cubic, as many as the window is wide with antialiasing. Nearest picks indices. What a Resize of two spatial
axes does natively (`supported.py`) is left to it.

    Resize       ->  MatMul per axis, or Gather per axis
    GridSample   ->  sum over the taps of weight * Gather(x, tap), all positions in one row

Coordinates are computed in float32, as runtimes do, so that ties fall alike.

Source: Resize and GridSample of https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.rewrites.sums import along
from tpuflow.frontend.values import array_of, input_at, scalar_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

Array = npt.NDArray[Any]
NATIVE = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
LARGEST = 1 << 24
"""Elements a matrix of one axis may have."""
WHOLE = (0.0, 1.0)
"""The region of interest that is all of an axis."""


def general_resize(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Resizes axis by axis what the closed set does not resize at once."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or not shape or y is None or any(not extent for extent in (*shape, *y)):
        return None
    if any(value is not None and array_of(value) is None for value in node.inputs[1:]):
        return None
    mode = node.attributes.get_string("mode", "nearest")
    transform = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    antialias = node.attributes.get_int("antialias", 0) != 0
    changed = [k for k in range(len(shape)) if shape[k] != y[k]]
    images = len(shape) == 4 and (set(changed) <= {2, 3} or set(changed) <= {1, 2})
    if images and mode in {"nearest", "linear"} and transform in NATIVE and not antialias:
        return None
    stated = _scales(node, shape, y)
    roi = _roi(node, len(shape))
    if stated is None or roi is None:
        return None
    crops = transform == "tf_crop_and_resize"
    resampled = [
        k for k in range(len(shape)) if shape[k] != y[k] or stated[k] != 1 or (crops and roi[k] != WHOLE)
    ]
    if any(shape[axis] * y[axis] > LARGEST for axis in resampled):
        return None
    outside = np.zeros(y, bool)
    for axis in resampled:
        size, out, scale = shape[axis], y[axis], stated[axis]
        places = _coordinates(size, out, scale, transform, roi[axis])
        if crops:
            beyond = (places < 0) | (places > size - 1)
            outside |= beyond.reshape(-1, *(1,) * (len(y) - 1 - axis))
        if mode == "nearest":
            picked = np.clip(_nearest(places, node), 0, size - 1)
            x = emit("Gather", x, emit.integers(picked.tolist(), f"picked{axis}"), attributes={"axis": axis})
        else:
            matrix = _weights(places, size, float(scale), node, antialias=antialias)
            x = along(x, axis, matrix, emit, f"axis{axis}")
    if not np.any(outside):
        return x if x is not node.inputs[0] else emit.reshape(x, y, "shape")
    fill = emit.constant(np.float32(node.attributes.get_float("extrapolation_value", 0.0)), "outside")
    return emit("Where", emit.constant(~outside, "inside"), x, fill)


def _scales(node: ir.Node, shape: Sequence[int], y: Sequence[int]) -> Array | None:
    """Scale of every axis, float32."""
    axes = [axis % len(shape) for axis in node.attributes.get_ints("axes", range(len(shape)))]
    scales = array_of(input_at(node, 2))
    stated = np.ones(len(shape), np.float32)
    if scales is not None and scales.size:
        stated[axes] = scales
        return stated
    sizes = array_of(input_at(node, 3))
    if sizes is None:
        return None
    ratios = sizes.astype(np.float32) / np.array([shape[axis] for axis in axes], np.float32)
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if policy == "not_larger":
        ratios[:] = ratios.min()
    elif policy == "not_smaller":
        ratios[:] = ratios.max()
    else:
        ratios = np.array([y[axis] / shape[axis] for axis in axes], np.float32)
    stated[axes] = ratios
    return stated


def _roi(node: ir.Node, rank: int) -> list[tuple[float, float]] | None:
    """Start and end of the region of interest on every axis, as parts of it."""
    axes = [axis % rank for axis in node.attributes.get_ints("axes", range(rank))]
    roi = array_of(input_at(node, 1))
    whole = [WHOLE] * rank
    if roi is None or not roi.size:
        return whole
    if roi.size != 2 * len(axes):
        return None
    for k, axis in enumerate(axes):
        whole[axis] = (float(roi[k]), float(roi[k + len(axes)]))
    return whole


def _coordinates(size: int, out: int, scale: Any, transform: str, roi: tuple[float, float]) -> Array:
    """The position in the operand of every element of the result, float32."""
    one = np.float32
    places = np.arange(out, dtype=np.float32)
    if transform == "align_corners":
        return places * one(size - 1) / one(out - 1) if out > 1 else places * 0
    if transform == "asymmetric":
        return places / one(scale)
    if transform == "tf_crop_and_resize":
        start, end = one(roi[0]), one(roi[1])
        if out == 1:
            return np.array([0.5 * (start + end) * (size - 1)], np.float32)
        return start * one(size - 1) + places * (end - start) * one(size - 1) / one(out - 1)
    if transform == "tf_half_pixel_for_nn":
        return (places + one(0.5)) / one(scale)
    centered: Array = (places + one(0.5)) / one(scale) - one(0.5)
    if transform == "pytorch_half_pixel" and out == 1:
        return places * 0
    if transform == "half_pixel_symmetric":
        adjustment = out / (float(scale) * size)
        return centered + one(size / 2 * (1 - adjustment))
    return centered


def _nearest(places: Array, node: ir.Node) -> Array:
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    if rounding == "floor":
        return np.floor(places).astype(np.int64)
    if rounding == "ceil":
        return np.ceil(places).astype(np.int64)
    up = rounding == "round_prefer_ceil"
    return (np.floor(places + np.float32(0.5)) if up else np.ceil(places - np.float32(0.5))).astype(np.int64)


def _weights(places: Array, size: int, scale: float, node: ir.Node, *, antialias: bool) -> Array:
    """The matrix [size, out] that resamples at `places`."""
    cubic = node.attributes.get_string("mode", "nearest") == "cubic"
    a = node.attributes.get_float("cubic_coeff_a", -0.75)
    exclude = bool(node.attributes.get_int("exclude_outside", 0))
    stretch = min(scale, 1.0) if antialias else 1.0
    radius = (2 if cubic else 1) / stretch
    matrix = np.zeros((size, len(places)))
    for column, place in enumerate(places.astype(np.float64)):
        taps = np.arange(math.floor(place - radius) + 1, math.ceil(place + radius))
        distance = np.abs(taps - place) * stretch
        weights = _cubic(distance, a) if cubic else np.maximum(0.0, 1.0 - distance)
        if exclude:
            weights = np.where((taps >= 0) & (taps < size), weights, 0.0)
        if exclude or antialias:
            weights = weights / weights.sum()
        np.add.at(matrix[:, column], np.clip(taps, 0, size - 1), weights)
    return matrix


def _cubic(distance: Array, a: float) -> Array:
    """The cubic convolution kernel of Keys, by distance."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def grid_sample(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Samples at constant positions."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    grid = array_of(node.inputs[1])
    if x is None or shape is None or y is None or grid is None:
        return None
    mode = node.attributes.get_string("mode", "linear").removeprefix("bi")
    sizes, points = shape[2:], math.prod(y[2:])
    if (mode == "cubic" and len(sizes) != 2) or scalar_of(node.inputs[1]) is not None:
        return None
    batch, channels, pixels = shape[0], shape[1], math.prod(sizes)
    # Grids state x first: the last axis.
    places = grid.reshape(-1, points, len(sizes))[:, :, ::-1].astype(np.float32)
    rows = emit.reshape(x, (batch, channels, pixels), "rows")
    if np.all(places == places[:1]):
        return emit.reshape(_sample_rows(rows, places[:1], sizes, mode, node, emit), y, "shape")
    # Images with positions of their own are one image, side by side.
    swap = {"perm": [1, 0, 2]}
    rows = emit("Transpose", rows, attributes=swap) if channels > 1 else rows
    rows = emit.reshape(rows, (1, channels, batch * pixels), "side_by_side")
    sampled = _sample_rows(rows, places, sizes, mode, node, emit)
    if channels > 1:
        sampled = emit.reshape(sampled, (channels, batch, points), "images")
        sampled = emit("Transpose", sampled, attributes=swap)
    return emit.reshape(sampled, y, "shape")


def _sample_rows(
    rows: ir.Value, places: Array, sizes: Sequence[int], mode: str, node: ir.Node, emit: Emitter
) -> ir.Value:
    """[n, c, images * positions] from `rows` [n, c, images * pixels], `places` [images, positions, axes]."""
    padding = node.attributes.get_string("padding_mode", "zeros")
    align = bool(node.attributes.get_int("align_corners", 0))
    axes = []
    for axis, size in enumerate(sizes):
        place = places[..., axis]
        one = np.float32
        position = (
            (place + one(1)) / one(2) * one(size - 1)
            if align
            else ((place + one(1)) * one(size) - one(1)) / one(2)
        )
        axes.append(_taps(position, size, mode, padding, align=align))
    total = None
    starts = math.prod(sizes) * np.arange(len(places))[:, None]
    for combination in itertools.product(*axes):
        flat = starts + np.ravel_multi_index([index for index, _ in combination], list(sizes))
        weight = np.prod([factor for _, factor in combination], axis=0).ravel()
        if not np.any(weight):
            continue
        taken = emit("Gather", rows, emit.integers(flat.ravel().tolist(), "tap"), attributes={"axis": 2})
        scaled = (
            taken if np.all(weight == 1) else emit("Mul", taken, emit.constant(weight, "weight", like=rows))
        )
        total = scaled if total is None else emit("Add", total, scaled)
    if total is not None:
        return total
    positions = places.shape[0] * places.shape[1]
    first = emit("Gather", rows, emit.integers([0] * positions, "tap"), attributes={"axis": 2})
    return emit("Mul", first, emit.constant(np.zeros((1, 1, positions)), "nothing", like=rows))


def _taps(position: Array, size: int, mode: str, padding: str, *, align: bool) -> list[tuple[Array, Array]]:
    """Indices and weights along one axis, one pair per tap."""
    if mode != "cubic":
        position = _inside(position, size, padding, align=align)
    base = np.rint(position) if mode == "nearest" else np.floor(position)
    fraction = (position - base).astype(np.float64)
    offsets = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    taps = []
    for offset in offsets:
        distance = np.abs(fraction - offset)
        weight = {
            "nearest": np.ones_like(distance),
            "linear": 1.0 - distance,
            "cubic": _cubic(distance, -0.75),
        }[mode]
        index = base + offset
        if mode == "cubic":
            index = _inside(index, size, padding, align=align)
        valid = (index >= 0) & (index < size)
        taps.append((np.where(valid, index, 0).astype(np.int64), np.where(valid, weight, 0.0)))
    return taps


def _inside(position: Array, size: int, padding: str, *, align: bool) -> Array:
    """Positions brought into the image, as the padding says."""
    if padding == "border":
        return np.clip(position, 0, size - 1)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        if high == low:
            return np.zeros_like(position)
        distance = np.mod(position - low, 2 * (high - low))
        folded = np.where(distance > high - low, 2 * (high - low) - distance, distance) + low
        return np.clip(folded, 0, size - 1).astype(position.dtype)
    return position


RULES: Rules = {"Resize": [general_resize], "GridSample": [grid_sample]}
