"""The timeline of units: the intervals of a run joined with the instructions of its program.

A run says from which cycle to which an instruction was issued, executed and drained; the program says what
the instruction is and which stretch of the cache each tensor has from which instruction to which. Together
they are a chart over time, which the page and the Perfetto trace draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpuflow.execution.transfers import ddr_access

__all__ = ["Allocation", "Slice", "Timeline", "describe", "timeline", "timeline_of_all"]

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Slice:
    """Part of an instruction's life.

    Attributes:
        unit: Who executes it.
        instruction: Its position in the program.
        layer: Number of the layer it works for.
        start: First cycle.
        end: One past the last cycle.
        phase: issue, execute or drain.
        text: What the instruction does.
        moved: Bytes moved from (positive) or to (negative) DDR; 0 for computing units and other phases.
    """

    unit: str
    instruction: int
    layer: int
    start: int
    end: int
    phase: str
    text: str
    moved: int


@dataclass(frozen=True)
class Allocation:
    """A stretch of the shared cache that belongs to a tensor from cycle `start` to cycle `end`."""

    name: str
    address: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Everything over time.

    Attributes:
        slices: In the order of the run.
        allocations: In the order of the program.
        layers: Names of the layers by number.
        flows: Numbers of two executing slices, of which the second waited for the token of the first.
    """

    slices: Sequence[Slice]
    allocations: Sequence[Allocation]
    layers: Sequence[str]
    flows: Sequence[tuple[int, int]] = ()


def timeline(program: Json, intervals: Iterable[Json]) -> Timeline:
    """Joins a program's JSON form with the intervals of its run."""
    instructions = program["instructions"]
    texts: dict[int, str] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    executing: dict[int, int] = {}
    slices: list[Slice] = []
    for interval in intervals:
        number = interval["instruction"]
        instruction = instructions[number]
        if number not in texts:
            texts[number] = describe(instruction["work"])
        first[number] = min(interval["start"], first.get(number, interval["start"]))
        last[number] = max(interval["end"], last.get(number, interval["end"]))
        executes = interval["phase"] == "execute"
        if executes:
            executing[number] = len(slices)
        slices.append(
            Slice(
                interval["unit"],
                number,
                interval["layer"],
                interval["start"],
                interval["end"],
                interval["phase"],
                texts[number],
                _moved_bytes(instruction["work"]) if executes else 0,
            )
        )
    allocations = [
        Allocation(
            entry["name"], entry["address"], entry["bytes"], first[entry["first"]], last[entry["last"]]
        )
        for entry in program["allocations"]
        if entry["first"] in first and entry["last"] in last
    ]
    flows = [
        (executing[producer], executing[consumer])
        for producer, consumer in _waits(instructions)
        if producer in executing and consumer in executing
    ]
    return Timeline(slices, allocations, [layer["name"] for layer in program["layers"]], flows)


def _waits(instructions: Sequence[Json]) -> Iterator[tuple[int, int]]:
    """Numbers of the instruction whose token is waited for, and of the one that waits.

    A wait for `count` tokens of a unit is over when its `count`-th instruction has finished.
    """
    of_unit: dict[str, list[int]] = {}
    for number, instruction in enumerate(instructions):
        for wait in instruction["waits"]:
            yield of_unit[wait["unit"]][wait["count"] - 1], number
        of_unit.setdefault(instruction["unit"], []).append(number)


def timeline_of_all(programs: Sequence[Json], intervals: Sequence[Json]) -> Timeline:
    """As `timeline`, of programs that run in turn: an interval's `segment` is its program's number."""
    slices: list[Slice] = []
    allocations: list[Allocation] = []
    layers: list[str] = []
    flows: list[tuple[int, int]] = []
    for number, program in enumerate(programs):
        own = timeline(program, [part for part in intervals if part.get("segment", 0) == number])
        flows += [(producer + len(slices), consumer + len(slices)) for producer, consumer in own.flows]
        slices += [replace(part, layer=part.layer + len(layers)) for part in own.slices]
        allocations += own.allocations
        layers += own.layers
    return Timeline(slices, allocations, layers, flows)


def describe(work: Json) -> str:
    """An instruction's work in a few words: `load 16,384 bytes of DDR0`."""
    ((kind, content),) = work.items()
    if kind == "Transfer":
        size = content["bytes"] * content["counts"][0] * content["counts"][1]
        way = "of" if content["direction"] == "load" else "to"
        return f"{content['direction']} {size:,} bytes {way} DDR{content['ddr_space']}"
    if kind == "Expand":
        return (
            f"expand {content['rows']:,} rows of {content['row_bytes']:,} bytes of DDR{content['ddr_space']}"
        )
    if kind == "Lookup":
        return f"look up {content['count']:,} rows"
    if kind == "PackedLookup":
        return f"look up {content['count']:,} {'entries' if content['columns'] is None else 'columns'}"
    if kind == "Matrix":
        return f"{content['pixels']:,} pixels, {content['columns']} channels from {content['first_column']}"
    if kind == "Pool":
        return f"pool {content['rows']:,} rows from {content['first_row']}"
    return f"{content['rows']:,} rows from {content['first_row']}"


def _moved_bytes(work: Json) -> int:
    """Bytes loaded from external memory, of a store negative."""
    access = ddr_access(work)
    if access is None:
        return 0
    is_store = "Transfer" in work and work["Transfer"]["direction"] == "store"
    return -access[2] if is_store else access[2]
