"""Comparison of two files of tensors, and what explains their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuflow.cli.commands import options
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from tpuflow.evaluation.tensor_files import Row, Table

__all__ = ["FileComparison", "compare_two_files"]

MOST_EXPLAINED = 5


@dataclass(frozen=True, kw_only=True)
class FileComparison:
    """Options of a comparison of two files.

    Attributes:
        stage: Whose default tolerance applies.
        tolerance: In place of that.
        ignored_tensors: Names that no tolerance applies to.
        network: Graph or model, for order and operators.
        axis: Each index of it is compared, too.
        sample: So many tensors, evenly chosen.
        failed_only: List no others.
        csv: File of a line per tensor.
        picture: Drawing of the network.
        json: File of all figures.
    """

    stage: str
    tolerance: str | None
    ignored_tensors: str | None
    network: Path | None
    axis: int | None
    sample: int | None
    failed_only: bool
    csv: Path | None
    picture: Path | None
    json: Path | None


def compare_two_files(reference: Path, other: Path, asked: FileComparison) -> None:
    """Compares two files, and names the tensors that fail first.

    Raises:
        DifferenceError: A tensor fails.
        ComparisonError: There is none to compare.
    """
    from tpuflow.evaluation.comparison import ComparisonError, DifferenceError
    from tpuflow.evaluation.tensor_files import STAGES, Scope, Tolerance, compare_files, network_of, to_dot
    from tpuflow.io.files import write_text

    if asked.stage not in STAGES:
        raise options.OptionError(f'--stage "{asked.stage}" is unknown, there are {", ".join(STAGES)}')
    if asked.picture is not None and asked.network is None:
        raise options.OptionError("--picture draws a network: give it with --network")
    if asked.picture is not None and asked.picture.suffix != ".dot":
        raise options.OptionError(f"{asked.picture}: a picture of a network of files is .dot")
    least = STAGES[asked.stage] if asked.tolerance is None else Tolerance.parse(asked.tolerance)
    known = None if asked.network is None else network_of(asked.network)
    with progress("compare") as advance:
        scope = Scope(options.names(asked.ignored_tensors), known, asked.axis, asked.sample)
        found = compare_files(reference, other, least, scope, progress=advance)
    if asked.csv is not None:
        write_text(asked.csv, found.to_csv())
    write_figures(asked.json, found.to_json())
    if asked.picture is not None and known is not None:
        write_text(asked.picture, to_dot(known, found, other.stem))
    _show(found, failed_only=asked.failed_only)
    if not found.rows:
        raise ComparisonError(f"{reference} and {other} have no tensor in common")
    if found.failures:
        first = found.row(found.first_failing[0])
        raise DifferenceError(
            f"{other}: {len(found.failures)} of {len(found.rows)} tensors fail, first {_blame(first)}"
        )


def _show(found: Table, *, failed_only: bool) -> None:
    rows = found.failures if failed_only else found.rows
    cells = []
    for row in rows:
        measures = row.verdict.measures
        numbers = ["", "", "", ""]
        if measures is not None:
            numbers = [f"{value:.3f}" for value in (measures.cosine, measures.euclid)]
            numbers += [f"{measures.sqnr:.1f}", f"{measures.max_error:.3g}"]
        level = row.verdict.level.value
        if row.verdict.digits is not None and level == "CLOSE":
            level += f" ({row.verdict.digits} digits)"
        cells.append((row.name, row.op, row.quant, *numbers, level))
    table(
        [
            ("tensor", "left"),
            ("op", "left"),
            ("type", "left"),
            ("cos", "right"),
            ("euclid", "right"),
            ("SQNR dB", "right"),
            ("max error", "right"),
            ("level", "left"),
        ],
        cells,
    )
    for row in found.rows:
        if row.axis and row.worst is not None:
            worst = row.axis[row.worst]
            say(
                f'"{row.name}": worst index {row.worst}, cosine {worst.cosine:.3f}, euclid {worst.euclid:.3f}'
            )
    _explain(found)
    for what, names in (("only in the reference", found.missing), ("only in the other", found.extra)):
        if names:
            say(f"{what}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")
    if found.left_out:
        say(f"sampled: {found.left_out} more tensors were not compared")
    counts = dict.fromkeys(("EQUAL", "CLOSE", "SIMILAR", "NOT_SIMILAR", "NOT_MATCH"), 0)
    for row in found.rows:
        counts[row.verdict.level.value] += 1
    say(", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing compared")


def _explain(found: Table) -> None:
    """Bisection at length, and how many more tensors fail because of them."""
    if not found.failures:
        return
    heading("What fails first")
    for name in found.first_failing[:MOST_EXPLAINED]:
        row = found.row(name)
        verdict = row.verdict
        say(_blame(row))
        if row.ranges is not None:
            (a, b), (c, d) = row.ranges
            say(f"  reference {a:.6g} to {b:.6g}, other {c:.6g} to {d:.6g}")
        if verdict.saturated[1] is not None:
            say(f"  at the ends of {row.quant}: {verdict.saturated[1]:.2%} of its elements")
        if any(verdict.nan) or any(verdict.inf):
            say(
                f"  NaN {verdict.nan[0]} and {verdict.nan[1]}, infinite {verdict.inf[0]} and {verdict.inf[1]}"
            )
        if verdict.first is not None:
            say(f"  first difference at {list(verdict.first)}")


def _blame(row: Row) -> str:
    op = f" ({row.op})" if row.op else ""
    return f'"{row.name}"{op}: {row.verdict.level.value}, probably {row.cause}'
