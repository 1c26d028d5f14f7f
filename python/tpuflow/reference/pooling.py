"""Maximum and average pooling (docs/arithmetic.md, section 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.reference.rounding import Integers, exact, requantize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def _windows(
    shape: Sequence[int],
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Every output row and column with the input cells under its window, inside the image or not."""
    counts = [
        (shape[1 + i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    for row in range(counts[0]):
        for column in range(counts[1]):
            cells = [
                (row * stride[0] - pads[0] + i * dilation[0], column * stride[1] - pads[1] + j * dilation[1])
                for i in range(kernel[0])
                for j in range(kernel[1])
            ]
            yield row, column, cells


def max_pool(x: Integers, window: Mapping[str, Sequence[int]]) -> Integers:
    """Largest code of each window of `[n,h,w,c]`; the type's smallest where no cell lies inside the image."""
    n, h, w, c = x.shape
    windows = list(_windows(x.shape, **window))
    result = np.full((n, windows[-1][0] + 1, windows[-1][1] + 1, c), np.iinfo(x.dtype).min, np.int64)
    for row, column, cells in windows:
        for i, j in cells:
            if 0 <= i < h and 0 <= j < w:
                result[:, row, column] = np.maximum(result[:, row, column], x[:, i, j])
    return result


def average_pool(
    x: Integers,
    window: Mapping[str, Sequence[int]],
    *,
    input_zero_point: int,
    count_include_pad: bool,
    beyond: Sequence[int],
    divisors: Sequence[Mapping[str, int]],
    **grid: int,
) -> Integers:
    """Average of each window of `[n,h,w,c]`, its multiplier chosen by the number of cells that count.

    `grid` is the zero point of the result and its least and largest code.
    """
    n, h, w, c = x.shape
    pads = window["pads"]
    last = (h + pads[2] - beyond[0], w + pads[3] - beyond[1])
    windows = list(_windows(x.shape, **window))
    result = np.full((n, windows[-1][0] + 1, windows[-1][1] + 1, c), 0, object)
    for row, column, cells in windows:
        inside = [(i, j) for i, j in cells if 0 <= i < h and 0 <= j < w]
        declared = [(i, j) for i, j in cells if -pads[0] <= i < last[0] and -pads[1] <= j < last[1]]
        area = len(declared) if count_include_pad else len(inside)
        total = np.zeros((n, c), object)
        for i, j in inside:
            total = total + exact(x[:, i, j]) - input_zero_point
        divisor = next((d for d in divisors if d["area"] == area), {"multiplier": 0, "shift": 0})
        result[:, row, column] = requantize(
            total, multiplier=[divisor["multiplier"]], shift=[divisor["shift"]], **grid
        )
    return result
