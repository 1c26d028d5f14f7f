"""`tpuflow calibrate` and `tpuflow quantize`: the stages of `build` on their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.commands import options
from tpuflow.commands.console import bytes_text, progress, say, say_host

if TYPE_CHECKING:
    from tpuflow.calibrate import Statistics

__all__ = ["calibrate", "quantize"]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.")]


def calibrate(
    model: Model,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="RANGES.json", help="Where ranges go; .table: lines of text."),
    ],
    calib: options.Calib = None,
    plugins: options.Plugins = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    lenient: options.Lenient = False,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    host: options.Host = True,
    seed: options.SeedOption = 0,
    histograms: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write every tensor's distribution there, with its thresholds: .npz and .svg."
        ),
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Take saved statistics instead of running over samples."),
    ] = None,
    save_statistics: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Save what was counted, to be edited and reread.")
    ] = None,
    save_dir: Annotated[
        str, typer.Option(metavar="DIR", help="Write thresholds, statistics and histograms there.")
    ] = "",
    debug_sample_number: Annotated[
        int, typer.Option(min=0, metavar="N", help="Samples that what --save-dir gets is of; 0: all.")
    ] = 0,
) -> None:
    """Run a float network over samples and save the range of every tensor."""
    from dataclasses import replace

    from tpuflow.build import Listener, Request, calibrated, divided, samples_of, with_errors, with_tuned
    from tpuflow.calibrate import Artefacts, save_artefacts
    from tpuflow.frontend import load
    from tpuflow.partition import partition
    from tpuflow.plugins import load_plugins
    from tpuflow.refine import noted_factors
    from tpuflow.report import save_histograms, tensor_histograms

    settings = options.configuration(config, dtype, lenient=lenient)
    named = {"statistic_file": statistics, "save_statistic_info": save_statistics}
    given = {key: str(path) for key, path in named.items() if path is not None}
    settings = settings.model_copy(update={"calibrate": settings.calibrate.model_copy(update=given)})
    found = load_plugins(named=plugins or ())
    request = Request(model, calibration=calib, plugins=found, config=settings, batch=batch, seed=seed)
    float_model = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        preprocess=settings.preprocess,
        host=host,
    )

    counted: list[Statistics] = []
    with progress("calibrate") as advance:
        listener = Listener(step=advance, remark=say, counted=None if histograms is None else counted.append)
        if settings.needs_ranges:
            float_model = divided(float_model, request, listener)
        parts = partition(float_model) if host else float_model
        ranges = calibrated(parts, request, listener)
        if settings.needs_ranges:
            ranges = with_tuned(float_model, ranges, request, listener)
            ranges = with_errors(float_model, ranges, request, listener)
        ranges = replace(ranges, factors=noted_factors(float_model))
    ranges.save(output)
    if save_dir:
        kept = Artefacts(save_dir, histograms=True, samples=debug_sample_number, statistics="statistics.json")
        written = save_artefacts(parts, samples_of(float_model, request), ranges, kept)
        say(f"{save_dir}: thresholds.json, statistics.json, histograms of {len(written) - 2} tensors")
    say(f"{output}: {len(ranges.tensors)} ranges, {ranges.samples} samples, strategy {ranges.strategy}")
    if histograms is not None:
        files = save_histograms(tensor_histograms(counted[0], ranges), histograms)
        say(f"{files[0]}: distributions of {len(files) - 1} tensors, and a picture of each beside it")


def quantize(
    model: Model,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="MODEL.tpuq", help="Where the graph goes.")
    ],
    ranges: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Ranges saved by `calibrate`; floats need none."),
    ] = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    lenient: options.Lenient = False,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    host: options.Host = True,
) -> None:
    """Turn a float network and its ranges into an integer graph, or a graph of floats."""
    from tpuflow.build import float_bytes, graph_bytes, quantized
    from tpuflow.calibrate import Ranges
    from tpuflow.config import refuse_calibration
    from tpuflow.frontend import load
    from tpuflow.partition import device_networks, partition
    from tpuflow.refine import with_factors

    settings = options.configuration(config, dtype, lenient=lenient)
    if settings.calibrate.chain:
        raise options.OptionError(
            f"{model}: global_calibration needs samples, which `quantize` lacks: use `build` or `search`"
        )
    if ranges is None and settings.needs_ranges:
        raise options.OptionError(f"{model}: {settings.quantize.dtype} needs ranges: give --ranges")
    found = None if ranges is None else Ranges.load(ranges)
    if found is not None:
        refuse_calibration(settings, f"ranges come from {ranges}")
    float_model = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        preprocess=settings.preprocess,
        host=host,
    )
    if found is not None and found.factors:
        float_model = with_factors(float_model, found.factors)
    graph = quantized(partition(float_model) if host else float_model, found, settings)
    graph.save(output)
    floating, integers = float_bytes(float_model), graph_bytes(graph)
    layers = sum(len(part.layers) for part in device_networks(graph))
    say(f"{output}: {layers} layers, constants {bytes_text(integers)}, as floats {bytes_text(floating)}")
    say_host(graph)
