"""From model and samples to ranges: collect statistics in one pass, then fit a range to each tensor."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration.masks import FAR, Masks, reaching_masks, unseen_masks
from tpuflow.calibration.means import ChannelSums, linear_operands
from tpuflow.calibration.outliers import without_outliers
from tpuflow.calibration.ranges import Means, Range, Ranges
from tpuflow.calibration.stated import stated_ranges, stated_weights
from tpuflow.calibration.statistics import Statistics, TensorStatistics
from tpuflow.calibration.statistics_file import load_statistics, save_statistics
from tpuflow.calibration.trim import trim_activations
from tpuflow.config import CalibrationConfig, Config, refuse_calibration, resolve_layers
from tpuflow.errors import RangesError
from tpuflow.executors import run_all
from tpuflow.frontend import FloatModel
from tpuflow.frontend.activations import ActivationSession, handed_out
from tpuflow.io.samples import Dataset, Samples
from tpuflow.io.threads import threads
from tpuflow.partitioning import PartitionedModel, device_values, partition
from tpuflow.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.executors import Executor, Shared

__all__ = ["Progress", "calibrate", "collect", "fit", "ranges_of", "without_warnings"]

logger = logging.getLogger(__name__)

COUNTING = frozenset({"bins", "count_all", "trim_infinity"})
"""Keys that decide what is counted; all others only how ranges follow from it."""

MANY = 8
"""Samples whose largest magnitudes tell how much these differ, at least."""

DEVIATIONS = 16.0
"""By so many standard deviations of samples' largest magnitudes an input's 16-bit grid reaches further."""

FEW_MARGIN = 3.0
"""With fewer samples than `MANY` all 16-bit grids reach so many times as far beyond what was seen."""

FEW = 32
"""Fewer samples do not reach as far as others will: ranges get headroom."""

_warns: ContextVar[bool] = ContextVar("_warns", default=True)
"""Whether what is wrong with samples is logged."""

Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number there are."""


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Lets samples be calibrated with once more without what is wrong with them being logged again."""
    token = _warns.set(False)
    try:
        yield
    finally:
        _warns.reset(token)


def calibrate(
    float_model: FloatModel | PartitionedModel,
    samples: Samples | Mapping[str, NDArray[Any]] | Dataset,
    config: Config | CalibrationConfig | None = None,
    progress: Progress | None = None,
    counted: Callable[[Statistics], None] | None = None,
    executor: Executor | None = None,
) -> Ranges:
    """The range of every float value of the model, inputs included, but those only a Relu or Clip reads.

    Of a model the host shares in, the range of every value the device meets; all of it runs in float.

    Args:
        float_model: What to calibrate.
        samples: Samples of its inputs, arrays by input name, or a representative dataset (`Dataset`).
            Not read where `statistic_file` says what was counted, unless it may lack tensors and does, or
            where the model states all ranges.
        config: A whole configuration, by which every tensor is calibrated for the grid it will have; or one
            way to calibrate all of them, by default the default strategy.
        progress: Told after every batch.
        counted: Handed what was counted, histograms of every tensor included, before ranges are chosen.
        executor: Where samples are run, in shards, see `collect`.

    Returns:
        One range per value, with zero inside, and the number of samples used.

    Raises:
        SampleError: Arrays do not fit the inputs, or a value becomes NaN or infinite for a sample.
        RangesError: A file of statistics is wrong, or lacks what a strategy reads.
    """
    whole = float_model.model if isinstance(float_model, PartitionedModel) else float_model
    usual, exceptions = _ways(whole, config)
    base = config.calibrate if isinstance(config, Config) else usual
    saved = base.save_statistic_info

    def collect_all() -> Statistics:
        given = samples if isinstance(samples, Samples) else Samples.of(samples, float_model.inputs)
        if base.shuffle:
            given = given.shuffle(base.shuffle_seed)
        histograms = counted is not None or bool(saved)
        return collect(
            float_model, given, base, progress, exceptions, histograms=histograms, executor=executor
        )

    if base.statistic_file:
        if isinstance(config, Config):
            refuse_calibration(config, f"{base.statistic_file} was counted without it", COUNTING)
        statistics = load_statistics(base.statistic_file)
        if base.ignore_missing_statistic and not statistics.tensors.keys() >= set(
            _watched_names(float_model)
        ):
            _add_missing(statistics, collect_all(), base)
    elif {each.method[0] for each in (usual, *exceptions.values())} == {"in_ir"}:
        statistics = _only_stated(whole.model, stated_ranges(whole.origin))
    else:
        statistics = collect_all()
    _state(whole, statistics)
    if counted is not None:
        counted(statistics)
    if saved:
        save_statistics(statistics, saved)
    return _with_unseen_ranges(whole, fit(statistics, usual, exceptions), config)


def ranges_of(
    float_model: FloatModel | PartitionedModel,
    statistics: Statistics,
    config: Config | CalibrationConfig | None = None,
) -> Ranges:
    """The ranges a configuration chooses by what was counted of a model; `calibrate` without its samples.

    Raises:
        RangesError: The statistics lack what a strategy reads.
    """
    whole = float_model.model if isinstance(float_model, PartitionedModel) else float_model
    _state(whole, statistics)
    return _with_unseen_ranges(whole, fit(statistics, *_ways(whole, config)), config)


def _run(float_model: FloatModel | PartitionedModel) -> tuple[ir.Model, Mapping[str, ir.Value] | None]:
    """The model to run, and the values the device meets; None for all."""
    if isinstance(float_model, FloatModel) and float_model.findings:
        float_model = partition(float_model)
    if isinstance(float_model, PartitionedModel):
        return float_model.model.model, device_values(float_model)
    return float_model.model, None


def _watched_names(float_model: FloatModel | PartitionedModel) -> list[str]:
    """Names of what a run would see."""
    return handed_out(*_run(float_model))


def _add_missing(statistics: Statistics, seen: Statistics, config: CalibrationConfig) -> None:
    """Takes over what was seen of tensors that a file lacks."""
    missing = {name: tensor for name, tensor in seen.tensors.items() if name not in statistics.tensors}
    if missing:
        named = ", ".join(f'"{name}"' for name in missing)
        logger.warning("%s lacks %s: seen in samples instead", config.statistic_file, named)
    statistics.tensors |= missing
    statistics.sums |= {
        name: sums for name, sums in seen.sums.items() if name in missing and name not in statistics.sums
    }


def _state(model: FloatModel, statistics: Statistics) -> None:
    """Notes the ranges the model itself states."""
    for name, found in stated_ranges(model.origin).items():
        if name in statistics.tensors:
            statistics.tensors[name].stated_range = found.pairs[0]


def _with_unseen_ranges(
    model: FloatModel, ranges: Ranges, config: Config | CalibrationConfig | None
) -> Ranges:
    """The ranges with those that no sample shows: of masks that were never set, and of stated weights."""
    masks, names = unseen_masks(model.model.graph, ranges.tensors)
    for name in names if _warns.get() else ():
        logger.warning(
            '"%s" masks scores and left nothing out in any sample: the scores are given room below their '
            "range, and what is added to them a range down to -%g; calibrate with samples in which something "
            "is masked",
            name,
            FAR,
        )
    weights = stated_weights(model.origin) if isinstance(config, Config) else {}
    tensors = {**ranges.tensors, **masks, **weights}
    return replace(ranges, tensors={**tensors, **reaching_masks(model.model.graph, tensors)})


def _ways(
    model: FloatModel, config: Config | CalibrationConfig | None
) -> tuple[CalibrationConfig, dict[str, CalibrationConfig]]:
    """How tensors are calibrated: all of them, and by name those that differ."""
    if isinstance(config, Config):
        config = resolve_layers(config, model.model)
        return config.calibration(), _exceptions(model.model, config)
    return config or CalibrationConfig(), {}


def _only_stated(model: ir.Model, stated: Mapping[str, Range]) -> Statistics:
    """Statistics of values whose ranges the model states: nothing needs to run."""
    statistics = Statistics(None)
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for name in (value.name or "" for value in values):
        if name in stated:
            statistics.tensors[name] = TensorStatistics([stated[name].pairs[0]], None)
    return statistics


def _exceptions(model: ir.Model, config: Config) -> dict[str, CalibrationConfig]:
    """Calibration of the tensors that differ from the rest of the network, by name."""
    usual = config.calibration()
    names: dict[str, tuple[str, ...]] = {
        value.name: (value.name,) for value in model.graph.inputs if value.name
    }
    for node in model.graph:
        names |= {value.name: (value.name, node.name or "") for value in node.outputs if value.name}
    found = {name: config.calibration(*known) for name, known in names.items()}
    return {name: settings for name, settings in found.items() if settings != usual}


def collect(
    float_model: FloatModel | PartitionedModel,
    samples: Samples,
    config: CalibrationConfig,
    progress: Progress | None = None,
    exceptions: Mapping[str, CalibrationConfig] | None = None,
    *,
    histograms: bool = False,
    executor: Executor | None = None,
) -> Statistics:
    """Runs the model over the samples once and keeps what the strategy needs.

    Statistics of shards, merged in order, equal those of all samples. A last batch that is not full is filled
    up by repeating its last sample.

    Args:
        float_model: What to run.
        samples: Samples of its inputs.
        config: What is needed of every tensor.
        progress: Told after every batch.
        exceptions: What is needed of single tensors, by name.
        histograms: Count values even where no strategy needs it.
        executor: Where shards of the samples run, which depend on the samples alone; here and all together
            without one.

    Raises:
        SampleError: A value becomes NaN or infinite for a sample.
        ExecutorError: A process was lost more than once.
    """
    counting = _Pass(float_model, config, dict(exceptions or {}), histograms, several=samples.count > 1)
    shards = [samples] if executor is None else samples.shards()
    if executor is None or len(shards) == 1:
        statistics = counting.count(samples, progress=progress)
    else:
        firsts = list(accumulate((shard.count for shard in shards), initial=0))
        shared = executor.share(counting)
        calls = [(shared, shard, first) for shard, first in zip(shards, firsts, strict=False)]
        done = 0

        def step(_at: int, found: Statistics) -> None:
            nonlocal done
            done += found.samples
            if progress is not None:
                progress(done, samples.count)

        statistics, *later = run_all(executor, _count_shard, calls, step)
        for each in later:
            statistics.merge(each)
    if _warns.get():
        _report_masks(statistics)
    logger.info("calibrated with %d samples, %d tensors", statistics.samples, len(statistics.tensors))
    return statistics


@dataclass(frozen=True)
class _Pass:
    """A model with the settings of what is counted of it; see `collect`."""

    model: FloatModel | PartitionedModel
    config: CalibrationConfig
    exceptions: dict[str, CalibrationConfig]
    histograms: bool
    several: bool

    def count(self, samples: Samples, first: int = 0, progress: Progress | None = None) -> Statistics:
        """Statistics of samples, the first of which has the number `first` in messages."""
        config, statistics = self.config, self._empty()
        trims = {name: each.trim_infinity for name, each in self.exceptions.items()}
        model, wanted = _run(self.model)
        masks = Masks.of(model.graph)
        statistics.sums = {name: ChannelSums(axis) for name, axis in linear_operands(model.graph).items()}
        statistics.inputs = frozenset(value.name for value in model.graph.inputs if value.name)
        session = ActivationSession(
            model, memory_bytes=config.memory_mib << 20, wanted=wanted, several=self.several
        )
        statistics.samples = first
        for batch, parts in session.runs(samples.batches()):
            for activations in parts:
                statistics.observe(masks.left_out(trim_activations(activations, config.trim_infinity, trims)))
            statistics.samples += batch.count
            if progress is not None:
                progress(statistics.samples, samples.count)
        statistics.samples -= first
        return statistics

    def _empty(self) -> Statistics:
        ways = (self.config, *self.exceptions.values())
        histogram = self.histograms or any(
            STRATEGIES[each.method[0]].histogram or _drops_outliers(each) for each in ways
        )
        statistics = Statistics(self.config.bins if histogram else None)
        statistics.own_bins = {
            name: each.bins for name, each in self.exceptions.items() if each.bins != self.config.bins
        }
        statistics.whole = self.config.count_all or any(STRATEGIES[each.method[0]].whole for each in ways)
        return statistics


def _count_shard(shared: Shared[_Pass], shard: Samples, first: int) -> Statistics:
    return shared.value.count(shard, first)


def _drops_outliers(config: CalibrationConfig) -> bool:
    """Whether values far from the mean are left out; nothing is of ranges that the model states."""
    return config.z_threshold > 0 and config.method[0] != "in_ir"


def _report_masks(statistics: Statistics) -> None:
    masked = {name: tensor.left_out for name, tensor in statistics.tensors.items() if tensor.left_out}
    if masked:
        logger.warning(
            "%d values beyond 1e30 in magnitude were taken for masks and left out of the ranges of %s",
            sum(masked.values()),
            ", ".join(f'"{name}"' for name in masked),
        )


def fit(
    statistics: Statistics,
    config: CalibrationConfig,
    exceptions: Mapping[str, CalibrationConfig] | None = None,
) -> Ranges:
    """A range per tensor; independent of the number of threads.

    Args:
        statistics: What was collected, with histograms if the strategy reads them.
        config: Strategy and settings.
        exceptions: Settings of single tensors by name.
    """

    def fit(named: tuple[str, TensorStatistics]) -> tuple[str, Range]:
        name, tensor = named
        if not tensor.batches:
            return name, Range(0.0, 0.0)  # nothing but masks
        settings = (exceptions or {}).get(name, config)
        strategy, numbers = settings.method
        try:
            if _drops_outliers(settings):
                tensor = without_outliers(tensor, settings.z_threshold)
            low, high = STRATEGIES[strategy].fit(tensor, settings, numbers)
        except RangesError as error:
            raise RangesError(f'tensor "{name}": {error}') from None
        further = 1.0
        if strategy == "mse" and tensor.step is None and 0 < statistics.samples < FEW:
            further += settings.headroom / statistics.samples
        return name, Range(
            further * min(low, 0.0), further * max(high, 0.0), margin=_margin(name, statistics)
        )

    with ThreadPoolExecutor(threads()) as pool:
        ranges = dict(pool.map(fit, statistics.tensors.items()))
    means = {
        name: Means(sums.axis, found) for name, sums in statistics.sums.items() if (found := sums.means())
    }
    return Ranges(ranges, statistics.samples or None, config.strategy, means)


def _margin(name: str, statistics: Statistics) -> float:
    """How much of the configured margin a tensor needs: an input whose samples reach about as far, little."""
    if 0 < statistics.samples < MANY:
        return FEW_MARGIN
    tensor = statistics.tensors[name]
    if name not in statistics.inputs or len(tensor.batches) < MANY:
        return 1.0
    largest = np.abs(np.array(tensor.batches)).max(axis=1)
    spread = largest.std(ddof=1) / max(largest.max(), np.finfo(np.float64).tiny)
    return min(1.0, DEVIATIONS * float(spread))
