"""`tpuflow alloc`: the allocator on an instance from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import paths
from tpuflow.cli.commands.console import say, write_figures
from tpuflow.cli.commands.options import JsonFile, SeedOption

__all__ = ["alloc"]


def alloc(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.csv", help="Buffers: id,lower,upper,size[,alignment].", callback=paths.readable
        ),
    ],
    capacity: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Memory capacity. [minimized]"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="OUT.csv", help="Write the buffers with offsets.", callback=paths.output
        ),
    ] = None,
    json_file: JsonFile = None,
    steps: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="States to search; 0: greedy only. [10 million]")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="Time limit in seconds; the best result so far is kept."),
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Place buffers with known lifetimes in a memory."""
    from tpuflow.compiler.allocation import STEPS, allocate, read_instance, write_allocation

    instance = read_instance(file)
    found = allocate(
        instance,
        capacity=capacity,
        steps=STEPS if steps is None else steps,
        time_limit=time_limit,
        seed=seed,
    )
    say(f"{file.name}: {len(instance.ids):,} buffers" + (f", capacity {capacity:,}" if capacity else ""))
    optimal = ", optimal" if found.height == found.bound else ""
    say(f"height {found.height:,}, lower bound {found.bound:,}, gap {found.gap:.3%}{optimal}")
    say(f"{found.steps:,} steps, {found.seconds:.3f} s; validated")
    if output is not None:
        write_allocation(output, instance, found)
        say(f"wrote {output}")
    if json_file is not None:
        figures = {
            "file": str(file),
            "buffers": len(instance.ids),
            "capacity": capacity,
            "height": found.height,
            "bound": found.bound,
            "gap": found.gap,
            "optimal": found.height == found.bound,
            "steps": found.steps,
            "seconds": found.seconds,
            "seed": seed,
            "offsets": dict(zip(instance.ids, found.offsets, strict=True)),
        }
        write_figures(json_file, figures)
