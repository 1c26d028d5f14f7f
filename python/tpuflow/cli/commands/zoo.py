"""`tpuflow zoo`: a folder of networks through every stage, and the page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import heading, note, say, table, write_figures
from tpuflow.cli.commands.progress import progress

__all__ = ["zoo"]

QUICK_BYTES = 1 << 20


def zoo(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of ONNX files; with a materialize.py and --hooks, of skeletons it completes.",
            callback=paths.existing_folder,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PAGE.md", help="Output page.", callback=paths.output),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of records. [DIR.zoo in the current folder]", callback=paths.folder
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="A,B", help="Only these networks.")] = None,
    dtypes: Annotated[
        str | None, typer.Option("--dtypes", metavar="A,B", help="Only these element types.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "-j", "--jobs", "--workers", min=1, metavar="N", help="Processes; the records are the same."
        ),
    ] = 1,
    ray: options.Ray = None,
    limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit per network and type.")
    ] = 3600,
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE.toml", help="Target machine.", callback=options.valid_machine)
    ] = "128x128_asic",
    quick: Annotated[
        bool, typer.Option("--quick", help="Only networks of files up to 1 MiB, 2 samples to calibrate.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Also keep finished records of other versions of tpuflow."),
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Add the published cuts, and a row for every published name.")
    ] = False,
    hooks: Annotated[
        bool,
        typer.Option("--hooks", help="Execute the folder's materialize.py, which completes networks."),
    ] = False,
    extra: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="Text to include in the page.", callback=paths.readable),
    ] = None,
    json: options.JsonFile = None,
) -> None:
    """Run a folder of networks through every stage.

    One process per network and type, so that failures do not affect the others. Records are kept, and an
    interrupted run resumes.
    """
    from tpuflow.compiler.program import machine_text
    from tpuflow.errors import FileError
    from tpuflow.io.files import read_text, write_text
    from tpuflow.pipeline.zoo import DTYPES, Settings, networks, page, summary, sweep, troubles
    from tpuflow.pipeline.zoo import published_networks as published_names

    machine_text(machine)
    text = "" if extra is None else read_text(extra, FileError)
    wanted = networks(folder, options.names(only), cuts=published, hooks=hooks)
    for hook in sorted({str(network.hook) for network in wanted if network.hook is not None}):
        note(f"{hook}: executed")
    settings = Settings(machine=machine, dtypes=_chosen(dtypes, DTYPES))
    if quick:
        settings = Settings(samples=2, machine=machine, dtypes=settings.dtypes)
        wanted = [network for network in wanted if network.file.stat().st_size <= QUICK_BYTES]
    with options.executor(jobs, ray) as executor, progress("zoo") as advance:
        records = sweep(
            wanted,
            work or Path(f"{folder.resolve().name}.zoo"),
            settings,
            executor=executor,
            limit_seconds=limit,
            other_versions=resume,
            progress=advance,
        )
    titles, rows = summary(records, settings)
    table([(titles[0], "left"), (titles[1], "right")], rows)
    found = list(troubles(records, settings))
    if found:
        heading("Problems")
        for name, part, stage, what in found:
            say(f"{name}, {part}{', ' if stage else ''}{stage}: {what}")
    if output is not None:
        command = f"tpuflow zoo {folder.name}{' --published' if published else ''} -o {output.name}"
        write_text(output, page(records, settings, published_names() if published else (), command, text))
        say(f"page       {output}")
    write_figures(json, {**records, "networks": records})


def _chosen(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The element types asked for, in the usual order."""
    asked = options.names(text)
    for name in asked:
        if name not in known:
            raise options.OptionError(f'--dtypes: "{name}" is unknown, there are {", ".join(known)}')
    return tuple(name for name in known if not asked or name in asked)
