"""`tpuflow bundle`: several programs, or a program with test data, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.app import typer_app
from tpuflow.cli.commands.console import bytes_text, say, table, write_figures
from tpuflow.cli.commands.progress import progress

__all__ = ["bundle"]

bundle = typer_app(help="Pack programs, or one with test data, in a file.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE.tpub", help="Bundle.", callback=paths.readable)]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Output file.", callback=paths.output)
]


@bundle.command("combine")
def combine(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Programs and bundles.", callback=paths.each_readable),
    ],
    output: Output,
) -> None:
    """Put programs into one file, each under the name of its own."""
    from tpuflow.pipeline.bundle import combine as combined
    from tpuflow.pipeline.bundle import names_of

    made = combined(names_of(files))
    made.save(output)
    say(f"{output}: {', '.join(made.programs)}")


@bundle.command("list")
def list_programs(file: File, json: options.JsonFile = None) -> None:
    """List what a bundle holds."""
    from tpuflow.pipeline.bundle import load_bundle

    found = load_bundle(file)
    programs = {
        name: {
            "bytes": len(content),
            "test_samples": found.tests[name].sample_count if name in found.tests else None,
        }
        for name, content in found.programs.items()
    }
    write_figures(json, {"bundle": str(file), "programs": programs})
    table(
        [("program", "left"), ("size", "right"), ("test samples", "right")],
        [
            (
                name,
                bytes_text(each["bytes"] or 0),
                "" if each["test_samples"] is None else each["test_samples"],
            )
            for name, each in programs.items()
        ],
    )


@bundle.command("extract")
def extract(
    file: File, name: Annotated[str, typer.Argument(metavar="NAME", help="Program.")], output: Output
) -> None:
    """Write a program of a bundle: the very bytes that went in."""
    from tpuflow.io.files import replace_atomically
    from tpuflow.pipeline.bundle import load_bundle

    found = load_bundle(file)
    found.program(name)
    with replace_atomically(output) as beside:
        beside.write_bytes(found.programs[name])
    say(f"{output}: {bytes_text(len(found.programs[name]))}")


@bundle.command("record")
def record(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM.tpu", help="Program.", callback=paths.program_input)
    ],
    inputs: Annotated[
        Path, typer.Option(metavar="X.npz", help="Samples, one array per input.", callback=paths.sample_input)
    ],
    output: Output,
) -> None:
    """Run a program on samples and keep inputs and outputs beside it, as a test."""
    from tpuflow.execution.levels import program_level
    from tpuflow.io.samples import load_samples
    from tpuflow.partitioning.storage import load_program
    from tpuflow.pipeline.bundle import record_test

    samples = load_samples(inputs, program_level(load_program(program)).ports)
    with progress("record") as advance:
        record_test(program, samples, advance).save(output)
    say(f"{output}: {program.stem} with {samples.count} samples")


@bundle.command("test")
def run_recorded(file: File, json: options.JsonFile = None) -> None:
    """Run every recorded test; exit status 3 if an output differs in any bit."""
    from tpuflow.evaluation.comparison import DifferenceError
    from tpuflow.pipeline.bundle import load_bundle, run_tests

    found = load_bundle(file)
    with progress("test") as advance:
        differences = run_tests(found, advance)
    count = sum(data.sample_count for data in found.tests.values())
    figures = {
        "bundle": str(file),
        "programs": len(found.tests),
        "samples": count,
        "differences": [str(each) for each in differences],
    }
    write_figures(json, figures)
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise DifferenceError(f"{file}: {differences[0]}{more}")
    say(f"{file}: {len(found.tests)} programs, {count} samples, every output as recorded")
