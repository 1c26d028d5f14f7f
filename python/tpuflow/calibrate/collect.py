"""From model and samples to ranges: collect statistics in one pass, then fit a range to each tensor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tpuflow.calibrate.activations import ActivationSession
from tpuflow.calibrate.config import CalibrationConfig
from tpuflow.calibrate.ranges import Range, Ranges
from tpuflow.calibrate.statistics import Statistics
from tpuflow.calibrate.strategies import STRATEGIES
from tpuflow.config import Config
from tpuflow.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel

__all__ = ["Progress", "calibrate", "collect", "fit"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number there are."""


def calibrate(
    float_model: FloatModel,
    samples: Samples | Mapping[str, NDArray[Any]],
    config: Config | CalibrationConfig | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """The range of every float value of the model, inputs included.

    Args:
        float_model: What to calibrate.
        samples: Samples of its inputs, or arrays by input name as `Samples.of` takes them.
        config: What to do, alone or as part of the whole configuration; by default the default strategy.
        progress: Told after every batch.

    Returns:
        One range per value, with zero inside, and the number of samples used.

    Raises:
        SampleError: Arrays do not fit the inputs, or a value becomes NaN or infinite for a sample.
    """
    config = config.calibration if isinstance(config, Config) else config or CalibrationConfig()
    if not isinstance(samples, Samples):
        samples = Samples.of(samples, float_model.inputs)
    return fit(collect(float_model, samples, config, progress), config)


def collect(
    float_model: FloatModel,
    samples: Samples,
    config: CalibrationConfig,
    progress: Progress | None = None,
) -> Statistics:
    """Runs the model over the samples once and keeps what the strategy needs.

    Statistics of shards, merged in order, equal those of all samples; a shard must be a multiple of the
    model's batch. A last batch that is not full is filled up by repeating its last sample.

    Raises:
        SampleError: A value becomes NaN or infinite for a sample.
    """
    histogram = STRATEGIES[config.strategy].histogram
    statistics = Statistics(config.bins if histogram else None)
    session = ActivationSession(float_model.model, memory_bytes=config.memory_mib << 20)
    for batch in samples.batches():
        for activations in session.run(batch.arrays):
            statistics.observe(activations)
        statistics.samples += batch.count
        if progress is not None:
            progress(statistics.samples, samples.count)
    logger.info("calibrated with %d samples, %d tensors", statistics.samples, len(statistics.tensors))
    return statistics


def fit(statistics: Statistics, config: CalibrationConfig) -> Ranges:
    """A range per tensor by the configured strategy; independent of the number of threads."""
    strategy = STRATEGIES[config.strategy]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fitted = pool.map(lambda tensor: strategy.fit(tensor, config), statistics.tensors.values())
        ranges = {
            name: Range(min(low, 0.0), max(high, 0.0))
            for name, (low, high) in zip(statistics.tensors, fitted, strict=True)
        }
    return Ranges(ranges, statistics.samples, config.strategy)
