"""Softmax and layer normalisation: kernels against reference, and near real arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import LIMITS, agree, apply, clamps, codes, dtypes, operands, requants, zero_points
from tpuflow import reference
from tpuflow.kernels import Operand


@given(st.data(), dtypes, dtypes, st.integers(1, 20))
def test_softmax(data: st.DataObject, x_type: str, y_type: str, n: int) -> None:
    lo, hi = data.draw(clamps(y_type))
    m, shift = data.draw(st.sampled_from([(256, 0), (32767, 0), (20000, 6), (3, -4), (32767, -1)]))
    scale = data.draw(st.floats(1e-5, 3))
    op: dict[str, Any] = {
        "op": "softmax",
        "input": data.draw(operands(x_type, [2, 3, n])),
        "exponentials": {
            "coefficient": round(math.log2(math.e) * scale * 2**32),
            "multiplier": m,
            "shift": shift,
            "zero_point": data.draw(zero_points(y_type)),
            "lo": lo,
            "hi": hi,
        },
    }
    if data.draw(st.booleans()):
        shape = data.draw(st.sampled_from([[n], [3, n], [2, 1, n], [2, 3, n], [1]]))
        op["mask"] = Operand(data.draw(codes("int8", shape, lo=0, hi=1)), constant=True)
    agree(op, shape=[2, 3, n], dtype=y_type)


def softmax_layer(x: np.ndarray[Any, Any], scale: float, y_type: str) -> dict[str, Any]:
    """Unsigned output over 0..1, stored as signed codes."""
    bits = 8 * np.dtype(y_type).itemsize
    lo, hi = LIMITS[y_type]
    return {
        "op": "softmax",
        "input": Operand(x),
        "exponentials": {
            "coefficient": round(math.log2(math.e) * float(np.float32(scale)) * 2**32),
            "multiplier": 2**8,
            "shift": 8 - bits,
            "zero_point": lo,
            "lo": lo,
            "hi": hi,
        },
    }


@pytest.mark.parametrize("n", [1, 2, 7, 8, 64, 1000, 4096])
@pytest.mark.parametrize(
    ("x_type", "y_type", "bound"), [("int8", "int8", 0.51), ("int16", "int8", 0.51), ("int16", "int16", 0.63)]
)
@pytest.mark.feature("NUM-28")
def test_softmax_is_near_the_real_one(n: int, x_type: str, y_type: str, bound: float) -> None:
    generator = np.random.default_rng(n)
    low, high = LIMITS[x_type]
    for scale in (0.5 / high, 4 / high, 16 / high):
        x = generator.integers(low, high, (4, n), dtype=x_type, endpoint=True)
        op = softmax_layer(x, scale, y_type)
        found = apply(op, shape=[4, n], dtype=y_type).astype(float)
        found -= op["exponentials"]["zero_point"]
        real = float(np.float32(scale)) * (x.astype(float) - x.max(axis=1, keepdims=True))
        exponentials = np.exp(real)
        steps = 2 ** (8 * np.dtype(y_type).itemsize)
        expected = exponentials / exponentials.sum(axis=1, keepdims=True) * steps
        assert np.abs(found - expected.clip(0, steps - 1)).max() <= bound


@pytest.mark.parametrize("n", [1, 2, 7, 8, 1000])
@pytest.mark.feature("NUM-28")
def test_softmax_of_equal_and_of_one_hot_inputs(n: int) -> None:
    equal = np.full((1, n), 5, np.int8)
    found = agree(softmax_layer(equal, 0.1, "int8"), shape=[1, n], dtype="int8")
    assert (found == min(round(256 / n) - 128, 127)).all()
    one_hot = np.full((1, n), -128, np.int8)
    one_hot[0, n // 2] = 127
    found = agree(softmax_layer(one_hot, 1.0, "int8"), shape=[1, n], dtype="int8")
    assert found[0, n // 2] == 127
    assert np.count_nonzero(found != -128) == 1


def test_masked_elements_are_exactly_zero() -> None:
    op = softmax_layer(np.array([[127, 3, 3, -5], [1, 2, 3, 4]], np.int8), 0.1, "int8")
    op["mask"] = Operand(np.array([[0, 1, 1, 0], [0, 0, 0, 0]], np.int8), constant=True)
    found = agree(op, shape=[2, 4], dtype="int8")
    assert found.tolist() == [[-128, 0, 0, -128], [-128, -128, -128, -128]]


@given(st.data(), dtypes, dtypes, dtypes, st.integers(1, 20))
def test_layer_norm(data: st.DataObject, x_type: str, gamma_type: str, y_type: str, n: int) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    op = {
        "op": "layer_norm",
        "input": data.draw(operands(x_type, [2, 3, n])),
        "gamma": Operand(data.draw(codes(gamma_type, [n])), constant=True),
        "beta": Operand(generator.integers(-(2**40), 2**40, n), constant=True),
        "center": data.draw(st.booleans()),
        "norm": {
            "epsilon": data.draw(st.one_of(st.just(1), st.integers(1, 2**40))),
            "multiplier": data.draw(st.integers(1, 32767)),
            "shift": data.draw(st.integers(-8, 30)),
            "requant": data.draw(requants(y_type, 2.0**15 * LIMITS[gamma_type][1], n)),
        },
    }
    agree(op, shape=[2, 3, n], dtype=y_type)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [2, 7, 64, 768])
@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.51), ("int16", 1.0)])
@pytest.mark.feature("NUM-29")
def test_layer_norm_is_near_the_real_one(center: bool, n: int, dtype: str, bound: float) -> None:  # noqa: FBT001
    """Both `t` and output hold 4 standard deviations, or all there can be.

    At 16 bits the output is `t` itself, so that what is measured is the normalisation, not the multiplication
    by gamma; at 8 bits gamma is one at 14 fraction bits.
    """
    low, high = LIMITS[dtype]
    generator = np.random.default_rng(n)
    x = generator.integers(low, high, (8, n), dtype=dtype, endpoint=True)
    scale_x, eps = float(np.float32(0.02)), 1e-5
    scale_t = min(math.sqrt(n), 4) / 32767
    scale_y = min(math.sqrt(n), 4) / high
    gamma = 16384 if dtype == "int8" else 1
    of_t = reference.approximate(math.sqrt(n) / scale_t, 15, 47)
    of_y = reference.approximate(scale_t / gamma / scale_y, 15, 47)
    assert of_t is not None
    assert of_y is not None
    op = {
        "op": "layer_norm",
        "input": Operand(x),
        "gamma": Operand(np.full(n, gamma, np.int16), constant=True),
        "beta": Operand(np.zeros(n, np.int64), constant=True),
        "center": center,
        "norm": {
            "epsilon": max(1, round(eps / scale_x**2 * 2**16 * n)),
            "multiplier": of_t[0],
            "shift": of_t[1],
            "requant": {"multiplier": [of_y[0]], "shift": [of_y[1]], "zero_point": 0, "lo": low, "hi": high},
        },
    }
    found = agree(op, shape=[8, n], dtype=dtype)
    real = scale_x * x.astype(float)
    real = real - real.mean(axis=1, keepdims=True) if center else real
    expected = real / np.sqrt((real**2).mean(axis=1, keepdims=True) + eps) / scale_y
    assert np.abs(found - expected.clip(low, high)).max() <= bound


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.feature("NUM-29")
def test_a_constant_row_has_no_deviation(n: int) -> None:
    op = {
        "op": "layer_norm",
        "input": Operand(np.full((1, n), 77, np.int8)),
        "gamma": Operand(np.full(n, 100, np.int8), constant=True),
        "beta": Operand(np.arange(n), constant=True),
        "center": True,
        "norm": {
            "epsilon": 1,
            "multiplier": 32767,
            "shift": 0,
            "requant": {"multiplier": [1], "shift": [0], "zero_point": 3, "lo": -128, "hi": 127},
        },
    }
    assert agree(op, shape=[1, n], dtype="int8").tolist() == [[i + 3 for i in range(n)]]
