"""Comparison of a program with its graph, instruction by instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.debug import first_feed
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tpuflow.execution.debug import StepReport

__all__ = ["compare_steps"]


def compare_steps(
    program: Path,
    *,
    graph: Path | None,
    inputs: Path | None,
    fail_fast: bool,
    dump: Path | None,
    seed: int,
    json: Path | None,
) -> None:
    """Runs a program against the integers of its graph, and names the first wrong layer.

    Raises:
        DifferenceError: Anything differs.
    """
    from tpuflow.execution.debug import check_program
    from tpuflow.execution.levels import GraphLevel
    from tpuflow.io.files import write_arrays
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import graph_beside, load_graph, load_program, require_pair

    loaded = load_program(program)
    feed = first_feed(loaded, inputs, seed)
    source = graph_beside(program) if graph is None else graph
    require_pair(program, source)
    found = load_graph(source)
    with progress("steps") as advance:
        reports = check_program(loaded, found, feed, fail_fast=fail_fast, progress=advance)
    if dump is not None:
        arrays: dict[str, NDArray[Any]] = {}
        for network, report in zip(device_networks(found), reports.values(), strict=False):
            arrays |= GraphLevel(network).decode(report.codes)
        write_arrays(dump, arrays)
    write_figures(json, _figures(reports))
    for segment, report in reports.items():
        _show(segment, report)
    for segment, report in reports.items():
        _require_passed(f"{program}: {segment}: " if segment else f"{program}: ", report)
    executed = sum(report.executed for report in reports.values())
    say(f"{program}: {executed:,} instructions, every layer and output as the graph has it")


def _figures(reports: dict[str, StepReport]) -> dict[str, Any]:
    """A report as plain values, or those of all segments."""
    if "" in reports:
        return reports[""].to_json()
    return {
        "passed": all(report.passed for report in reports.values()),
        "segments": {segment: report.to_json() for segment, report in reports.items()},
    }


def _show(segment: str, report: StepReport) -> None:
    """Tells what was seen of every tensor."""
    if segment:
        heading(segment)
    table(
        [("tensor", "left"), ("op", "left"), ("parts", "right"), ("elements", "right"), ("compared", "right"),
         ("wrong", "right"), ("note", "left")],
        [
            (each.name, each.op, f"{each.parts:,}", f"{each.elements:,}", f"{each.compared:,}",
             f"{each.wrong:,}", each.reason)
            for each in report.tensors
        ],
    )  # fmt: skip
    complete = sum(each.codes is not None for each in report.tensors)
    say(f"{complete} of {len(report.tensors)} tensors compared in every element")


def _require_passed(where: str, report: StepReport) -> None:
    """Names the first wrong layer of a program.

    Raises:
        DifferenceError: Anything differs.
    """
    from tpuflow.evaluation.comparison import DifferenceError

    if report.first_wrong is not None:
        first = report.first_wrong
        raise DifferenceError(
            f'{where}layer "{first.name}" is the first wrong one: instruction {first.first}, {first.detail}'
        )
    if report.stopped:
        raise DifferenceError(f"{where}stopped after {report.executed} instructions: {report.stopped}")
    if not report.outputs_equal:
        raise DifferenceError(f"{where}every layer is right, but the outputs are not")
