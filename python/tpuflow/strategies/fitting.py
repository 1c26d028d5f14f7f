"""One function per strategy, from the statistics of a tensor to its range, and the table of all.

A strategy sees the statistics of one tensor, the configuration and the numbers in its name, and returns
`(low, high)`. That zero is within the range is seen to by the caller. Sources: the running range and its
momentum, the multiples of ranges and deviations and `weighted_scale_param` follow Compass; `kld` is
TensorRT's entropy calibration; `aciq` is Banner et al., "Post training 4-bit quantization of convolutional
networks for rapid-deployment" (2019), whose clipping values are those of the table; `mse` minimises the mean
squared quantisation error on the histogram.

Mean, deviation and mean absolute deviation are those of the histogram, whose values stand in the middle of
their bins: a bin is at most a 2048th of the largest magnitude, and neither order nor shards matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tpuflow.errors import RangesError
from tpuflow.strategies.divergence import widest_of_best
from tpuflow.strategies.powers import power_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tpuflow._core import Histogram

__all__ = [
    "STRATEGIES",
    "Moments",
    "Observed",
    "Options",
    "Strategy",
    "extrema_of",
    "grid_range",
    "moments_of",
]

logger = logging.getLogger(__name__)

Numbers = tuple[float, ...]


class Moments(NamedTuple):
    """Mean, unbiased standard deviation and mean absolute deviation of a tensor."""

    mean: float
    deviation: float
    absolute: float


class Observed(Protocol):
    """Statistics of one tensor (`tpuflow.calibration.TensorStatistics`), as far as strategies read them."""

    @property
    def batches(self) -> Sequence[tuple[float, float]]:
        """Smallest and largest value of every batch, in order."""

    @property
    def counts(self) -> Histogram:
        """The histogram of a tensor that has one."""

    @property
    def part(self) -> bool:
        """Whether the histogram counts a part of the values."""

    @property
    def step(self) -> float | None:
        """The step all values are multiples of, if there is one."""

    @property
    def stated_extrema(self) -> tuple[float, float] | None:
        """Smallest and largest value that a file states."""

    @property
    def stated_moments(self) -> Moments | None:
        """Moments that a file states."""

    @property
    def stated_range(self) -> tuple[float, float] | None:
        """The range that the model states."""


class Options(Protocol):
    """The configuration (`tpuflow.config.CalibrationConfig`), as far as strategies read it."""

    @property
    def batch_size(self) -> int:
        """Batches of a step of the running mean."""

    @property
    def momentum(self) -> float:
        """Weight of earlier steps."""

    @property
    def percentile(self) -> float:
        """Share of the values that percentiles keep."""

    @property
    def bits(self) -> int:
        """Width of the codes."""

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is 0."""

    @property
    def unsigned(self) -> bool:
        """Whether values without a sign use all codes."""

    @property
    def codes(self) -> tuple[int, int]:
        """Smallest and largest code."""

    @property
    def clip_weight(self) -> float:
        """Weight of clipping errors."""


Fit = Callable[["Observed", "Options", Numbers], tuple[float, float]]

LAPLACE = (
    1.05, 1.86, 2.83, 3.89, 5.03, 6.2, 7.41, 8.64, 9.89, 11.16, 12.44, 13.73, 15.02, 16.33, 17.64, 18.95,
    20.27,
)  # fmt: skip
"""Best clipping value of a Laplace distribution in mean absolute deviations, by bits from 0."""

GAUSS = (
    1.24, 1.24, 1.71, 2.15, 2.55, 2.93, 3.28, 3.61, 3.92, 4.21, 4.49, 4.75, 4.99, 5.24, 5.47, 5.69, 5.89,
)  # fmt: skip
"""Best clipping value of a normal distribution in standard deviations, by bits from 0."""

WEIGHTS = (0.5, 4.0, 0.5, 0.5)
"""Numbers of `weighted_scale_param` where it has none: equal shares of both signs."""

SHARES = np.linspace(0.0, 1.0, 21)
"""Shares of the positive side that the search of `weighted_scale_param` tries."""


class Strategy(NamedTuple):
    """A strategy, what has to be collected for it, and how its name is written.

    Attributes:
        fit: From a tensor's statistics to its range.
        histogram: Whether `fit` reads the histogram; extrema are always there.
        whole: Whether the histogram must count every value.
        leading: Whether the name may begin with a number, as `3std`.
        numbers: How many numbers may follow the name in brackets, as in `pct[99.9]`.
        wrong: The problem of such numbers, empty if there is none.
    """

    fit: Fit
    histogram: bool
    whole: bool = False
    leading: bool = False
    numbers: int = 0
    wrong: Callable[[Numbers], str] = lambda _numbers: ""


def _centers(histogram: Histogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle and count of every bin with values, zeros included; the outermost end at the extrema."""
    low, high = histogram.range
    values, counts = [np.zeros(1)], [np.array([float(histogram.zeros)])]
    for sign, bins, extreme in ((-1.0, histogram.negative, -low), (1.0, histogram.positive, high)):
        edges = np.minimum(np.arange(len(bins) + 1) * histogram.width, extreme)
        values.append(sign * (edges[:-1] + edges[1:]) / 2)
        counts.append(bins.astype(np.float64))
    return np.concatenate(values), np.concatenate(counts)


def moments_of(tensor: Observed) -> Moments:
    """Moments as a file states them, else those of the histogram; zeros where there are no values."""
    return tensor.stated_moments or _moments(tensor.counts)


def _moments(histogram: Histogram) -> Moments:
    values, counts = _centers(histogram)
    total = counts.sum()
    if total == 0:
        return Moments(0.0, 0.0, 0.0)
    mean = float(values @ counts / total)
    off = values - mean
    return Moments(
        mean, float(np.sqrt(off**2 @ counts / max(1.0, total - 1))), float(np.abs(off) @ counts / total)
    )


def _within(tensor: Observed, low: float, high: float) -> tuple[float, float]:
    """A range cut to what was seen."""
    seen = extrema_of(tensor)
    return max(seen[0], low), min(seen[1], high)


def extrema_of(tensor: Observed) -> tuple[float, float]:
    """Smallest and largest value seen, or stated in a file."""
    if tensor.stated_extrema is not None:
        return tensor.stated_extrema
    return min(low for low, _ in tensor.batches), max(high for _, high in tensor.batches)


def extrema(tensor: Observed, _config: Options, _numbers: Numbers) -> tuple[float, float]:
    """Smallest and largest value seen."""
    return extrema_of(tensor)


def mean(tensor: Observed, config: Options, _numbers: Numbers) -> tuple[float, float]:
    """Running extrema over steps of `batch_size` batches: the first as it is, later by `1 - momentum`."""
    size = config.batch_size
    groups = [tensor.batches[at : at + size] for at in range(0, len(tensor.batches), size)]
    steps = [(min(low for low, _ in group), max(high for _, high in group)) for group in groups]
    low, high = steps[0]
    for batch_low, batch_high in steps[1:]:
        low = config.momentum * low + (1 - config.momentum) * batch_low
        high = config.momentum * high + (1 - config.momentum) * batch_high
    return low, high


def percentile(tensor: Observed, _config: Options, numbers: Numbers) -> tuple[float, float]:
    """So many times the extrema, once by default: not a percentile, in spite of its name."""
    (factor,) = numbers or (1.0,)
    low, high = extrema_of(tensor)
    return factor * low, factor * high


def pct(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """The observed range, clipped at the magnitude that so many percent of the values stay within."""
    if tensor.part:
        raise RangesError("a part of its values was counted, percentiles need all: count_all counts them")
    return tensor.counts.percentile_range(numbers[0] if numbers else config.percentile)


def std(tensor: Observed, _config: Options, numbers: Numbers) -> tuple[float, float]:
    """So many standard deviations around the mean, once by default, within what is seen."""
    (times,) = numbers or (1.0,)
    found = moments_of(tensor)
    return _within(tensor, found.mean - times * found.deviation, found.mean + times * found.deviation)


def _aciq(
    tensor: Observed, config: Options, numbers: Numbers, clip: float, spread: float
) -> tuple[float, float]:
    (factor,) = numbers or (1.0,)
    center = moments_of(tensor).mean
    if config.symmetric:
        reach = abs(center) + clip * spread * factor
        return _within(tensor, -reach, reach)
    low = max(extrema_of(tensor)[0], center - clip * spread)
    return _within(tensor, low, low + 2 * clip * spread * factor)


def aciq_laplace(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """Where clipping and rounding of a Laplace distribution are balanced, within what is seen."""
    return _aciq(tensor, config, numbers, LAPLACE[config.bits], moments_of(tensor).absolute)


def aciq_gauss(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """Where clipping and rounding of a normal distribution are balanced, within what is seen."""
    return _aciq(tensor, config, numbers, GAUSS[config.bits], moments_of(tensor).deviation)


def weighted_scale_param(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """A symmetric range whose scale lies between those of the positive and the negative side alone.

    With numbers r1, r2, r3, r4 the positive side has the share r1 where it reaches further, else r2 where
    the standard deviation exceeds r4, else r3. With r1 above 1 the share of least squared error is searched.
    """
    first, second, third, threshold = numbers or WEIGHTS
    low, high = extrema_of(tensor)
    if low >= 0 or high <= 0:
        return low, high
    if first > 1:
        share = _best_share(tensor, config)
        logger.debug("weighted_scale_param[%g,%g,%g,%g] is recommended", share, share, share, threshold)
    elif high > -low:
        share = first
    else:
        share = second if moments_of(tensor).deviation > threshold else third
    reach = _reach(share, low, high)
    return -reach, reach


def _reach(share: float, low: float, high: float) -> float:
    """The magnitude whose scale is the weighted mean of the scales of both sides."""
    return 1 / (share / high + (1 - share) / -low)


def _best_share(tensor: Observed, config: Options) -> float:
    low, high = extrema_of(tensor)
    values, counts = _centers(tensor.counts)
    errors = []
    for share in SHARES:
        step = 2 * _reach(float(share), low, high) / ((1 << config.bits) - 1)
        half = 1 << (config.bits - 1)
        errors.append(float((values - np.clip(np.rint(values / step), -half, half - 1) * step) ** 2 @ counts))
    return float(SHARES[int(np.argmin(errors))])


def mse(tensor: Observed, config: Options, _numbers: Numbers) -> tuple[float, float]:
    """The range with the least mean squared error after quantisation to `bits`.

    Clipping errors count `clip_weight` times: they take away from the largest values and never cancel.
    Samples that lie on a grid themselves are held by that grid without any error.
    """
    qmin, qmax = config.codes
    if tensor.step is not None and not config.symmetric:
        exact = grid_range(*extrema_of(tensor), tensor.step, qmax - qmin)
        if exact is not None:
            return exact
    # A grid of positive codes only is that of an asymmetric quantiser whose range starts at zero.
    positive = config.unsigned and tensor.counts.range[0] == 0
    return tensor.counts.mse_range(
        qmin=qmin, qmax=qmax, symmetric=config.symmetric and not positive, clip_weight=config.clip_weight
    )


def lp(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """The range whose errors, each to the power `p`, 2 by default, have the least sum."""
    (power,) = numbers or (2.0,)
    histogram = tensor.counts
    positive = config.unsigned and histogram.range[0] == 0  # as for `mse`
    return power_range(
        *_centers(histogram),
        histogram.width,
        histogram.range,
        power=power,
        codes=config.codes,
        symmetric=config.symmetric and not positive,
    )


def mae(tensor: Observed, config: Options, _numbers: Numbers) -> tuple[float, float]:
    """The range of least mean magnitude of errors."""
    return lp(tensor, config, (1.0,))


def kld(tensor: Observed, config: Options, numbers: Numbers) -> tuple[float, float]:
    """The observed range, clipped at the magnitude where the quantised distribution diverges least.

    Magnitudes of two-sided values are spread over half of the codes, those of one-sided ones over all. With a
    number N, the widest of the N best magnitudes is taken.
    """
    low, high = tensor.counts.range
    levels = (1 << config.bits) // (2 if low < 0 < high else 1)
    (top,) = numbers or (1.0,)
    if top == 1:
        return tensor.counts.kld_range(levels)
    return widest_of_best(tensor.counts, levels, int(top))


def in_ir(tensor: Observed, _config: Options, _numbers: Numbers) -> tuple[float, float]:
    """The range the model itself states."""
    if tensor.stated_range is None:
        raise RangesError("the model states no range of it (in_ir)")
    return tensor.stated_range


def grid_range(low: float, high: float, step: float, steps: int) -> tuple[float, float] | None:
    """The range of so many steps around what was seen, with zero within; None where that is too wide.

    What remains goes to the side that has values; to both where both have.
    """
    least, most = min(0, round(low / step)), max(0, round(high / step))
    left = steps - (most - least)
    if left < 0:
        return None
    below = left // 2 if least < 0 < most else left if least < 0 else 0
    return (least - below) * step, (most + left - below) * step


def _not_whole(numbers: Numbers) -> str:
    return "" if all(map(float.is_integer, numbers)) else "the number of thresholds must be whole"


def _no_percentile(numbers: Numbers) -> str:
    outside = any(not 0 < number <= 100 for number in numbers)
    return "a percentile lies above 0 and is at most 100" if outside else ""


def _no_power(numbers: Numbers) -> str:
    outside = any(not 0 < number <= 16 for number in numbers)
    return "the power of errors lies above 0 and is at most 16" if outside else ""


STRATEGIES: dict[str, Strategy] = {
    "extrema": Strategy(extrema, histogram=False),
    "mean": Strategy(mean, histogram=False),
    "percentile": Strategy(percentile, histogram=False, leading=True),
    "pct": Strategy(pct, histogram=True, whole=True, numbers=1, wrong=_no_percentile),
    "mse": Strategy(mse, histogram=True),
    "mae": Strategy(mae, histogram=True),
    "lp": Strategy(lp, histogram=True, numbers=1, wrong=_no_power),
    "kld": Strategy(kld, histogram=True, leading=True, wrong=_not_whole),
    "std": Strategy(std, histogram=True, leading=True),
    "aciq_laplace": Strategy(aciq_laplace, histogram=True, leading=True),
    "aciq_gauss": Strategy(aciq_gauss, histogram=True, leading=True),
    "weighted_scale_param": Strategy(weighted_scale_param, histogram=True, numbers=4),
    "in_ir": Strategy(in_ir, histogram=False),
}
