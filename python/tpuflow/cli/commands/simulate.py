"""`tpuflow simulate`: a program, cycle by cycle, and what a person wants to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from tpuflow.energy import EnergyTable
    from tpuflow.execution.simulation import Run
    from tpuflow.execution.streams import Interval
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyProgram

__all__ = ["interval_text", "simulate"]

TOP = 10


class ArrayModel(StrEnum):
    """How the systolic array computes: by its closed form, or register by register."""

    closed = "closed"
    register = "register"


def simulate(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.tpu", help="Program made by `tpuflow build`.", callback=paths.program_input
        ),
    ],
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="X.npz", help="Samples, one array per input by its name.", callback=paths.sample_input
        ),
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option(metavar="Y.npz", help="Output file.", callback=paths.output)
    ] = None,
    json: options.JsonFile = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a Perfetto trace, for ui.perfetto.dev.", callback=paths.output
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with charts.", callback=paths.output),
    ] = None,
    pipeline: Annotated[
        int | None,
        typer.Option(
            "--pipeline",
            metavar="N",
            min=1,
            help="Simulate N overlapping inferences of a program made by `tpuflow build --pipeline`.",
        ),
    ] = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Count cycles, compute no values.")
    ] = False,
    array: Annotated[ArrayModel, typer.Option(help="Model of the systolic array.")] = ArrayModel.closed,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="Refuse a program made for another machine.",
            callback=options.valid_machine,
        ),
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Print every layer.")] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="Report energy by part and layer, and the machine's area.")
    ] = False,
    energy_table: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.toml", help="Energy per operation: 45nm, 7nm, or a file of that format."
        ),
    ] = "45nm",
    fail_on_events: Annotated[
        bool, typer.Option("--fail-on-events", help="Exit 1 after an overflow, NaN or infinity in a layer.")
    ] = False,
    seed: options.SeedOption = 0,
) -> None:
    """Simulate a program, bit-exact and cycle-exact."""
    from tpuflow.energy import load_table
    from tpuflow.errors import EventError, SampleError
    from tpuflow.execution.simulation import network_inputs
    from tpuflow.execution.simulation import simulate as run_program
    from tpuflow.io.files import write_arrays
    from tpuflow.io.samples import load_samples
    from tpuflow.partitioning.storage import load_program
    from tpuflow.pipeline.operators import use_operators

    use_operators()

    if timing_only and (inputs is not None or outputs is not None):
        raise SampleError("--timing-only computes no values: leave out --inputs and --outputs")
    table = load_table(energy_table) if energy else None
    loaded = load_program(program)
    if machine is not None:
        _require(program, loaded, machine)
    samples = None if inputs is None else load_samples(inputs, network_inputs(loaded))
    if samples is None and not timing_only:
        say(f"no --inputs: random codes, seed {seed}")
    traced = trace is not None or report is not None
    with progress("simulate") as advance:
        if pipeline is None:
            run = run_program(
                loaded,
                samples,
                values=not timing_only,
                trace=traced,
                array=array.value,
                seed=seed,
                progress=advance,
            )
        else:
            loaded, run = _stream(
                loaded, pipeline, samples, values=not timing_only, trace=traced, array=array.value, seed=seed
            )
    if table is not None:
        run.report["energy"] = _energy(loaded, run, table)
    if outputs is not None:
        write_arrays(outputs, run.outputs)
    write_figures(json, run.report)
    if trace is not None or report is not None:
        _write_charts(loaded, run, trace, report)
    show_summary(run.report, every_layer=layers)
    for what, where in (("outputs", outputs), ("figures", json), ("trace", trace), ("report", report)):
        if where is not None:
            say(f"{what:<10} {where}")
    if fail_on_events and run.report["events"]:
        event = run.report["events"][0]
        raise EventError(f'{program}: {event["kind"]} in layer "{event["layer"]}" (--fail-on-events)')


def _stream(
    program: AnyProgram, inferences: int, samples: Samples | None, **choices: Any
) -> tuple[AnyProgram, Run]:
    """A stream of inferences as a program, and its run, whose report has the cycles from one to the next."""
    import json as codec
    from dataclasses import asdict

    from tpuflow.errors import ProgramError
    from tpuflow.execution.streams import simulate_stream, stream_interval
    from tpuflow.partitioning import Partitioned

    if isinstance(program, Partitioned):
        raise ProgramError("inferences of a network in segments cannot overlap")
    unrolled, run = simulate_stream(program, inferences, samples, **choices)
    interval = stream_interval(program)
    assert interval is not None, "the program has a stream"
    batch = codec.loads(program.metadata())["batch"]
    run.report["pipeline"] = {"inferences": inferences, "batch": batch} | asdict(interval)
    return unrolled, run


def interval_text(interval: Interval, clock_hz: float, batch: int) -> str:
    """Cycles from one inference of a stream to the next, their bound, and samples a second."""
    from tpuflow.report.words import BOUND_NAMES, verdict

    rate = f"{interval.cycles:,} cycles from one inference to the next, "
    rate += f"{batch * clock_hz / interval.cycles:,.0f} samples/s" if interval.cycles else ""
    if not interval.bound:
        return rate
    bound = f"{interval.bound:,} cycles ({BOUND_NAMES[interval.binding]})"
    return f"{rate}; {verdict(interval.cycles / interval.bound - 1)} of {bound}"


def _require(path: Path, program: AnyProgram, machine: str) -> None:
    from tpuflow.compiler.program import require_machine
    from tpuflow.errors import MachineError
    from tpuflow.partitioning import device_networks

    try:
        for part in device_networks(program):
            require_machine(part, machine)
    except MachineError as error:
        raise MachineError(f"{path}: {error}") from None


def _energy(program: AnyProgram, run: Run, table: EnergyTable) -> dict[str, Any]:
    """The energy of a run, by the parameters of the machine the program was made for."""
    import json

    from tpuflow.compiler.machine import Machine, machine_toml
    from tpuflow.energy import energy
    from tpuflow.partitioning import device_networks

    own = json.loads(next(iter(device_networks(program))).metadata())["machine"]
    return energy(run.report, Machine.parse(machine_toml(own)).parameters, table).to_json()


def _write_charts(program: AnyProgram, run: Run, trace: Path | None, report: Path | None) -> None:
    from tpuflow.cli.commands.report import program_view
    from tpuflow.io.files import replace_atomically, write_text
    from tpuflow.report import encode_trace, render_page

    view = program_view(program, run)
    assert view.charts is not None, "the run was traced"
    if trace is not None:
        with replace_atomically(trace) as beside:
            beside.write_bytes(encode_trace(view.charts, run.report["clock_hz"], program.name))
    if report is not None:
        write_text(report, render_page(view))


def show_summary(report: Mapping[str, Any], *, every_layer: bool) -> None:
    """Prints the figures of a run for people."""
    from tpuflow.compiler.units import UNITS as LISTED
    from tpuflow.execution.streams import Interval
    from tpuflow.report.words import BOUND_NAMES, BOUNDS, STALLS, UNITS, verdict

    heading(f"{report['program']} on {report['machine']}, -O{report['level']}")
    say(
        f"{report['cycles']:,} cycles   {report['time_us']:,.1f} us at {report['clock_hz'] / 1e9:g} GHz   "
        f"{report['macs']:,} multiply-accumulates"
    )
    binding = report["binding"]
    if report["bound"]:
        bound = f"{report['bound']:,} cycles ({BOUND_NAMES[binding]})"
        say(f"{verdict(report['gap'])} of {bound}: {BOUNDS[binding]}")
    if "pipeline" in report:
        own = report["pipeline"]
        interval = Interval(own["cycles"], own["bound"], own["binding"])
        say(
            f"stream of {own['inferences']} inferences: "
            f"{interval_text(interval, report['clock_hz'], own['batch'])}"
        )
    _show_segments(report)
    heading("Units")
    rows = []
    counters = dict(zip((unit.name for unit in LISTED), report["counters"]["units"], strict=True))
    for unit, (short, long) in UNITS.items():
        share = report["utilization"][unit]
        worst = max(counters[unit]["stalls"].items(), key=lambda item: item[1])
        mostly = f"{worst[0]} {worst[1]:,}" if worst[1] else ""
        rows.append((short, long, f"{counters[unit]['instructions']:,}", _bar(share), f"{share:.1%}", mostly))
    table(
        [
            ("", "left"),
            ("unit", "left"),
            ("instructions", "right"),
            ("", "left"),
            ("busy", "right"),
            ("main stall cause", "left"),
        ],
        rows,
    )
    _show_layers(report, every_layer=every_layer)
    heading("Stalls by cause")
    total = max(1, sum(report["stalls"].values()))
    stalls = sorted(report["stalls"].items(), key=lambda item: -item[1])
    table(
        [("cause", "left"), ("", "left"), ("cycles", "right"), ("share", "right")],
        [
            (cause, STALLS[cause], f"{cycles:,}", f"{cycles / total:.1%}")
            for cause, cycles in stalls
            if cycles
        ],
    )
    memory = report["memory"]
    in_use, size = bytes_text(memory["cache_in_use_bytes"]), bytes_text(memory["cache_bytes"])
    say(
        f"cache: {in_use} of {size} in use at the peak; "
        f"DDR read {bytes_text(memory['ddr_read_bytes'])}, written {bytes_text(memory['ddr_write_bytes'])}, "
        f"spilled {bytes_text(memory['spill_bytes'])}"
    )
    if "energy" in report:
        _show_energy(report["energy"], report["time_us"] * 1e-6, every_layer=every_layer)
    for event in report["events"]:
        place = (
            ""
            if event["first"] is None
            else ", first at row {}, column {}, channel {}".format(*event["first"])
        )
        say(f"event: {event['kind']} in layer {event['layer']}, {event['count']:,} times{place}")


def _show_energy(found: Mapping[str, Any], seconds: float, *, every_layer: bool) -> None:
    """Prints joules by part and of the layers that take most, each with its interval."""

    def cells(figure: list[float], factor: float) -> tuple[str, str]:
        value, low, high = (each * factor for each in figure)
        return f"{value:,.4g}", f"{low:,.3g} to {high:,.3g}"

    total = found["joules"]
    heading(f"Energy (table {found['table']})")
    own, bounds = cells(total, 1e6)
    say(f"{own} uJ ({bounds}), {total[0] / seconds if seconds else 0:,.3g} W")
    parts = sorted(found["parts"].items(), key=lambda item: -item[1][0])
    rows = [(part, *cells(joules, 1e6), f"{joules[0] / total[0]:.1%}") for part, joules in parts]
    table([("part", "left"), ("uJ", "right"), ("interval", "right"), ("share", "right")], rows)
    layers = found["layers"]
    if not every_layer:
        layers = sorted(layers, key=lambda layer: -layer["joules"][0])[:TOP]
    heading("Layers by energy, without cache and static")
    rows = [(layer["name"], *cells(layer["joules"], 1e6), _largest(layer)) for layer in layers]
    table(
        [("layer", "left"), ("uJ", "right"), ("interval", "right"), ("main part", "left")],
        rows,
    )
    own, bounds = cells(found["area_mm2"], 1.0)
    listed = ", ".join(f"{part} {size[0]:,.3g}" for part, size in found["area"].items())
    say(f"area {own} mm2 ({bounds}): {listed}")


def _largest(layer: Mapping[str, Any]) -> str:
    parts = {key: value[0] for key, value in layer.items() if key not in {"name", "joules"}}
    return max(parts, key=lambda part: parts[part]) if parts else ""


def _show_segments(report: Mapping[str, Any]) -> None:
    """Prints what device and host take in turn; nothing of a network that is whole on the device."""
    segments = report.get("segments", [])
    if not segments:
        return
    heading(f"Segments ({report['host_us']:,.1f} us on this host, outside the cycles)")
    rows = [
        (
            part["name"],
            f"{part['nodes']:,}",
            "" if part["cycles"] is None else f"{part['cycles']:,}",
            "not run" if part["us"] is None else f"{part['us']:,.1f}",
            f"{part['macs']:,}" if part["macs"] else "",
            ", ".join(part["inputs"]),
        )
        for part in segments
    ]
    table(
        [
            ("segment", "left"),
            ("layers or nodes", "right"),
            ("cycles", "right"),
            ("us", "right"),
            ("MAC", "right"),
            ("inputs", "left"),
        ],
        rows,
    )
    for part in report["host_subgraphs"]:
        say(f"{part['name']} runs on the host: {part['reason']}")


def _show_layers(report: Mapping[str, Any], *, every_layer: bool) -> None:
    from tpuflow.report.words import BOUND_NAMES

    layers = report["layers"]
    shown = layers
    if every_layer:
        heading("Layers")
    else:
        shown = sorted(layers, key=lambda layer: layer["start"] - layer["end"])[:TOP]
        heading(f"Longest {len(shown)} of {len(layers)} layers (all: --layers)")
    total = max(1, report["cycles"])
    rows = []
    for layer in shown:
        length = layer["end"] - layer["start"]
        rows.append(
            (
                layer["name"],
                layer["op"],
                layer["dtype"],
                layer["unit"],
                f"{layer['start']:,}",
                f"{length:,}",
                f"{length / total:.1%}",
                f"{layer['bound']:,}",
                BOUND_NAMES.get(layer["binding"], layer["binding"]) if layer["bound"] else "",
            )
        )
    table(
        [
            ("layer", "left"),
            ("op", "left"),
            ("type", "left"),
            ("unit", "left"),
            ("start", "right"),
            ("cycles", "right"),
            ("share", "right"),
            ("bound", "right"),
            ("by", "left"),
        ],
        rows,
    )


def _bar(share: float, width: int = 16) -> str:
    full = round(share * width)
    return "█" * full + "·" * (width - full)
