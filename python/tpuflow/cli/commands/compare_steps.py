"""Comparison of a program with its graph, instruction by instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.cli.commands.console import say, table, write_figures
from tpuflow.cli.commands.debug import opened
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

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
    from tpuflow.evaluation.comparison import ComparisonError, DifferenceError
    from tpuflow.execution.debug import check_steps
    from tpuflow.execution.levels import GraphLevel
    from tpuflow.io.files import write_arrays
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import graph_beside, load_graph, require_pair

    loaded, feed = opened(program, inputs, seed)
    source = graph_beside(program) if graph is None else graph
    require_pair(program, source)
    found = load_graph(source)
    if isinstance(found, Partitioned):
        raise ComparisonError(f"{program}: has no segments, but its graph has")
    level = GraphLevel(found)
    with progress("steps") as advance:
        report = check_steps(loaded, level, feed, fail_fast=fail_fast, progress=advance)
    if dump is not None:
        write_arrays(dump, level.decode(report.codes))
    write_figures(json, report.to_json())
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
    if report.first_wrong is not None:
        first = report.first_wrong
        raise DifferenceError(
            f'{program}: layer "{first.name}" is the first wrong one: '
            f"instruction {first.first}, {first.detail}"
        )
    if report.stopped:
        raise DifferenceError(f"{program}: stopped after {report.executed} instructions: {report.stopped}")
    if not report.outputs_equal:
        raise DifferenceError(f"{program}: every layer is right, but the outputs are not")
    say(f"{program}: {report.executed:,} instructions, every layer and output as the graph has it")
