"""How statistics become a range: one plain function per strategy, all in one table.

A strategy sees the statistics of one tensor and the configuration, and returns `(low, high)`. That zero is
within the range is seen to by the caller. Sources: the running range and its momentum follow Compass's
`mean`; `percentile` is a quantile of |x|; `kld` is TensorRT's entropy calibration; `mse` minimises the mean
squared quantisation error on the histogram.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpuflow.calibrate.config import CalibrationConfig
    from tpuflow.calibrate.statistics import TensorStatistics

__all__ = ["STRATEGIES", "Strategy"]

Fit = Callable[["TensorStatistics", "CalibrationConfig"], tuple[float, float]]


class Strategy(NamedTuple):
    """A strategy and what has to be collected for it.

    Attributes:
        fit: From a tensor's statistics to its range.
        histogram: Whether `fit` reads the histogram; extrema are always there.
    """

    fit: Fit
    histogram: bool


def extrema(tensor: TensorStatistics, _config: CalibrationConfig) -> tuple[float, float]:
    """Smallest and largest value seen."""
    return min(low for low, _ in tensor.batches), max(high for _, high in tensor.batches)


def mean(tensor: TensorStatistics, config: CalibrationConfig) -> tuple[float, float]:
    """Running extrema over the batches: the first is taken as it is, later ones by `1 - momentum`."""
    low, high = tensor.batches[0]
    for batch_low, batch_high in tensor.batches[1:]:
        low = config.momentum * low + (1 - config.momentum) * batch_low
        high = config.momentum * high + (1 - config.momentum) * batch_high
    return low, high


def percentile(tensor: TensorStatistics, config: CalibrationConfig) -> tuple[float, float]:
    """What is seen, cut at the magnitude that `percentile` percent of the values stay within."""
    return tensor.counts.percentile_range(config.percentile)


def mse(tensor: TensorStatistics, config: CalibrationConfig) -> tuple[float, float]:
    """The range with the least mean squared error after quantisation to `bits`.

    Clipping errors count `clip_weight` times: they take away from the largest values and never cancel.
    """
    qmin, qmax = config.codes
    # A grid of positive codes only is that of an asymmetric quantiser whose range starts at zero.
    positive = config.unsigned and tensor.counts.range[0] == 0
    return tensor.counts.mse_range(
        qmin=qmin, qmax=qmax, symmetric=config.symmetric and not positive, clip_weight=config.clip_weight
    )


def kld(tensor: TensorStatistics, config: CalibrationConfig) -> tuple[float, float]:
    """What is seen, cut at the magnitude where the quantised distribution diverges least.

    Magnitudes of two-sided values are spread over half of the codes, those of one-sided ones over all.
    """
    low, high = tensor.counts.range
    sides = 2 if low < 0 < high else 1
    return tensor.counts.kld_range((1 << config.bits) // sides)


STRATEGIES: dict[str, Strategy] = {
    "extrema": Strategy(extrema, histogram=False),
    "mean": Strategy(mean, histogram=False),
    "percentile": Strategy(percentile, histogram=True),
    "mse": Strategy(mse, histogram=True),
    "kld": Strategy(kld, histogram=True),
}
