"""From a quantised graph to a program for a machine.

The work is done by the scheduler of the extension module; this is where wrong requests are answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

from tpuflow import _core
from tpuflow.compiler.cache import compile_or_reuse
from tpuflow.compiler.machine import (
    Machine,
    machine_text,
    machine_toml,
    machines,
    note_unused,
    require_machine,
)
from tpuflow.compiler.schedule import Schedule
from tpuflow.errors import ProgramError
from tpuflow.partitioning import Partitioned

if TYPE_CHECKING:
    from os import PathLike

    from tpuflow.compiler.tiling import Tiling

__all__ = [
    "LEVELS", "compile", "machine_text", "machine_toml", "machines", "require_machine",
    "require_time",
]  # fmt: skip

LEVELS = (1, 5)
"""Optimisation levels: 1 runs one instruction at a time, 5 lets the units work in parallel."""


@overload
def compile(  # noqa: A001 - as below
    graph: _core.Graph,
    machine: str | PathLike[str] | Machine = "128x128_asic",
    level: int = 1,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
    cache: str | PathLike[str] | None = None,
) -> _core.Program: ...


@overload
def compile(  # noqa: A001 - as below
    graph: Partitioned[_core.Graph],
    machine: str | PathLike[str] | Machine = "128x128_asic",
    level: int = 1,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
    cache: str | PathLike[str] | None = None,
) -> Partitioned[_core.Program]: ...


def compile(  # noqa: A001 - the step's name; the built-in of that name is of no use here
    graph: _core.Graph | Partitioned[_core.Graph],
    machine: str | PathLike[str] | Machine = "128x128_asic",
    level: int = 1,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
    cache: str | PathLike[str] | None = None,
) -> _core.Program | Partitioned[_core.Program]:
    """Schedules a graph for a machine; of a network in segments every device segment.

    Every program is proven by the independent checker before it is returned.

    Args:
        graph: The quantised network, whole or in segments.
        machine: Name of a preset, path of a TOML file, or a machine.
        level: 1 or 5, see `LEVELS`.
        schedule: Decisions about the schedule, in place of those of the level.
        seed: Seed of the search of level 5; the same seed gives the same program.
        time_limit: Seconds for level 5 and its proof, of each device segment; None for no limit.
        strict: Refuse a program of a lower level than asked for, instead of noting it in `Program.fallback`.
        cache: Folder of programs compiled before, from which an equal request is answered once the checker
            has proven it anew; None: everything is compiled. With a time limit it is not used, since the
            program then depends on the computer as well.

    Returns:
        The program.

    Raises:
        MachineError: The machine is unknown or makes no sense, or a layer does not fit it.
        GraphError: The graph breaks an invariant.
        FileError: The folder of programs cannot be made or written.
        ProgramError: The level does not exist, with `strict` a lower one had to be taken, or a layer
            cannot be computed in such parts.
    """
    if level not in LEVELS:
        raise ProgramError(f"optimisation level {level} does not exist; choose 1 or 5")
    if seed < 0:
        raise ProgramError(f"seed {seed} is negative")
    require_time(time_limit)
    text = machine_text(machine)
    name = machine.name if isinstance(machine, Machine) else str(machine)
    note_unused(name, text)
    choices = schedule or Schedule()
    if choices.tiling and isinstance(graph, Partitioned):
        _fits_segments(choices.tiling, graph)
    if choices.pipeline and isinstance(graph, Partitioned):
        raise ProgramError(
            "inferences of a network in segments cannot overlap: the host computes between segments"
        )

    def schedule_part(part: _core.Graph) -> _core.Program:
        may = choices.parameters_json(level)
        parts = _tiling_json(choices.tiling, part if isinstance(graph, Partitioned) else None)

        def make() -> _core.Program:
            return _core.schedule(
                part,
                text,
                level,
                parameters_json=may,
                tiling_json=parts,
                seed=seed,
                time_limit=time_limit,
                origin=name,
                stream=choices.pipeline,
            )

        if cache is None or time_limit is not None:
            program = make()
        else:
            program = compile_or_reuse(
                Path(cache), part, text, level, (may, parts, seed, choices.pipeline), make
            )
        if strict and program.fallback is not None:
            raise ProgramError(f"level {level} fell back to a lower one: {program.fallback}")
        return program

    return graph.map(schedule_part) if isinstance(graph, Partitioned) else schedule_part(graph)


def _fits_segments(tiling: Tiling, graph: Partitioned[_core.Graph]) -> None:
    """Parts that can be told where the host shares in: slices of layers by name."""
    if tiling.runs:
        raise ProgramError(
            f"layers {tiling.runs[0][0]} to {tiling.runs[0][1]} are to be computed in parts, but the network "
            "is in segments, in which layers are not numbered through: slice them by name"
        )
    names = {layer.name for segment in graph.device for layer in segment.network.layers}
    for name in tiling.slices:
        if name not in names:
            raise ProgramError(f'layer "{name}" is to be sliced but does not exist')


def _tiling_json(tiling: Tiling | None, segment: _core.Graph | None) -> str | None:
    """The tiling for a whole network, or for one segment of several."""
    if not tiling:
        return None
    own = tiling if segment is None else tiling.only([layer.name for layer in segment.layers])
    return own.to_json()


def require_time(limit: float | None) -> None:
    """Refuses a time limit that leaves no time.

    Raises:
        ProgramError: It is not a positive number.
    """
    if limit is not None and not limit > 0:
        raise ProgramError(f"time limit {limit} is not a positive number of seconds")
