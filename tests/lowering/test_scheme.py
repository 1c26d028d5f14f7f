"""Scales, zero points and codes: golden values and properties."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuflow import _core
from tpuflow.lowering import scheme
from tpuflow.lowering.fixed_point import LARGEST, FactorError, approximate, approximations, saturating
from tpuflow.lowering.scheme import DType, Format, Mode, Quant

MODES: list[Mode] = ["asymmetric", "symmetric_full", "symmetric_restricted"]


@pytest.mark.parametrize(
    ("factor", "bits", "pair"),
    [
        (1 / 9, 8, (228, 11)),
        (1 / 3, 15, (21845, 16)),
        (0.5, 15, (1, 1)),
        (1.0, 15, (1, 0)),
        (4.0, 15, (4, 0)),
        (1e-12, 15, (0, 31)),
        (127.5 / 3.3, 15, (19782, 9)),
    ],
)
@pytest.mark.feature("NUM-05")
def test_factors_are_approximated_by_the_golden_pairs(
    factor: float, bits: int, pair: tuple[int, int]
) -> None:
    assert approximate(factor, bits, 31) == pair


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf, 1e12])
def test_approximate_refuses(factor: float) -> None:
    with pytest.raises(FactorError):
        approximate(factor)


@given(st.floats(1e-13, 1e9), st.integers(2, 15), st.sampled_from([31, 47]))
def test_approximate_equals_the_rust_twin(factor: float, bits: int, ceiling: int) -> None:
    try:
        own: tuple[int, int] | None = approximate(factor, bits, ceiling)
    except FactorError:
        own = None
    assert own == _core.approximate(factor, bits, ceiling)


@given(st.lists(st.floats(1e-8, 1e4)), st.integers(2, 15))
def test_approximations_are_those_of_each_factor(factors: list[float], bits: int) -> None:
    assert approximations(factors, bits) == [_core.approximate(factor, bits, 47) for factor in factors]


@given(st.floats(1e-4, 1e4), st.integers(2, 15))
@pytest.mark.feature("NUM-05")
def test_approximate_is_close(factor: float, bits: int) -> None:
    multiplier, shift = approximate(factor, bits)
    assert multiplier < 1 << bits
    assert abs(math.ldexp(multiplier, -shift) / factor - 1) <= 1 / ((1 << bits) - 1)


@pytest.mark.parametrize(
    ("mode", "dtype", "scale", "zero_point"),
    [
        ("symmetric_full", "int8", 3.3 / 127.5, 0),
        ("symmetric_restricted", "int8", 3.3 / 127, 0),
        ("asymmetric", "int8", 4.4 / 255, -64),
        ("symmetric_full", "int16", 3.3 / 32767.5, 0),
        ("asymmetric", "int16", 3.3 / 32767, 0),
    ],
)
def test_activation_golden(mode: Mode, dtype: DType, scale: float, zero_point: int) -> None:
    quant = scheme.activation(-1.1, 3.3, Format(dtype, mode))
    assert quant.scale == pytest.approx(scale, rel=1e-6)
    assert quant.scale == float(np.float32(quant.scale))
    assert quant.zero_point == zero_point


def test_full_range_clamps_the_positive_end() -> None:
    quant = scheme.symmetric(3.3, Format("int8", "symmetric_full"))
    assert (quant.code(3.3), quant.code(-3.3)) == (127, -128)


def test_unsigned_spends_all_codes_on_positive_numbers() -> None:
    quant = scheme.activation(0.0, 2.55, Format("int8"), unsigned=True)
    assert quant.scale == pytest.approx(0.01)
    assert (quant.code(0.0), quant.code(2.55)) == (-128, 127)
    signed = scheme.activation(-0.1, 2.55, Format("int8"), unsigned=True)
    assert signed.zero_point == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.feature("NUM-02")
def test_a_degenerate_range_gets_scale_one(mode: Mode, dtype: Literal["int8", "int16"]) -> None:
    assert scheme.activation(0.0, 0.0, Format(dtype, mode)).scale == 1.0
    assert scheme.activation(0.0, 1e-31, Format(dtype, mode)).scale == 1.0


ranges = st.tuples(st.floats(-1e4, 0.0), st.floats(0.0, 1e4)).filter(lambda r: r[1] - r[0] > 1e-3)


@given(ranges, st.sampled_from(MODES), st.sampled_from(["int8", "int16"]), st.data())
@pytest.mark.feature("NUM-01")
def test_round_trip_is_within_half_a_step(
    bounds: tuple[float, float], mode: Mode, dtype: DType, data: st.DataObject
) -> None:
    quant = scheme.activation(*bounds, Format(dtype, mode))
    value = data.draw(st.floats(*bounds))
    code = quant.code(value)
    assert quant.lo <= code <= quant.hi
    # The positive end of a full range saturates; zero falls on a code, which moves the ends by half a step.
    slack = 1.01 if mode != "symmetric_restricted" else 0.51
    assert abs((code - quant.zero_point) * quant.scale - value) <= slack * quant.scale
    assert quant.code(0.0) == quant.zero_point


@pytest.mark.feature("NUM-01")
def test_codes_of_what_is_not_a_number() -> None:
    quant = scheme.activation(-1.0, 3.0, Format("int8", "asymmetric"))
    codes = quant.codes(np.array([np.nan, np.inf, -np.inf, 1e30]))
    assert codes.tolist() == [quant.zero_point, 127, -128, 127]


def test_weights_have_one_scale_per_channel() -> None:
    array = np.array([[0.25, -1.0], [0.002, 0.0005], [0.0, 0.0]])
    codes, scale = scheme.weights(array, 0, Format("int8"))
    assert codes.tolist() == [[32, -127], [127, 32], [0, 0]]
    assert scale == pytest.approx([1 / 127, 0.002 / 127, 1.0])


def test_a_floor_keeps_scales_from_vanishing() -> None:
    array = np.array([[1.0], [1e-6], [0.0]])
    _, scale = scheme.weights(array, 0, Format("int8"), floor=np.array([1e-4, 1e-4, 1e-3]))
    assert scale == pytest.approx([1 / 127, 1e-4, 1e-3])


def test_large_arrays_are_quantized_in_parts_without_a_seam() -> None:
    array = np.random.default_rng(1).normal(size=(700, 900)).astype(np.float32)
    codes, scale = scheme.weights(array, 1, Format("int8"))
    expected = np.clip(np.rint(array.astype(np.float64) / scale), -127, 127)
    assert codes.dtype == np.int8
    assert np.array_equal(codes, expected)


@given(st.floats(1e-13, 1e300))
def test_a_factor_beyond_the_largest_saturates_alike(factor: float) -> None:
    assert approximate(saturating(factor)) == approximate(min(factor, LARGEST))
    assert (saturating(factor) == factor) is (factor <= LARGEST)
    with pytest.raises(FactorError):
        approximate(math.nextafter(2 * LARGEST, math.inf))


@given(
    st.floats(2.0**-20, 1024, width=32),
    st.sampled_from([("int8", -128), ("int8", 0), ("int16", -32768), ("int16", 0)]),
    st.lists(st.integers(-65535, 65535), min_size=1, max_size=4),
)
def test_numbers_on_steps_of_a_grid_lie_on_one_with_the_same_steps(
    step: float, kind: tuple[DType, int], multiples: list[int]
) -> None:
    half = 128 if kind[0] == "int8" else 32768
    grid = Quant(kind[0], float(np.float32(step)), kind[1], -half, half - 1)
    values = np.array(multiples) * grid.scale
    found = scheme.on_steps(values, grid, 0.0)
    if max(0, *multiples) - min(0, *multiples) > 65535:
        assert found is None
        return
    assert found is not None
    assert found.scale == grid.scale
    assert found.lo <= found.zero_point <= found.hi
    codes = found.codes(values).astype(np.int64)
    assert (codes - found.zero_point).tolist() == multiples
    if max(0, *multiples) + kind[1] < half and min(0, *multiples) + kind[1] >= -half:
        assert found == grid
    assert scheme.on_steps(values + 0.4 * grid.scale, grid, 0.0) is None


@given(st.floats(2.0**-20, 1024, width=32), st.floats(1e-6, 1e6))
def test_a_grid_holds_a_number_by_a_slightly_wider_step(step: float, number: float) -> None:
    grid = Quant("int16", float(np.float32(step)), 0, -32767, 32767)
    found = scheme.holding(grid, number)
    if number < scheme.FINE_STEPS * grid.scale:
        assert found == grid
        return
    assert grid.scale <= found.scale * (1 + 2**-23) <= grid.scale * (1 + 1 / scheme.FINE_STEPS)
    if number < 65535 * grid.scale:
        assert scheme.on_steps(np.array(number), found, 0.0) is not None
        assert scheme.on_steps(np.array(-number), found, 0.0) is not None
