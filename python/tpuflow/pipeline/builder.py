"""All stages in a row, each timed and announced."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.machine import Machine
from tpuflow.compiler.program import require_time
from tpuflow.compiler.schedule import Schedule
from tpuflow.frontend import operators
from tpuflow.lowering import by_layer
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_graph
from tpuflow.pipeline.dump import dump_tensors
from tpuflow.pipeline.intermediates import save_schedule, save_stages
from tpuflow.pipeline.request import Request, for_machine, forbid_float_options, forbid_ranges
from tpuflow.pipeline.samples import calibration_data, samples_of
from tpuflow.pipeline.sizes import Sizes, float_bytes, graph_bytes, peak_rss_bytes
from tpuflow.pipeline.stages import alike, calibrate_model, import_model, schedule_graph, starting
from tpuflow.pipeline.trials import measure_metrics, metric_evaluators, search_precisions
from tpuflow.pipeline.warnings import AccuracyWarning, accuracy_warnings, refuse
from tpuflow.plugins import configure_layers, operators_of, unused_operators
from tpuflow.ptq import Listener, Recipe
from tpuflow.report.tensorboard import log_stages, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuflow.calibration import Ranges
    from tpuflow.evaluation.fidelity import Evaluator
    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram
    from tpuflow.ptq import Estimate
    from tpuflow.ptq.precision import Trials

__all__ = ["BuildResult", "build"]


@dataclass
class BuildResult:
    """The result of a build.

    Attributes:
        program: The checked program, or programs in segments where the host takes part.
        graph: The quantised graph it computes, or graphs in the same segments.
        ranges: Ranges of activations; None if none were needed, in floats or from a graph.
        layers: Settings and results by layer (see `tpuflow.lowering.by_layer`); None from a graph.
        sizes: What quantisation saved.
        seconds: By stage: import, calibrate, quantize, schedule; a stage that was not needed took 0. A search
            for precisions is a stage of its own.
        peak_rss_bytes: Largest resident memory of the process so far.
        stages: Seconds by stage of the recipe, which `seconds` counts together as calibrate.
        estimate: The signal to noise to expect of the outputs; None where that is not estimated.
        warnings: What is wrong with the network's numbers although it builds.
    """

    program: AnyProgram
    graph: AnyGraph
    ranges: Ranges | None
    layers: dict[str, dict[str, Any]] | None
    sizes: Sizes
    seconds: dict[str, float]
    peak_rss_bytes: int
    stages: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None
    warnings: list[AccuracyWarning] = field(default_factory=list)


@dataclass(frozen=True)
class _QuantizedNetwork:
    """The network before it is scheduled.

    Attributes:
        graph: The quantised network.
        original: Its float model as it was imported; None from a graph, like all that follows.
        calibrated: The same as it was quantised.
        ranges: Ranges of activations.
        layers: Settings and results by layer.
        estimate: What outputs are expected to be.
        warnings: What is wrong with its numbers.
    """

    graph: AnyGraph
    original: FloatModel | None = None
    calibrated: FloatModel | None = None
    ranges: Ranges | None = None
    layers: dict[str, dict[str, Any]] | None = None
    estimate: Estimate | None = None
    warnings: list[AccuracyWarning] = field(default_factory=list)


class _Clock:
    """Seconds by stage, told to a listener."""

    def __init__(self, listener: Listener) -> None:
        self.seconds = dict.fromkeys(("import", "calibrate", "quantize", "schedule"), 0.0)
        self.stages: dict[str, float] = {}
        self.listener = replace(listener, stage=self._note)
        self._told = listener.stage

    def _note(self, name: str, seconds: float) -> None:
        self.stages[name] = seconds
        self._told(name, seconds)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.listener.begin(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.listener.end(name, self.seconds[name])


def build(request: Request, listener: Listener | None = None) -> BuildResult:
    """Runs all stages; operators of the request's plugins take part.

    Raises:
        TpuflowError: A stage cannot do its work; the text says why.
    """
    with operators(operators_of(request.plugins)):
        return _run_stages(request, listener)


def _run_stages(request: Request, listener: Listener | None) -> BuildResult:
    """Runs all stages.

    Raises:
        TpuflowError: A stage cannot do its work; the text says why.
    """
    listener = listener or Listener()
    _check(request)
    if request.log is not None:
        require()
    clock = _Clock(listener)
    if request.model.suffix == ".tpuq":
        forbid_float_options(request)
        with clock.stage("import"):
            made = _QuantizedNetwork(load_graph(request.model))
    else:
        made = _quantize_request(request, clock)
    floating = None if made.original is None else float_bytes(made.original)
    if request.log is None:  # memory that schedules of large networks need
        made = replace(made, original=None, calibrated=None)
    for part in device_networks(made.graph):
        part.release()
    with clock.stage("schedule"):
        program = schedule_graph(made.graph, request)
    save_schedule(request, made.graph, program)
    if request.log is not None and made.original is not None:
        samples = samples_of(made.original, request)
        log_stages(request.log, made.original, made.graph, program, samples, made.calibrated)
    return BuildResult(
        program=program,
        graph=made.graph,
        ranges=made.ranges,
        layers=made.layers,
        sizes=Sizes(floating, graph_bytes(made.graph)),
        seconds=clock.seconds,
        peak_rss_bytes=peak_rss_bytes(),
        stages=clock.stages,
        estimate=made.estimate,
        warnings=made.warnings,
    )


def _check(request: Request) -> None:
    """Refuses a machine or a schedule that makes no sense before the long stages, not after them."""
    if not isinstance(request.machine, Machine):
        Machine.load(request.machine)
    Schedule.of(request.level, request.config.schedule)
    require_time(request.time_limit)


def _quantize_request(request: Request, clock: _Clock) -> _QuantizedNetwork:
    """Imports a float model, runs the recipe and measures what the configuration asks for."""
    listener = clock.listener
    request = replace(request, config=for_machine(request.config, request.machine))
    with clock.stage("import"):
        original = import_model(request, listener)
        request = _with_plugin(request, original)
    for line in unused_operators(request.plugins, original.origin):
        listener.remark(f"WARNING: {line}")
    debugged = request.config.quantize
    if debugged.bypass:
        listener.remark("WARNING: bypass is set, nothing is quantised: for debugging only")
    if debugged.fake_quant_operators or debugged.fake_quant_scopes:
        listener.remark("WARNING: fake_quant is set, layers compute in floats: for debugging only")
    found: Trials | None = None
    if request.config.evaluate.searches:
        with clock.stage("search"):
            found, chosen = search_precisions(original, request, listener)
            request = replace(request, config=chosen)
    # What it is evaluated by is better known to be wrong before the long stages than after.
    evaluators = metric_evaluators(original, request) if request.config.evaluate.measures else []
    state = starting(original, request)
    if request.config.needs_ranges:
        with clock.stage("calibrate"):
            data = calibration_data(original, request)
            state = calibrate_model(state, request, listener, data=data)
        request = _with_plugin(request, state.model)
    else:
        forbid_ranges(request)
        if request.calibration is not None or request.ranges is not None:
            dtype = request.config.quantize.dtype
            listener.remark(f"note: all layers are {dtype}: nothing is calibrated")
        data = calibration_data(original, request)
    with clock.stage("quantize"):
        graph = Recipe(request.config).graph(state)
        similar = alike(original, graph, request, data)
        layers = by_layer(graph, state.model.model, request.config, state.ranges, similar)
        found_wrong = accuracy_warnings(original, state, graph, request.config, data)
        for each in found_wrong:
            listener.remark(f"WARNING: {each.text}")
        if request.strict:
            refuse(found_wrong)
    _measure(found, evaluators, graph, request, clock)
    save_stages(request, original, state.model, state.ranges, graph)
    named = request.config.output
    if named.dump:
        folder = Path(named.folder) / named.dump_dir
        count = dump_tensors(folder, state.model, graph, samples_of(state.model, request))
        listener.remark(f"dump: {count} files of tensors in {folder}")
    return _QuantizedNetwork(graph, original, state.model, state.ranges, layers, state.estimate, found_wrong)


def _with_plugin(request: Request, model: FloatModel) -> Request:
    """The request with the settings by layer that its plugin gives for a model, if it names one."""
    if request.qconfig is None:
        return request
    settings = configure_layers(request.config, request.plugins, request.qconfig, model.model)
    return replace(request, config=settings)


def _measure(
    found: Trials | None, evaluators: list[Evaluator], graph: AnyGraph, request: Request, clock: _Clock
) -> None:
    """Tells the scores of the graph: the metric of a search, and those of the configuration."""
    remark = clock.listener.remark
    if found is not None:
        value = found.evaluator.value(found.evaluator.outputs(graph))
        remark(f"verified: {found.evaluator.name} {value:.4f}, float {found.evaluator.base:.4f}")
    if evaluators:
        with clock.stage("evaluate"):
            for line in measure_metrics(evaluators, graph, request):
                remark(line)
