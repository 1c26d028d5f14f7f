"""Multipliers, requantisation and tables against rational arithmetic, and the golden vectors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import LIMITS, codes, dtypes, tables
from tpuflow import kernels, reference
from tpuflow.errors import GraphError

GOLDEN = [
    # factor, bits -> M, N
    (1 / 3, 8, (171, 9)),
    (1 / 3, 15, (21845, 16)),
    (1 / 9, 8, (228, 11)),
    (1 / 9, 15, (29127, 18)),
    (0.5, 8, (1, 1)),
    (0.5, 15, (1, 1)),
    (1.0, 15, (1, 0)),
    (127.5 / 3.3, 8, (155, 2)),
    (127.5 / 3.3, 15, (19782, 9)),
    (1e-6, 8, (134, 27)),
    (1e-6, 15, (2147, 31)),
    (1e6, 8, (244, -12)),
    (1e6, 15, (31250, -5)),
    (1e12, 15, None),
    (0.0, 15, None),
    (float("inf"), 15, None),
    (float("nan"), 15, None),
]

limit = 2**47


@pytest.mark.parametrize(("factor", "bits", "expected"), GOLDEN)
@pytest.mark.feature("NUM-05")
def test_factors_are_approximated_as_computed_by_hand(
    factor: float, bits: int, expected: tuple[int, int] | None
) -> None:
    assert kernels.approximate(factor, bits=bits) == expected
    assert reference.approximate(factor, bits) == expected


@given(st.floats(1e-20, 1e9), st.integers(2, 15), st.integers(-15, 47))
def test_approximate(factor: float, bits: int, max_shift: int) -> None:
    found = kernels.approximate(factor, bits=bits, max_shift=max_shift)
    assert found == reference.approximate(factor, bits, max_shift)
    if found is not None:
        m, n = found
        assert 0 <= m < 2**bits
        assert -15 <= n <= max_shift or m in {0, 1}
        assert abs(Fraction(m) / Fraction(2) ** n - Fraction(factor)) <= Fraction(1, 2) / Fraction(2) ** n


@pytest.mark.feature("NUM-04")
def test_ties_go_to_even() -> None:
    half: dict[str, Any] = {"multiplier": [1], "shift": [1], "zero_point": 0, "lo": -100, "hi": 100}
    x = np.array([1, -1, 3, -3, 5, -5, 7, -7], np.int64)
    expected = [0, 0, 2, -2, 2, -2, 4, -4]
    assert kernels.requantize(x, **half).tolist() == expected
    assert reference.requantize(x, **half).tolist() == expected


accumulators = st.one_of(
    st.integers(-limit, limit),
    st.tuples(st.integers(0, 47), st.integers(-2, 2), st.sampled_from([1, -1])).map(
        lambda t: int(np.clip(t[2] * (2 ** t[0] + t[1]), -limit, limit))
    ),
)


@given(
    st.lists(accumulators, min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 32767), st.integers(-15, 47)), min_size=1, max_size=20),
    st.integers(-32768, 32767),
    st.integers(-32768, 0),
    st.integers(0, 32767),
)
@pytest.mark.feature("NUM-07")
def test_requantize_equals_the_reference(
    values: list[int], pairs: list[tuple[int, int]], zero_point: int, lo: int, hi: int
) -> None:
    pairs = (pairs * len(values))[: len(values)] if len(pairs) > 1 else pairs
    parameters: dict[str, Any] = {
        "multiplier": [m for m, _ in pairs],
        "shift": [n for _, n in pairs],
        "zero_point": zero_point,
        "lo": lo,
        "hi": hi,
    }
    found = kernels.requantize(np.array(values, np.int64), **parameters).tolist()
    # `round` of a fraction is half to even by definition of the language.
    by_value = [
        min(max(round(Fraction(value * m) / Fraction(2) ** n) + zero_point, lo), hi)
        for value, (m, n) in zip(values, pairs * len(values) if len(pairs) == 1 else pairs, strict=False)
    ]
    assert found == by_value
    assert reference.requantize(np.array(values), **parameters).tolist() == by_value


def test_an_accumulator_beyond_48_bits_is_refused() -> None:
    with pytest.raises(GraphError, match="accumulator 140737488355329 exceeds 48 bits"):
        kernels.requantize(np.array([limit + 1]), multiplier=[1], shift=[0], zero_point=0, lo=-1, hi=1)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**12))
def test_round_divide_is_the_languages(numerator: int, denominator: int) -> None:
    found = reference.round_divide(np.array(numerator, object), denominator)
    assert int(found.item()) == round(Fraction(numerator, denominator))


@given(st.data(), dtypes)
def test_tables(data: st.DataObject, dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    entries, lo, hi = data.draw(tables(bits, "int16"))
    x = data.draw(codes(dtype, [50]))
    found = kernels.lookup(entries.tolist(), x, lo=lo, hi=hi)
    expected = reference.lookup(entries, x, bits=bits, lo=lo, hi=hi)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("steps", [2**8, 2**10, 2**12, 2**16])
def test_tables_around_every_knot(steps: int) -> None:
    """A table of a straight line is that line, rounded half to even, at all codes."""
    codes_of_type = np.arange(-32768, 32768).astype(np.int16)
    knots = -32768 + np.arange(steps + 1) * (65536 // steps)
    found = kernels.lookup((2 * knots // (65536 // steps)).tolist(), codes_of_type, lo=-32768, hi=32767)
    step = 65536 // steps
    expected = [round(Fraction(2 * int(code), step)) for code in codes_of_type]
    if step > 1:
        assert found.tolist() == np.clip(expected, -32768, 32767).tolist()
    else:
        assert found.tolist() == np.clip(2 * codes_of_type.astype(int), -32768, 32767).tolist()


@pytest.mark.parametrize("entries", [0, 1, 2, 4, 6, 513])
def test_a_table_of_another_size_is_refused(entries: int) -> None:
    refused = "words" if entries and entries % 2 == 0 else f"{entries} entries are no table of 8-bit codes"
    with pytest.raises(GraphError, match=refused):
        kernels.lookup([0] * entries, np.zeros(1, np.int8), lo=LIMITS["int8"][0], hi=LIMITS["int8"][1])
