"""`tpuflow debug`: a program instruction by instruction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.partitioning.storage import AnyProgram

__all__ = ["debug", "first_feed", "open_program"]

Program = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM.tpu", help="Program without host segments.", callback=paths.program_input
    ),
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
        typer.Option(
            metavar="FILE", help="Read commands from a file, one per line.", callback=paths.readable
        ),
    ] = None,
    execute: Annotated[
        list[str] | None, typer.Option("-x", "--execute", metavar="COMMAND", help="A command; repeatable.")
    ] = None,
    seed: options.SeedOption = 0,
) -> None:
    """Step through a program: breakpoints, memories, tokens.

    Without --commands and -x commands are read from the terminal; `help` lists them.
    """
    from tpuflow.errors import FileError
    from tpuflow.execution.debug import Debugger, Replay
    from tpuflow.io.files import read_text

    loaded, feed = open_program(program, inputs, seed)
    debugger = Debugger(Replay(loaded, _codes(loaded, feed)))
    say(debugger.where())
    lines = [] if commands is None else read_text(commands, FileError).splitlines()
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


def open_program(path: Path, inputs: Path | None, seed: int) -> tuple[Any, dict[str, NDArray[Any]]]:
    """A program without host segments and one feed."""
    from tpuflow.errors import ProgramError
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import load_program

    program = load_program(path)
    if isinstance(program, Partitioned):
        raise ProgramError(
            f"{path}: parts of it run on the host: cut the model so that all of it runs on the device"
        )
    return program, first_feed(program, inputs, seed)


def first_feed(program: AnyProgram, inputs: Path | None, seed: int) -> dict[str, NDArray[Any]]:
    """The first of a file, or random codes."""
    from tpuflow.execution.simulation import network_inputs, random_feed
    from tpuflow.io.samples import load_samples

    if inputs is None:
        say(f"no --inputs: random codes, seed {seed}")
        return random_feed(program, seed)
    return next(load_samples(inputs, network_inputs(program)).batches()).arrays


def _codes(program: Any, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    from tpuflow.execution.simulation import program_ports

    return [port.encode(feed[port.name]) for port in program_ports(program)[0]]
