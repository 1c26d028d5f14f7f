"""`tpuflow raw` and `tpuflow smoke`: programs that take words, and whether everything works here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say

__all__ = ["raw", "smoke"]


def raw(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.tpu", help="Program without host segments.", callback=paths.program_input
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RAW.tpu", help="[PROGRAM.raw.tpu]", callback=paths.output),
    ] = None,
    codec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Write packing and unpacking metadata.", callback=paths.output
        ),
    ] = None,
) -> None:
    """Write a program with raw cache words as inputs and outputs."""
    from tpuflow.runtime import convert_to_raw

    target = program.with_suffix(".raw.tpu") if output is None else output
    made = convert_to_raw(program, target)
    if codec is not None:
        made.save(codec)
    say(f"{target}: {bytes_text(target.stat().st_size)}, words of {made.cache_word_length} bytes")
    for way, tensors in (("input", made.inputs), ("output", made.outputs)):
        for number, tensor in enumerate(tensors):
            say(f"{way}{number:<4} {tensor.words:,} words: {tensor.name} {list(tensor.shape)} {tensor.dtype}")


def smoke(
    machine: Annotated[
        str, typer.Option(metavar="NAME|FILE.toml", help="Machine to test.", callback=options.valid_machine)
    ] = "128x128_asic",
) -> None:
    """Try every stage on a tiny network."""
    from tpuflow.pipeline.smoke import smoke as run

    run(machine, say)
    say("all is well")
