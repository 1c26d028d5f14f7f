"""Static memory allocation of an instance in a file: buffers with known lifetimes get addresses.

The file is the comma-separated form public instances come in, one buffer a line under a line of names:

    id,lower,upper,size
    weights,0,4,2
    image,2,6,3

A buffer is alive from `lower` up to, and without, `upper`. The columns may stand in any order; `alignment`
(the address is a multiple of it) may be among them, `hint` and `offset` are passed over. The search is the
allocator of the scheduler (`docs/scheduling.md`, Allocation); every answer is validated, all pairs compared.
"""

from __future__ import annotations

import csv
import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow import _core
from tpuflow.errors import AllocationError, ShortfallError, UndecidedError
from tpuflow.io.files import write_text

if TYPE_CHECKING:
    from _csv import Reader
    from collections.abc import Sequence
    from os import PathLike

__all__ = [
    "STEPS",
    "Allocation",
    "InfeasibleError",
    "Instance",
    "UnknownFitError",
    "allocate",
    "read_instance",
    "write_allocation",
]

STEPS = 10_000_000
"""States the exact search examines at most, unless told otherwise."""
MOST = 2**60
"""All sizes and alignments together stay below this, and so do heights."""
COLUMNS = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "hint", "offset")


class InfeasibleError(AllocationError, ShortfallError):
    """No allocation fits, which is proved."""


class UnknownFitError(AllocationError, UndecidedError):
    """No allocation that fits was found, and it is not known if there is one."""


@dataclass(frozen=True)
class Instance:
    """Buffers to be placed, by line.

    Attributes:
        source: Where they come from, for messages.
        ids: Names, all different.
        lower: First point of time.
        upper: One past the last point of time.
        sizes: Units of memory.
        alignments: What the address is a multiple of.
    """

    source: str
    ids: Sequence[str]
    lower: Sequence[int]
    upper: Sequence[int]
    sizes: Sequence[int]
    alignments: Sequence[int]


@dataclass(frozen=True)
class Allocation:
    """Addresses, and how good they are.

    Attributes:
        offsets: By buffer.
        height: One past the highest unit used.
        bound: No allocation is lower.
        steps: States the exact search examined; 0 where a greedy order sufficed.
        seconds: Time it took.
    """

    offsets: Sequence[int]
    height: int
    bound: int
    steps: int
    seconds: float

    @property
    def gap(self) -> float:
        """How far the height is above the bound, as a share of the bound."""
        return self.height / self.bound - 1 if self.bound else 0.0


def read_instance(path: str | PathLike[str]) -> Instance:
    """Reads buffers from a comma-separated file.

    Raises:
        AllocationError: The file cannot be read, or a line of it is wrong; the message names the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise AllocationError(f"{path}: not a text file") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AllocationError(f"{path}: cannot be read: {reason}") from None
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        return _instance(str(path), lines)
    except csv.Error as error:
        raise AllocationError(f"{path}, line {lines.line_num}: {error}") from None


def _instance(source: str, lines: Reader) -> Instance:
    names = [name.strip().lower() for name in next(lines, [])]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise AllocationError(
            f"{source}, line 1: no column {', '.join(missing)}: the first line names the columns, "
            f"{','.join(COLUMNS)} and optionally {', '.join(OPTIONAL)}"
        )
    twice = [name for name in names if names.count(name) > 1]
    unknown = [name for name in names if name not in (*COLUMNS, *OPTIONAL)]
    if twice or unknown:
        reason = f"column {twice[0]} is there twice" if twice else f'column "{unknown[0]}" is unknown'
        raise AllocationError(f"{source}, line 1: {reason}")
    ids: dict[str, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    total = 0
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{source}, line {lines.line_num}"
        if len(cells) != len(names):
            raise AllocationError(f"{where}: {len(cells)} cells, {len(names)} columns")
        row = dict(zip(names, (cell.strip() for cell in cells), strict=True))
        if row["id"] in ids:
            raise AllocationError(f'{where}: buffer "{row["id"]}" was on line {ids[row["id"]]} already')
        lower, upper, size = (_number(where, row, name) for name in ("lower", "upper", "size"))
        alignment = _number(where, row, "alignment") if row.get("alignment") else 1
        if upper <= lower:
            raise AllocationError(f"{where}: upper {upper} must be greater than lower {lower}")
        if size < 0 or alignment < 1:
            reason = f"size {size} is negative" if size < 0 else f"alignment {alignment} must be at least 1"
            raise AllocationError(f"{where}: {reason}")
        total += size + alignment - 1
        if total >= MOST:
            raise AllocationError(f"{where}: all sizes and alignments together exceed {MOST}")
        ids[row["id"]] = lines.line_num
        rows.append((lower, upper, size, alignment))
    if not rows:
        raise AllocationError(f"{source}: no buffers")
    lowers, uppers, sizes, alignments = zip(*rows, strict=True)
    return Instance(source, tuple(ids), lowers, uppers, sizes, alignments)


def _number(where: str, row: dict[str, str], name: str) -> int:
    text = row[name]
    try:
        return int(text)
    except ValueError:
        raise AllocationError(f'{where}: {name} "{text}" is not a whole number') from None


def allocate(
    instance: Instance,
    *,
    capacity: int | None = None,
    steps: int = STEPS,
    time_limit: float | None = None,
    seed: int = 0,
) -> Allocation:
    """Places all buffers of an instance.

    Args:
        instance: The buffers.
        capacity: Stop at the first allocation that fits; None: as low as can be found.
        steps: States the exact search may examine. The same number gives the same answer.
        time_limit: Seconds after which the best found so far is taken.
        seed: Seed of the search's random preferences.

    Raises:
        InfeasibleError: There is no allocation within the capacity.
        UnknownFitError: None was found within the limits.
    """
    start = time.monotonic()
    end = float("inf") if time_limit is None else start + time_limit
    # Only the order of times matters.
    rank = {moment: place for place, moment in enumerate(sorted({*instance.lower, *instance.upper}))}
    items = [
        (rank[lower], rank[upper] - 1, size)
        for lower, upper, size in zip(instance.lower, instance.upper, instance.sizes, strict=True)
    ]
    enough = 0 if capacity is None else capacity
    offsets, bound, searched = _core.allocate(
        items,
        instance.alignments,
        enough=enough,
        steps=steps,
        seed=seed,
        go_on=lambda _: time.monotonic() < end,
    )
    height = max(offset + size for offset, size in zip(offsets, instance.sizes, strict=True))
    found = Allocation(offsets, height, bound, searched, time.monotonic() - start)
    fault = _core.check_allocation(items, instance.alignments, offsets, height)
    if fault is not None:
        raise AllocationError(f"{instance.source}: the validator refuses the allocation: {fault}")
    if capacity is not None and height > capacity:
        raise _too_high(instance.source, capacity, found)
    return found


def _too_high(source: str, capacity: int, found: Allocation) -> AllocationError:
    if found.bound > capacity:
        return InfeasibleError(
            f"{source}: does not fit in {capacity}: every allocation takes at least {found.bound}"
        )
    return UnknownFitError(
        f"{source}: no allocation within {capacity} found in {found.steps} steps and {found.seconds:.1f} s; "
        f"the best is {found.height} high, none is lower than {found.bound}: allow more steps or time"
    )


def write_allocation(path: str | PathLike[str], instance: Instance, found: Allocation) -> None:
    """Writes the buffers and their offsets in the form they are read in.

    Raises:
        FileError: The file cannot be written.
    """
    aligned = any(alignment != 1 for alignment in instance.alignments)
    columns: dict[str, Sequence[object]] = {
        "id": instance.ids,
        "lower": instance.lower,
        "upper": instance.upper,
        "size": instance.sizes,
    }
    if aligned:
        columns["alignment"] = instance.alignments
    columns["offset"] = found.offsets
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_text(Path(path), text.getvalue())
