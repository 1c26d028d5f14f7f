"""Two files of tensors, row by row: level, measures and, where a tensor fails, the probable cause."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.evaluation.similarity import Similarity, similarity
from tpuflow.evaluation.tensor_files.causes import Cause, cause
from tpuflow.evaluation.tensor_files.levels import Level, Tolerance, Verdict, classify
from tpuflow.evaluation.tensor_files.network import Network
from tpuflow.evaluation.tensor_files.tools import read

__all__ = ["COLUMNS", "Row", "Scope", "Table", "compare_arrays", "compare_files"]

Array = NDArray[Any]
COLUMNS = (
    "name", "op", "quant", "pass", "cos", "euclid", "sqnr", "level", "max_error", "mse", "rmse", "psnr",
    "nan", "inf", "saturated", "first", "cause",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One tensor.

    Attributes:
        name: Its name in both files.
        op: What computes it, where a network says so.
        quant: Element type of the array that is compared.
        verdict: How alike the two are.
        cause: Why they differ, of a failing tensor.
        ranges: Least and largest finite element: of the reference, of the other.
        axis: Measures of every index of an axis, where asked for.
    """

    name: str
    op: str
    quant: str
    verdict: Verdict
    cause: Cause | None = None
    ranges: tuple[tuple[float, float], tuple[float, float]] | None = None
    axis: tuple[Similarity, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the tensor is alike enough."""
        return self.verdict.level.passed

    @property
    def worst(self) -> int | None:
        """Index of the axis with the least cosine similarity; NaN is least."""
        if not self.axis:
            return None
        return int(np.argmin([-2.0 if np.isnan(found.cosine) else found.cosine for found in self.axis]))


@dataclass(frozen=True)
class Table:
    """All tensors two files share.

    Attributes:
        rows: In the order of the reference (of computation, where a network is given).
        missing: Names only the reference has.
        extra: Names only the other has.
        left_out: How many were not compared because only a sample was asked for.
        first_failing: Failing tensors with none failing above them; without a network the first in the file.
    """

    rows: list[Row]
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    left_out: int = 0
    first_failing: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Row]:
        """Rows that fail."""
        return [row for row in self.rows if not row.passed]

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing fails."""
        return bool(self.rows) and not self.failures

    def row(self, name: str) -> Row:
        """The row of a tensor.

        Raises:
            KeyError: There is none.
        """
        return next(row for row in self.rows if row.name == name)

    def to_csv(self) -> str:
        """One line per tensor under the names of `COLUMNS`."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in self.rows:
            found, verdict = row.verdict.measures, row.verdict
            numbers = ("", "", "") if found is None else (found.cosine, found.euclid, found.sqnr)
            errors = [None] * 4 if found is None else [found.max_error, found.mse, found.rmse, found.psnr]
            writer.writerow(
                [
                    row.name,
                    row.op,
                    row.quant,
                    int(row.passed),
                    *(value if value == "" else f"{value:.6g}" for value in numbers),
                    verdict.level.value,
                    *("" if value is None else f"{value:.6g}" for value in errors),
                    "/".join(map(str, verdict.nan)),
                    "/".join(map(str, verdict.inf)),
                    "" if verdict.saturated[1] is None else f"{verdict.saturated[1]:.6g}",
                    "" if verdict.first is None else " ".join(map(str, verdict.first)),
                    "" if row.cause is None else str(row.cause),
                ]
            )
        return stream.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "passed": self.passed,
            "compared": len(self.rows),
            "failed": len(self.failures),
            "left_out": self.left_out,
            "missing": self.missing,
            "extra": self.extra,
            "first_failing": self.first_failing,
            "culprits": self.first_failing,
            "tensors": [_plain(row) for row in self.rows],
        }


def _plain(row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "name": row.name,
        "op": row.op,
        "quant": row.quant,
        "pass": row.passed,
        "level": verdict.level.value,
        "digits": verdict.digits,
        "measures": None if verdict.measures is None else verdict.measures.to_json(),
        "nan": list(verdict.nan),
        "inf": list(verdict.inf),
        "first": None if verdict.first is None else list(verdict.first),
        "saturated": list(verdict.saturated),
        "ranges": None if row.ranges is None else [list(pair) for pair in row.ranges],
        "cause": None if row.cause is None else {"kind": row.cause.kind, "detail": row.cause.detail},
        "axis": [dict(found.__dict__) for found in row.axis],
    }


@dataclass(frozen=True)
class Scope:
    """Which tensors are compared, and how closely.

    Attributes:
        excepts: Names, or shell patterns of names, that are left out.
        network: Which tensor is computed from which: gives the order, operators, and what fails first.
        axis: Also measure every index of this axis on its own, where a tensor has it.
        sample: Compare this many tensors only, evenly chosen, the last one among them.
    """

    excepts: Collection[str] = ()
    network: Network | None = None
    axis: int | None = None
    sample: int | None = None


def compare_files(
    reference: Path,
    other: Path,
    tolerance: Tolerance,
    scope: Scope | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Table:
    """Compares two `.npz` files; see `compare_arrays`.

    Raises:
        SampleError: A file cannot be read.
    """
    return compare_arrays(read(reference), read(other), tolerance, scope, progress=progress)


def compare_arrays(
    reference: Mapping[str, Array],
    other: Mapping[str, Array],
    tolerance: Tolerance,
    scope: Scope | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Table:
    """Compares all tensors two sets share.

    Args:
        reference: What should be, by name.
        other: What is.
        tolerance: What similar tensors reach.
        scope: Which of them, and how closely; by default all.
        progress: Told after every tensor.
    """
    scope = scope or Scope()
    network, sample = scope.network, scope.sample

    def wanted(name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in scope.excepts)

    names = [name for name in reference if name in other and wanted(name)]
    if network is not None:
        order = {name: position for position, name in enumerate(network.steps)}
        names.sort(key=lambda name: order.get(name, -1))
    chosen = names
    if sample is not None and 0 < sample < len(names):
        picks = np.unique(np.linspace(0, len(names) - 1, sample).round().astype(int))
        chosen = [names[pick] for pick in picks]
    rows = []
    for number, name in enumerate(chosen):
        step = None if network is None else network.steps.get(name)
        rows.append(_row(name, reference[name], other[name], tolerance, step.op if step else "", scope.axis))
        if progress is not None:
            progress(number + 1, len(chosen))
    failing = [row.name for row in rows if not row.passed]
    first_failing = failing[:1] if network is None else network.first_failing(failing, chosen) or failing[:1]
    return Table(
        rows,
        [name for name in reference if name not in other and wanted(name)],
        [name for name in other if name not in reference and wanted(name)],
        len(names) - len(chosen),
        first_failing,
    )


def _row(name: str, reference: Array, other: Array, tolerance: Tolerance, op: str, axis: int | None) -> Row:
    verdict = classify(reference, other, tolerance)
    numbers = verdict.level is not Level.NOT_MATCH
    why = None if verdict.level.passed else cause(reference, other)
    ranges = (_range(reference), _range(other)) if numbers else None
    parts: tuple[Similarity, ...] = ()
    if axis is not None and numbers and -reference.ndim <= axis < reference.ndim:
        pairs = zip(np.moveaxis(reference, axis, 0), np.moveaxis(other, axis, 0), strict=True)
        parts = tuple(similarity(x, y) for x, y in pairs)
    return Row(name, op, str(other.dtype), verdict, why, ranges, parts)


def _range(array: Array) -> tuple[float, float]:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
