"""Operators that move or mix codes by position (docs/arithmetic.md, sections 12 and 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference.rounding import Integers, exact, requantize, round_shift

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rearrange(x: Integers, *, dims: Sequence[int], strides: Sequence[int], offset: int) -> Integers:
    """The elements at `offset + sum(i * strides)` for every multi-index `i` of `dims`, in row-major order."""
    position = np.full((), offset, np.int64)
    for extent, stride in zip(dims, strides, strict=True):
        position = position[..., None] + np.arange(extent) * stride
    return np.asarray(x.ravel()[position])


def pad(
    x: Integers, *, before: Sequence[int], after: Sequence[int], mode: str | Mapping[str, Any]
) -> Integers:
    """Pads every axis; `mode` is `{"constant": code}`, `"reflect"` or `"edge"`."""
    widths = list(zip(before, after, strict=True))
    if isinstance(mode, str):
        return np.pad(x, widths, mode="reflect" if mode == "reflect" else "edge")
    return np.pad(x, widths, constant_values=mode["constant"])


def gather(x: Integers, *, axis: int, indices: Sequence[int]) -> Integers:
    """Picks indices along an axis."""
    return np.take(x, indices, axis=axis)


def embedding(table: Integers, indices: Integers, entry: str | Mapping[str, int] = "row") -> Integers:
    """Entries of a table by index: rows, columns, or `{"rows": n}`, so many rows one after the other."""
    if entry == "column":
        table = table.T
    elif not isinstance(entry, str):
        table = table.reshape(-1, entry["rows"] * table.shape[1])
    return np.asarray(table[indices])


def insert_zeros(x: Integers, *, stride: Sequence[int], zero_point: int) -> Integers:
    """Puts `stride - 1` cells holding the zero point between neighbours of `[n,h,w,c]`."""
    n, h, w, c = x.shape
    shape = (n, (h - 1) * stride[0] + 1, (w - 1) * stride[1] + 1, c)
    result = np.full(shape, zero_point, x.dtype)
    result[:, :: stride[0], :: stride[1]] = x
    return result


def concat(
    operands: Sequence[Integers],
    *,
    axis: int,
    zero_points: Sequence[int],
    requants: Sequence[Mapping[str, Any] | None],
) -> Integers:
    """One operand after the other, those with a requantisation changed to the output's scale."""
    parts = [
        exact(x) if requant is None else requantize(exact(x) - zero_point, **requant)
        for x, zero_point, requant in zip(operands, zero_points, requants, strict=True)
    ]
    return np.concatenate(parts, axis=axis)


def resize_linear(
    x: Integers, *, rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> Integers:
    """Linear resize of `[n,h,w,c]` with weights in multiples of 1/2048 per axis, rounded once."""
    by_row = _mix(exact(x), rows, axis=1)
    return round_shift(_mix(by_row, columns, axis=2), 22)


def _mix(x: Integers, taps: Sequence[Mapping[str, Any]], *, axis: int) -> Integers:
    first = np.take(x, [tap["first"] for tap in taps], axis=axis)
    second = np.take(x, [tap["second"] for tap in taps], axis=axis)
    weight = exact(np.array([int(2048 * tap["weight"]) for tap in taps])).reshape(
        [-1] + [1] * (x.ndim - 1 - axis)
    )
    return np.asarray(first * (2048 - weight) + second * weight)
