"""`tpuflow weights`: constants written out, and replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import paths
from tpuflow.cli.commands.app import typer_app
from tpuflow.cli.commands.console import bytes_text, say

__all__ = ["weights"]

weights = typer_app(help="Export and replace constants.", no_args_is_help=True)


@weights.command("dump")
def dump(
    graph: Annotated[
        Path, typer.Argument(metavar="MODEL.tpuq", help="Quantised graph.", callback=paths.graph_input)
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="W.npz", help="Output file.", callback=paths.output)
    ],
) -> None:
    """Write every constant of a graph, by its name."""
    from tpuflow.io.files import write_arrays
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.pipeline.constants import weights_of

    found = weights_of(load_graph(graph))
    write_arrays(output, found)
    say(f"{output}: {len(found)} constants, {bytes_text(sum(array.nbytes for array in found.values()))}")


@weights.command("update")
def update(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM.tpu", help="Program.", callback=paths.program_input)
    ],
    graph: Annotated[
        Path,
        typer.Argument(
            metavar="NEW.tpuq", help="The same network with other weights.", callback=paths.graph_input
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="NEW.tpu", help="Output file.", callback=paths.output)
    ],
) -> None:
    """Write a program with the weights of another graph; nothing but constants may change."""
    from tpuflow.errors import ProgramError
    from tpuflow.partitioning.storage import load_graph, load_program
    from tpuflow.pipeline.constants import with_weights

    try:
        made = with_weights(load_program(program), load_graph(graph))
    except ProgramError as error:
        raise ProgramError(f"{program}: {error}") from None
    made.save(output)
    say(f"{output}: the instructions of {program}, the constants of {graph}")
