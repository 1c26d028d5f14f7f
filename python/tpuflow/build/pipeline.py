"""All stages in a row, each timed and announced."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpuflow.build.intermediates import save_stages
from tpuflow.build.request import Listener, Request, forbid_float_options, forbid_ranges
from tpuflow.build.samples import samples_of
from tpuflow.build.sizes import Sizes, float_bytes, graph_bytes, peak_rss_bytes
from tpuflow.build.stages import (
    alike,
    calibrated,
    divided,
    imported,
    quantized,
    refined_by_chain,
    with_errors,
    with_tuned,
)
from tpuflow.build.trials import judges, measured, searched
from tpuflow.compile import compile as compile_graph
from tpuflow.compile import machine_text
from tpuflow.event_log import log_stages, require
from tpuflow.parameters import parameters_of
from tpuflow.partition import partition
from tpuflow.plugins import configured
from tpuflow.quantize import by_layer
from tpuflow.refine import noted_factors
from tpuflow.store import load_graph
from tpuflow.tiling import tiling_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuflow.calibrate import Ranges
    from tpuflow.frontend import FloatModel
    from tpuflow.precision import Trials
    from tpuflow.store import AnyGraph, AnyProgram

__all__ = ["Built", "build"]


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
        forbid_float_options(request)
        with clock.stage("import"):
            graph = load_graph(request.model)
    else:
        with clock.stage("import"):
            model = imported(request, listener)
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
                found, chosen = searched(model, request, listener)
                request = replace(request, config=chosen)
        # What it is judged by is better known to be wrong before the long stages than after.
        judging = judges(original, request) if request.config.evaluate.measures else []
        if request.config.needs_ranges:
            with clock.stage("calibrate"):
                model = divided(model, request, listener)
                parts = partition(model) if request.host else None
                ranges = calibrated(parts or model, request, listener)
                if request.config.calibrate.chain:
                    model, ranges = refined_by_chain(model, ranges, request, listener)
                    parts = partition(model) if request.host else None
                ranges = with_tuned(model, ranges, request, listener)
                ranges = with_errors(model, ranges, request, listener)
                ranges = replace(ranges, factors=noted_factors(model))
            if request.qconfig is not None:
                settings = configured(request.config, request.plugins, request.qconfig, model.model)
                request = replace(request, config=settings)
        else:
            forbid_ranges(request)
        with clock.stage("quantize"):
            graph = quantized(parts or model, ranges, request.config)
            layers = by_layer(graph, model.model, request.config, ranges, alike(original, graph, request))
        if found is not None:
            judge = found.judge
            value = judge.value(judge.outputs(graph))
            listener.remark(f"verified: {judge.name} {value:.4f}, float {judge.base:.4f}")
        if judging:
            with clock.stage("evaluate"):
                for line in measured(judging, graph, request):
                    listener.remark(line)
        save_stages(request, model, ranges, graph)
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
