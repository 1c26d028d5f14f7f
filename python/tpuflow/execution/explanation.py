"""Why a program takes as long as it does: what held every layer up, and what would help.

    found = explain(program)
    found.changes[0]        # the change of the machine that saves most, measured on the same program

Nothing is guessed. Who waited for whom follows from the trace of a run: a unit that is free while its next
instruction waits for a token waits for whoever gives it. What a change of the machine would save is measured:
the same instructions run once more on a machine with that change, for their cycles alone; with the graph at
hand, also programs made for larger memories and by other settings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.parameters import O1, O5
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.program import machine_toml
from tpuflow.compiler.schedule import Schedule
from tpuflow.compiler.units import UNITS
from tpuflow.errors import MachineError, ProgramError
from tpuflow.execution.simulation import simulate

if TYPE_CHECKING:
    from tpuflow import _core

__all__ = ["Change", "Explanation", "LayerExplanation", "Wait", "explain"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Wait:
    """Cycles in which a unit that worked for a layer waited for tokens of somebody.

    Attributes:
        cycles: How many.
        unit: Whose token came last.
        layer: The layer that unit worked for.
    """

    cycles: int
    unit: str
    layer: str


@dataclass(frozen=True)
class LayerExplanation:
    """The limits of a layer.

    Attributes:
        name: Its name.
        op: Its operator.
        unit: The unit that computes it.
        start: First cycle of its instructions.
        end: One past their last.
        holds: Cycles by which the network is done later for it: how far its end lies behind the ends of all
            layers that end before. Those of all layers add up to the cycles of the network.
        busy: Cycles its unit works for it.
        bound: The least cycles any program could spend on it, counted alone.
        binding: What that bound is of.
        waits: For whom its unit waited, longest first.
        startup: Cycles in which its unit, free and with all tokens, did not work yet.
        held: Cycles in which its unit, at work for it, was held up by banks, memory or weights still to come.
        helps: The change that saves the most of `holds`, and how much; None if none saves any.
    """

    name: str
    op: str
    unit: str
    start: int
    end: int
    holds: int
    busy: int
    bound: int
    binding: str
    waits: tuple[Wait, ...]
    startup: int
    held: int
    helps: tuple[str, int] | None = None


@dataclass(frozen=True)
class Change:
    """A change, and what it would save.

    Attributes:
        what: The change.
        rebuilt: Whether the program was made anew for it; else the same instructions ran.
        cycles: Of the whole network with it.
        saved: Cycles less than without; negative: more.
    """

    what: str
    rebuilt: bool
    cycles: int
    saved: int


@dataclass(frozen=True)
class Explanation:
    """A program explained.

    Attributes:
        program: Its name.
        machine: Its machine.
        level: Its level.
        cycles: Of a run.
        bound: The largest lower bound.
        binding: Which it is.
        gap: How far the cycles lie above it, as a share.
        stalls: Idle cycles of all units by cause.
        conflicts: Cycles lost at banks by who lost them.
        layers: By number.
        changes: What was tried, the most helpful first.
    """

    program: str
    machine: str
    level: int
    cycles: int
    bound: int
    binding: str
    gap: float
    stalls: dict[str, int]
    conflicts: dict[str, int]
    layers: tuple[LayerExplanation, ...]
    changes: tuple[Change, ...]

    def to_json(self) -> Json:
        """Everything as plain values."""
        return asdict(self)


def explain(program: _core.Program, graph: _core.Graph | None = None) -> Explanation:
    """Explains a program.

    Args:
        program: The program.
        graph: What it computes: programs for twice the cache and by other settings are made and measured.

    Raises:
        ProgramError: The program breaks a rule of the machine.
    """
    content = json.loads(program.to_json())
    run = simulate(program, values=False, trace=True)
    report = run.report
    explanations = _explanations(content, report, run.intervals or [])
    machine = content["machine"]
    changes = []
    best: dict[int, tuple[str, int]] = {}
    for what, changed in _variants(machine):
        other = _rerun(program, changed)
        if other is None:
            continue
        changes.append(
            Change(what, rebuilt=False, cycles=other["cycles"], saved=report["cycles"] - other["cycles"])
        )
        for number, (layer, holds) in enumerate(zip(explanations, _holds(other["layers"]), strict=True)):
            saved = layer.holds - holds
            if saved > best.get(number, ("", 0))[1]:
                best[number] = (what, saved)
    changes += [] if graph is None else _rebuilt(graph, content, report["cycles"])
    return Explanation(
        program=report["program"],
        machine=report["machine"],
        level=report["level"],
        cycles=report["cycles"],
        bound=report["bound"],
        binding=report["binding"],
        gap=report["gap"],
        stalls=dict(report["stalls"]),
        conflicts=_conflicts(report),
        layers=tuple(replace(layer, helps=best.get(number)) for number, layer in enumerate(explanations)),
        changes=tuple(sorted(changes, key=lambda change: -change.saved)),
    )


def _explanations(content: Json, report: Json, intervals: Sequence[Json]) -> list[LayerExplanation]:
    """Every layer with what its unit waited for."""
    waits: list[Counter[tuple[str, int]]] = [Counter() for _ in content["layers"]]
    startup, execution = Counter[int](), Counter[int]()
    for layer, unit, cycles, cause in _idle(content["instructions"], intervals):
        if unit != report["layers"][layer]["unit"]:
            continue
        if cause is None:
            startup[layer] += cycles
        else:
            waits[layer][cause] += cycles
    for interval in intervals:
        if interval["phase"] == "execute" and interval["unit"] == report["layers"][interval["layer"]]["unit"]:
            execution[interval["layer"]] += interval["end"] - interval["start"]
    names = [layer["name"] for layer in content["layers"]]
    explanations = []
    for number, (layer, holds) in enumerate(zip(report["layers"], _holds(report["layers"]), strict=True)):
        found = tuple(
            Wait(cycles, unit, names[other])
            for (unit, other), cycles in waits[number].most_common()
            if cycles
        )
        explanations.append(
            LayerExplanation(
                name=layer["name"],
                op=layer["op"],
                unit=layer["unit"],
                start=layer["start"],
                end=layer["end"],
                holds=holds,
                busy=layer["busy"],
                bound=layer["bound"],
                binding=layer["binding"],
                waits=found,
                startup=startup[number],
                held=max(0, execution[number] - layer["busy"]),
            )
        )
    return explanations


def _idle(
    instructions: Sequence[Json], intervals: Sequence[Json]
) -> Iterator[tuple[int, str, int, tuple[str, int] | None]]:
    """Every time a unit was free before an instruction: its layer, unit, cycles, and for whom it waited.

    That is unit and layer of the instruction whose token came last; None: for nobody.
    """
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    done: dict[int, int] = {}
    for interval in intervals:
        number = interval["instruction"]
        done[number] = max(interval["end"], done.get(number, 0))
        if interval["phase"] == "execute":
            begins[number] = min(interval["start"], begins.get(number, interval["start"]))
            ends[number] = max(interval["end"], ends.get(number, 0))
    of_unit: dict[str, list[int]] = {}
    free: dict[str, int] = {}
    for number, instruction in enumerate(instructions):
        unit = instruction["unit"]
        producers = [of_unit[wait["unit"]][wait["count"] - 1] for wait in instruction["waits"]]
        of_unit.setdefault(unit, []).append(number)
        if number not in begins:
            continue
        since, begin = free.get(unit, 0), begins[number]
        free[unit] = max(since, ends[number])
        if begin <= since:
            continue
        late = max(producers, key=lambda producer: done.get(producer, 0), default=None)
        ready = min(begin, max(since, 0 if late is None else done.get(late, 0)))
        if late is not None and ready > since:
            yield (
                instruction["layer"],
                unit,
                ready - since,
                (instructions[late]["unit"], instructions[late]["layer"]),
            )
        if begin > ready:
            yield instruction["layer"], unit, begin - ready, None


def _holds(layers: Sequence[Json]) -> list[int]:
    """By layer, how far its end lies behind the ends of all that end before."""
    holds, latest = [0] * len(layers), 0
    for number in sorted(range(len(layers)), key=lambda number: (layers[number]["end"], number)):
        holds[number] = layers[number]["end"] - latest
        latest = layers[number]["end"]
    return holds


def _conflicts(report: Json) -> dict[str, int]:
    """Cycles lost at banks by unit."""
    units = zip((unit.name for unit in UNITS), report["counters"]["units"], strict=True)
    return {unit: counters["stalls"]["bank_conflict"] for unit, counters in units}


def _machine_with(machine: Json, section: str, key: str, change: Callable[[Any], Any]) -> Json:
    return machine | {section: machine[section] | {key: change(machine[section][key])}}


def _variants(machine: Json) -> Iterator[tuple[str, Json]]:
    """Machines that run the same program, each with one thing better."""

    def twice(value: int) -> int:
        return 2 * value

    def nothing(_: Any) -> int:
        return 0

    yield "twice the DDR bandwidth", _machine_with(machine, "ddr", "clock_hz", twice)
    yield "DDR pages that open at once", _machine_with(machine, "ddr", "page_miss_ns", nothing)
    quick = _machine_with(_machine_with(machine, "dma", "start", nothing), "dma", "latency", nothing)
    yield "transfers that start at once", quick
    yield "twice the lanes of the elementwise unit", _machine_with(machine, "ewp", "lanes", twice)
    yield "twice the taps of the pooling unit", _machine_with(machine, "pdp", "taps", twice)
    for unit, name in (("ewp", "elementwise"), ("pdp", "pooling")):
        quick = _machine_with(_machine_with(machine, unit, "start", nothing), unit, "latency", nothing)
        yield f"no start-up of the {name} unit", quick
    yield (
        "twice the words a cycle for the rows of the array",
        _machine_with(machine, "feeder", "words", twice),
    )


def _rerun(program: _core.Program, machine: Mapping[str, Any]) -> Json | None:
    """Figures of the same instructions on another machine; None where there is no such machine."""
    try:
        other = program.on_machine(machine_toml(machine))
    except (MachineError, ProgramError):
        return None
    return simulate(other, values=False).report


def _rebuilt(graph: _core.Graph, content: Json, cycles: int) -> list[Change]:
    """Programs made anew: for twice the cache, and by other settings."""
    machine, level = content["machine"], content["level"]
    own = O5 if level == 5 else O1
    larger = _machine_with(machine, "cache", "banks", lambda banks: 2 * banks)
    finer = replace(
        own, slicer=replace(own.slicer, max_cache_utilization=own.slicer.max_cache_utilization / 2)
    )
    wider = replace(own, slicer=replace(own.slicer, spatial_limit=own.slicer.spatial_limit + 1))
    tried = [
        ("twice the cache", larger, own),
        ("pieces of half the size", machine, finer),
        ("more pieces", machine, wider),
        ("layers one after the other" if own.layer_fusion else "layers side by side", machine,
         replace(own, layer_fusion=0 if own.layer_fusion else -1)),
        ("level 5" if own is O1 else "level 1", machine, O5 if own is O1 else O1),
    ]  # fmt: skip
    changes = []
    for what, on, parameters in tried:
        try:
            found = simulate(_compile_figures(graph, on, level, parameters), values=False).report["cycles"]
        except MachineError:
            continue
        changes.append(Change(what, rebuilt=True, cycles=found, saved=cycles - found))
    return changes


def _compile_figures(graph: _core.Graph, machine: Json, level: int, parameters: Any) -> _core.Program:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(machine_toml(machine), encoding="utf-8")
        return compile_graph(graph, path, level, schedule=Schedule(parameters))
