"""`tpuflow example`: a small network, samples and a walk to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import paths
from tpuflow.cli.commands.console import say

__all__ = ["example"]


def example(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder to write into.", callback=paths.folder)
    ] = Path("example"),
) -> None:
    """Write a small network, samples and commands to try.

    README.txt lists the commands in an order that makes sense; they are printed, too.
    """
    import shlex

    from tpuflow.pipeline.example import WALK, write_example

    names = write_example(folder)
    say(f"{folder}: {', '.join(names)}")
    say()
    if folder != Path():
        say(f"cd {shlex.quote(str(folder))}")
    width = max(len(command) for command, _ in WALK)
    for command, meaning in WALK:
        say(f"{command:<{width}}  # {meaning}")
