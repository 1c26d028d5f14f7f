"""Convolution and matrix product (docs/arithmetic.md, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.reference.activation import lookup
from tpuflow.reference.rounding import Integers, clamp, exact, requantize, round_shift

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INT32 = (-(1 << 31), (1 << 31) - 1)


def epilogue(
    sums: Integers,
    bias: Integers | None,
    requant: Mapping[str, Any],
    table: Mapping[str, Any] | None,
    first_shift: int | None = None,
) -> Integers:
    """Bias, requantisation, then the fused table over the 16-bit intermediate, if there is one.

    With a `first_shift` sums lose so many bits and are held to 32 before the bias is added, and after it.
    `table` holds the entries themselves, not the number of the tensor that does.
    """
    held = exact(sums) if first_shift is None else clamp(round_shift(sums, first_shift), *INT32)
    accumulator = held if bias is None else held + exact(bias)
    if first_shift is not None:
        accumulator = clamp(accumulator, *INT32)
    codes = requantize(accumulator, **requant)
    return (
        codes if table is None else lookup(table["entries"], codes, bits=16, lo=table["lo"], hi=table["hi"])
    )


def conv(
    x: Integers,
    w: Integers,
    window: Mapping[str, Sequence[int]],
    *,
    zero_points: tuple[int, int],
    groups: int,
) -> Integers:
    """Sums `[n,oh,ow,o]` of a convolution of `x` `[n,h,w,c]` by `w` `[o,kh,kw,c/groups]`.

    Zero points are subtracted first, so padding is literally zero.
    """
    kernel, stride, dilation = window["kernel"], window["stride"], window["dilation"]
    top, left, bottom, right = window["pads"]
    centered = x.astype(np.int64) - zero_points[0]
    centered = np.pad(centered, ((0, 0), (top, bottom), (left, right), (0, 0)))
    weights = w.astype(np.int64) - zero_points[1]
    extent = [(kernel[i] - 1) * dilation[i] + 1 for i in (0, 1)]
    rows = (centered.shape[1] - extent[0]) // stride[0] + 1
    columns = (centered.shape[2] - extent[1]) // stride[1] + 1
    accumulator = np.zeros((x.shape[0], rows, columns, w.shape[0]), np.int64)
    width, filters = w.shape[3], w.shape[0] // groups
    for row in range(rows):
        for column in range(columns):
            down = slice(row * stride[0], row * stride[0] + extent[0], dilation[0])
            across = slice(column * stride[1], column * stride[1] + extent[1], dilation[1])
            for group in range(groups):
                seen = centered[:, down, across, group * width : (group + 1) * width]
                chosen = slice(group * filters, (group + 1) * filters)
                accumulator[:, row, column, chosen] = np.tensordot(
                    seen, weights[chosen], ((1, 2, 3), (1, 2, 3))
                )
    return accumulator


def mat_mul(a: Integers, b: Integers, *, zero_points: tuple[int, int]) -> Integers:
    """Sums `[..,m,n]` of `a` `[..,m,k]` by `b` `[..,k,n]`."""
    product: Integers = (a.astype(np.int64) - zero_points[0]) @ (b.astype(np.int64) - zero_points[1])
    return product
