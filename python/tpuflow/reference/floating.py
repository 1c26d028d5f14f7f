"""Float operators, one IEEE float32 operation at a time (docs/arithmetic.md, section 16).

Operands are float32 arrays; results are, too, before `finish` rounds them to the output's type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tpuflow.reference.functions import evaluate, exp, maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Singles = npt.NDArray[np.float32]
Codes = npt.NDArray[Any]

DTYPES: Mapping[str, type] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
}

ONE = np.float32(1.0)


def nearest(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The elements of type `dtype` nearest to float64 (or float32) numbers, half to even; one NaN."""
    wide = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            # Eight significant bits, fewer below 2^-126; all of it exact in float64.
            _, exponent = np.frexp(wide)
            step = np.ldexp(1.0, np.maximum(exponent, -125) - 8)
            exact = np.where(np.isfinite(wide), np.rint(wide / step) * step, wide)
            # What is not below 2^128 now, the conversion makes infinite.
            bits = exact.astype(np.float32).view(np.uint32) >> 16
            bits = np.where(np.isnan(wide), 0x7FC0, bits)
            brain: npt.NDArray[Any] = bits.astype(np.uint16).view(ml_dtypes.bfloat16)
            return brain
        narrow: npt.NDArray[Any] = wide.astype(DTYPES[dtype])
    return np.asarray(np.where(np.isnan(wide), narrow.dtype.type(np.nan), narrow), narrow.dtype)


def finish(values: Singles, finish: Mapping[str, Any], dtype: str) -> npt.NDArray[Any]:
    """Function, clamp and the one rounding."""
    wide = np.asarray(values, np.float64)
    if finish.get("function") is not None:
        wide = evaluate(finish["function"], wide)
    if finish.get("lo") is not None:
        wide = maximum(wide, np.array(finish["lo"], np.float64))
    if finish.get("hi") is not None:
        wide = minimum(wide, np.array(finish["hi"], np.float64))
    return nearest(np.atleast_1d(wide), dtype).reshape(np.shape(values))


def _covered_outputs(size: int, outputs: int, first: int, stride: int) -> npt.NDArray[np.intp]:
    """Output positions for which `first + position * stride` lies in `0..size`."""
    places = first + stride * np.arange(outputs)
    return np.flatnonzero((places >= 0) & (places < size))


def _outputs(size: int, axis: int, window: Mapping[str, Sequence[int]]) -> int:
    extent = (window["kernel"][axis] - 1) * window["dilation"][axis] + 1
    padded = size + window["pads"][axis] + window["pads"][axis + 2]
    return (padded - extent) // window["stride"][axis] + 1


def _taps(shape: Sequence[int], window: Mapping[str, Sequence[int]]) -> Any:
    """Per tap `(kh, kw)` in order: where it meets the image, as outputs and as input cells."""
    outputs = [_outputs(shape[1 + axis], axis, window) for axis in (0, 1)]
    for i in range(window["kernel"][0]):
        for j in range(window["kernel"][1]):
            at, cells = [], []
            for axis, index in ((0, i), (1, j)):
                first = index * window["dilation"][axis] - window["pads"][axis]
                stride = window["stride"][axis]
                place = _covered_outputs(shape[1 + axis], outputs[axis], first, stride)
                at.append(place)
                cells.append(first + stride * place)
            yield (i, j), (slice(None), at[0][:, None], at[1]), (slice(None), cells[0][:, None], cells[1])


def conv(
    x: Singles, weights: Singles, bias: Singles, *, window: Mapping[str, Sequence[int]], groups: int
) -> Singles:
    """Sums in the order (kh, kw, c) from +0 on, taps outside the image left out, then the bias."""
    n, o, c = x.shape[0], weights.shape[0], weights.shape[3]
    size = [_outputs(x.shape[1 + axis], axis, window) for axis in (0, 1)]
    group = np.arange(o) // (o // groups)
    total = np.zeros((n, *size, o), np.float32)
    for (i, j), outputs, cells in _taps(x.shape, window):
        for channel in range(c):
            operand = x[cells][..., group * c + channel]
            total[outputs] = total[outputs] + operand * weights[:, i, j, channel]
    return total + bias


def mat_mul(a: Singles, b: Singles, bias: Singles | None) -> Singles:
    """Sums in the order of k from +0 on, then the bias."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*lead, a.shape[-2], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total = total + a[..., :, k, None] * b[..., k, None, :]
    return total if bias is None else total + bias


def max_pool(x: Singles, window: Mapping[str, Sequence[int]]) -> Singles:
    """Largest number of each window, minus infinity without a cell."""
    size = [_outputs(x.shape[1 + axis], axis, window) for axis in (0, 1)]
    most = np.full((x.shape[0], *size, x.shape[3]), -np.inf, np.float32)
    for _, outputs, cells in _taps(x.shape, window):
        most[outputs] = maximum(most[outputs], x[cells])
    return most


def average_pool(
    x: Singles, window: Mapping[str, Sequence[int]], *, count_include_pad: bool, beyond: Sequence[int]
) -> Singles:
    """Sum of each window's cells divided by how many count."""
    size = [_outputs(x.shape[1 + axis], axis, window) for axis in (0, 1)]
    total = np.zeros((x.shape[0], *size, x.shape[3]), np.float32)
    for _, outputs, cells in _taps(x.shape, window):
        total[outputs] = total[outputs] + x[cells]
    counts = []
    for axis in (0, 1):
        starts = np.arange(size[axis]) * window["stride"][axis] - window["pads"][axis]
        places = starts[:, None] + np.arange(window["kernel"][axis]) * window["dilation"][axis]
        low, high = 0, x.shape[1 + axis]
        if count_include_pad:
            low, high = -window["pads"][axis], high + window["pads"][axis + 2] - beyond[axis]
        counts.append(np.sum((places >= low) & (places < high), axis=1))
    count = np.maximum(counts[0][:, None] * counts[1], 1).astype(np.float32)
    return np.asarray(total / count[:, :, None], np.float32)


COMPARISONS = {
    "less": np.less,
    "less_or_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
ARITHMETIC: Mapping[str, Callable[[Singles, Singles], Singles]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": maximum,
    "min": minimum,
}


def p_relu(x: Singles, negative: Sequence[float]) -> Singles:
    """`x`, times the slope where it is not at least zero."""
    return np.where(x >= 0, x, x * np.array(negative, np.float32))


def softmax(x: Singles, mask: Codes | None) -> Singles:
    """`exp(x - max) / sum` over the elements of a row that are not masked; the others give +0."""
    taken = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask != 0, x.shape)
    result = np.zeros_like(x)
    for row in np.ndindex(x.shape[:-1]):
        chosen = np.flatnonzero(taken[row])
        if len(chosen) == 0:
            continue
        values = x[row][chosen]
        most = values[:1]
        for value in values[1:]:
            most = maximum(most, np.array([value]))
        exponentials = exp((values - most).astype(np.float64)).astype(np.float32)
        result[row][chosen] = exponentials / _sum(exponentials)
    return result


def _sum(terms: Singles) -> np.float32:
    total = np.float32(0.0)
    for term in terms:
        total = total + term
    return total


def layer_norm(x: Singles, gamma: Singles, beta: Singles, *, center: bool, epsilon: float) -> Singles:
    """Over the last axis; mean and variance by sums in order."""
    n = np.float32(x.shape[-1])
    result = np.empty_like(x)
    for row in np.ndindex(x.shape[:-1]):
        values = x[row]
        deviation = values - _sum(values) / n if center else values
        variance = _sum(deviation * deviation) / n
        result[row] = deviation / np.sqrt(variance + np.float32(epsilon)) * gamma + beta
    return result


def reduce(kind: str, x: Singles, *, axes: Sequence[int], divisor: float) -> Singles:
    """`sum`, `sum_abs`, `sum_square`, `norm`, `max` or `min`, terms in row-major order."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    terms = x.transpose([*axes, *kept]).reshape(-1, *shape)
    if kind in {"max", "min"}:
        extreme = np.full(shape, -np.inf if kind == "max" else np.inf, np.float32)
        for term in terms:
            extreme = maximum(extreme, term) if kind == "max" else minimum(extreme, term)
        return extreme
    if kind == "sum_abs":
        terms = abs(terms)
    elif kind != "sum":
        terms = terms * terms
    total = np.zeros(shape, np.float32)
    for term in terms:
        total = total + term
    return np.asarray((np.sqrt(total) if kind == "norm" else total) / np.float32(divisor), np.float32)


def arg_max(x: Singles, *, largest: bool, select_last: bool) -> Codes:
    """Position of the extreme of the last axis; NaN beats every number."""
    result = np.empty(x.shape[:-1], np.int32)
    for row in np.ndindex(result.shape):
        values = x[row]
        nan = np.flatnonzero(np.isnan(values))
        extreme = values.max() if largest else values.min()
        found = nan if len(nan) else np.flatnonzero(values == extreme)
        result[row] = found[-1 if select_last else 0]
    return result


def resize_linear(
    x: Singles, *, rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> Singles:
    """Across columns first, then between rows."""
    return _mix(_mix(x, columns, axis=2), rows, axis=1)


def _mix(x: Singles, taps: Sequence[Mapping[str, Any]], *, axis: int) -> Singles:
    first = np.take(x, [tap["first"] for tap in taps], axis=axis)
    second = np.take(x, [tap["second"] for tap in taps], axis=axis)
    weight = np.array([tap["weight"] for tap in taps], np.float32).reshape([-1] + [1] * (x.ndim - 1 - axis))
    return np.asarray((ONE - weight) * first + weight * second, np.float32)


def quantize(x: Singles, *, scale: float, zero_point: int, lo: int, hi: int) -> Codes:
    """`clamp(RNE(x / S) + Z)`, the quotient in float64; NaN gives real zero."""
    with np.errstate(all="ignore"):
        steps = np.rint(x.astype(np.float64) / np.float64(np.float32(scale)))
    limited = np.clip(np.nan_to_num(steps, nan=0.0), -(2.0**40), 2.0**40).astype(np.int64)
    return np.asarray(np.clip(limited + zero_point, lo, hi))


def dequantize(x: Codes, *, scale: float, zero_point: int) -> Singles:
    """`S * (x - Z)`, the difference as a float32."""
    return np.float32(scale) * (x.astype(np.int64) - zero_point).astype(np.float32)
