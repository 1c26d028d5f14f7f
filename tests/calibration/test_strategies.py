"""Strategies on tensors with known distributions, and what the configuration refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from tpuflow import _core
from tpuflow.calibration import STRATEGIES, CalibrationConfig, Range, Statistics, fit
from tpuflow.errors import RangesError, SampleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTING = [name for name in STRATEGIES if name != "in_ir"]
"""Strategies that choose a range by what was counted."""


FLOATS = st.floats(-100, 100, width=32)
BATCHES = st.lists(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=FLOATS), min_size=1, max_size=6
)


def observed(*batches: NDArray[np.float32], bins: int | None = 2048) -> Statistics:
    statistics = Statistics(bins)
    for batch in batches:
        statistics.observe({"x": batch})
        statistics.samples += 1
    return statistics


def fitted(*batches: NDArray[np.float32], **options: object) -> Range:
    return fit(observed(*batches), CalibrationConfig.model_validate(options)).tensors["x"]


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def gaussian(count: int = 100_000, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def quantized(values: NDArray[np.float32], found: Range, *, symmetric: bool) -> NDArray[np.float64]:
    """int8 and back, straight from the definition of scale and zero point."""
    ((low, high),) = found.pairs
    scale = 2 * max(high, -low) / 255 if symmetric else (high - low) / 255
    zero = 0.0 if symmetric else np.clip(np.rint(-128 - low / scale), -128, 127)
    return (np.clip(np.rint(values.astype(np.float64) / scale) + zero, -128, 127) - zero) * scale


BATCHES_OF_THREE = (floats(-1, 2), floats(-3, 1), floats(-2, 4))


def mean_power(values: NDArray[np.float32], found: Range, power: float, *, symmetric: bool = False) -> float:
    """The mean of errors to a power, of all values themselves."""
    return float(np.mean(np.abs(values - quantized(values, found, symmetric=symmetric)) ** power))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("strategy", "power"), [("mae", 1.0), ("lp[1]", 1.0), ("lp", 2.0), ("lp[2.5]", 2.5), ("lp[4]", 4.0)]
)
@pytest.mark.parametrize("shape", ["gaussian", "relu", "laplace"])
@pytest.mark.feature("CAL-11")
def test_least_errors_of_every_power(strategy: str, power: float, shape: str, *, symmetric: bool) -> None:
    values = gaussian(30_000, 3)
    values = np.maximum(values, 0) if shape == "relu" else values**3 if shape == "laplace" else values
    found = fitted(values, strategy=strategy, symmetric=symmetric)
    ours = mean_power(values, found, power, symmetric=symmetric)
    for other in ("extrema", "mse", "mae", "lp[4]", "kld", "pct[99.9]"):
        theirs = fitted(values, strategy=other, symmetric=symmetric, clip_weight=1.0)
        assert ours <= 1.01 * mean_power(values, theirs, power, symmetric=symmetric), other


@pytest.mark.feature("CAL-11")
def test_low_powers_clip_more() -> None:
    values = gaussian(30_000, 3) ** 3
    reaches = [
        fitted(values, strategy=f"lp[{power}]", symmetric=True).pairs[0][1] for power in (0.5, 1, 2, 4)
    ]
    assert reaches == sorted(reaches)
    assert reaches[0] < 0.7 * reaches[-1]


@pytest.mark.feature("CAL-11")
def test_wide_grids_keep_all() -> None:
    values = gaussian(3000, 5)
    low, high = fitted(values, strategy="lp[2]", bits=16).pairs[0]
    assert low < 0.95 * values.min()
    assert high > 0.95 * values.max()


@pytest.mark.parametrize("strategy", ["lp[0]", "lp[17]", "lp[1,2]", "2lp", "mae[1]"])
@pytest.mark.feature("CAL-11")
def test_wrong_powers_are_refused(strategy: str) -> None:
    with pytest.raises(ValueError, match=r"power of errors|lp has no number|lp takes 1|mae has no numbers"):
        CalibrationConfig(strategy=strategy)


@pytest.mark.feature("CAL-01")
def test_extrema_are_those_of_all_batches() -> None:
    assert fitted(*BATCHES_OF_THREE, strategy="extrema") == Range(-3.0, 4.0)


@pytest.mark.parametrize("strategy", ["extrema", "mean", "mse", "kld", "pct[100]", "6std", "aciq_gauss"])
@pytest.mark.feature("QMO-28")
def test_outliers_are_dropped_by_their_deviation(strategy: str) -> None:
    values = gaussian()
    far = np.concatenate([values, floats(90, -70)])
    ((low, high),) = fitted(far, strategy=strategy, z_threshold=6).pairs
    assert -7 < low < -2
    assert 2 < high < 7
    # Far enough away nothing is dropped, and by default nothing at all.
    assert fitted(far, strategy=strategy, z_threshold=1e6) == fitted(far, strategy=strategy)
    assert fitted(far, strategy="extrema") == Range(-70.0, 90.0)


@pytest.mark.feature("QMO-28")
def test_what_is_dropped_does_not_depend_on_batches() -> None:
    far = np.concatenate([gaussian(), floats(90, -70)])
    whole = fitted(far, strategy="mse", z_threshold=5)
    assert fitted(*np.array_split(far[::-1].copy(), 7), strategy="mse", z_threshold=5) == whole


@pytest.mark.feature("CAL-02", "CAL-18")
def test_mean_follows_the_golden_sequence() -> None:
    # min: -1, 0.9 * -1 + 0.1 * -3 = -1.2, 0.9 * -1.2 + 0.1 * -2 = -1.28
    # max:  2, 0.9 *  2 + 0.1 *  1 =  1.9, 0.9 *  1.9 + 0.1 *  4 =  2.11
    ((low, high),) = fitted(*BATCHES_OF_THREE, strategy="mean").pairs
    assert (low, high) == pytest.approx((-1.28, 2.11), rel=1e-15)
    assert fitted(*BATCHES_OF_THREE, strategy="mean", momentum=0) == Range(-2.0, 4.0)
    ((low, high),) = fitted(*BATCHES_OF_THREE, strategy="mean", momentum=0.5).pairs
    assert (low, high) == (-2.0, 2.75)


@pytest.mark.parametrize("strategy", COUNTING)
@pytest.mark.feature("NUM-03")
def test_zero_is_always_inside(strategy: str) -> None:
    ((low, high),) = fitted(floats(2, 3), strategy=strategy).pairs
    assert low == 0
    assert 2 < high <= 3
    ((low, high),) = fitted(floats(-2, -3), strategy=strategy).pairs
    assert -3 <= low < -2
    assert high == 0
    assert fitted(floats(0, 0), strategy=strategy) == Range(0.0, 0.0)


@given(
    batches=BATCHES,
    # `weighted_scale_param` gives both sides the same reach, which one of them may not have.
    strategy=st.sampled_from(sorted(set(COUNTING) - {"weighted_scale_param"})),
    symmetric=st.booleans(),
    bits=st.integers(2, 16),
)
def test_ranges_lie_within_what_was_seen(
    *, batches: list[NDArray[np.float32]], strategy: str, symmetric: bool, bits: int
) -> None:
    ((low, high),) = fitted(*batches, strategy=strategy, symmetric=symmetric, bits=bits).pairs
    ((seen_low, seen_high),) = fitted(*batches, strategy="extrema").pairs
    slack = 1e-12 * (seen_high - seen_low)  # the running mean rounds
    assert seen_low - slack <= low <= 0 <= high <= seen_high + slack


@pytest.mark.feature("CAL-04")
def test_percentile_of_known_distributions() -> None:
    uniform = np.linspace(-1, 1, 100_001, dtype=np.float32)
    ((low, high),) = fitted(uniform, strategy="pct", percentile=75).pairs
    assert (low, high) == pytest.approx((-0.75, 0.75), abs=1e-3)
    # 99.73 % of a normal distribution lie within three deviations.
    ((low, high),) = fitted(gaussian(1_000_000), strategy="pct", percentile=99.73).pairs
    assert (low, high) == pytest.approx((-3, 3), abs=0.03)
    # A share of magnitudes: the short side is left alone.
    ((low, high),) = fitted(uniform + np.float32(0.9), strategy="pct", percentile=50).pairs
    assert low == pytest.approx(-0.1, abs=1e-6)
    assert high == pytest.approx(0.9, abs=1e-3)
    assert fitted(uniform, strategy="pct", percentile=100) == Range(-1.0, 1.0)


def losses(values: NDArray[np.float32], *, symmetric: bool) -> tuple[float, float]:
    """Squared errors with the ranges of `mse` and of `extrema`."""
    mse, extrema = (
        float(np.square(quantized(values, found, symmetric=symmetric) - values).sum())
        for found in (fitted(values, strategy=name, symmetric=symmetric) for name in ("mse", "extrema"))
    )
    return mse, extrema


@given(
    distinct=st.lists(st.tuples(FLOATS.filter(bool), st.integers(1, 600)), min_size=1, max_size=9),
    symmetric=st.booleans(),
)
@example(distinct=[(0.25, 1), (-20.935546875, 207)], symmetric=False)
def test_mse_never_loses_more_than_extrema_on_few_distinct_values(
    *, distinct: list[tuple[float, int]], symmetric: bool
) -> None:
    values, counts = zip(*distinct, strict=True)
    mse, extrema = losses(np.repeat(floats(*values), counts), symmetric=symmetric)
    assert mse <= extrema * (1 + 1e-9)


@given(values=hnp.arrays(np.float32, st.integers(200, 600), elements=FLOATS), symmetric=st.booleans())
def test_mse_loses_no_more_than_extrema_but_for_where_values_lie_in_their_bins(
    *, values: NDArray[np.float32], symmetric: bool
) -> None:
    if not values.any():
        return
    best, whole = (fitted(values, strategy=name, symmetric=symmetric) for name in ("mse", "extrema"))
    counts = observed(values).tensors["x"].counts
    # Errors change by no more than the values do: within a bin, by its width.
    slack = 0.0
    for found in (best, whole):
        error = np.abs(quantized(values, found, symmetric=symmetric) - values)
        slack += float((np.square(error + counts.width) - np.square(error)).sum())
    mse, extrema = losses(values, symmetric=symmetric)
    assert mse <= extrema + slack


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(200, 20_000),
    power=st.floats(0.5, 3),
    symmetric=st.booleans(),
)
@pytest.mark.feature("CAL-10")
def test_mse_loses_no_more_than_extrema_on_samples_of_a_density(
    *, seed: int, count: int, power: float, symmetric: bool
) -> None:
    normal = np.random.default_rng(seed).standard_normal(count, np.float32)
    mse, extrema = losses(np.sign(normal) * np.abs(normal) ** np.float32(power), symmetric=symmetric)
    assert mse <= extrema


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_margin_is_no_excuse_to_keep_outliers(*, symmetric: bool) -> None:
    mse, extrema = losses(np.concatenate([gaussian(1_000_000), floats(-15, 15)]), symmetric=symmetric)
    assert mse < 0.8 * extrema


def test_clipping_errors_of_weight_widen_the_range() -> None:
    values = np.concatenate([gaussian(1_000_000), floats(-15, 15)])
    spans = [
        high - low
        for weight in (1, 16, 1e9)
        for low, high in fitted(values, strategy="mse", bits=6, clip_weight=weight).pairs
    ]
    assert spans[0] < spans[1] < spans[2] <= 30


@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_gains_decibels_where_there_are_outliers(*, symmetric: bool) -> None:
    values = np.concatenate([gaussian(1_000_000), floats(-15, 15)])
    best = fitted(values, strategy="mse", symmetric=symmetric, clip_weight=1)
    whole = fitted(values, strategy="extrema")
    error = [
        np.square(quantized(values, found, symmetric=symmetric) - values).sum() for found in (best, whole)
    ]
    assert error[0] < error[1] / 2


def test_kld_clips_the_outliers_of_a_gaussian() -> None:
    values = np.concatenate([gaussian(), floats(20)])
    ((low, high),) = fitted(values, strategy="kld").pairs
    assert -5 < low < -2.5
    assert 2.5 < high < 5
    # No more bins than levels: nothing to choose.
    assert fitted(values, strategy="kld", bits=16) == fitted(values, strategy="extrema")


def test_kld_is_not_swayed_by_exact_zeros() -> None:
    values = np.maximum(gaussian(), 0)
    assert fitted(values, strategy="kld") == fitted(values[values > 0], strategy="kld")


@pytest.mark.parametrize("strategy", COUNTING)
def test_bins_are_configurable_and_matter_little(strategy: str) -> None:
    values = np.concatenate([gaussian(), floats(9)])
    coarse, fine = (
        fit(observed(values, bins=bins), CalibrationConfig(strategy=strategy, bins=bins)).tensors["x"]
        for bins in (1024, 4096)
    )
    assert coarse.pairs[0] == pytest.approx(fine.pairs[0], rel=0.2)


@settings(max_examples=40)
@given(BATCHES, st.data())
@pytest.mark.slow
def test_shards_equal_one_pass(batches: list[NDArray[np.float32]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(batches)))
    whole, first, second = observed(*batches), observed(*batches[:cut]), observed(*batches[cut:])
    first.merge(second)
    assert first.samples == whole.samples
    ours, theirs = first.tensors["x"], whole.tensors["x"]
    assert ours.batches == theirs.batches
    for name in ("width", "zeros", "count", "range"):
        assert getattr(ours.counts, name) == getattr(theirs.counts, name)
    assert np.array_equal(ours.counts.positive, theirs.counts.positive)
    assert np.array_equal(ours.counts.negative, theirs.counts.negative)
    for strategy in COUNTING:
        config = CalibrationConfig(strategy=strategy)
        assert fit(first, config) == fit(whole, config)


def test_histogram_counts_what_numpy_counts() -> None:
    values = np.concatenate([gaussian(10_000), np.zeros(17, np.float32), floats(30)])
    counts = observed(values[:5000], values[5000:]).tensors["x"].counts
    edges = np.arange(counts.bins * 2 + 1) * counts.width
    assert counts.bins <= 30 / counts.width < 2 * counts.bins
    assert counts.zeros == 17
    assert np.array_equal(counts.positive, np.histogram(values[values > 0], edges)[0])
    assert np.array_equal(counts.negative, np.histogram(-values[values < 0], edges)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_name_the_tensor_and_the_sample(bad: float) -> None:
    statistics = observed(floats(1, 2))
    with pytest.raises(SampleError, match=r'tensor "x": 1 of 3 values are NaN or infinite at sample 1'):
        statistics.observe({"x": floats(1, bad, 2)})


def test_a_one_sided_symmetric_grid_may_have_all_codes_positive() -> None:
    values = np.abs(np.concatenate([gaussian(), floats(60)]))
    halved, whole = (
        fitted(values, strategy="mse", bits=6, symmetric=True, unsigned=unsigned)
        for unsigned in (False, True)
    )
    assert whole == fitted(values, strategy="mse", bits=6)
    assert halved != whole
    two_sided = np.append(values, np.float32(-1))
    symmetric = fitted(two_sided, strategy="mse", bits=6, symmetric=True)
    assert fitted(two_sided, strategy="mse", bits=6, symmetric=True, unsigned=True) == symmetric


def test_statistics_of_different_resolution_do_not_merge() -> None:
    with pytest.raises(ValueError, match="2048 and 1024 bins"):
        observed(floats(1)).merge(observed(floats(1), bins=1024))
    with pytest.raises(ValueError, match="2048 and None bins"):
        observed(floats(1)).merge(observed(floats(1), bins=None))
    with pytest.raises(RangesError, match="no histogram"):
        fit(observed(floats(1), bins=None), CalibrationConfig(strategy="mse"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "best"}, '"best" is not a calibration strategy, choose one of extrema, mean'),
        ({"percentile": 0}, "greater than 0"),
        ({"percentile": 100.5}, "less than or equal to 100"),
        ({"momentum": 1}, "less than 1"),
        ({"bins": 1000}, "1000 is not a power of two"),
        ({"bins": 1 << 17}, "less than or equal to 65536"),
        ({"clip_weight": 0.5}, "greater than or equal to 1"),
        ({"bits": 1}, "greater than or equal to 2"),
        ({"speed": 1}, "Extra inputs are not permitted"),
    ],
)
def test_configuration_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CalibrationConfig.model_validate(options)
    assert message in str(caught.value)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=4, min_side=1), elements=FLOATS), st.data()
)
def test_channel_ranges_of_weights(weights: NDArray[np.float32], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, weights.ndim - 1))
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    extrema = _core.channel_extrema(weights, axis)
    assert np.array_equal(extrema, np.stack([np.minimum(rows.min(1), 0), np.maximum(rows.max(1), 0)], axis=1))
    best = _core.channel_mse_ranges(weights, axis, qmin=-128, qmax=127, symmetric=True)
    for row, pair, whole in zip(rows, best.tolist(), extrema.tolist(), strict=True):
        if whole != [0, 0]:
            errors = [
                np.square(quantized(row, Range(*chosen), symmetric=True) - row).sum()
                for chosen in (pair, whole)
            ]
            assert errors[0] <= errors[1] * (1 + 1e-9)


def test_moments_are_those_of_numpy() -> None:
    values = gaussian() * np.float32(3) + np.float32(1e4)
    count, mean, squares = _core.moments(values)
    assert count == values.size
    assert mean == pytest.approx(values.astype(np.float64).mean(), rel=1e-14)
    assert squares / (count - 1) == pytest.approx(values.astype(np.float64).var(ddof=1), rel=1e-10)


def test_bindings_refuse_what_does_not_fit() -> None:
    histogram = _core.Histogram(16)
    with pytest.raises(ValueError, match="the number of bins is 100"):
        _core.Histogram(100)
    with pytest.raises(ValueError, match="a histogram of 16 bins cannot be merged with one of 32"):
        histogram.merge(_core.Histogram(32))
    with pytest.raises(ValueError, match="codes 1 to 5 must contain 0"):
        histogram.mse_range(qmin=1, qmax=5, symmetric=False, clip_weight=1)
    with pytest.raises(ValueError, match=r"weight of clipping errors is 0\.5"):
        histogram.mse_range(qmin=-8, qmax=7, symmetric=False, clip_weight=0.5)
    with pytest.raises(ValueError, match="levels is 1"):
        histogram.kld_range(1)
    with pytest.raises(ValueError, match="percentile is 0"):
        histogram.percentile_range(0)
    with pytest.raises(ValueError, match="1 tensors cannot be counted in 2 histograms"):
        _core.observe([floats(1)], [_core.Histogram(16), _core.Histogram(16)], [None])
    with pytest.raises(ValueError, match="2 axes of 1 arrays"):
        _core.observe([floats(1)], [], [None, 0])
    with pytest.raises(ValueError, match="axis 1 of an array of 1 axes"):
        _core.observe([floats(1)], [], [1])
    with pytest.raises(ValueError, match="axis 2 of an array of 1 axes"):
        _core.channel_extrema(floats(1), 2)
    with pytest.raises(ValueError, match="1 of the values are NaN or infinite"):
        _core.channel_extrema(floats(1, np.nan), 0)


@given(BATCHES, st.floats(0.1, 5), st.sampled_from(["extrema", "mse", "pct[100]"]))
@pytest.mark.feature("QMO-28")
def test_of_any_values_a_range_is_left(
    batches: list[NDArray[np.float32]], threshold: float, strategy: str
) -> None:
    ((low, high),) = fitted(*batches, strategy=strategy, z_threshold=threshold).pairs
    ((least, most),) = fitted(*batches, strategy="extrema").pairs
    # A grid of codes may reach half a step further than what it is made for.
    slack = 0.01 * (most - least) + 1e-6
    assert least - slack <= low <= 0 <= high <= most + slack
