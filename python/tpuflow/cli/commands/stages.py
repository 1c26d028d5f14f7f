"""`tpuflow calibrate` and `tpuflow quantize`: the stages of `build` on their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say, say_host, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from tpuflow.calibration import Statistics
    from tpuflow.config import Config

__all__ = ["calibrate", "quantize"]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", callback=paths.model_input)]


def calibrate(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="RANGES.json",
            help="Output file for ranges; .table: as text.",
            callback=paths.output,
        ),
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
            metavar="DIR",
            help="Write every tensor's distribution and thresholds: .npz and .svg.",
            callback=paths.folder,
        ),
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Use saved statistics instead of running over samples.",
            callback=paths.readable,
        ),
    ] = None,
    save_statistics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Save the statistics, which can be edited and reused.",
            callback=paths.output,
        ),
    ] = None,
    save_dir: Annotated[
        str, typer.Option(metavar="DIR", help="Directory for thresholds, statistics and histograms.")
    ] = "",
    debug_sample_number: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of samples for --save-dir output; 0: all.")
    ] = 0,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    json: options.JsonFile = None,
) -> None:
    """Save the range of every tensor over samples."""
    from tpuflow.calibration import Artifacts, save_artifacts
    from tpuflow.frontend import load
    from tpuflow.pipeline import Listener, Request, calibrate_model, calibration_data, starting
    from tpuflow.plugins import load_plugins
    from tpuflow.ptq import Recipe
    from tpuflow.report import save_histograms, tensor_histograms

    settings = options.configuration(config, dtype, lenient=lenient)
    named = {"statistic_file": statistics, "save_statistic_info": save_statistics}
    given = {key: str(path) for key, path in named.items() if path is not None}
    settings = settings.model_copy(update={"calibrate": settings.calibrate.model_copy(update=given)})
    found = load_plugins(named=plugins or ())
    request = Request(
        model, calibration=calib, plugins=found, config=settings, batch=batch, seed=seed, host=host
    )
    float_model = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        **settings.loading,
        host=host,
    )
    if settings.calibrate.chain:
        say("global_calibration is left out: it changes weights, which ranges cannot hold (quantize --calib)")
    counted: list[Statistics] = []
    with options.executor(workers, ray) as executor, progress("calibrate") as advance:
        data = calibration_data(float_model, request, None if executor.runs_here else executor)
        listener = Listener(
            step=advance,
            part=advance.begin,
            remark=say,
            counted=None if histograms is None else counted.append,
        )
        recipe = Recipe(settings).without("refine")
        state = calibrate_model(starting(float_model, request), request, listener, recipe, data)
    ranges = state.ranges
    assert ranges is not None, "calibration gives some"
    ranges.save(output)
    if save_dir:
        kept = Artifacts(save_dir, histograms=True, samples=debug_sample_number, statistics="statistics.json")
        written = save_artifacts(state.network, data.samples, ranges, kept)
        say(f"{save_dir}: thresholds.json, statistics.json, histograms of {len(written) - 2} tensors")
    figures = {
        "ranges": str(output),
        "tensors": len(ranges.tensors),
        "samples": ranges.samples,
        "strategy": ranges.strategy,
    }
    write_figures(json, figures)
    say(f"{output}: {len(ranges.tensors)} ranges, {ranges.samples} samples, strategy {ranges.strategy}")
    if histograms is not None:
        files = save_histograms(tensor_histograms(counted[0], ranges), histograms)
        say(f"{files[0]}: distributions of {len(files) - 1} tensors, and a picture of each beside it")


def quantize(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="MODEL.tpuq", help="Output file for the graph.", callback=paths.output
        ),
    ],
    calib: options.Calib = None,
    plugins: options.Plugins = None,
    ranges: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Ranges saved by `calibrate`, instead of samples.",
            callback=paths.readable,
        ),
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
    json: options.JsonFile = None,
) -> None:
    """Turn a float network into a quantised graph.

    With --calib the whole recipe of `build` runs: equalize, calibrate, tune, refine, correct. With --ranges
    the network is lowered by saved ranges, and no method that needs samples runs. Floats need neither.
    """
    from tpuflow.config import refuse_calibration
    from tpuflow.frontend import load
    from tpuflow.partitioning import device_networks
    from tpuflow.pipeline import Listener, Request, calibrate_model, float_bytes, graph_bytes, starting
    from tpuflow.plugins import load_plugins
    from tpuflow.ptq import Recipe

    settings = options.configuration(config, dtype, lenient=lenient)
    _check_source(model, calib, ranges, settings)
    request = Request(
        model,
        calibration=calib,
        ranges=ranges,
        plugins=load_plugins(named=plugins or ()),
        config=settings,
        batch=batch,
        host=host,
    )
    saved = request.saved
    if saved is not None:
        refuse_calibration(settings, f"ranges come from {ranges}")
    float_model = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        **settings.loading,
        host=host,
    )
    recipe, state = Recipe(settings), starting(float_model, request)
    if not settings.needs_ranges and (calib is not None or saved is not None):
        say(f"note: all layers are {settings.quantize.dtype}: nothing is calibrated")
    elif calib is not None or saved is not None:
        with progress("calibrate") as advance:
            state = calibrate_model(
                state, request, Listener(step=advance, part=advance.begin, remark=say), recipe
            )
    graph = recipe.graph(state)
    graph.save(output)
    floating, integers = float_bytes(float_model), graph_bytes(graph)
    layers = sum(len(part.layers) for part in device_networks(graph))
    figures = {
        "graph": str(output),
        "layers": layers,
        "constant_bytes": integers,
        "float_constant_bytes": floating,
    }
    write_figures(json, figures)
    say(f"{output}: {layers} layers, constants {bytes_text(integers)}, as floats {bytes_text(floating)}")
    say_host(graph)


def _check_source(model: Path, calib: Path | None, ranges: Path | None, settings: Config) -> None:
    """Whether there is what codes are chosen by, and no more than that.

    Raises:
        OptionError: Samples and ranges are both given, neither is and they are needed, or one is and is not.
    """
    dtype = settings.quantize.dtype
    if calib is not None and ranges is not None:
        raise options.OptionError(
            f"{model}: --calib runs the whole recipe, --ranges none of it: give one of them"
        )
    if ranges is not None and not settings.takes_ranges:
        raise options.OptionError(
            f"{model}: {dtype} needs no ranges, --ranges would have no effect: leave it out"
        )
    if calib is None and settings.calibrate.chain:
        raise options.OptionError(f"{model}: global_calibration needs samples: give --calib")
    if calib is None and ranges is None and settings.needs_ranges:
        raise options.OptionError(f"{model}: {dtype} needs ranges: give --calib or --ranges")
