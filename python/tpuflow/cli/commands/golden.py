"""`tpuflow golden`: what a testbench needs of one layer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say, write_figures
from tpuflow.cli.commands.progress import progress

__all__ = ["golden"]


def golden(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.tpu", help="Program without host segments.", callback=paths.program_input
        ),
    ],
    layer: Annotated[
        str, typer.Option("-l", "--layer", metavar="NAME|N", help="Layer: name, part of it, or number.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="New folder. [PROGRAM_layerN]", callback=paths.new_folder
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq",
            help="Graph it was made from. [beside the program]",
            callback=paths.graph_input,
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="X.npz",
            help="Samples; the first feed is run. [random codes]",
            callback=paths.sample_input,
        ),
    ] = None,
    cycles: Annotated[str | None, typer.Option(metavar="A:B", help="Cycles to trace. [the layer's]")] = None,
    limit: Annotated[str, typer.Option(metavar="SIZE", help="Maximum bytes to write, such as 1G.")] = "256M",
    seed: options.SeedOption = 0,
    json: options.JsonFile = None,
) -> None:
    """Write memories, codes and a trace of one layer for a testbench.

    Hexadecimal files are for $readmemh; manifest.json names every file with its hash.
    """
    from tpuflow.cli.commands.debug import open_program
    from tpuflow.execution.levels import GraphLevel
    from tpuflow.execution.vectors import VectorError, estimated_bytes, layer_vectors, write_vectors
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import graph_beside, load_graph, require_pair

    span, most = _span(cycles), options.size("--limit", limit)
    loaded, feed = open_program(program, inputs, seed)
    source = graph_beside(program) if graph is None else graph
    require_pair(program, source)
    found = load_graph(source)
    if isinstance(found, Partitioned):
        raise VectorError(f"{program}: has no segments, but its graph has")
    with progress("instructions") as advance:
        vectors = layer_vectors(
            loaded,
            GraphLevel(found),
            feed,
            layer,
            cycles=span,
            most_events=max(1, most // 256),
            progress=advance,
        )
    estimate = estimated_bytes(vectors)
    begin, end = vectors.trace.begin, vectors.trace.end
    say(f"about {bytes_text(estimate)}: memories, codes, and a trace of cycles {begin:,} to {end:,}")
    if estimate > most:
        raise VectorError(
            f"{program}: about {bytes_text(estimate)} are more than --limit {limit}: "
            "trace fewer cycles (--cycles A:B) or allow more"
        )
    folder = output or program.with_name(f"{program.stem}_layer{vectors.layer}")
    machine = vectors.replay.content["machine"]
    origin = {
        "program": {"name": program.name, "sha256": _sha256(program), "digest": loaded.digest()},
        "graph": {"name": source.name, "sha256": _sha256(source)},
        "inputs": {"seed": seed} if inputs is None else {"name": inputs.name, "sha256": _sha256(inputs)},
        "machine": {"name": machine["name"], "clock_hz": machine["clock_hz"]}
        | {"banks": machine["cache"]["banks"], "words_per_bank": machine["cache"]["words"]},
    }
    manifest = write_vectors(vectors, folder, origin)
    write_figures(json, manifest)
    held = next(each for each in manifest["tensors"] if each["role"] == "output")
    name, count = vectors.replay.layer_name(vectors.layer), len(vectors.instructions)
    say(f"layer      {name}: {count:,} instructions, cycles {vectors.cycles[0]:,} to {vectors.cycles[1]:,}")
    say(f"result     {held['held']:,} of {vectors.tensors[-1].codes.size:,} elements are then in the cache")
    total = sum(each["bytes"] for each in manifest["files"].values())
    say(f"written    {folder}: {len(manifest['files']):,} files of {bytes_text(total)}, and manifest.json")


def _span(text: str | None) -> tuple[int, int] | None:
    """Cycles from `A:B`.

    Raises:
        OptionError: They are none.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in (first, last)):
        raise options.OptionError(
            f"--cycles {text}: write the first cycle and one past the last, such as 1000:2000"
        )
    if int(first) >= int(last):
        raise options.OptionError(f"--cycles {text}: the first cycle must lie before the last")
    return int(first), int(last)


def _sha256(path: Path) -> str:
    # An input may be a folder of samples, or a device: of those only the name is known.
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
