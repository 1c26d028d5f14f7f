"""From float ranges and arrays to scales, zero points and codes.

One function per kind of thing that is quantised: activations, weights, biases, constant operands.
Everything follows ONNX's convention `x = scale * (q - zero_point)`; scales are stored as float32 and used
in float64. Further modes (other grids, blocks, floating types) join here as further functions: nothing
outside this module turns a range into a scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tpuflow.config import FLOATS, DType

__all__ = [
    "DType",
    "Format",
    "Mode",
    "Quant",
    "activation",
    "bits",
    "codes",
    "dividing",
    "floating",
    "holding",
    "is_float",
    "mean_error",
    "on_steps",
    "round_to",
    "stated_steps",
    "symmetric",
    "weights",
]

Mode = Literal["asymmetric", "symmetric_full", "symmetric_restricted"]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """The format of codes that a grid is made for.

    Attributes:
        dtype: Storage type.
        mode: How codes lie around zero.
        width: Bits of the codes; by default all of the type.
        power_of_two: Scales are the next powers of two.
    """

    dtype: DType
    mode: Mode = "symmetric_restricted"
    width: int | None = None
    power_of_two: bool = False

    @property
    def half(self) -> int:
        """Half the number of codes."""
        return 1 << ((self.width or bits(self.dtype)) - 1)

    def scale(self, span: float, steps: float) -> float:
        """The scale of a grid of so many steps over a span."""
        scale = float(step_sizes(np.array([span]), steps)[0])
        return power_above(scale) if self.power_of_two else scale


SMALLEST_SPAN = 2.0**-100
"""A range narrower than this (or NaN) says nothing: the scale becomes 1. Other scales are normal float32."""


def bits(dtype: DType) -> int:
    """Width of a code."""
    return {"int8": 8, "float32": 32}.get(dtype, 16)


def is_float(dtype: DType) -> bool:
    """Whether elements are floating-point numbers."""
    return dtype in FLOATS


def floating(dtype: DType) -> Quant:
    """How tensors of a floating type stand for numbers: as they are."""
    return Quant(dtype, 1.0, 0, 0, 0)


def round_to(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Numbers rounded once, half to even, to a floating type; what exceeds it becomes infinite."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    # NumPy rounds to eight bits in one step only from float32; the odd bit set for what float32 loses keeps
    # ties apart from what is near them.
    single = values.astype(np.float32)
    if values.dtype == np.float64:
        exact = single.astype(np.float64)
        low = np.where(np.abs(exact) > np.abs(values), np.nextafter(single, np.float32(0)), single)
        inexact = exact != values
        bits_ = low.astype(np.float32).view(np.uint32) | np.where(inexact, np.uint32(1), np.uint32(0))
        single = np.where(np.isfinite(single), bits_.view(np.float32), single)
    return single.astype(ml_dtypes.bfloat16)


EXACT = 2.0**-20
"""How far a product of a float32 step and an integer, rounded to float32, may lie from it, relatively."""

PART = 1 << 18
"""Elements quantised at a time."""


@dataclass(frozen=True)
class Quant:
    """How a stored tensor's codes stand for real numbers: `x = scale * (q - zero_point)`.

    A floating type stands for its own numbers: `scale` 1, `zero_point` 0, no codes.

    Attributes:
        dtype: Storage type.
        scale: A float32 value, positive.
        zero_point: Code of real 0, unless the range was pinned elsewhere.
        lo: Smallest code in use.
        hi: Largest code in use.
    """

    dtype: DType
    scale: float
    zero_point: int
    lo: int
    hi: int

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return is_float(self.dtype)

    def codes(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Nearest elements, saturated where they are codes, of type `dtype`."""
        if self.is_float:
            return round_to(values, self.dtype)
        return codes(values, self.scale, self.zero_point, self.lo, self.hi, self.dtype)

    def code(self, value: float) -> int:
        """The saturated code of one number, infinities included."""
        return int(self.codes(np.array(value))[()])

    def scale_by(self, factor: float) -> Quant:
        """The same codes standing for `factor` times the numbers, `factor > 0`."""
        return replace(self, scale=float(np.float32(self.scale * factor)))


def codes(
    values: npt.NDArray[Any], scale: npt.ArrayLike, zero_point: int, lo: int, hi: int, dtype: npt.DTypeLike
) -> npt.NDArray[np.signedinteger[Any]]:
    """`clamp(RNE(x / scale) + zero_point, lo, hi)` in float64, NaN as real 0; `scale` broadcasts."""
    divisor = np.broadcast_to(np.asarray(scale, np.float64), values.shape)
    stored = np.empty(values.shape, dtype)
    # Large arrays part by part: the quotients of one part stay in the processor's cache.
    step = max(1, PART * len(values) // max(1, values.size)) if values.ndim else 1
    parts: list[Any] = [slice(i, i + step) for i in range(0, len(values), step)] if values.ndim else [()]
    for part in parts:
        with np.errstate(all="ignore"):  # infinities are masks and saturate
            quotient = np.rint(np.divide(values[part], divisor[part], dtype=np.float64))
        quotient = np.where(np.isnan(quotient), 0.0, quotient) + zero_point
        stored[part] = np.clip(quotient, lo, hi)
    return stored


def step_sizes(spans: npt.NDArray[Any], steps: float) -> Array:
    """The scale of a grid of so many steps over each span; 1 where there is nothing to cover."""
    spans = spans.astype(np.float64)
    usable = np.isfinite(spans) & (spans >= SMALLEST_SPAN)
    quotients = np.where(usable, spans, steps).astype(np.float32) / np.float32(steps)
    return quotients.astype(np.float64)


def power_above(scale: float) -> float:
    """The least power of two that is not below a positive number."""
    fraction, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)


def symmetric(magnitude: float, form: Format) -> Quant:
    """A grid around zero that reaches +-`magnitude`."""
    half = form.half
    if form.mode == "symmetric_full":
        return Quant(form.dtype, form.scale(2 * magnitude, 2 * half - 1), 0, -half, half - 1)
    return Quant(form.dtype, form.scale(magnitude, half - 1), 0, 1 - half, half - 1)


def activation(low: float, high: float, form: Format, *, unsigned: bool = False) -> Quant:
    """The grid of an activation observed in `[low, high]`, which is widened to hold 0.

    An asymmetric mode applies to 8 bits and a range that says anything, for without one numbers may come to
    have either sign; with 16 bits numbers of both signs have a symmetric (restricted)
    grid. There, and with `unsigned` in symmetric modes, a grid of numbers that are never negative spends all
    codes on them (stored with zero point `-2^(b-1)`).
    """
    low, high = min(low, 0.0), max(high, 0.0)
    half, asymmetric = form.half, form.mode == "asymmetric"
    if asymmetric and form.dtype == "int8" and high - low >= SMALLEST_SPAN:
        scale = form.scale(high - low, 2 * half - 1)
        zero_point = int(np.clip(-half - np.rint(low / scale), -half, half - 1))
        return Quant(form.dtype, scale, zero_point, -half, half - 1)
    if (unsigned or asymmetric) and low == 0.0 < high:
        return Quant(form.dtype, form.scale(high, 2 * half - 1), -half, -half, half - 1)
    return symmetric(max(-low, high), replace(form, mode="symmetric_restricted") if asymmetric else form)


FINE_STEPS = 100
"""Steps a number must be from zero for a grid to be changed for it: by a hundredth at most."""

FEWEST_PARTS = 4
"""Steps of 8 bits a number must be from zero for a grid to be changed for it: by a quarter at most."""

STEP_ERROR = 2.0**-24
"""How far a step rounded to float32 may be from the one meant, relatively."""


def on_steps(values: Array, grid: Quant, slack: float) -> Quant | None:
    """The grid of the same steps that holds some numbers: `grid` itself, or one with another zero point.

    Args:
        values: Numbers, at least one.
        grid: A grid of codes.
        slack: How far they may lie from whole steps, in steps, beside what the rounding of the step makes.

    Returns:
        None where they lie further off, or too far apart for 16 bits.
    """
    steps = values / grid.scale
    whole = np.rint(steps)
    if not np.all(np.abs(steps - whole) <= slack + STEP_ERROR * np.abs(whole)):
        return None
    low, high = min(0.0, float(whole.min())), max(0.0, float(whole.max()))
    if grid.lo <= low + grid.zero_point and high + grid.zero_point <= grid.hi:
        return grid
    dtype: DType = "int8" if high - low < 1 << 8 else "int16"
    half = 1 << (bits(dtype) - 1)
    if high - low >= 2 * half:
        return None
    return Quant(dtype, grid.scale, int(min(max(0, -half - low), half - 1 - high)), -half, half - 1)


def holding(grid: Quant, number: float) -> Quant:
    """The grid, its step widened by as little as it takes for a number to lie on it.

    A grid whose step that would change by more than a hundredth is left as it is.
    """
    steps = math.floor(abs(number) / grid.scale)
    if steps < FINE_STEPS or on_steps(np.array(number), grid, 0.0) is not None:
        return grid
    return replace(grid, scale=float(np.float32(abs(number) / steps)))


def dividing(grid: Quant, numbers: Iterable[float]) -> Quant:
    """The grid, its step widened to a part of a number, so that all multiples of that lie on it.

    In 16 bits, whose steps suffice, by a power of two. In 8 bits a step that would grow by more than a
    quarter is left as it is.

    Args:
        grid: A grid of codes.
        numbers: The first of them that can be divided counts.
    """
    for number in numbers:
        parts = math.floor(number / grid.scale * (1 + STEP_ERROR))
        if parts < (1 if grid.dtype == "int16" else FEWEST_PARTS):
            continue
        if grid.dtype == "int16":
            parts = 1 << (parts.bit_length() - 1)
        scale = float(np.float32(number / parts))
        low = (grid.lo - grid.zero_point) * grid.scale
        zero_point = int(min(max(grid.lo, grid.lo - np.rint(low / scale)), grid.hi)) if grid.zero_point else 0
        return replace(grid, scale=scale, zero_point=zero_point)
    return grid


def weights(
    array: npt.NDArray[np.floating[Any]],
    axis: int | None,
    form: Format,
    *,
    floor: Array | None = None,
    stated: Array | None = None,
    reach: Array | None = None,
) -> tuple[npt.NDArray[np.signedinteger[Any]], Array]:
    """Codes of a weight array and its scales, symmetric.

    Args:
        array: The weights, of one dimension or more.
        axis: The axis of output channels, or None for one scale.
        form: Of the codes; one of the symmetric modes.
        floor: Smallest scale allowed, per channel (or one).
        stated: Scales the model states, per channel (or one), instead of those the magnitudes ask for; they
            stay what they are, with all codes of the type.
        reach: Magnitudes the grids reach instead of the largest ones, per channel (or one).

    Returns:
        Codes in the shape of `array`; scales, float32 values in a float64 array, one or one
        per channel.
    """
    others = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
    # Both extrema instead of the largest magnitude: no second array of that size.
    high, low = np.max(array, axis=others, initial=0.0), np.min(array, axis=others, initial=0.0)
    magnitude = np.atleast_1d(np.maximum(high, -low))
    half, full = form.half, form.mode == "symmetric_full"
    lo, hi = (-half if full else 1 - half), half - 1
    if stated is None:
        spans = (magnitude if reach is None else reach) * (2 if full else 1)
        scale = step_sizes(spans, hi - lo if full else hi)
    else:
        scale = stated
    if floor is not None:
        # A channel without weights has no scale of its own; any will do that the bias can be written in.
        scale = np.where(magnitude < SMALLEST_SPAN, floor, np.maximum(scale, floor))
        scale = scale.astype(np.float32).astype(np.float64)
    if form.power_of_two and stated is None:
        scale = np.array([power_above(float(each)) for each in scale])
    shape = [1] * array.ndim
    if axis is not None:
        shape[axis] = -1
    if stated is not None:
        half = 1 << (bits(form.dtype) - 1)
        lo, hi = -half, half - 1
    return codes(array, scale.reshape(shape), 0, lo, hi, form.dtype), scale


def asymmetric_weights(
    array: npt.NDArray[np.floating[Any]], form: Format, floor: float
) -> tuple[npt.NDArray[np.signedinteger[Any]], Array, int]:
    """Codes of a weight array on one grid that spends all codes between its extrema, and zero.

    Args:
        array: The weights.
        form: Of the codes; the mode is taken to be asymmetric.
        floor: Smallest scale allowed.

    Returns:
        Codes in the shape of `array`; the scale, a float32 value in a float64 array of one
        element; the zero point.
    """
    low, high = float(np.min(array, initial=0.0)), float(np.max(array, initial=0.0))
    half = form.half
    scale = float(np.float32(max(float(step_sizes(np.array([high - low]), 2 * half - 1)[0]), floor)))
    if form.power_of_two:
        scale = power_above(scale)
    zero = int(np.clip(-half - np.rint(low / scale), -half, half - 1))
    return codes(array, np.array(scale), zero, -half, half - 1, form.dtype), np.array([scale]), zero


def asymmetric_channels(
    array: npt.NDArray[np.floating[Any]], axis: int, floor: Array, width: int, *, power_of_two: bool = False
) -> tuple[npt.NDArray[np.signedinteger[Any]], Array]:
    """Weights on one grid per channel that spends all codes between its extrema, and zero.

    Args:
        array: The weights.
        axis: The axis of channels.
        floor: Smallest scale allowed, by channel.
        width: Bits of the codes, at most 15.
        power_of_two: Scales are the next powers of two.

    Returns:
        Codes less their channel's zero point, in the shape of `array`; a scale per channel.
    """
    others = tuple(at for at in range(array.ndim) if at != axis % array.ndim)
    low, high = np.min(array, others, initial=0.0), np.max(array, others, initial=0.0)
    levels = (1 << width) - 1
    scale = np.maximum((high.astype(np.float64) - low) / levels, floor).astype(np.float32).astype(np.float64)
    scale = np.where(scale > 0, scale, 1.0)
    if power_of_two:
        scale = np.array([power_above(float(each)) for each in scale])
    shape = [1] * array.ndim
    shape[axis] = -1
    first = np.clip(np.rint(low / scale), -levels, 0).reshape(shape)
    return np.clip(np.rint(array / scale.reshape(shape)), first, first + levels).astype(np.int16), scale


def cluster_codes(codes: npt.NDArray[np.integer[Any]], count: int) -> npt.NDArray[Any]:
    """The codes with at most `count` different ones, of the least sum of squared changes.

    Clusters of numbers on a line are intervals, so the best ones of the first `n` values are a best division
    of the first `m` and one interval more (dynamic programming over the values that occur).
    """
    values, places, weights = np.unique(codes, return_inverse=True, return_counts=True)
    if len(values) <= count:
        return codes
    x, w = values.astype(np.float64), weights.astype(np.float64)
    mass, first, second = (np.concatenate([[0.0], np.cumsum(w * x**power)]) for power in range(3))
    start, end = np.meshgrid(np.arange(len(x)), np.arange(1, len(x) + 1), indexing="ij")
    held = np.maximum(mass[end] - mass[start], 1.0)
    center = np.rint((first[end] - first[start]) / held)
    spread = (second[end] - second[start]) - 2 * center * (first[end] - first[start]) + center**2 * held
    price = np.where(end > start, spread, np.inf)  # of the values from `start` up to `end`
    best, cuts = price[0], []
    for _ in range(count - 1):
        total = np.concatenate([[0.0], best[:-1]])[:, np.newaxis] + price
        cuts.append(total.argmin(axis=0))
        best = total.min(axis=0)
    stop, found = len(x), np.empty(len(x), codes.dtype)
    for cut in [*reversed(cuts), np.zeros(len(x), np.int64)]:
        begin = int(cut[stop - 1])
        found[begin:stop] = center[begin, stop - 1]
        stop = begin
        if stop == 0:
            break
    return found[places].reshape(codes.shape)


def mean_error(
    array: npt.NDArray[Any], stored: npt.NDArray[Any], scale: Array, axis: int, mean: Array
) -> Array:
    """The mean error that rounded weights add to the sums of a layer, one per channel.

    Args:
        array: The weights.
        stored: Their codes.
        scale: Of the codes, one or one per output channel.
        axis: The axis of output channels.
        mean: Average of what each weight is multiplied with, broadcast to the weights' shape.
    """
    shape = [1] * array.ndim
    shape[axis] = -1
    steps, others = scale.reshape(shape), tuple(i for i in range(array.ndim) if i != axis)
    channels = array.shape[axis]
    found = np.empty(channels)
    average = np.broadcast_to(mean, array.shape)
    step = max(1, PART * channels // max(1, array.size))
    for start in range(0, channels, step):
        part = tuple(
            slice(start, start + step) if i == axis % array.ndim else slice(None) for i in range(array.ndim)
        )
        error = stored[part] * (steps[part] if scale.size > 1 else steps) - array[part]
        found[start : start + step] = np.sum(error * average[part], axis=others)
    return found


def stated_steps(array: npt.NDArray[Any], steps: npt.NDArray[Any], axis: int) -> Array | None:
    """The scale of every channel, if all weights of a channel are 8-bit multiples of one step.

    Args:
        array: Weights.
        steps: What the model says each weight is a whole multiple of, in the shape of `array`.
        axis: The axis of output channels.
    """
    channels = np.moveaxis(steps, axis, 0).reshape(steps.shape[axis], -1)
    scale = channels[:, 0].astype(np.float64)
    if not np.all(scale > 0) or not np.all(channels == channels[:, :1]):
        return None
    multiples = np.moveaxis(array, axis, 0).reshape(channels.shape) / scale[:, np.newaxis]
    whole = np.rint(multiples)
    near = np.abs(multiples - whole) <= EXACT * np.maximum(1.0, np.abs(whole))
    return scale if np.all(near) and whole.min() >= -128 and whole.max() <= 127 else None
