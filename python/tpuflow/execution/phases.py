"""The cost of a decoder's phases: cycles and external memory of a run behind any number of tokens.

    cost = phase_cost("decode1_context256", program)
    cost.runs[-1].cycles, cost.runs[-1].traffic.cache

Weights are the constants of a program, the cache its states; all else that passes between external memory and
the machine are activations: inputs, outputs, and what the shared cache cannot hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuflow.errors import ProgramError
from tpuflow.execution.decoder import PhaseLevel
from tpuflow.execution.levels import program_level
from tpuflow.execution.simulation import simulate
from tpuflow.execution.transfers import ddr_access
from tpuflow.partitioning import Partitioned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuflow import _core
    from tpuflow.frontend import Phase
    from tpuflow.partitioning.storage import AnyProgram

__all__ = ["PhaseCost", "RunCost", "Traffic", "phase_cost"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Traffic:
    """Bytes between external memory and the machine in a run.

    Attributes:
        weights: Constants, packed or not.
        cache: Rows of the KV caches, read and written.
        activations: All else.
    """

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.activations


@dataclass(frozen=True)
class RunCost:
    """A run behind so many tokens.

    Attributes:
        position: Tokens before it.
        cycles: Cycles it takes.
        traffic: Bytes it moves.
    """

    position: int
    cycles: int
    traffic: Traffic


@dataclass(frozen=True)
class PhaseCost:
    """One phase of a decoder.

    Attributes:
        name: Name of the program.
        phase: Tokens a run takes, and how many attention sees.
        report: Figures of the last of the runs, as `simulate --json` has them.
        machine: The program's machine, as in its JSON form.
        runs: At positions from the first to the last, at least one.
        row_bytes: Bytes of all caches by position.
    """

    name: str
    phase: Phase
    report: Mapping[str, Any]
    machine: Mapping[str, Any]
    runs: tuple[RunCost, ...]
    row_bytes: int


def phase_cost(
    name: str, program: AnyProgram, points: int = 20, progress: Callable[[int, int], None] | None = None
) -> PhaseCost:
    """Simulates a program of a decoder for its cycles.

    Args:
        name: What to call it.
        program: The program.
        points: Positions at most, at even distances; a program that takes its caches has one alone.
        progress: Told after every run.

    Raises:
        ProgramError: The host computes part of the network.
        SampleError: The program is none of a decoder.
    """
    if isinstance(program, Partitioned):
        raise ProgramError(f'program "{name}": the host computes part of it, which takes no cycles')
    phase = PhaseLevel.of(program_level(program)).phase
    content = json.loads(program.to_json())
    weights, cached, others = _bytes_by_kind(program, content)
    last = program.last_position
    positions = (
        [phase.past] if last is None else sorted({last * at // max(1, points - 1) for at in range(points)})
    )
    runs, report = [], {}
    for done, position in enumerate(positions, 1):
        report = simulate(program if last is None else program.at(position), values=False).report
        memory = report["memory"]
        rest = memory["ddr_read_bytes"] + memory["ddr_write_bytes"] - weights - others
        runs.append(RunCost(position, report["cycles"], Traffic(weights, rest, others)))
        if progress is not None:
            progress(done, len(positions))
    row_bytes = sum(content["inputs"][state["input"]]["view"]["pixel_bytes"] for state in content["states"])
    assert runs[-1].traffic.cache == cached, "at the last position all rows of the past are read"
    return PhaseCost(name, phase, report, content["machine"], tuple(runs), row_bytes)


def _bytes_by_kind(program: _core.Program, content: Json) -> tuple[int, int, int]:
    """Bytes of weights, of caches behind the whole past, and of all else that the instructions move."""
    constants = [len(image) for image in program.constants()]
    caches = [_stretch(content, state) for state in content["states"]]
    found = [0, 0, 0]
    accesses = (ddr_access(instruction["work"]) for instruction in content["instructions"])
    for space, address, size in (access for access in accesses if access is not None):
        if address < constants[space]:
            found[0] += size
        elif any(space == own and first <= address < end for own, first, end in caches):
            found[1] += size
        else:
            found[2] += size
    return found[0], found[1], found[2]


def _stretch(content: Json, state: Json) -> tuple[int, int, int]:
    """Address space, first byte and end of a cache: the past, and the new rows behind it."""
    past, new = content["inputs"][state["input"]]["view"], content["outputs"][state["output"]]["view"]
    end = new["address"] + new["pixel_bytes"] * new["width"]
    return past["space"]["Ddr"], min(past["address"], new["address"]), end
