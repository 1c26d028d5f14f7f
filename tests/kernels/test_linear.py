"""Convolutions and matrix products: kernels against reference, any geometry, widths and zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.strategies import (
    LIMITS,
    agree,
    apply,
    codes,
    dtypes,
    operands,
    pooled,
    requants,
    tables,
    windows,
)
from tpuflow import kernels
from tpuflow.errors import GraphError
from tpuflow.kernels import Operand


@st.composite
def epilogues(
    draw: st.DrawFn, dtype: str, magnitude: float, channels: int, *, wide: bool = False
) -> dict[str, Any]:
    first: dict[str, Any] = {}
    if wide and draw(st.booleans()):
        first = {"first_shift": draw(st.one_of(st.integers(0, 47), st.integers(0, 16)))}
        magnitude = min(magnitude / 2 ** first["first_shift"], 2**31)
    if draw(st.booleans()):
        return first | {"requant": draw(requants(dtype, magnitude, channels))}
    entries, lo, hi = draw(tables(16, dtype))
    table = {"entries": Operand(entries, constant=True), "lo": lo, "hi": hi}
    return first | {"requant": draw(requants("int16", magnitude, channels)), "table": table}


@st.composite
def biases(draw: st.DrawFn, count: int, *, wide: bool) -> Operand:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = 2**31 if wide else 2**20
    values = generator.integers(-spread, spread, count, dtype=np.int64)
    return Operand(values if wide else values.astype(np.int32), constant=True)


def magnitude(x: str, w: str, k: int) -> float:
    return float(LIMITS[x][1] * LIMITS[w][1] * k**0.5 / 3)


@given(st.data(), dtypes, dtypes, dtypes)
@pytest.mark.feature("NUM-09")
def test_conv_equals_the_reference(data: st.DataObject, x_type: str, w_type: str, y_type: str) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    width, filters = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shape = [data.draw(st.integers(1, 2)), *data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))]
    shape.append(width * groups)
    window = data.draw(windows(shape[1], shape[2]))
    kernel = window["kernel"]
    wide = "int16" in {x_type, w_type}
    op = {
        "op": "conv",
        "input": data.draw(operands(x_type, shape)),
        "weights": data.draw(operands(w_type, [filters * groups, *kernel, width], constant=True)),
        "bias": data.draw(biases(filters * groups, wide=wide)),
        "window": window,
        "groups": groups,
        "epilogue": data.draw(
            epilogues(
                y_type,
                magnitude(x_type, w_type, kernel[0] * kernel[1] * width),
                filters * groups,
                wide=wide,
            )
        ),
    }
    output = pooled(shape, window)
    agree(op, shape=[*output[:3], filters * groups], dtype=y_type)


@given(st.data(), dtypes, dtypes)
def test_depthwise_conv(data: st.DataObject, x_type: str, w_type: str) -> None:
    channels = data.draw(st.sampled_from([1, 2, 15, 16, 17, 40]))
    shape = [
        data.draw(st.integers(1, 2)),
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(1, 9)),
        channels,
    ]
    window = data.draw(windows(shape[1], shape[2], largest=5))
    multiple = data.draw(st.sampled_from([1, 1, 1, 2]))
    wide = "int16" in {x_type, w_type}
    op = {
        "op": "conv",
        "input": data.draw(operands(x_type, shape)),
        "weights": data.draw(operands(w_type, [channels * multiple, *window["kernel"], 1], constant=True)),
        "bias": data.draw(biases(channels * multiple, wide=wide)),
        "window": window,
        "groups": channels,
        "epilogue": data.draw(
            epilogues(x_type, magnitude(x_type, w_type, 9), channels * multiple, wide=wide)
        ),
    }
    agree(op, shape=[*pooled(shape, window)[:3], channels * multiple], dtype=x_type)


# Lengths around the lanes and blocks of the vector kernels.
lengths = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129])


@given(st.data(), dtypes, dtypes, lengths, lengths, st.integers(1, 14))
def test_gemm_is_the_product(data: st.DataObject, a_type: str, b_type: str, k: int, n: int, m: int) -> None:
    a, b = data.draw(codes(a_type, [m, k])), data.draw(codes(b_type, [k, n]))
    found = kernels.gemm(a, b)
    assert found.dtype == (np.int32 if a_type == b_type == "int8" else np.int64)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("a_type", ["int8", "int16"])
@pytest.mark.parametrize("b_type", ["int8", "int16"])
@pytest.mark.parametrize("k", [1, 2, 3, 511, 4096])
def test_gemm_of_extremes(a_type: str, b_type: str, k: int) -> None:
    """The largest sums there are: every pair of extremes in every position of a vector."""
    for a in LIMITS[a_type]:
        for b in LIMITS[b_type]:
            found = kernels.gemm(np.full((3, k), a, a_type), np.full((k, 17), b, b_type))
            assert (found == a * b * k).all()


@given(st.data(), dtypes, dtypes, dtypes, lengths, lengths, st.integers(1, 7))
@settings(max_examples=60)
@pytest.mark.feature("NUM-30")
def test_mat_mul_equals_the_reference(
    data: st.DataObject, a_type: str, b_type: str, y_type: str, k: int, n: int, m: int
) -> None:
    constant = data.draw(st.booleans())
    lead = data.draw(st.sampled_from([[], [2], [2, 3]]))
    own = [] if constant or data.draw(st.booleans()) else lead
    wide = "int16" in {a_type, b_type}
    op: dict[str, Any] = {
        "op": "mat_mul",
        "a": data.draw(operands(a_type, [*lead, m, k])),
        "b": data.draw(operands(b_type, [*own, k, n], constant=constant)),
        "epilogue": data.draw(epilogues(y_type, magnitude(a_type, b_type, k), n, wide=wide)),
    }
    if data.draw(st.booleans()):
        op["bias"] = data.draw(biases(n, wide=wide))
    agree(op, shape=[*lead, m, n], dtype=y_type)


@given(st.data(), dtypes)
def test_transposed_conv(data: st.DataObject, dtype: str) -> None:
    """Zeros between neighbours, then a convolution: the zeros are real ones, whatever the zero point."""
    shape = [1, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))]
    stride = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    x = data.draw(operands(dtype, shape))
    spread = [1, (shape[1] - 1) * stride[0] + 1, (shape[2] - 1) * stride[1] + 1, shape[3]]
    found = agree({"op": "insert_zeros", "input": x, "stride": list(stride)}, shape=spread, dtype=dtype)
    assert (found[:, :: stride[0], :: stride[1]] == x.codes).all()
    assert np.count_nonzero(found != x.zero_point) <= x.codes.size


def layer(w: int, bias: int, zero_point: int = 0, k: int = 4) -> dict[str, Any]:
    unit = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": -128, "hi": 127}
    return {
        "op": "mat_mul",
        "a": Operand(np.zeros((1, k), np.int8), zero_point),
        "b": Operand(np.full((k, 1), w, np.int8), constant=True),
        "bias": Operand(np.array([bias], np.int32), constant=True),
        "epilogue": {"requant": unit},
    }


@pytest.mark.feature("NUM-14")
def test_an_accumulator_that_may_overflow_is_refused() -> None:
    largest = 2**31 - 1 - 4 * 127 * 128
    apply(layer(127, largest), shape=[1, 1], dtype="int8")
    with pytest.raises(
        GraphError, match='layer "layer": the accumulator may reach 2147483648, more than 32 bits'
    ):
        apply(layer(127, largest + 1), shape=[1, 1], dtype="int8")
    with pytest.raises(GraphError, match="more than 32 bits"):
        apply(layer(127, largest, zero_point=1), shape=[1, 1], dtype="int8")


def test_products_of_activations_are_bounded_by_their_types() -> None:
    unit = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": -128, "hi": 127}
    a = Operand(np.zeros((1, 40000), np.int8), -128)
    op = {
        "op": "mat_mul",
        "a": a,
        "b": Operand(np.zeros((40000, 1), np.int8), 127),
        "epilogue": {"requant": unit},
    }
    with pytest.raises(GraphError, match="the accumulator may reach 2601000000, more than 32 bits"):
        apply(op, shape=[1, 1], dtype="int8")


def test_a_clamp_beyond_the_type_is_refused() -> None:
    op = layer(1, 0)
    op["epilogue"]["requant"]["hi"] = 128
    with pytest.raises(GraphError, match=r"clamp -128\.\.=128 exceeds int8"):
        apply(op, shape=[1, 1], dtype="int8")


def test_a_zero_point_beyond_the_type_is_refused() -> None:
    with pytest.raises(GraphError, match='zero point 200 of "x0" is no int8 code'):
        apply(layer(1, 0, zero_point=200), shape=[1, 1], dtype="int8")


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'factor'"):
        apply(layer(1, 0) | {"factor": 1}, shape=[1, 1], dtype="int8")


def twice_rounded(x: list[int], w: list[int], bias: int, first: int, requant: tuple[int, int]) -> list[int]:
    """A 1x1 convolution of 16-bit codes with a first rounding."""
    multiplier, shift = requant
    op = {
        "op": "conv",
        "input": Operand(np.array(x, np.int16).reshape(1, 1, -1, len(w))),
        "weights": Operand(np.array(w, np.int16).reshape(1, 1, 1, -1), constant=True),
        "bias": Operand(np.array([bias], np.int64), constant=True),
        "window": {"kernel": [1, 1], "stride": [1, 1], "dilation": [1, 1], "pads": [0] * 4},
        "groups": 1,
        "epilogue": {
            "first_shift": first,
            "requant": {
                "multiplier": [multiplier],
                "shift": [shift],
                "zero_point": 0,
                "lo": -32768,
                "hi": 32767,
            },
        },
    }
    found: list[int] = agree(op, shape=[1, 1, len(x) // len(w), 1], dtype="int16").ravel().tolist()
    return found


@pytest.mark.feature("NUM-12")
def test_two_roundings_by_hand() -> None:
    # 24/16, 40/16 and -24/16 are 1.5, 2.5 and -1.5, so 2, 2 and -2; with the bias 5, 5 and 1; times 3/4.
    # One rounding would make 3 of the first: (24 + 3 * 16) * 3 / 64 = 3.375.
    assert twice_rounded([24, 40, -24], [1], 3, 4, (3, 2)) == [4, 4, 1]
    # 4 * 32767 * 32767 exceeds 32 bits, and so does what the bias adds: (2^31 - 1) / 2^17 is 16384.
    assert twice_rounded([32767] * 4, [32767] * 4, 2**31 - 1, 0, (1, 17)) == [16384]
    # -2^31 + 2^31 - 1 = -1, which is what is left: the sum itself is -4 * 32768 * 32767.
    assert twice_rounded([-32768] * 4, [32767] * 4, 2**31 - 1, 0, (1, 0)) == [-1]


@pytest.mark.feature("NUM-12")
def test_what_has_no_second_rounding() -> None:
    op = layer(1, 0)
    op["epilogue"]["first_shift"] = 3
    with pytest.raises(GraphError, match="a first shift is for sums of 16-bit operands"):
        apply(op, shape=[1, 1], dtype="int8")
    with pytest.raises(GraphError, match="first shift 48 exceeds 47"):
        twice_rounded([1], [1], 0, 48, (1, 0))
    with pytest.raises(GraphError, match="bias 2147483648 behind a first shift exceeds 32 bits"):
        twice_rounded([1], [1], 2**31, 4, (1, 0))
