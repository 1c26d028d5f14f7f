"""Comparison of a network at its levels: original, normalised, integers, one program or two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.cli.commands import options
from tpuflow.cli.commands.console import Column, heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tpuflow.config import Config
    from tpuflow.evaluation.comparison import Comparison, TensorComparison
    from tpuflow.evaluation.similarity import Similarity
    from tpuflow.report import Overlay

__all__ = ["NetworkComparison", "compare_branches", "compare_networks"]

MOST_SHAPES = 5
PICTURES = (".svg", ".dot")
LETTERS = "AB"
VERDICTS = {None: "", True: "equal", False: "DIFFERENT"}
"""Of a tensor of graph and program; empty where the program does not show it."""


@dataclass(frozen=True, kw_only=True)
class NetworkComparison:
    """Options of a comparison of networks.

    Attributes:
        inputs: Samples; one is generated where there are none.
        graph: Beside the program where it is not named.
        validation: Further samples, reported separately.
        count: Samples of each.
        seed: Of generated samples.
        tolerance: Least similarities.
        least_sqnr: Of every output, in decibels.
        ignored_tensors: Names that no tolerance applies to.
        json: File of all figures.
        picture: Drawing of the network.
        histograms: Folder of drawn distributions.
    """

    inputs: Path | None
    graph: Path | None
    validation: Path | None
    count: int
    seed: int
    tolerance: str | None
    least_sqnr: float
    ignored_tensors: str | None
    json: Path | None
    picture: Path | None
    histograms: Path | None


def compare_networks(
    model: Path, program: Path, opening: options.Opening, settings: Config, asked: NetworkComparison
) -> None:
    """Compares a model with its program, or its graph alone, and names the first tensor that differs.

    Raises:
        DifferenceError: Graph and program differ in a bit, an output has less signal to noise than asked for,
            or a tensor is below the tolerance.
    """
    from tpuflow.evaluation.comparison import DifferenceError, compare_levels, open_pair
    from tpuflow.frontend import load
    from tpuflow.partitioning.storage import graph_beside
    from tpuflow.report import save_overlays

    least, ignored = _tolerance(asked.tolerance), options.names(asked.ignored_tensors)
    if asked.picture is not None and asked.picture.suffix not in PICTURES:
        raise options.OptionError(f"{asked.picture}: a picture is {' or '.join(PICTURES)}")
    original = load(model, **opening, **settings.loading, host=True)
    pair = open_pair(program, asked.graph)
    source = program if program.suffix == ".tpuq" else asked.graph or graph_beside(program)
    overlays = {} if asked.histograms is None else _overlays(source)

    def watch(name: str, floating: NDArray[Any], quantized: NDArray[Any]) -> None:
        if name in overlays:
            overlays[name].add(floating, quantized)

    with progress("compare") as advance:
        found = compare_levels(
            original, pair, asked.inputs, count=asked.count, seed=asked.seed, progress=advance, watch=watch
        )
        further = None
        if asked.validation is not None:
            further = compare_levels(
                original, pair, asked.validation, count=asked.count, seed=asked.seed, progress=advance
            )
    if asked.histograms is not None:
        seen = [overlay for overlay in overlays.values() if overlay.floating.any()]
        drawn = save_overlays(seen, asked.histograms)
        say(f"{drawn}: distributions of {len(seen)} tensors, pictures beside it")
    if asked.json is not None:
        report = found.to_json()
        write_figures(asked.json, report if further is None else report | {"validation": further.to_json()})
    if asked.picture is not None:
        _draw(asked.picture, source, found, found.failing_tensors(least, ignored))
    _show_comparison(found)
    failures = found.failures(least, ignored, asked.least_sqnr)
    if further is not None:
        say(f"{asked.validation}:")
        _show_comparison(further)
        failures = failures or further.failures(least, ignored, asked.least_sqnr)
    if failures:
        raise DifferenceError(failures)


def compare_branches(
    model: Path,
    programs: Sequence[Path],
    opening: options.Opening,
    settings: Config,
    asked: NetworkComparison,
) -> None:
    """Compares a model with two programs of it, such as its float and its integer form, side by side.

    Raises:
        DifferenceError: As of `compare_networks`, of either of them.
    """
    from tpuflow.evaluation.comparison import DifferenceError, compare_levels, open_pair
    from tpuflow.frontend import load

    least, ignored = _tolerance(asked.tolerance), options.names(asked.ignored_tensors)
    original = load(model, **opening, **settings.loading, host=True)
    pairs = [open_pair(program) for program in programs]
    sets = [asked.inputs] if asked.validation is None else [asked.inputs, asked.validation]
    with progress("compare") as advance:
        found = [
            [
                compare_levels(original, pair, samples, count=asked.count, seed=asked.seed, progress=advance)
                for pair in pairs
            ]
            for samples in sets
        ]
    if asked.json is not None:
        first, *further = [branches[0].to_json() | {"other": branches[1].to_json()} for branches in found]
        write_figures(asked.json, first | {"validation": further[0]} if further else first)
    for samples, branches in zip(sets, found, strict=True):
        if samples is not asked.inputs:
            say(f"{samples}:")
        _show_branches(branches)
    every = [branch for branches in found for branch in branches]
    failures = [text for branch in every if (text := branch.failures(least, ignored, asked.least_sqnr))]
    if failures:
        raise DifferenceError(failures[0])


def _tolerance(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        cosine, euclid = (float(word) for word in text.split(","))
    except ValueError:
        raise options.OptionError(f'--tolerance "{text}": write two numbers, such as 0.99,0.90') from None
    if not (cosine <= 1 and euclid <= 1):
        raise options.OptionError(f'--tolerance "{text}": no similarity is above 1')
    return cosine, euclid


def _overlays(graph: Path) -> dict[str, Overlay]:
    """A count of values for every tensor of the model that a graph stores as codes, still empty."""
    from tpuflow.export import activation_grids
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.report import Overlay

    networks = device_networks(load_graph(graph))
    grids = activation_grids(tensor for network in networks for tensor in network.tensors)
    return {name: Overlay(name, grid.reach) for name, grid in grids.items()}


def _draw(path: Path, graph: Path, found: Comparison, failed: set[str]) -> None:
    """Draws a graph, a segment below the other, with the similarity of what its layers give."""
    from tpuflow.io.files import write_text
    from tpuflow.partitioning import HostSegment, Partitioned
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.report import Mark, dot_text, graph_nodes, host_node, join_segments, svg_picture

    network = load_graph(graph)
    if isinstance(network, Partitioned):
        nodes = join_segments(
            [
                [host_node(part.name, part.reason, part.inputs, part.outputs)]
                if isinstance(part, HostSegment)
                else graph_nodes(part.network)
                for part in network.segments
            ]
        )
    else:
        nodes = graph_nodes(network)
    marks = {}
    for tensor in found.tensors:
        pair = tensor.quantized or tensor.normalized
        text = "" if pair is None else f"cos {pair.cosine:.3f}, euclid {pair.euclid:.3f}"
        if tensor.equal is False:
            text = f"{text}, program differs" if text else "program differs"
        if text:
            marks[tensor.name] = Mark(text, tensor.name in failed)
    drawn = svg_picture(nodes, marks) if path.suffix == ".svg" else dot_text(nodes, marks, network.name)
    write_text(path, drawn)
    count = sum(mark.failed for mark in marks.values())
    say(f"picture    {path}: {len(nodes)} nodes, {count} tensors failed")


def _show_comparison(found: Comparison) -> None:
    heading(f"{found.name}: {_samples(found)}, worst of each tensor")
    rows = []
    for tensor in found.tensors:
        cells = [tensor.name, *_similarities(tensor.normalized), *_similarities(tensor.quantized)]
        cells += ["", ""] if tensor.quantized is None else _errors(tensor.quantized)
        rows.append([*cells, VERDICTS[tensor.equal]])
    table(
        [
            ("tensor", "left"),
            ("import cos", "right"),
            ("euclid", "right"),
            ("graph cos", "right"),
            ("euclid", "right"),
            ("SQNR dB", "right"),
            ("max error", "right"),
            ("program", "left"),
        ],
        rows,
    )
    say("import: normalised against original float; graph: integers against normalised float")
    _show_shapes(found)
    _show_verdict(found)


def _show_branches(branches: Sequence[Comparison]) -> None:
    """Two programs of one model, a row for each tensor that either has."""
    heading(f"{_samples(branches[0])}, worst of each tensor")
    for letter, branch in zip(LETTERS, branches, strict=True):
        say(f"{letter}: {branch.name}")
    known = [{tensor.name: tensor for tensor in branch.tensors} for branch in branches]
    rows = []
    for name in dict.fromkeys(name for tensors in known for name in tensors):
        seen = [tensors.get(name) for tensors in known]
        imported = next((tensor.normalized for tensor in seen if tensor is not None), None)
        rows.append([name, *_similarities(imported), *(cell for tensor in seen for cell in _branch(tensor))])
    columns: list[Column] = [("tensor", "left"), ("import cos", "right"), ("euclid", "right")]
    for letter in LETTERS:
        columns += [
            (f"{letter} cos", "right"),
            ("euclid", "right"),
            ("SQNR dB", "right"),
            ("program", "left"),
        ]
    table(columns, rows)
    say("import: normalised against original float; A, B: each graph against normalised float")
    for letter, branch in zip(LETTERS, branches, strict=True):
        _show_shapes(branch, f"{letter}: ")
        _show_verdict(branch, f"{letter}: ")


def _branch(tensor: TensorComparison | None) -> list[str]:
    if tensor is None:
        return ["", "", "", ""]
    noise = "" if tensor.quantized is None else _errors(tensor.quantized)[0]
    return [*_similarities(tensor.quantized), noise, VERDICTS[tensor.equal]]


def _samples(found: Comparison) -> str:
    return f"{found.samples} sample{'s' if found.samples > 1 else ''}"


def _similarities(pair: Similarity | None) -> list[str]:
    return ["", ""] if pair is None else [f"{pair.cosine:.3f}", f"{pair.euclid:.3f}"]


def _errors(pair: Similarity) -> list[str]:
    return [f"{pair.sqnr:.1f}", f"{pair.max_error:.3g}"]


def _show_shapes(found: Comparison, before: str = "") -> None:
    shaped = [tensor for tensor in found.tensors if tensor.shapes is not None]
    for tensor in shaped[:MOST_SHAPES]:
        say(f'{before}shapes of "{tensor.name}" differ: {tensor.shapes}')
    if len(shaped) > MOST_SHAPES:
        say(f"{before}and those of {len(shaped) - MOST_SHAPES} more tensors (all: --json)")


def _show_verdict(found: Comparison, before: str = "") -> None:
    if found.bit_equal is not None:
        compared = sum(tensor.equal is not None for tensor in found.tensors)
        verdict = "equal in every bit" if found.bit_equal else "DIFFERENT"
        say(f"{before}graph and program: {verdict} ({compared} tensors)")
