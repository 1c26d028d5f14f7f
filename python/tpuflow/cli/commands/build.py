"""`tpuflow build`: model file -> program."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say, say_host, write_figures
from tpuflow.cli.commands.progress import progress
from tpuflow.cli.commands.simulate import interval_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.calibration import Statistics
    from tpuflow.cli.commands.progress import Task
    from tpuflow.config import Config
    from tpuflow.pipeline import BuildResult, Request

__all__ = ["build"]


def build(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="ONNX model, or a quantised graph (.tpuq). [`graph` of --cfg]",
            show_default=False,
            callback=paths.model_input,
        ),
    ] = None,
    level: Annotated[
        options.Level, typer.Option("-O", help="1: one instruction at a time. 5: units in parallel.")
    ] = options.Level.sequential,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT.tpu",
            help="[MODEL_bBATCH_oLEVEL_MACHINE.tpu, or as the section `output` of --config says]",
            callback=paths.output,
        ),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="Machine to compile for; `tpuflow machine list`.",
            callback=options.valid_machine,
        ),
    ] = "128x128_asic",
    calib: options.Calib = None,
    ranges: options.RangesFile = None,
    qconfig: options.QConfig = None,
    plugins: options.Plugins = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    lenient: options.Lenient = False,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    prefill: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Decoders: a program that processes N prompt tokens."),
    ] = None,
    decode: Annotated[int, typer.Option(min=1, metavar="N", help="Decoders: tokens per decoding step.")] = 1,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N,M",
            help="Decoders: context lengths, new tokens included; programs for each phase and length.",
        ),
    ] = None,
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline",
            help="Plan for a stream of inferences, each beginning before the one before has ended.",
        ),
    ] = False,
    host: options.Host = True,
    time_limit: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Time limit in seconds for the search of level 5.", callback=options.positive
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="A level that has to fall back to a lower one is an error, and so is a warning about the "
            "network's numbers (exit status 3).",
        ),
    ] = False,
    seed: options.SeedOption = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Reuse programs compiled before; not with --time-limit.",
            callback=paths.folder,
        ),
    ] = None,
    json: options.JsonFile = None,
    save_stages: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for intermediate artifacts.", callback=paths.folder),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for TensorBoard event files.", callback=paths.folder),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write a page with charts of cost and ranges.", callback=paths.output
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare original and normalised model on a sample.")
    ] = True,
    ignored_tensors: options.IgnoredTensors = None,
) -> None:
    """Turn a model into a checked program.

    The quantised graph is written beside the program, as OUT.tpuq: `tpuflow compare` reads it; and the
    settings of every layer, as OUT.layers.json: edited they are a configuration. Unsupported
    operators run on the host, in segments of the same file, each listed with the reason. With --context a
    decoder with symbolic sequence and past lengths becomes a bundle, OUT.tpub, of a program for every phase.
    """
    from tpuflow.errors import FileError
    from tpuflow.pipeline import Listener, Request
    from tpuflow.pipeline import build as run_build
    from tpuflow.pipeline.operators import use_operators
    from tpuflow.plugins import load_plugins

    settings = options.configuration(config, dtype, lenient=lenient)
    if pipeline:
        settings = settings.model_copy(
            update={"schedule": settings.schedule.model_copy(update={"pipeline": True})}
        )
    folders = list(plugins or ())
    if model is None:
        model = _configured_model(settings)
        # Who runs a file by itself has read it; its tool looks into this folder.
        folders += [folder for folder in (Path("plugin"),) if folder.is_dir() and folder not in folders]
    if calib is None and ranges is None and settings.input.source:
        calib = Path(settings.input.source)
    if output is not None:
        _check_files(output)
        if context is None:
            _check_output(output, model)
    _check_decoder(context, prefill, input_shape, output)
    registry = load_plugins(named=folders)
    use_operators(registry)
    request = Request(
        model=model,
        level=int(level.value),
        machine=machine,
        calibration=calib,
        plugins=registry,
        qconfig=qconfig,
        ranges=ranges,
        config=settings,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        time_limit=time_limit,
        seed=seed,
        strict=strict,
        host=host,
        verify=verify,
        excepts=options.names(ignored_tensors),
        stages=save_stages,
        cache=cache,
        log=log_dir,
    )
    if context is not None:
        from tpuflow.cli.commands.decoders import build_phases

        build_phases(request, prefill, decode, options.sizes("--context", context), output, json)
        return
    folder = request.config.output.folder
    if output is None and Path(folder).exists() and not Path(folder).is_dir():
        raise FileError(f"{folder}: cannot be made: file exists")
    counted: list[Statistics] = []
    with _Announcer() as announcer:
        listener = Listener(
            announcer.begin,
            announcer.end,
            announcer.step,
            say,
            None if report is None else counted.append,
            part=announcer.part,
        )
        built = run_build(request, listener)
    _write(built, request, output, json)
    if report is not None:
        with progress("report"):
            _write_page(built, counted, report)


def _check_decoder(
    context: str | None, prefill: int | None, input_shape: list[str] | None, output: Path | None
) -> None:
    """Whether options of a decoder go together.

    Raises:
        OptionError: They do not.
    """
    if context is None and prefill is not None:
        raise options.OptionError("--prefill needs --context N,M: the tokens the decoder sees")
    if context is not None and input_shape:
        raise options.OptionError("--context fixes all shapes of a decoder: leave out --input-shape")
    if context is not None and output is not None and output.suffix != ".tpub":
        raise options.OptionError(f"{output}: programs of several phases make a bundle: name it .tpub")


def _configured_model(settings: Config) -> Path:
    """The model a configuration names.

    Raises:
        OptionError: It names none, or one that no frontend reads; or its file of constants is missing.
    """
    named, constants = settings.input.model, settings.input.constants
    if not named:
        raise options.OptionError("build: name a MODEL, or give --cfg FILE with a line graph = MODEL.onnx")
    if Path(named).suffix == ".txt":
        raise options.OptionError(
            f"graph = {named}: is the text of another tool: name the ONNX model it was made of"
        )
    if constants and not Path(constants).is_file():
        raise options.OptionError(f"bin = {constants}: no such file")
    return Path(named)


def _check_files(output: Path) -> None:
    """Whether a program and what stands beside it can be files there.

    Raises:
        OptionError: It is a device or pipe.
    """
    if output.exists() and not output.is_file():
        raise options.OptionError(f"{output}: is a device or pipe; files stand beside a program, name a file")


def _check_output(output: Path, model: Path) -> None:
    """Whether a program may be called so.

    Raises:
        OptionError: It would take the place of a graph or a model.
    """
    from tpuflow.frontend import is_model_file

    if output.suffix == ".tpuq":
        raise options.OptionError(f"{output}: .tpuq is the suffix of graphs, name the program .tpu")
    if output.suffix not in {".tpu", ""} and not is_model_file(output):
        raise options.OptionError(f'{output}: unknown suffix "{output.suffix}": name the program .tpu')
    if is_model_file(output) or output.absolute() == model.absolute():
        raise options.OptionError(f"{output}: is the name of a model, name the program .tpu")


def _host_seconds(built: BuildResult) -> dict[str, float]:
    """Seconds of the host's segments for generated inputs; nothing where none can be generated."""
    from tpuflow.errors import SampleError
    from tpuflow.execution.levels import PartitionedLevel, graph_level
    from tpuflow.execution.simulation import random_feed

    level = graph_level(built.graph)
    if not isinstance(level, PartitionedLevel):
        return {}
    try:
        level.run(random_feed(built.program, 0))
    except SampleError:
        return {}
    return level.host_seconds


def _write_page(built: BuildResult, counted: Sequence[Statistics], path: Path) -> None:
    """The page of the program: its cycles, and the distributions its ranges were chosen for."""
    from tpuflow.cli.commands.report import graph_tensors, program_view
    from tpuflow.execution.simulation import simulate
    from tpuflow.io.files import write_text
    from tpuflow.report import render_page, tensor_histograms, tensor_rows

    run = simulate(built.program, values=False, trace=True, host_seconds=_host_seconds(built))
    view = program_view(built.program, run, graph_tensors(built.graph))
    histograms = [
        each
        for statistics in counted
        if built.ranges is not None
        for each in tensor_histograms(statistics, built.ranges)
    ]
    write_text(path, render_page(view, tensors=tensor_rows((), histograms)))
    say(f"report     {path}")


class _Announcer:
    """Shows what a build is doing, and prints each stage with its seconds."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._task: Task | None = None
        self._stage = ""

    def __enter__(self) -> _Announcer:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, stage: str) -> None:
        self._stage = stage
        self._task = self._open.enter_context(progress(stage))

    def part(self, name: str) -> None:
        """A stage of the recipe begins."""
        if self._task is not None:
            self._task.begin(name if name == self._stage else f"{self._stage}: {name}")

    def end(self, stage: str, seconds: float) -> None:
        self._open.close()
        self._task = None
        say(f"{stage:<10}{seconds:8.2f} s")

    def step(self, done: int, total: int) -> None:
        if self._task is not None:
            self._task(done, total)


def _expected_sqnr(built: BuildResult) -> dict[str, list[float | None]] | None:
    """By output the interval of its signal to noise; ends are None where there is no noise."""
    if built.estimate is None:
        return None
    return {
        name: [end if math.isfinite(end) else None for end in (each.low_db, each.high_db)]
        for name, each in built.estimate.outputs.items()
    }


def _accuracy(built: BuildResult) -> list[str]:
    """The expected accuracy of the outputs, a line each."""
    if built.ranges is None:
        return []
    if built.estimate is None:
        return [
            "output SQNR not estimated: that takes 8 samples of --calib or more, and no global_calibration"
        ]
    return [
        f'output "{name}": SQNR {each.low_db:.1f} to {each.high_db:.1f} dB expected '
        f"({built.estimate.samples} samples, cross-validated)"
        for name, each in built.estimate.outputs.items()
    ]


def _write(built: BuildResult, request: Request, output: Path | None, json: Path | None) -> None:
    """Writes program, graph and figures, and says what they are."""
    import json as codec
    from dataclasses import asdict

    from tpuflow.execution.simulation import simulate
    from tpuflow.execution.streams import stream_interval
    from tpuflow.io.files import digest_lines, make_folder, publication, write_json, write_text
    from tpuflow.io.files.digests import SUFFIX
    from tpuflow.partitioning import device_networks
    from tpuflow.pipeline import peak_rss_bytes
    from tpuflow.report.words import BOUND_NAMES, verdict

    programs = device_networks(built.program)
    content = codec.loads(programs[0].metadata())
    if output is None:
        machine = content["machine"]["name"]
        names = request.config.output
        stem = names.model_name or request.model.stem
        make_folder(names.folder)
        output = Path(names.path(f"{stem}_b{content['batch']}_o{content['level']}_{machine}"))
    start = time.perf_counter()
    graph, settings = output.with_suffix(".tpuq"), output.with_suffix(".layers.json")
    with publication() as files:
        built.program.save(files.stage(output))
        built.graph.save(files.stage(graph))
        if built.layers is not None:
            write_json(files.stage(settings), built.layers)
        digests = files.digests()
        write_text(files.stage(output.with_suffix(SUFFIX)), digest_lines(digests))
    built.seconds["write"] = time.perf_counter() - start
    say(f"{'write':<10}{built.seconds['write']:8.2f} s")
    floating, integers = built.sizes.floating, built.sizes.quantized
    smaller = ""
    if floating and integers:
        side, ratio = (
            ("smaller", floating / integers) if floating >= integers else ("larger", integers / floating)
        )
        smaller = f", {ratio:.1f} times {side} than {bytes_text(floating)} of floats"
    say(f"constants  {bytes_text(integers)}{smaller}")
    for line in _accuracy(built):
        say(f"accuracy   {line}")
    fallbacks = [
        f"{program.name}: {program.fallback}" for program in programs if program.fallback is not None
    ]
    fallback = "; ".join(fallbacks) if len(programs) > 1 else programs[0].fallback
    if fallbacks:
        say(f"fallback   to -O1: {fallback}")
    say_host(built.program)
    with progress("predict"):
        figures = simulate(built.program, values=False, host_seconds=_host_seconds(built)).report
    say("checker    passed")
    outside = f", and {figures['host_us']:,.1f} us on this host" if figures["host_us"] else ""
    say(f"predicted  {figures['cycles']:,} cycles, {figures['time_us']:,.1f} us{outside}")
    if figures["bound"]:
        limit = BOUND_NAMES[figures["binding"]]
        say(f"bound      {figures['bound']:,} cycles ({limit}): {verdict(figures['gap'])}")
    intervals = [stream_interval(program) for program in programs]
    for interval in filter(None, intervals):
        say(f"pipeline   {interval_text(interval, figures['clock_hz'], content['batch'])}")
    say(f"program    {output} ({bytes_text(output.stat().st_size)}), graph {graph}")
    if built.layers is not None:
        say(f"layers     {settings}: settings by layer, to be edited and given back with --config")
    if json is not None:
        write_figures(
            json,
            {"host_subgraphs": []}
            | figures
            | ({} if intervals[0] is None else {"pipeline": asdict(intervals[0])})
            | {
                "stages_seconds": built.seconds,
                "peak_rss_bytes": peak_rss_bytes(),
                "fallback": fallback,
                "sha256": digests,
                "output_sqnr_db": _expected_sqnr(built),
                "warnings": [each.to_json() for each in built.warnings],
            },
        )
