"""`tpuflow explain`: why a program takes as long as it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from tpuflow.execution.explanation import Explanation, LayerExplanation

__all__ = ["explain"]

TOP = 20


def explain(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.tpu", help="Program made by `tpuflow build`.", callback=paths.program_input
        ),
    ],
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq",
            help="Its graph: also try twice the cache and other settings.",
            callback=paths.graph_input,
        ),
    ] = None,
    json: options.JsonFile = None,
    layers: Annotated[bool, typer.Option("--layers", help="Print every layer.")] = False,
) -> None:
    """Show what limits each layer, and what would help."""
    from tpuflow.errors import ProgramError
    from tpuflow.execution.explanation import explain as explained
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import load_graph, load_program

    loaded = list(device_networks(load_program(program)))
    graphs = [None] * len(loaded) if graph is None else list(device_networks(load_graph(graph)))
    if len(graphs) != len(loaded):
        raise ProgramError(
            f"{program}: {len(loaded)} programs, but {graph} has {len(graphs)} graphs: give its own"
        )
    found = []
    with progress("explain") as advance:
        for number, (part, own) in enumerate(zip(loaded, graphs, strict=True)):
            found.append(explained(part, own))
            advance(number + 1, len(loaded))
    if json is not None:
        whole = found[0].to_json() if len(found) == 1 else {"segments": [part.to_json() for part in found]}
        write_figures(json, whole)
    for each in found:
        _show(each, every_layer=layers)
    if json is not None:
        say(f"figures    {json}")


def _show(found: Explanation, *, every_layer: bool) -> None:
    from tpuflow.report.words import BOUND_NAMES, BOUNDS, STALLS, verdict

    heading(f"{found.program} on {found.machine}, -O{found.level}")
    say(f"{found.cycles:,} cycles")
    if found.bound:
        bound = f"{found.bound:,} cycles ({BOUND_NAMES[found.binding]})"
        say(f"{verdict(found.gap)} of {bound}: {BOUNDS[found.binding]}")
    shown = sorted(found.layers, key=lambda layer: -layer.holds)
    shown = list(found.layers) if every_layer else shown[:TOP]
    heading(
        "Layers"
        if every_layer
        else f"The {len(shown)} of {len(found.layers)} layers with the largest delay (all: --layers)"
    )
    table(
        [
            ("layer", "left"),
            ("unit", "left"),
            ("delay", "right"),
            ("bound", "right"),
            ("bound by", "left"),
            ("waits", "right"),
            ("longest wait for", "left"),
            ("stalls", "right"),
            ("best change", "left"),
        ],
        [_row(layer) for layer in shown],
    )
    heading("What would help")
    table(
        [("change", "left"), ("cycles", "right"), ("saved", "right"), ("", "left")],
        [
            (
                change.what,
                f"{change.cycles:,}",
                f"{change.saved / max(1, found.cycles):.1%}",
                "recompiled" if change.rebuilt else "same program",
            )
            for change in found.changes
        ],
    )
    heading("Stalls by cause")
    stalls = sorted(found.stalls.items(), key=lambda item: -item[1])
    table(
        [("cause", "left"), ("", "left"), ("cycles", "right")],
        [(cause, STALLS[cause], f"{cycles:,}") for cause, cycles in stalls if cycles],
    )


def _row(layer: LayerExplanation) -> tuple[str, ...]:
    from tpuflow.report.words import BOUND_NAMES

    waited = sum(wait.cycles for wait in layer.waits)
    mostly = ""
    if layer.waits:
        longest = layer.waits[0]
        mostly = (
            "its own loads"
            if longest.unit.startswith("dtl") and longest.layer == layer.name
            else (f"{longest.unit}, {longest.layer}")
        )
    helps = "" if layer.helps is None else f"{layer.helps[0]}: {layer.helps[1]:,}"
    return (
        layer.name,
        layer.unit,
        f"{layer.holds:,}",
        f"{layer.bound:,}",
        BOUND_NAMES.get(layer.binding, layer.binding) if layer.bound else "",
        f"{waited:,}",
        mostly,
        f"{layer.held:,}",
        helps,
    )
