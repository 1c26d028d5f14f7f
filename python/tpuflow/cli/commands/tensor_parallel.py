"""`tpuflow tensor-parallel`: a network on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow import _core
    from tpuflow.pipeline.tensor_parallel import DeviceMeasurement

__all__ = ["tensor_parallel"]


def tensor_parallel(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL.tpuq|FILE.tpub",
            help="Quantised graph, or the bundle of a decoder.",
            callback=paths.readable,
        ),
    ],
    devices: Annotated[
        str, typer.Option(metavar="N,M", help="Numbers of devices to divide it among, up to 64.")
    ] = "1,2,4",
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="Every device is such a machine; `dma.link_latency` is that of the links.",
            callback=options.valid_machine,
        ),
    ] = "128x128_asic",
    level: Annotated[
        options.Level, typer.Option("-O", "--level", help="Optimisation level.")
    ] = options.Level.parallel,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Count cycles, compute and compare no values.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the programs, one a device."),
    ] = None,
    json: options.JsonFile = None,
) -> None:
    """Divide a network among devices; compare cycles and bits."""
    from tpuflow.pipeline.tensor_parallel import measure

    counts = _counts(devices)
    figures = {}
    for name, graph in _graphs(file).items():
        found: list[DeviceMeasurement] = []
        with progress(name) as advance:
            for count in counts:
                found.append(measure(graph, count, machine, int(level), values=not timing_only))
                advance(len(found), len(counts))
        heading(f"{name} on {machine}, -O{level}")
        _show(found)
        figures[name] = [each.to_json() for each in found]
        if output is not None:
            _save(output, name, found)
    if json is not None:
        write_figures(json, {"networks": figures})


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise options.OptionError(f'--devices {text}: give numbers of devices, such as "1,2,4"')
    return counts


def _graphs(file: Path) -> dict[str, _core.Graph]:
    from tpuflow.errors import FileError
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.pipeline.bundle import load_bundle

    if file.suffix == ".tpub":
        bundle = load_bundle(file)
        graphs = {name: bundle.graph(name) for name in bundle.graphs}
    else:
        graphs = {file.stem: load_graph(paths.graph_input(file) or file)}
    whole = {name: graph for name, graph in graphs.items() if not isinstance(graph, Partitioned)}
    if not whole or len(whole) < len(graphs):
        raise FileError(
            f"{file}: some of it runs on the host: only networks that run on the device are divided"
        )
    return whole


def _show(found: Sequence[DeviceMeasurement]) -> None:
    one = next((each.cycles for each in found if each.devices == 1), None)
    rows = [
        (
            str(each.devices),
            f"{each.cycles:,}",
            "" if one is None else f"{one / each.cycles:.2f}",
            f"{each.cycles / max(each.bound, 1):.3f}",
            f"{each.exchanges:,}",
            bytes_text(each.loaded_bytes),
            bytes_text(each.constant_bytes),
            {True: "equal", False: "DIFFERENT", None: ""}[each.equal],
        )
        for each in found
    ]
    names = ("devices", "cycles", "speed-up", "/ bound", "exchanges", "loaded", "constants")
    table([*((name, "right") for name in names), ("bits", "left")], rows)
    if any(each.equal is False for each in found):
        from tpuflow.errors import ProgramError

        raise ProgramError("the devices give other bits than the graph: a defect, please report it")


def _save(folder: Path, name: str, found: Sequence[DeviceMeasurement]) -> None:
    from tpuflow.io.files import make_folder

    make_folder(folder)
    for each in found:
        for rank, program in enumerate(each.programs):
            program.save(folder / f"{name}.{each.devices}devices.{rank}.tpu")
    say(f"programs   {folder}")
