"""Strategies with numbers in their names, against the values themselves; trimming; names that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tpuflow.calibration import CalibrationConfig, Range, Statistics, fit
from tpuflow.calibration.trim import trim_activations
from tpuflow.config import Config, ConfigError
from tpuflow.strategies import moments_of
from tpuflow.strategies.divergence import divergences, magnitudes, widest_of_best

FLOATS = st.floats(-100, 100, width=32)
ARRAYS = hnp.arrays(np.float32, st.integers(2, 60), elements=FLOATS)


def observed(*batches: NDArray[np.float32], bins: int = 2048) -> Statistics:
    statistics = Statistics(bins)
    for batch in batches:
        statistics.observe({"x": batch})
        statistics.samples += 1
    return statistics


def fitted(*batches: NDArray[np.float32], **options: object) -> tuple[float, float]:
    bins = options.get("bins", 2048)
    assert isinstance(bins, int)
    statistics = observed(*batches, bins=bins)
    return fit(statistics, CalibrationConfig.model_validate(options)).tensors["x"].pairs[0]


def normal(count: int = 200_000, mean: float = 0.0) -> NDArray[np.float32]:
    return (np.random.default_rng(3).standard_normal(count) + mean).astype(np.float32)


def laplace(count: int = 200_000) -> NDArray[np.float32]:
    return np.random.default_rng(4).laplace(size=count).astype(np.float32)


@given(ARRAYS)
@pytest.mark.feature("CAL-19")
def test_moments_of_a_histogram_are_those_of_its_values(values: NDArray[np.float32]) -> None:
    found = moments_of(observed(values).tensors["x"])
    exact = values.astype(np.float64)
    bound = np.abs(exact).max() / 1024 + 1e-12
    assert abs(found.mean - exact.mean()) <= bound
    assert abs(found.deviation - exact.std(ddof=1)) <= 3 * bound
    assert abs(found.absolute - np.abs(exact - exact.mean()).mean()) <= 3 * bound


@pytest.mark.feature("CAL-03")
def test_percentile_multiplies_the_extrema() -> None:
    values = np.array([-2, 1, 4], np.float32)
    assert fitted(values, strategy="0.5percentile") == (-1.0, 2.0)
    assert fitted(values, strategy="1.5percentile") == (-3.0, 6.0)
    assert fitted(values, strategy="percentile") == (-2.0, 4.0)


def test_a_share_stated_with_percentile_is_honored() -> None:
    values = np.arange(-100, 101, dtype=np.float32)
    stated = fitted(values, strategy="percentile", percentile=75)
    assert stated == fitted(values, strategy="pct", percentile=75) != fitted(values, strategy="percentile")


@pytest.mark.feature("CAL-04")
def test_a_true_percentile_has_its_own_name() -> None:
    values = np.linspace(-1, 1, 100_001, dtype=np.float32)
    low, high = fitted(values, strategy="pct[75]")
    assert (low, high) == pytest.approx((-0.75, 0.75), abs=0.002)
    assert fitted(values, strategy="pct", percentile=75) == (low, high)


@pytest.mark.parametrize("times", [1, 2.5])
@pytest.mark.feature("CAL-05")
def test_deviations_around_the_mean(times: float) -> None:
    values = normal(mean=0.5)
    low, high = fitted(values, strategy=f"{times}std")
    exact = values.astype(np.float64)
    assert low == pytest.approx(exact.mean() - times * exact.std(), abs=0.01)
    assert high == pytest.approx(exact.mean() + times * exact.std(), abs=0.01)
    assert fitted(values, strategy="100std") == (values.min(), values.max())


@pytest.mark.feature("CAL-05")
def test_one_deviation_is_the_default() -> None:
    assert fitted(normal(), strategy="std") == fitted(normal(), strategy="1std")


@given(ARRAYS, st.integers(2, 16))
@pytest.mark.feature("CAL-06")
def test_divergences_agree_with_the_single_best(values: NDArray[np.float32], levels: int) -> None:
    histogram = observed(values, bins=64).tensors["x"].counts
    counts = magnitudes(histogram)
    if len(counts) <= levels:
        assert widest_of_best(histogram, levels, 1) == histogram.kld_range(levels) == histogram.range
        return
    found = divergences(counts, levels)
    low, high = histogram.kld_range(levels)
    bins = round(max(-low, high) / histogram.width)
    # A threshold at or beyond the largest value leaves the range as it is, whichever it was.
    chosen = found[max(0, bins - levels) :] if (low, high) == histogram.range else found[[bins - levels]]
    assert chosen.min() == pytest.approx(found.min(), abs=1e-12)


@pytest.mark.feature("CAL-06")
def test_the_widest_of_the_best_thresholds() -> None:
    outliers = np.concatenate([normal(50_000), np.array([40.0], np.float32)])
    first, some = (fitted(outliers, strategy=name)[1] for name in ("kld", "50kld"))
    every = fitted(outliers, strategy="100000kld")[1]
    assert first < some < every == 40.0
    assert 2 < first < 6
    histogram = observed(outliers).tensors["x"].counts
    counts = magnitudes(histogram)
    found = divergences(counts, 128)
    best = 128 + int(np.sort(np.argsort(found, kind="stable")[:50])[-1])
    assert some == pytest.approx(best * histogram.width)


@pytest.mark.feature("CAL-17")
def test_bins_change_thresholds() -> None:
    outliers = np.concatenate([normal(50_000), np.array([40.0], np.float32)])
    coarse, fine = (observed(outliers, bins=bins).tensors["x"].counts for bins in (1024, 4096))
    assert coarse.width > fine.width
    for histogram in (coarse, fine):
        low, high = histogram.kld_range(128)
        steps = high / histogram.width
        assert steps == pytest.approx(round(steps))
        assert low < 0


@pytest.mark.parametrize(
    ("strategy", "values", "bits", "clip"),
    [
        ("aciq_gauss", normal(), 4, 2.55),
        ("aciq_gauss", normal(), 8, 3.92),
        ("aciq_laplace", laplace(), 3, 3.89),
        ("aciq_laplace", laplace(), 8, 9.89),
        ("0.5aciq_laplace", laplace(), 3, 1.945),
    ],
)
@pytest.mark.feature("CAL-07", "CAL-12")
def test_analytic_clipping_values(strategy: str, values: NDArray[np.float32], bits: int, clip: float) -> None:
    low, high = fitted(values, strategy=strategy, bits=bits, symmetric=True)
    assert high == pytest.approx(clip, rel=0.02)
    assert low == pytest.approx(-clip, rel=0.02)


@pytest.mark.feature("CAL-07")
def test_more_bits_clip_later_and_asymmetric_grids_start_at_the_low_end() -> None:
    reach = [fitted(laplace(), strategy="aciq_laplace", bits=bits)[1] for bits in range(2, 17)]
    assert reach == sorted(reach)
    values = np.abs(laplace())
    low, high = fitted(values, strategy="aciq_laplace", bits=4)
    exact = values.astype(np.float64)
    mad = np.abs(exact - exact.mean()).mean()
    assert low == 0
    assert high == pytest.approx(2 * 5.03 * mad, rel=0.02)


@pytest.mark.feature("CAL-08")
def test_weighted_scales_follow_their_four_numbers() -> None:
    values = np.array([-1, -0.5, 0, 0.5, 3], np.float32)
    # 1 / (r / 3 + (1 - r) / 1) with r = 0.5 and 1
    assert fitted(values, strategy="weighted_scale_param[0.5,0,0,1]") == pytest.approx((-1.5, 1.5))
    assert fitted(values, strategy="weighted_scale_param[1,0,0,1]") == pytest.approx((-3, 3))
    left = -values
    # deviation 1.55: above 1 the second number holds, else the third
    assert fitted(left, strategy="weighted_scale_param[0,0.5,1,1]") == pytest.approx((-1.5, 1.5))
    assert fitted(left, strategy="weighted_scale_param[0,0.5,1,2]") == pytest.approx((-1, 1))
    assert fitted(np.abs(values), strategy="weighted_scale_param[0.2,0,0,1]") == (0.0, 3.0)


@pytest.mark.feature("CAL-08")
def test_the_search_is_logged_and_best(caplog: pytest.LogCaptureFixture) -> None:
    values = np.concatenate([normal(20_000) * 0.1, np.array([1.0, -0.3], np.float32)])
    with caplog.at_level("DEBUG", logger="tpuflow.strategies.fitting"):
        _, found = fitted(values, strategy="weighted_scale_param[2,0,0,1]", bits=4)
    assert "is recommended" in caplog.text

    def error(reach: float) -> float:
        step = 2 * reach / 15
        return float(((values - np.clip(np.rint(values / step), -8, 7) * step) ** 2).sum())

    for share in (0.0, 0.5, 1.0):
        assert error(found) <= error(1 / (share / 1.0 + (1 - share) / 0.4)) * 1.01


@pytest.mark.feature("CAL-16")
def test_values_are_trimmed_before_they_count() -> None:
    values = {"x": np.array([-np.inf, -3, 1, 2, np.inf], np.float32)}
    assert trim_activations(values, "clip(-4,5)")["x"].tolist() == [-4, -3, 1, 2, 5]
    assert trim_activations(values, "second(-100,100)")["x"].tolist() == [-3, -3, 1, 2, 2]
    assert trim_activations(values, "second(-3,2)")["x"].tolist() == [0, 0, 1, 1, 1]
    assert trim_activations(values, "") is values
    endless = trim_activations(values, "clip(-inf,inf)")["x"]
    assert np.all(np.isfinite(endless))


@pytest.mark.feature("CAL-20")
def test_batches_make_steps_of_the_running_range() -> None:
    batches = [np.array([value], np.float32) for value in (1, 4, 2, 8)]
    assert fitted(*batches, strategy="mean", momentum=0.5, batch_size=2) == (0.0, 6.0)
    assert fitted(*batches, strategy="mean", momentum=0.5, batch_size=4) == (0.0, 8.0)
    assert fitted(*batches, strategy="mean", momentum=0.5) == (0.0, 5.125)


@pytest.mark.feature("NUM-03")
def test_ranges_hold_zero_whatever_the_strategy() -> None:
    for strategy in ("2std", "0.5percentile", "3kld", "aciq_gauss", "aciq_laplace", "weighted_scale_param"):
        low, high = fitted(np.array([2, 2.5, 3], np.float32), strategy=strategy)
        assert low <= 0 <= high, strategy
        assert Range(low, high) == Range(low, high)


@pytest.mark.parametrize(
    ("strategy", "wrong"),
    [
        ("best", "is not a calibration strategy"),
        ("2extrema", "no number in front"),
        ("mse[3]", "no numbers behind"),
        ("pct[101]", "at most 100"),
        ("weighted_scale_param[1,2]", "takes 4 numbers, there are 2"),
        ("1.5kld", "must be whole"),
        ("0std", "above 0"),
    ],
)
def test_names_that_are_none(strategy: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Config.parse({"calibrate": {"strategy": strategy}})


@pytest.mark.parametrize("trim", ["clip(1)", "third(0,1)", "clip(2,1)", "clip(a,b)"])
def test_trims_that_are_none(trim: str) -> None:
    with pytest.raises(ConfigError, match="trim_infinity"):
        Config.parse({"calibrate": {"trim_infinity": trim}})
