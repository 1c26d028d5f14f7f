"""`tpuflow report`: the page of a run, beside another run, a comparison and a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import paths
from tpuflow.cli.commands.console import bytes_text, say
from tpuflow.cli.commands.options import OptionError
from tpuflow.cli.commands.progress import progress
from tpuflow.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.partitioning.storage import AnyProgram
    from tpuflow.report import RunView

__all__ = ["program_view", "report"]

Source = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help="Program (.tpu), figures of `simulate --json` (.json), or a decoder (.tpub).",
        callback=paths.run_input,
    ),
]


def report(
    run: Source,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[B]",
            help="A second one to compare: another level, another machine.",
            callback=paths.run_input,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PAGE.html", help="[A with .html]", callback=paths.output),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="Similarity of all tensors: `tpuflow compare --json`; one for each run, in their order.",
            callback=paths.each_readable,
        ),
    ] = None,
    histograms: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE.npz",
            help="Distributions with thresholds: `tpuflow calibrate --histograms`.",
            callback=paths.file_or_folder,
        ),
    ] = None,
) -> None:
    """Write an HTML page about a run, or two side by side.

    Programs are simulated for their cycles; of saved figures there are no charts over time. Of a decoder the
    page shows prefill and decode apart, and latency against the number of tokens before.
    """
    from tpuflow.io.files import write_text
    from tpuflow.report import load_histograms, render_page, tensor_rows

    target = run.with_suffix(".html") if output is None else output
    if run.suffix == ".tpub":
        if other is not None or compare or histograms is not None:
            raise OptionError(f"{run}: the page of a decoder is about it alone: leave out all but -o")
        page = _decoder_page(run)
        write_text(target, page)
        say(f"report     {target} ({bytes_text(len(page.encode()))})")
        return
    comparisons = _comparisons(compare or (), runs=1 if other is None else 2)
    counted = [] if histograms is None else load_histograms(histograms)
    with progress("report"):
        second = None if other is None else _view(other)
        page = render_page(_view(run), second, tensor_rows(comparisons, counted))
    write_text(target, page)
    say(f"report     {target} ({bytes_text(len(page.encode()))})")


def _decoder_page(path: Path) -> str:
    """The page of a bundle's programs, simulated behind 20 numbers of tokens each; of long phases, 5."""
    from tpuflow.execution.phases import phase_cost
    from tpuflow.pipeline.bundle import load_bundle
    from tpuflow.report import render_decoder_page

    held = load_bundle(path)
    programs = {name: held.program(name) for name in held.programs}
    costs = []
    with progress("report") as advance:
        for number, (name, program) in enumerate(programs.items()):
            costs.append(phase_cost(name, program, 5 if name.startswith("prefill") else 20))
            advance(number + 1, len(programs))
    return render_decoder_page(path.stem, costs)


def _comparisons(files: Sequence[Path], runs: int) -> list[dict[str, Any]]:
    """The comparisons in files, in the order of the runs; a file may hold those of two programs.

    Raises:
        FileError: A file is none of `compare`.
        OptionError: There are more comparisons than runs.
    """
    found = []
    for file in files:
        content = _json(file, "tensors", "tpuflow compare --json")
        found += [content, content["other"]] if "other" in content else [content]
    if len(found) > runs:
        names = ", ".join(str(each.get("name", "?")) for each in found)
        raise OptionError(
            f"--compare: comparisons of {len(found)} programs ({names}) for a page of {runs}: "
            "give one for each program of the page, in their order"
        )
    return found


def _view(path: Path) -> RunView:
    from tpuflow.execution.simulation import simulate
    from tpuflow.partitioning.storage import load_program
    from tpuflow.report import RunView

    if path.suffix == ".json":
        return RunView(_json(path, "counters", "tpuflow simulate --json"))
    if path.suffix != ".tpu":
        raise FileError(
            f'{path}: unknown kind of file "{path.suffix}": give a program (.tpu), figures (.json) or, '
            "alone, a decoder (.tpub)"
        )
    program = load_program(path)
    return program_view(program, simulate(program, values=False, trace=True), _tensors(path))


def program_view(program: AnyProgram, run: Any, tensors: dict[str, str] | None = None) -> RunView:
    """The view of a program and its traced run; of a whole program also what limits its layers."""
    import json

    from tpuflow.cli.commands.simulate import interval_text
    from tpuflow.execution.explanation import explain
    from tpuflow.execution.streams import stream_interval
    from tpuflow.partitioning import device_networks
    from tpuflow.report import RunView, timeline_of_all

    parts = device_networks(program)
    contents = [json.loads(part.to_json()) for part in parts]
    charts = timeline_of_all(contents, run.intervals or [])
    explanation = None if "segments" in run.report else explain(parts[0]).to_json()
    interval = None if "segments" in run.report else stream_interval(parts[0])
    machine = contents[0]["machine"]
    stream = "" if interval is None else interval_text(interval, machine["clock_hz"], contents[0]["batch"])
    return RunView(run.report, machine, charts, tensors or {}, explanation, stream)


def _tensors(program: Path) -> dict[str, str]:
    """The model's tensor every layer stands for, where the graph lies beside the program."""
    from tpuflow.partitioning.storage import graph_beside, load_graph, require_pair

    graph = graph_beside(program)
    require_pair(program, graph)
    return graph_tensors(load_graph(graph)) if graph.is_file() else {}


def graph_tensors(graph: Any) -> dict[str, str]:
    """The model's tensor every layer of a graph stands for, by the layer's name."""
    import json

    from tpuflow.partitioning import device_networks

    found = {}
    for part in device_networks(graph):
        tensors = part.tensors
        for layer in part.layers:
            source = tensors[layer.output].source_json
            if source is not None:
                found[layer.name] = json.loads(source)["name"]
    return found


def _json(path: Path, key: str, writer: str) -> dict[str, Any]:
    from tpuflow.io.files import parse_json, read_text

    text = read_text(path, FileError)
    try:
        content = parse_json(text, path, FileError)
    except FileError:
        raise FileError(f"{path}: not JSON: give what `{writer}` wrote") from None
    if not isinstance(content, dict) or key not in content:
        raise FileError(f'{path}: not what `{writer}` writes: it has no "{key}"')
    return content
