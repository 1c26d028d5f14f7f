"""`tpuflow debug` and `steps`: a program instruction by instruction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["debug", "opened", "steps"]

Program = Annotated[
    Path,
    typer.Argument(metavar="PROGRAM.tpu", help="Program, whole on the device.", callback=paths.program_input),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="X.npz", help="Samples; the first feed is run. [random codes]", callback=paths.sample_input
    ),
]


def debug(
    program: Program,
    inputs: Inputs = None,
    commands: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read commands from a file, one a line.", callback=paths.readable),
    ] = None,
    execute: Annotated[
        list[str] | None, typer.Option("-x", "--execute", metavar="COMMAND", help="A command; repeatable.")
    ] = None,
    seed: options.SeedOption = 0,
) -> None:
    """Step through a program: breakpoints, memories, tokens.

    Without --commands and -x commands are read from the terminal; `help` lists them.
    """
    from tpuflow.execution.debug import Debugger, Replay

    loaded, feed = opened(program, inputs, seed)
    debugger = Debugger(Replay(loaded, _codes(loaded, feed)))
    say(debugger.where())
    lines = [] if commands is None else commands.read_text(encoding="utf-8").splitlines()
    lines += execute or []
    if lines:
        for line in lines:
            if debugger.ended:
                break
            say(f"> {line}")
            _tell(debugger.execute(line))
        return
    _converse(debugger)


def _converse(debugger: Any) -> None:
    """Commands from the terminal; a wrong one is told and the next one read."""
    from tpuflow.errors import TpuflowError

    while not debugger.ended:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            say()
            return
        try:
            _tell(debugger.execute(line))
        except TpuflowError as error:
            say(f"error: {error}")


def _tell(text: str) -> None:
    if text:
        say(text)


def opened(path: Path, inputs: Path | None, seed: int) -> tuple[Any, dict[str, NDArray[Any]]]:
    """A program and one feed."""
    from tpuflow.errors import ProgramError
    from tpuflow.execution.simulation import network_inputs, random_feed
    from tpuflow.io.samples import load_samples
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import load_program

    program = load_program(path)
    if isinstance(program, Partitioned):
        raise ProgramError(
            f"{path}: parts of it run on the host: cut the model so that all of it runs on the device"
        )
    if inputs is None:
        say(f"no --inputs: random codes, seed {seed}")
        return program, random_feed(program, seed)
    return program, next(load_samples(inputs, network_inputs(program)).batches()).arrays


def _codes(program: Any, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    from tpuflow.execution.simulation import program_ports

    return [port.encode(feed[port.name]) for port in program_ports(program)[0]]


def steps(
    program: Program,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq",
            help="Graph it was made from. [beside the program]",
            callback=paths.graph_input,
        ),
    ] = None,
    inputs: Inputs = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first wrong instruction.")
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Write every tensor as the program's instructions left it.",
            callback=paths.output,
        ),
    ] = None,
    seed: options.SeedOption = 0,
    json: options.JsonFile = None,
) -> None:
    """Run a program against its graph, step by step.

    Exit status 3 if anything differs.
    """
    from tpuflow.evaluation.comparison import ComparisonError, DifferenceError
    from tpuflow.execution.debug import check_steps
    from tpuflow.execution.levels import GraphLevel
    from tpuflow.io.files import write_arrays
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import graph_beside, load_graph, require_pair

    loaded, feed = opened(program, inputs, seed)
    source = graph_beside(program) if graph is None else graph
    require_pair(program, source)
    found = load_graph(source)
    if isinstance(found, Partitioned):
        raise ComparisonError(f"{program}: is whole, its graph is in segments")
    level = GraphLevel(found)
    with progress("steps") as advance:
        report = check_steps(loaded, level, feed, fail_fast=fail_fast, progress=advance)
    if dump is not None:
        write_arrays(dump, level.decode(report.codes))
    write_figures(json, report.to_json())
    table(
        [("layer", "left"), ("op", "left"), ("elements", "right"), ("compared", "right"), ("wrong", "right")],
        [
            (layer.name, layer.op, f"{layer.elements:,}", f"{layer.compared:,}", f"{layer.wrong:,}")
            for layer in report.layers
        ],
    )
    if report.first_wrong is not None:
        first = report.first_wrong
        raise DifferenceError(
            f'{program}: layer "{first.name}" is the first wrong one: '
            f"instruction {first.first}, {first.detail}"
        )
    if report.stopped:
        raise DifferenceError(f"{program}: stopped after {report.executed} instructions: {report.stopped}")
    if not report.outputs_equal:
        raise DifferenceError(f"{program}: every layer is right, but the outputs are not")
    say(f"{program}: {report.executed:,} instructions, every layer and output as the graph has it")
