"""Pools, resize and reductions: kernels against reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import (
    LIMITS,
    agree,
    apply,
    clamps,
    codes,
    dtypes,
    operands,
    pooled,
    requants,
    windows,
    zero_points,
)
from tpuflow import reference
from tpuflow.errors import GraphError
from tpuflow.kernels import Operand


@st.composite
def images(draw: st.DrawFn, dtype: str) -> Operand:
    size = st.integers(1, 7)
    return draw(
        operands(dtype, [draw(st.integers(1, 2)), draw(size), draw(size), draw(st.sampled_from([1, 3, 17]))])
    )


@pytest.mark.feature("NUM-27")
def test_padding_is_never_the_maximum() -> None:
    """Of codes that are all below every code padding could have, the largest of the window's own counts."""
    x = np.full((1, 2, 2, 1), -128, np.int8)
    x[0, 0, 0, 0] = -127
    window = {"kernel": [2, 2], "stride": [1, 1], "pads": [1, 1, 1, 1], "dilation": [1, 1]}
    found = agree({"op": "max_pool", "input": Operand(x), "window": window}, shape=[1, 3, 3, 1], dtype="int8")
    assert found[0, :, :, 0].tolist() == [[-127, -127, -128], [-127, -127, -128], [-128, -128, -128]]


@given(st.data(), dtypes)
@pytest.mark.feature("NUM-27")
def test_max_pool_equals_the_reference(data: st.DataObject, dtype: str) -> None:
    x = data.draw(images(dtype))
    window = data.draw(windows(x.codes.shape[1], x.codes.shape[2]))
    op = {"op": "max_pool", "input": x, "window": window}
    agree(op, shape=pooled(x.codes.shape, window), dtype=dtype)


def divisors(largest: int, factor: float) -> list[dict[str, int]]:
    found = [(area, reference.approximate(factor / area)) for area in range(1, largest + 1)]
    return [{"area": area, "multiplier": m[0], "shift": m[1]} for area, m in found if m is not None]


@given(st.data(), dtypes, dtypes, st.booleans())
@pytest.mark.feature("NUM-26")
def test_average_pool_equals_the_reference(
    data: st.DataObject,
    x_type: str,
    y_type: str,
    count_include_pad: bool,  # noqa: FBT001
) -> None:
    x = data.draw(images(x_type))
    window = data.draw(windows(x.codes.shape[1], x.codes.shape[2]))
    lo, hi = data.draw(clamps(y_type))
    op = {
        "op": "average_pool",
        "input": x,
        "window": window,
        "count_include_pad": count_include_pad,
        "beyond": [data.draw(st.integers(0, window["pads"][axis + 2])) for axis in (0, 1)],
        "average": {
            "divisors": divisors(9, LIMITS[y_type][1] / LIMITS[x_type][1]),
            "zero_point": data.draw(zero_points(y_type)),
            "lo": lo,
            "hi": hi,
        },
    }
    agree(op, shape=pooled(x.codes.shape, window), dtype=y_type)


def average(x: Operand, *, count_include_pad: bool, beyond: list[int]) -> dict[str, Any]:
    window = {
        "kernel": [3, 3],
        "stride": [2, 2],
        "dilation": [1, 1],
        "pads": [1, 1, 1 + beyond[0], 1 + beyond[1]],
    }
    return {
        "op": "average_pool",
        "input": x,
        "window": window,
        "count_include_pad": count_include_pad,
        "beyond": beyond,
        "average": {"divisors": divisors(9, 1.0), "zero_point": x.zero_point, "lo": -128, "hi": 127},
    }


@pytest.mark.feature("NUM-26")
def test_average_pool_in_ceil_mode_by_hand() -> None:
    """A 4x4 image of code 10, zero point -20 (real 30), kernel 3, stride 2, padding 1, ceil mode.

    Along an axis the three windows hold 2, 3 and 1 cells of the image; with the declared padding 3, 3 and 2,
    the last cell of the third lying beyond it.
    """
    x = Operand(np.full((1, 4, 4, 1), 10, np.int8), -20)
    without = agree(average(x, count_include_pad=False, beyond=[1, 1]), shape=[1, 3, 3, 1], dtype="int8")
    assert (without == 10).all()
    counted = agree(average(x, count_include_pad=True, beyond=[1, 1]), shape=[1, 3, 3, 1], dtype="int8")
    # 30 * (2, 3, 1) x (2, 3, 1) / ((3, 3, 2) x (3, 3, 2)) = 13.3 20 10 | 20 30 15 | 10 15 7.5
    assert counted[0, :, :, 0].tolist() == [[-7, 0, -10], [0, 10, -5], [-10, -5, -12]]


def test_a_missing_divisor_is_named() -> None:
    op = average(Operand(np.zeros((1, 4, 4, 1), np.int8)), count_include_pad=False, beyond=[0, 0])
    op["average"]["divisors"] = op["average"]["divisors"][4:]
    with pytest.raises(GraphError, match='layer "layer": no divisor for the 4 cells of output 0'):
        apply(op, shape=[1, 2, 2, 1], dtype="int8")


@st.composite
def taps(draw: st.DrawFn, extent: int) -> list[dict[str, float]]:
    index = st.integers(0, extent - 1)
    tap = st.fixed_dictionaries(
        {"first": index, "second": index, "weight": st.integers(0, 2048).map(lambda w: w / 2048)}
    )
    return draw(st.lists(tap, min_size=1, max_size=5))


@given(st.data(), dtypes)
@pytest.mark.feature("NUM-31")
def test_resize_linear_equals_the_reference(data: st.DataObject, dtype: str) -> None:
    x = data.draw(images(dtype))
    n, h, w, c = x.codes.shape
    rows, columns = data.draw(taps(h)), data.draw(taps(w))
    op = {"op": "resize_linear", "input": x, "rows": rows, "columns": columns}
    agree(op, shape=[n, len(rows), len(columns), c], dtype=dtype)


@given(st.integers(-128, 127), st.data())
def test_resize_preserves_constants(code: int, data: st.DataObject) -> None:
    rows, columns = data.draw(taps(3)), data.draw(taps(4))
    x = Operand(np.full((1, 3, 4, 2), code, np.int8))
    op = {"op": "resize_linear", "input": x, "rows": rows, "columns": columns}
    assert (apply(op, shape=[1, len(rows), len(columns), 2], dtype="int8") == code).all()


@pytest.mark.parametrize("kind", ["sum", "sum_abs", "sum_square", "norm", "max", "min"])
@given(data=st.data(), x_type=dtypes, y_type=dtypes)
@pytest.mark.feature("NUM-33")
def test_reduce_equals_the_reference(kind: str, data: st.DataObject, x_type: str, y_type: str) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    y_type = x_type if kind in {"max", "min"} else y_type
    size = float(LIMITS[x_type][1]) * {"sum_square": LIMITS[x_type][1], "norm": 256}.get(kind, 1)
    op = {
        "op": "reduce",
        "input": data.draw(operands(x_type, shape)),
        "kind": kind,
        "axes": axes,
        "requant": data.draw(requants(y_type, size)),
    }
    agree(op, shape=[n for axis, n in enumerate(shape) if axis not in axes], dtype=y_type)


@given(st.data(), dtypes, st.booleans(), st.booleans())
def test_arg_max(data: st.DataObject, dtype: str, largest: bool, select_last: bool) -> None:  # noqa: FBT001
    n = data.draw(st.integers(1, 9))
    x = Operand(data.draw(codes(dtype, [2, 3, n], lo=-2, hi=2)))
    op = {"op": "arg_max", "input": x, "largest": largest, "select_last": select_last}
    agree(op, shape=[2, 3], dtype="int32")
