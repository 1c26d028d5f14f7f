"""From a quantised graph to a program for a machine.

The work is done by the scheduler of the extension module; this is where a machine's name or file becomes its
parameters and where wrong requests are answered.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tpuflow import _core
from tpuflow.errors import MachineError, ProgramError
from tpuflow.files import parse_toml, read_text
from tpuflow.partition import Partitioned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from tpuflow.parameters import CompileParameters
    from tpuflow.tiling import Tiling

__all__ = ["LEVELS", "compile", "machine_text", "machine_toml", "machines", "require_machine"]

logger = logging.getLogger(__name__)

LEVELS = (1, 5)
"""Optimisation levels: 1 runs one instruction at a time, 5 lets the units work in parallel."""

UNUSED = ("array.parameter_tiles",)
"""Fields of older machine files that no law of the machine uses: read, and without effect."""


def machines() -> list[str]:
    """Names of the machines that come with the package, the default first."""
    return _core.machine_presets()


def machine_text(machine: str | PathLike[str]) -> str:
    """The parameters of a machine as TOML text.

    Args:
        machine: Name of a preset, or path of a TOML file.

    Returns:
        The text, comments included. It is not checked here.

    Raises:
        MachineError: Neither a preset nor a readable file; the message lists the presets.
    """
    presets = machines()
    if machine in presets:
        return _core.machine_text(str(machine))
    path = Path(machine)
    if not path.is_file():
        raise MachineError(f'machine "{machine}" is unknown: give a TOML file or one of {", ".join(presets)}')
    return read_text(path, MachineError)


def machine_toml(machine: Mapping[str, Any]) -> str:
    """The TOML text of a machine given as nested values, such as a program's metadata hold."""
    lines: list[str] = []

    def write(table: Mapping[str, Any], prefix: str) -> None:
        if prefix:
            lines.append(f"[{prefix}]")
        lines.extend(f"{key} = {_toml(value)}" for key, value in table.items() if not isinstance(value, dict))
        for key, value in table.items():
            if isinstance(value, dict):
                write(value, f"{prefix}.{key}" if prefix else key)

    write(machine, "")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Numbers, texts, truth values and lists of them, which TOML writes as JSON does.

    But for characters beyond the basic plane, of which JSON escapes each half, and the one control character
    that JSON does not escape.
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_machine(program: _core.Program, machine: str | PathLike[str]) -> None:
    """Makes sure that a program was made for a machine, whose parameters must all be the same.

    Args:
        program: The program.
        machine: Name of a preset, or path of a TOML file.

    Raises:
        MachineError: The machine is unknown, or not the program's; the message names a parameter.
    """
    text = machine_text(machine)
    wanted = _flat(parse_toml(text, str(machine), MachineError))
    own = _flat(json.loads(program.metadata())["machine"])
    for key in sorted((own.keys() | wanted.keys()) - set(UNUSED)):
        if own.get(key) != wanted.get(key):
            values = f"{key} is {own.get(key)}, not {wanted.get(key)}"
            raise MachineError(f"made for machine {own['name']}, not for {machine}: {values}")


@cache
def _note_unused(machine: str, text: str) -> None:
    """Says once of a machine file which of its fields have no effect."""
    try:
        stated = _flat(parse_toml(text, machine, MachineError)).keys() & set(UNUSED)
    except MachineError:
        return  # the extension says it, with the line
    for field in sorted(stated):
        logger.warning("%s: %s has no effect any more; delete it", machine, field)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@overload
def compile(  # noqa: A001 - as below
    graph: _core.Graph,
    machine: str | PathLike[str] = "128x128_asic",
    level: int = 1,
    *,
    parameters: CompileParameters | None = None,
    tiling: Tiling | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
) -> _core.Program: ...


@overload
def compile(  # noqa: A001 - as below
    graph: Partitioned[_core.Graph],
    machine: str | PathLike[str] = "128x128_asic",
    level: int = 1,
    *,
    parameters: CompileParameters | None = None,
    tiling: Tiling | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
) -> Partitioned[_core.Program]: ...


def compile(  # noqa: A001 - the step's name; the built-in of that name is of no use here
    graph: _core.Graph | Partitioned[_core.Graph],
    machine: str | PathLike[str] = "128x128_asic",
    level: int = 1,
    *,
    parameters: CompileParameters | None = None,
    tiling: Tiling | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    strict: bool = False,
) -> _core.Program | Partitioned[_core.Program]:
    """Schedules a graph for a machine; of a network in segments every device segment.

    Every program is proven by the independent checker before it is returned.

    Args:
        graph: The quantised network, whole or in segments.
        machine: Name of a preset, or path of a TOML file.
        level: 1 or 5, see `LEVELS`.
        parameters: What the schedule may do, in place of what the level allows.
        tiling: What to compute in parts.
        seed: Seed of the search of level 5; the same seed gives the same program.
        time_limit: Seconds after which the search of level 5 stops with the best found; None for no limit.
        strict: Refuse a program of a lower level than asked for, instead of noting it in `Program.fallback`.

    Returns:
        The program.

    Raises:
        MachineError: The machine is unknown or makes no sense, or a layer does not fit it.
        GraphError: The graph breaks an invariant.
        ProgramError: The level does not exist, with `strict` a lower one had to be taken, or a layer
            cannot be computed in such parts.
    """
    if level not in LEVELS:
        raise ProgramError(f"optimisation level {level} does not exist; choose 1 or 5")
    if seed < 0:
        raise ProgramError(f"seed {seed} is negative")
    if time_limit is not None and not time_limit > 0:
        raise ProgramError(f"time limit {time_limit} is not a positive number of seconds")
    text = machine_text(machine)
    _note_unused(str(machine), text)
    if tiling and isinstance(graph, Partitioned):
        _fits_segments(tiling, graph)

    def scheduled(part: _core.Graph) -> _core.Program:
        program = _core.schedule(
            part,
            text,
            level,
            parameters_json=None if parameters is None else parameters.to_json(),
            tiling_json=_tiling_json(tiling, part if isinstance(graph, Partitioned) else None),
            seed=seed,
            time_limit=time_limit,
            origin=str(machine),
        )
        if strict and program.fallback is not None:
            raise ProgramError(f"level {level} fell back to a lower one: {program.fallback}")
        return program

    return graph.map(scheduled) if isinstance(graph, Partitioned) else scheduled(graph)


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
