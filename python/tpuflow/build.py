"""All stages in a row, from a model file to a checked program, each timed and announced.

    built = build(Request(Path("model.onnx"), level=5, calibration=Path("calib.npz")))
    built.program.save("model.tpu")

A request may also start in the middle, from a quantised graph.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibrate import Ranges, Statistics, calibrate
from tpuflow.compile import compile as compile_graph
from tpuflow.compile import machine_text
from tpuflow.config import Config, ScheduleConfig, refuse_calibration
from tpuflow.errors import FileError, ModelError
from tpuflow.event_log import log_folder, log_stages, require
from tpuflow.files import replaced
from tpuflow.frontend import FloatModel, generate_samples, load, verify_import
from tpuflow.judge import Judge
from tpuflow.likeness import Likeness, likeness
from tpuflow.parameters import parameters_of
from tpuflow.partition import PartitionedModel, device_networks, partition
from tpuflow.plugins import (
    Registry,
    configured,
    dataset_samples,
    is_dataset,
    plugin_metrics,
    with_input_scales,
)
from tpuflow.precision import Trials, parsed_rule, raised_from_the_end
from tpuflow.quantize import by_layer, quantize
from tpuflow.refine import better_equalized, noted_factors, refined, with_factors
from tpuflow.samples import Samples, load_judged, load_samples
from tpuflow.store import load_graph
from tpuflow.tiling import tiling_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

    from tpuflow.store import AnyGraph, AnyProgram


__all__ = [
    "Built",
    "Listener",
    "Request",
    "Sizes",
    "build",
    "calibrated",
    "divided",
    "float_bytes",
    "graph_bytes",
    "made_up",
    "peak_rss_bytes",
    "quantized",
    "samples_of",
    "trials",
]

GENERATED = 8
"""Samples made up where none are given."""


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """Whom a build tells what it is doing.

    Attributes:
        begin: A stage begins.
        end: A stage is done, in so many seconds.
        step: So much of the current stage is done, and of how much.
        remark: Something the user should know.
        counted: Handed what calibration counted, with histograms; None: they need not be made.
    """

    begin: Callable[[str], None] = _ignore
    end: Callable[[str, float], None] = _ignore
    step: Callable[[int, int], None] = _ignore
    remark: Callable[[str], None] = _ignore
    counted: Callable[[Statistics], None] | None = None


@dataclass(frozen=True)
class Request:
    """What to build.

    Attributes:
        model: `.onnx`, or `.tpuq` to start from a quantised graph.
        level: Optimisation level, 1 or 5.
        machine: Preset or TOML file.
        calibration: Samples: `.npz` or a directory of them, or a dataset plugin, `NAME(data_file)`.
        plugins: What plugins registered.
        qconfig: The plugin that gives settings by layer.
        ranges: Saved ranges; they make samples superfluous.
        config: What to quantise how.
        batch: Size of the batch; the model's own, or 1, by default.
        input_shapes: Shapes of inputs the model leaves open.
        cut_inputs: Tensors that become the inputs.
        cut_outputs: Tensors that become the outputs.
        cut_preset: Name of a known cut instead.
        time_limit: Seconds after which the scheduler takes the best plan it has.
        seed: Seed of generated samples and searches.
        strict: A level that had to fall back to a lower one is an error.
        host: Let the host compute what the machine cannot; else that is an error.
        verify: Compare original and normalised model on a sample.
        excepts: Outputs that may differ there.
        stages: Folder for what lies between the stages.
        log: Folder for TensorBoard's event files; that of `set_log_folder` by default.
    """

    model: Path
    level: int = 1
    machine: str = "128x128_asic"
    calibration: Path | None = None
    plugins: Registry = field(default_factory=Registry)
    qconfig: str | None = None
    ranges: Path | None = None
    config: Config = field(default_factory=Config)
    batch: int | None = None
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cut_inputs: Sequence[str] = ()
    cut_outputs: Sequence[str] = ()
    cut_preset: str | None = None
    time_limit: float | None = None
    seed: int = 0
    strict: bool = False
    host: bool = True
    verify: bool = True
    excepts: Sequence[str] = ()
    stages: Path | None = None
    log: Path | None = field(default_factory=log_folder)

    @cached_property
    def saved(self) -> Ranges | None:
        """The saved ranges, read once."""
        return None if self.ranges is None else Ranges.load(self.ranges)


@dataclass(frozen=True)
class Sizes:
    """Bytes of all constants, as floats and as stored integers."""

    floating: int | None
    quantized: int


@dataclass
class Built:
    """What a build made.

    Attributes:
        program: The checked program, or programs in segments where the host takes part.
        graph: The quantised graph it computes, or graphs in the same segments.
        ranges: Ranges of activations; None if none were needed, in floats or from a graph.
        layers: Settings and results by layer (see `tpuflow.quantize.by_layer`); None from a graph.
        sizes: What quantisation saved.
        seconds: By stage: import, calibrate, quantize, schedule; a stage that was not needed took 0. A search
            for precisions is a stage of its own.
        peak_rss_bytes: Largest resident memory of the process so far.
    """

    program: AnyProgram
    graph: AnyGraph
    ranges: Ranges | None
    layers: dict[str, dict[str, Any]] | None
    sizes: Sizes
    seconds: dict[str, float]
    peak_rss_bytes: int


class _Clock:
    """Seconds by stage, told to a listener."""

    def __init__(self, listener: Listener) -> None:
        self.seconds = dict.fromkeys(("import", "calibrate", "quantize", "schedule"), 0.0)
        self._listener = listener

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._listener.begin(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self._listener.end(name, self.seconds[name])


def build(request: Request, listener: Listener | None = None) -> Built:
    """Runs all stages.

    Raises:
        TpuflowError: A stage cannot do its work; the text says why.
    """
    listener = listener or Listener()
    machine_text(request.machine)  # an unknown machine is better known before the long stages than after
    if request.log is not None:
        require()
    clock = _Clock(listener)
    model: FloatModel | None = None
    original: FloatModel | None = None
    graph: AnyGraph
    ranges: Ranges | None = None
    floating: int | None = None
    layers: dict[str, dict[str, Any]] | None = None
    if request.model.suffix == ".tpuq":
        _forbid_float_options(request)
        with clock.stage("import"):
            graph = load_graph(request.model)
    else:
        with clock.stage("import"):
            model = _imported(request, listener)
            parts = partition(model) if request.host else None
            if request.qconfig is not None:
                settings = configured(request.config, request.plugins, request.qconfig, model.model)
                request = replace(request, config=settings)
        debugged = request.config.quantize
        if debugged.fake_quant_operators or debugged.fake_quant_scopes:
            listener.remark("WARNING: fake_quant is set, layers compute in floats: for debugging only")
        floating, original = float_bytes(model), model
        found: Trials | None = None
        if request.config.evaluate.searches:
            with clock.stage("search"):
                found, chosen = _searched(model, request, listener)
                request = replace(request, config=chosen)
        if request.config.needs_ranges:
            with clock.stage("calibrate"):
                model = divided(model, request, listener)
                parts = partition(model) if request.host else None
                ranges = calibrated(parts or model, request, listener)
                if request.config.calibrate.chain:
                    model, ranges = refined_by_chain(model, ranges, request, listener)
                    parts = partition(model) if request.host else None
                ranges = replace(ranges, factors=noted_factors(model))
            if request.qconfig is not None:
                settings = configured(request.config, request.plugins, request.qconfig, model.model)
                request = replace(request, config=settings)
        else:
            _forbid_ranges(request)
        with clock.stage("quantize"):
            graph = quantized(parts or model, ranges, request.config)
            layers = by_layer(graph, model.model, request.config, ranges, _alike(original, graph, request))
        if found is not None:
            judge = found.judge
            value = judge.value(judge.outputs(graph))
            listener.remark(f"verified: {judge.name} {value:.4f}, float {judge.base:.4f}")
        _save_stages(request, model, ranges, graph)
    with clock.stage("schedule"):
        program: AnyProgram = compile_graph(
            graph,
            machine=request.machine,
            level=request.level,
            parameters=parameters_of(request.level, request.config.schedule),
            tiling=tiling_of(request.config.schedule),
            time_limit=request.time_limit,
            seed=request.seed,
            strict=request.strict,
        )
    if request.log is not None and original is not None:
        log_stages(request.log, original, graph, program, samples_of(original, request))
    sizes = Sizes(floating, graph_bytes(graph))
    return Built(program, graph, ranges, layers, sizes, clock.seconds, peak_rss_bytes())


def quantized(model: FloatModel | PartitionedModel, ranges: Ranges | None, config: Config) -> AnyGraph:
    """The graph of a model; in segments only where the host takes part."""
    if isinstance(model, FloatModel):
        return quantize(model, ranges, config)
    parts = quantize(model, ranges, config)
    return parts.whole or parts


def calibrated(model: FloatModel | PartitionedModel, request: Request, listener: Listener) -> Ranges:
    """The ranges of a model: saved ones, those of given samples, or those of generated samples."""
    if request.ranges is not None and request.calibration is not None:
        raise FileError(f"{request.calibration}: not needed beside the ranges of {request.ranges}: give one")
    if request.saved is not None:
        refuse_calibration(request.config, f"ranges come from {request.ranges}")
        return request.saved
    whole = model.model if isinstance(model, PartitionedModel) else model
    file = request.config.calibrate.statistic_file
    if request.calibration is None and not file:
        zeros = request.config.calibrate.no_data == "zeros"
        kind = "a sample of zeros" if zeros else f"{GENERATED} generated samples"
        listener.remark(f"no --calib and no --ranges: ranges come from {kind}, accuracy is not calibrated")
    if file:
        listener.remark(f"ranges come from the statistics in {file}; no sample is read for them")
    samples: Samples | dict[str, Any] = {} if file else samples_of(whole, request)
    ranges = calibrate(model, samples, request.config, listener.step, listener.counted)
    names = [port.name for port in whole.inputs]
    return with_input_scales(ranges, request.plugins, names, request.config)


def samples_of(model: FloatModel, request: Request) -> Samples:
    """The samples of a request, or what its configuration says of samples that are not there."""
    workers = request.config.evaluate.dataloader_workers
    if request.calibration is None and request.config.calibrate.no_data == "zeros":
        feed = {port.name: np.zeros(port.shape, port.dtype) for port in model.inputs}
        return Samples.of_feeds([feed], model.inputs)
    if request.calibration is None:
        return made_up(model, GENERATED, request.seed)
    if is_dataset(str(request.calibration)) and not request.calibration.exists():
        return dataset_samples(request.plugins, str(request.calibration), model.inputs, workers)[0]
    return load_samples(request.calibration, model.inputs, workers)


def divided(model: FloatModel, request: Request, listener: Listener) -> FloatModel:
    """The model with factors by channel: those of saved ranges, or where samples say that they help."""
    if request.calibration is None and request.saved is not None:
        return with_factors(model, request.saved.factors) if request.saved.factors else model
    if not _may_equalize(request):
        return model
    return better_equalized(model, samples_of(model, request), request.config, listener.remark)


def _may_equalize(request: Request) -> bool:
    """Whether there are samples of the user's, and ranges are to be those of this very model."""
    settings = request.config.calibrate
    own = not settings.statistic_file and not settings.save_statistic_info and settings.strategy != "in_ir"
    integers = request.config.quantize.dtype == "int8"
    given = request.calibration is not None and request.ranges is None
    return settings.equalize and own and integers and given


def refined_by_chain(
    model: FloatModel, ranges: Ranges, request: Request, listener: Listener
) -> tuple[FloatModel, Ranges]:
    """The model and its ranges after the methods of global calibration, shown the samples of the request.

    Raises:
        FileError: There are only ranges: methods need samples.
    """
    if request.calibration is None and request.ranges is not None:
        raise FileError(f"{request.ranges}: global_calibration needs samples: give --calib, not --ranges")
    samples = samples_of(model, request)
    return refined(model, ranges, samples, request.config, listener.step, listener.remark)


def trials(model: FloatModel, request: Request, loss: str = "sqnr") -> Trials:
    """The network of a request with layers of any precision, judged by what its configuration names.

    Without samples to judge by those of calibration are taken.

    Raises:
        TpuflowError: Samples, metric or plugins are wrong, or do not fit the model.
    """
    chosen = request.config.evaluate
    if chosen.dataset:
        samples, labels = dataset_samples(
            request.plugins, chosen.source, model.inputs, chosen.dataloader_workers
        )
    elif is_dataset(chosen.data) and not Path(chosen.data).exists():
        samples, labels = dataset_samples(
            request.plugins, chosen.data, model.inputs, chosen.dataloader_workers
        )
    elif chosen.data:
        samples, labels = load_judged(chosen.data, model.inputs, chosen.dataloader_workers)
    else:
        samples, labels = samples_of(model, request), None
    if chosen.searches:
        count = parsed_rule(chosen.mixed_precision_auto_search).batches * chosen.metric_batch_size
        samples, labels = samples.first(count), None if labels is None else labels[:count]
    judge = Judge(
        model,
        samples,
        labels=labels,
        metric_text=chosen.metric,
        plugins=plugin_metrics(request.plugins),
        loss=loss,
    )
    parts = partition(model) if request.host else model

    def ranges(config: Config) -> Ranges:
        return calibrated(parts, replace(request, config=config), Listener())

    return Trials(
        model, request.config, ranges, judge, machine=request.machine, level=request.level, host=request.host
    )


def _searched(model: FloatModel, request: Request, listener: Listener) -> tuple[Trials, Config]:
    """The configuration with what `mixed_precision_auto_search` finds, and by what it was judged."""
    rule = parsed_rule(request.config.evaluate.mixed_precision_auto_search)
    found = trials(model, request)
    raised = raised_from_the_end(found, rule, remark=listener.remark)
    for what, (first, last) in raised.ranges.items():
        kind = {"unchanged": "stay as they are", "16": "get 16 bits"}.get(what, "become floats")
        listener.remark(f"layers {first} to {last} {kind}")
    name = found.judge.name
    verdict = "" if raised.holds else ", which still is not what was asked for"
    listener.remark(f"{name} {raised.before:.4f} before, {raised.after:.4f} now{verdict}")
    hosted = found.hosted(raised.assignment)
    if hosted:
        listener.remark(
            f"{len(hosted)} layers in floats need the CPU of the host, target "
            f'"{request.config.quantize.target}" has none: {", ".join(hosted)}'
        )
    return found, found.config(raised.assignment)


def _alike(model: FloatModel, graph: AnyGraph, request: Request) -> dict[str, Likeness] | None:
    """Likeness to float of every tensor; None where there are no samples to compare by."""
    count = request.config.evaluate.similarity_data_num
    if count == 0 or (request.calibration is None and request.ranges is not None):
        return None
    return likeness(model, graph, samples_of(model, request), count)


def made_up(model: FloatModel, count: int, seed: int) -> Samples:
    """Generated samples of a float model."""
    return Samples.of_feeds(generate_samples(model, count, seed), model.inputs)


def float_bytes(model: FloatModel) -> int:
    """Bytes of all constants of a normalised float model."""
    values = model.model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def graph_bytes(graph: AnyGraph) -> int:
    """Bytes of all constants of a graph, as stored in its file; the host's are not counted."""
    return sum(
        int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        for part in device_networks(graph)
        for tensor in part.tensors
        if tensor.is_constant
    )


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _imported(request: Request, listener: Listener) -> FloatModel:
    model = load(
        request.model,
        input_shapes=request.input_shapes,
        batch=request.batch,
        cut_inputs=request.cut_inputs,
        cut_outputs=request.cut_outputs,
        cut_preset=request.cut_preset,
        preprocess=request.config.preprocess,
        host=request.host,
    )
    if request.verify:
        found = verify_import(model, remark=listener.remark, excepts=request.excepts)
        worst = min((result.cosine for _, result in found), default=1.0)
        listener.remark(f"import verified on a sample: least cosine of an output {worst:.3f}")
    return model


def _forbid_float_options(request: Request) -> None:
    given = {
        "--calib": request.calibration,
        "--ranges": request.ranges,
        "--batch": request.batch,
        "--input-shape": request.input_shapes,
        "--cut-inputs": request.cut_inputs,
        "--cut-outputs": request.cut_outputs,
        "--cut-preset": request.cut_preset,
        "--config or --dtype": request.config.model_copy(update={"schedule": ScheduleConfig()}) != Config(),
        "--save-stages": request.stages,
        "--log-dir": request.log,
    }
    for option, value in given.items():
        if value:
            raise ModelError(
                f"{request.model}: is quantised already, {option} would have no effect: leave it out"
            )


def _forbid_ranges(request: Request) -> None:
    for option, value in (("--calib", request.calibration), ("--ranges", request.ranges)):
        if value is not None:
            dtype = request.config.quantize.dtype
            raise ModelError(
                f"{request.model}: {dtype} needs no ranges, {option} would have no effect: leave it out"
            )


def _save_stages(request: Request, model: FloatModel, ranges: Ranges | None, graph: AnyGraph) -> None:
    if request.stages is None:
        return
    request.stages.mkdir(parents=True, exist_ok=True)
    _save_origin(model, request.stages)
    _save_model(model.model, request.stages / "canonical.onnx")
    if ranges is not None:
        ranges.save(request.stages / "ranges.json")
    graph.save(request.stages / "model.tpuq")


def _save_origin(model: FloatModel, folder: Path) -> None:
    """The model as it was imported, node by node, its weights in a file beside it."""
    import onnx  # noqa: PLC0415 - only here

    proto, weights = model.original, "origin.data"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        onnx.save_model(proto, f"{made}/origin.onnx", save_as_external_data=True, location=weights)
        for name in (weights, "origin.onnx"):
            if (Path(made) / name).exists():
                (Path(made) / name).replace(folder / name)


def _save_model(model: ir.Model, path: Path) -> None:
    import onnx_ir  # noqa: PLC0415 - only here

    with replaced(path) as beside:
        onnx_ir.save(model, str(beside))
