"""The recipe: the one row of stages by which a float model becomes an integer graph.

```text
            needs the user's samples      unless saved ranges are given
            |                             |
 model --> equalize --> calibrate --> tune --> refine --> correct --> estimate --> lower --> graph
```

| stage | takes, gives | does |
|---|---|---|
| `equalize` | model -> model | cross-layer equalization, if held-out samples confirm (`equalization.py`) |
| `calibrate` | model -> ranges | a range for every value (`tpuflow.calibrate`) |
| `tune` | ranges -> ranges | ranges of operands by what their readers make of them (`range_tuning.py`) |
| `refine` | model, ranges -> both | the methods of `global_calibration` (`chain.py`) |
| `correct` | ranges -> ranges | bias correction: mean errors of the outputs (`bias_correction.py`) |
| `estimate` | - | the signal to noise to expect of outputs, by samples held out (`held_out.py`) |
| `lower` | model, ranges -> graph | integers (`tpuflow.quantize`) |

`tpuflow.quantize(model, samples=...)`, `tpuflow build`, the commands of single stages, `tpuflow search` and
the names of `compat/` all go through `Recipe`: what differs is which stages they name. `import` stands in
front of these stages and `schedule` and `check` behind them, see `tpuflow.build`.

A stage that may change a network for the worse runs only where samples of the user's can evaluate it,
and never those it was made of (`held_out.py`). Saved ranges hold what such stages found when the ranges
were made (factors, errors of outputs); no stage is
repeated then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

from tpuflow.calibration import Ranges, ranges_of, without_warnings
from tpuflow.calibration import calibrate as find_ranges
from tpuflow.config import Config, ConfigError, refuse_calibration
from tpuflow.errors import FileError
from tpuflow.frontend import FloatModel
from tpuflow.io.samples import Dataset, Samples
from tpuflow.lowering import QuantizeError
from tpuflow.lowering import lower as lower_model
from tpuflow.partitioning import Partitioned, PartitionedModel, partition
from tpuflow.ptq.bias_correction import correct_output_bias
from tpuflow.ptq.chain import apply_chain
from tpuflow.ptq.equalization import better_equalized, noted_factors, with_factors
from tpuflow.ptq.held_out import Estimate, HeldOut
from tpuflow.ptq.listener import Listener
from tpuflow.ptq.range_tuning import better_tuned
from tpuflow.ptq.shift_negative import shift_negative
from tpuflow.report.tensorboard import log_folder, log_stages, require

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import onnx_ir as ir
    from numpy.typing import NDArray

    from tpuflow.calibration import Statistics
    from tpuflow.executors import Executor
    from tpuflow.lowering import Graph
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["STAGES", "CalibratedModel", "CalibrationData", "Recipe", "quantize"]

logger = logging.getLogger(__name__)


class CalibrationData:
    """Calibration data of a network: samples, or ranges that were found before.

    Args:
        samples: Samples, or what reads them when they are first needed; None: there are none.
        generated: What stands in for the user's samples, in words such as "8 generated samples"; empty:
            samples are the user's own, which alone may decide what is done to a network.
        ranges: Saved ranges, taken as they are.
        ranges_file: Where they come from, for messages.
        statistics: What was counted of this very network with these samples, to be chosen by once more.
        executor: Where samples are calibrated with, in shards; here and all together without one.
    """

    def __init__(
        self,
        samples: Samples | Callable[[], Samples] | None = None,
        *,
        generated: str = "",
        ranges: Ranges | None = None,
        ranges_file: str = "saved ranges",
        statistics: Statistics | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.executor = executor
        self._read = samples
        self.generated = generated
        self.ranges = ranges
        self.ranges_file = ranges_file
        self.statistics = statistics

    @cached_property
    def samples(self) -> Samples:
        """The samples, read once."""
        assert self._read is not None, "stages that read samples run where there are some"
        return self._read() if callable(self._read) else self._read

    @property
    def readable(self) -> bool:
        """Whether there are samples at all, the user's or generated ones."""
        return self._read is not None and (self.ranges is None or not self.generated)

    @property
    def own(self) -> bool:
        """Whether there are samples of the user's."""
        return self._read is not None and not self.generated and self.ranges is None


@dataclass(frozen=True)
class CalibratedModel:
    """A float model on its way to integers, which every stage takes and gives.

    Attributes:
        model: The whole float model; its channels may be scaled, its weights may lie on grids.
        ranges: Of its values; None before calibration, and of networks in floats.
        hosted: Nodes that were given to the host beside those the machine cannot compute; None: all of the
            model is for the machine.
        estimate: What the outputs' signal to noise is expected to be; None where that is not estimated.
    """

    model: FloatModel
    ranges: Ranges | None = None
    hosted: frozenset[str] | None = None
    estimate: Estimate | None = None

    @classmethod
    def of(cls, model: FloatModel | PartitionedModel) -> CalibratedModel:
        """Wraps a model before any stage, whole or in segments."""
        if isinstance(model, FloatModel):
            return cls(model)
        alone = partition(model.model).bound == model.bound
        return cls(model.model, hosted=frozenset() if alone else model.bound)

    @cached_property
    def network(self) -> FloatModel | PartitionedModel:
        """The model, in segments where the host may take part."""
        return self.model if self.hosted is None else partition(self.model, bound=self.hosted)


@dataclass(frozen=True)
class _Job:
    """Arguments of the stages beside the model."""

    config: Config
    data: CalibrationData
    listener: Listener
    set_inputs: Callable[[Ranges, FloatModel], Ranges]
    original: FloatModel

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Halves of the samples that evaluate each other; None where the user's samples make no ranges."""
        settings = self.config.calibrate
        counted_here = not settings.statistic_file and not settings.save_statistic_info
        if not self.data.own or not counted_here or settings.strategy == "in_ir":
            return None
        return HeldOut(self.original, self.data.samples, self.config)

    @property
    def evaluation(self) -> HeldOut | None:
        """The halves by which a change is evaluated; None where none is made."""
        return self.held_out if self.config.quantize.dtype == "int8" else None


def _equalize(state: CalibratedModel, job: _Job) -> CalibratedModel:
    saved = job.data.ranges
    if saved is not None:
        return replace(state, model=with_factors(state.model, saved.factors)) if saved.factors else state
    if not job.config.calibrate.equalize or job.evaluation is None:
        return state
    found = better_equalized(state.model, job.data.samples, job.config, job.evaluation, job.listener.remark)
    return replace(state, model=found)


def _calibrate(state: CalibratedModel, job: _Job) -> CalibratedModel:
    config, data, listener = job.config, job.data, job.listener
    if data.ranges is not None:
        refuse_calibration(config, f"ranges come from {data.ranges_file}")
        return replace(state, ranges=data.ranges.without_foreign_errors(config, listener.remark))
    if data.statistics is not None:
        return replace(state, ranges=ranges_of(state.network, data.statistics, config))
    file = config.calibrate.statistic_file
    alone = bool(file) and not config.calibrate.ignore_missing_statistic
    if data.generated and not alone:
        what = f"ranges of what {file} lacks" if file else "ranges"
        if any(node.op_type == "DequantizeLinear" for node in state.model.model.graph):
            listener.remark(
                "the model states scales, which are used as they are; no --calib and no --ranges: "
                f"{what} of values without one come from {data.generated}"
            )
        else:
            listener.remark(
                f"no --calib and no --ranges: {what} come from {data.generated}, accuracy is not calibrated"
            )
    if alone:
        listener.remark(f"ranges come from the statistics in {file}; no sample is read for them")
    samples: Samples | dict[str, Any] = {} if alone else data.samples
    ranges = find_ranges(state.network, samples, config, listener.step, listener.counted, data.executor)
    return replace(state, ranges=job.set_inputs(ranges, state.model))


def _shift(state: CalibratedModel, job: _Job) -> CalibratedModel:
    ratio = job.config.calibrate.shift_negative
    if state.ranges is None or not ratio:
        return state
    model, ranges, count = shift_negative(state.model, state.ranges, ratio)
    job.listener.remark(f"shift_negative: {count} tensors behind smooth functions made unsigned")
    return replace(state, model=model, ranges=ranges)


def _tune(state: CalibratedModel, job: _Job) -> CalibratedModel:
    if state.ranges is None or not job.config.tunes or job.evaluation is None:
        return state
    samples, remark = job.data.samples, job.listener.remark
    found = better_tuned(state.model, state.ranges, samples, job.config, job.evaluation, remark)
    return replace(state, ranges=found)


def _refine(state: CalibratedModel, job: _Job) -> CalibratedModel:
    if state.ranges is None or not job.config.calibrate.chain:
        return state
    if job.data.ranges is not None:
        raise FileError(
            f"{job.data.ranges_file}: global_calibration needs samples: give --calib, not --ranges"
        )
    model, ranges = apply_chain(
        state.model, state.ranges, job.data.samples, job.config, job.listener.step, job.listener.remark
    )
    return replace(state, model=model, ranges=ranges)


def _correct(state: CalibratedModel, job: _Job) -> CalibratedModel:
    if state.ranges is None or job.evaluation is None:
        return state
    found = correct_output_bias(state.model, state.ranges, job.data.samples, job.config)
    if found.errors:
        job.listener.remark(
            f"bias correction: {len(found.errors)} output layer{'' if len(found.errors) == 1 else 's'}"
        )
    return replace(state, ranges=found)


def _estimate(state: CalibratedModel, job: _Job) -> CalibratedModel:
    # What the methods of a chain do is not repeated for halves of the samples.
    if state.ranges is None or job.held_out is None or job.config.calibrate.chain:
        return state
    return replace(state, estimate=job.held_out.estimate())


STAGES: Mapping[str, Callable[[CalibratedModel, _Job], CalibratedModel]] = {
    "equalize": _equalize,
    "calibrate": _calibrate,
    "shift": _shift,
    "tune": _tune,
    "refine": _refine,
    "correct": _correct,
    "estimate": _estimate,
}
"""The stages before lowering, in their order."""


def _same_ranges(ranges: Ranges, _model: FloatModel) -> Ranges:
    return ranges


@dataclass(frozen=True)
class Recipe:
    """The stages by which a float model becomes an integer graph, and the configuration they follow.

    Attributes:
        config: What to quantise how; it also says whether a stage is wanted (`equalize`, `tune`,
            `global_calibration`, `bias_correction`).
        stages: Names of the stages before lowering that may run, in their order.
    """

    config: Config = field(default_factory=Config)
    stages: tuple[str, ...] = tuple(STAGES)

    def __post_init__(self) -> None:
        if [name for name in STAGES if name in self.stages] != list(self.stages):
            known = ", ".join(STAGES)
            raise ConfigError(f"stages {', '.join(self.stages)}: choose among {known}, in this order")

    def without(self, *names: str) -> Recipe:
        """The recipe without some of its stages."""
        return replace(self, stages=tuple(name for name in self.stages if name not in names))

    def calibrate(
        self,
        model: FloatModel | PartitionedModel | CalibratedModel,
        data: CalibrationData,
        listener: Listener | None = None,
        set_inputs: Callable[[Ranges, FloatModel], Ranges] = _same_ranges,
    ) -> CalibratedModel:
        """Runs all stages before lowering.

        Args:
            model: What to quantise; nodes that the machine cannot compute need a model in segments.
            data: Samples, or saved ranges.
            listener: Told what is being done.
            set_inputs: Changes the ranges of the network's inputs, as plugins may.

        Returns:
            The model as it is to be lowered, and its ranges; both note the factors of its channels.

        Raises:
            TpuflowError: A stage cannot do its work; the text says why.
        """
        listener = listener or Listener()
        state = model if isinstance(model, CalibratedModel) else CalibratedModel.of(model)
        job = _Job(self.config, data, listener, set_inputs, state.model)
        for name in self.stages:
            listener.part(name)
            start = time.perf_counter()
            # Other stages calibrate with the same samples, or some of them, over and over.
            with nullcontext() if name == "calibrate" else without_warnings():
                state = STAGES[name](state, job)
            listener.stage(name, time.perf_counter() - start)
        if state.ranges is None:
            return state
        return replace(state, ranges=replace(state.ranges, factors=noted_factors(state.model)))

    def lower(self, state: CalibratedModel) -> Graph | Partitioned[Graph]:
        """The graph of a calibrated model; of a model in segments the same segments in graphs.

        Raises:
            UnsupportedModelError: Listing every node that cannot be lowered.
            QuantizeError: A range is missing, empty or not finite.
        """
        return lower_model(state.network, state.ranges, self.config)

    def graph(self, state: CalibratedModel) -> AnyGraph:
        """As `lower`, in segments only where the host takes part."""
        found = self.lower(state)
        return (found.whole or found) if isinstance(found, Partitioned) else found


@overload
def quantize(
    model: FloatModel | ir.Model,
    ranges: Ranges | None = None,
    config: Config | None = None,
    *,
    samples: Samples | Mapping[str, NDArray[Any]] | Dataset | None = None,
    listener: Listener | None = None,
) -> Graph: ...


@overload
def quantize(
    model: PartitionedModel,
    ranges: Ranges | None = None,
    config: Config | None = None,
    *,
    samples: Samples | Mapping[str, NDArray[Any]] | Dataset | None = None,
    listener: Listener | None = None,
) -> Partitioned[Graph]: ...


def quantize(
    model: FloatModel | ir.Model | PartitionedModel,
    ranges: Ranges | None = None,
    config: Config | None = None,
    *,
    samples: Samples | Mapping[str, NDArray[Any]] | Dataset | None = None,
    listener: Listener | None = None,
) -> Graph | Partitioned[Graph]:
    """Turns a float model into a graph of integers, by samples or by ranges.

    With `samples` the whole recipe runs, as in `tpuflow build --calib`: channels are equalised, values
    calibrated, ranges tuned and mean errors of outputs corrected wherever samples held out confirm it, and
    the methods of `global_calibration` run. With `ranges` the model is lowered as it stands: no stage that
    needs samples runs, so that the graph may lose accuracy beside that of the recipe. Networks in floats need
    neither.

    Args:
        model: As `tpuflow.load` gives it, or in segments, as `tpuflow.partition` does.
        ranges: A range for every value that becomes codes, as `tpuflow.calibrate` finds them.
        config: Types, grids and exceptions by name; int8 with asymmetric activations by default.
        samples: What to calibrate with: `tpuflow.samples`, arrays by input name, `[samples, ...]`, or a
            representative dataset: feeds, or a function that gives them.
        listener: Told what the stages do; remarks go to the log by default.

    Where `tpuflow.set_log_folder` names a folder, TensorBoard's event files are written there: graphs of the
    stages and widths of the layers, with samples also histograms, statistics by channel and similarities.

    Returns:
        The verified graph; of a model in segments the same segments in graphs, but that nodes of the device
        which cannot be lowered have gone to the host.

    Raises:
        UnsupportedModelError: Listing every node that cannot be lowered.
        QuantizeError: A range is missing, empty or not finite; ranges and samples are both given, or neither
            where some are needed.
        ConfigError: An entry of the configuration matches nothing or cannot be honoured; or it asks for
            methods that need samples, and there are none.
        SampleError: Samples do not fit the inputs.
    """
    config = config or Config()
    if samples is None:
        if config.calibrate.chain:
            raise ConfigError(
                "global_calibration needs samples: quantize(model, samples=...) runs its methods"
            )
        lowered = lower_model(model, ranges, config)
        _log(model, lowered, None)
        return lowered
    if ranges is not None:
        raise QuantizeError(
            "ranges and samples are both given: samples run the whole recipe, ranges none of it"
        )
    if not isinstance(model, FloatModel | PartitionedModel):
        raise QuantizeError("samples need a model that tpuflow.load gives, not its normalised form alone")
    if not config.needs_ranges:
        logger.info("note: all layers are %s: nothing is calibrated", config.quantize.dtype)
        return lower_model(model, None, config)
    given = samples if isinstance(samples, Samples) else Samples.of(samples, model.inputs)
    recipe = Recipe(config)
    if log_folder() is not None:
        require()
    listener = listener or Listener(remark=logger.info)
    state = recipe.calibrate(model, CalibrationData(given), listener)
    graph = recipe.lower(state)
    _log(model, graph, given, state.model)
    return graph


def _log(
    model: FloatModel | ir.Model | PartitionedModel,
    graph: Graph | Partitioned[Graph],
    samples: Samples | None,
    calibrated: FloatModel | None = None,
) -> None:
    """Writes the views of TensorBoard where a folder is named for them, those of samples if there are any."""
    folder = log_folder()
    if folder is None or not isinstance(model, FloatModel | PartitionedModel):
        return
    require()
    whole = graph.whole if isinstance(graph, Partitioned) else graph
    log_stages(folder, CalibratedModel.of(model).model, whole or graph, None, samples, calibrated)
