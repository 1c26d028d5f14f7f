"""The similarity measures against their definitions, and the corner cases the definitions leave open."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuflow.evaluation.comparison import Comparison, TensorComparison
from tpuflow.evaluation.similarity import cosine, euclid, max_error, similarity, sqnr
from tpuflow.evaluation.tensor_files.levels import Tolerance
from tpuflow.evaluation.tensor_files.table import compare_arrays

vectors = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3, width=32))


@given(vectors, st.integers(0, 2**32 - 1))
@pytest.mark.feature("CMP-01", "CMP-02", "CMP-03")
def test_match_the_definitions(x: np.ndarray, seed: int) -> None:
    y = x + np.random.default_rng(seed).normal(0, 1, x.shape)
    if not np.linalg.norm(x) > 1e-3:
        return
    assert cosine(x, y) == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-12)
    assert euclid(x, y) == pytest.approx(1 - np.linalg.norm(x - y) / np.linalg.norm((x + y) / 2), rel=1e-9)
    assert sqnr(x, y) == pytest.approx(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(x - y)), rel=1e-9)
    assert max_error(x, y) == pytest.approx(np.max(np.abs(x - y)), rel=1e-12)


@pytest.mark.feature("CMP-01", "CMP-02", "CMP-03")
def test_similarities_are_those_computed_by_hand() -> None:
    result = similarity([3.0, 4.0], [3.0, 0.0])
    assert result.cosine == pytest.approx(0.6)
    assert result.euclid == pytest.approx(1 - 4 / math.hypot(3, 2))
    assert result.sqnr == pytest.approx(20 * math.log10(5 / 4))
    assert result.max_error == 4.0


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([0, 0], [0, 0], (1.0, 1.0, math.inf, 0.0)),
        ([0, 0], [1, 0], (0.0, -1.0, -math.inf, 1.0)),
        ([1, 2], [-1, -2], (-1.0, 0.0, 20 * math.log10(0.5), 4.0)),
        ([], [], (1.0, 1.0, math.inf, 0.0)),
    ],
)
@pytest.mark.feature("CMP-01", "CMP-02")
def test_zero_denominators_have_defined_similarities(
    x: list[float], y: list[float], expected: tuple[float, ...]
) -> None:
    result = similarity(np.array(x, np.float32), np.array(y, np.float32))
    assert (result.cosine, result.euclid, result.sqnr, result.max_error) == pytest.approx(expected)


def test_integers_do_not_overflow() -> None:
    assert max_error(np.array([-128], np.int8), np.array([127], np.int8)) == 255.0


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_magnitudes_keep_their_angle(scale: float) -> None:
    assert cosine([3 * scale, 4 * scale], [3 * scale, 0]) == pytest.approx(0.6)


def test_nonfinite_values_must_match() -> None:
    matched = similarity([1.0, math.inf, math.nan], [1.0, math.inf, math.nan])
    assert (matched.cosine, matched.nonfinite) == (1.0, 2)
    assert matched.reaches((1.0, 1.0))
    unmatched = similarity([1.0, math.inf], [1.0, -math.inf])
    assert math.isnan(unmatched.cosine)
    assert not unmatched.reaches((-1.0, -1.0))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) and \(1,\)"):
        similarity([1, 2], [1])


@given(vectors, st.integers(0, 2**32 - 1))
@pytest.mark.feature("CMP-04")
def test_squared_root_and_peak_errors_match_the_definitions(x: np.ndarray, seed: int) -> None:
    y = x + np.random.default_rng(seed).normal(0, 1, x.shape)
    found, mse = similarity(x, y), np.mean((x - y) ** 2)
    assert found.mse == pytest.approx(mse, rel=1e-9)
    assert found.rmse == pytest.approx(math.sqrt(mse), rel=1e-9)
    assert found.max_error == pytest.approx(np.abs(x - y).max(), rel=1e-12)
    span = x.max() - x.min()
    assert found.psnr == pytest.approx(20 * np.log10(span / math.sqrt(mse)) if span else -math.inf, rel=1e-9)


@pytest.mark.feature("CMP-04")
def test_of_equal_constant_empty_and_wrong_tensors() -> None:
    assert (similarity([1.0, 2.0], [1.0, 2.0]).mse, similarity([1.0, 2.0], [1.0, 2.0]).psnr) == (
        0.0,
        math.inf,
    )
    assert similarity([5.0, 5.0], [6.0, 6.0]).psnr == -math.inf
    assert (similarity([], []).rmse, similarity([], []).psnr) == (0.0, math.inf)
    assert math.isnan(similarity([math.nan], [1.0]).mse)


@pytest.mark.feature("CMP-04")
def test_every_report_holds_all_measures() -> None:
    measures = {"cosine", "euclid", "sqnr", "max_error", "nonfinite", "mse", "rmse", "psnr"}
    found = similarity([1.0, 2.0], [1.0, 2.5])
    assert found.to_json().keys() == measures
    tensor = TensorComparison("y", found, found)
    (row,) = Comparison("net", 1, [tensor]).to_json()["tensors"]
    assert row["normalized"].keys() == row["quantized"].keys() == measures
    table = compare_arrays({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.5])}, Tolerance())
    (line,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert [float(line[name]) for name in ("mse", "rmse", "max_error")] == pytest.approx(
        [0.125, 0.353553, 0.5]
    )
    assert float(line["psnr"]) == pytest.approx(found.psnr, rel=1e-5)
