"""Graphs and programs in files, and whether they are what they claim to be.

Reading proves that a file is whole and unaltered; `broken_rules` proves that a program obeys its machine and
computes its graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias, TypeGuard

from tpuflow import _core
from tpuflow.errors import FileError, ProgramError
from tpuflow.io.files import require_listed
from tpuflow.io.files.digests import SUFFIX
from tpuflow.partitioning import Partitioned, container, device_networks

__all__ = [
    "AnyGraph", "AnyProgram", "broken_rules", "graph_beside", "is_program", "limit_memory", "load_graph",
    "load_program", "parse_program", "require_pair",
]  # fmt: skip

AnyGraph: TypeAlias = _core.Graph | Partitioned[_core.Graph]
AnyProgram: TypeAlias = _core.Program | Partitioned[_core.Program]
"""Whole, or in segments of device and host."""


def limit_memory(size: int) -> None:
    """Refuses what asks for more bytes from now on; 0: more than the computer had free."""
    _core.set_memory_limit(size)


def load_graph(path: Path) -> AnyGraph:
    """Reads a `.tpuq` file.

    Raises:
        FileError: It cannot be read, was cut or altered, or is of another version.
    """
    return container.load(path, _core.Graph.load) if container.is_container(path) else _core.Graph.load(path)


def load_program(path: Path) -> AnyProgram:
    """Reads a `.tpu` file.

    Raises:
        FileError: It cannot be read, was cut or altered, or is of another version.
    """
    return (
        container.load(path, _core.Program.load) if container.is_container(path) else _core.Program.load(path)
    )


def is_program(network: AnyGraph | AnyProgram) -> TypeGuard[AnyProgram]:
    """Tells a program, whole or in segments, from a graph."""
    return all(isinstance(part, _core.Program) for part in device_networks(network))


def parse_program(path: Path) -> _core.Program:
    """Reads a `.tpuasm` file.

    Raises:
        FileError: It cannot be read.
        ProgramError: It is not the text of a program; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: not the text of a program: not UTF-8") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    try:
        return _core.Program.from_text(text)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None


def graph_beside(path: Path) -> Path:
    """Where `tpuflow build` puts the graph of a program."""
    return path.with_suffix(".tpuq")


def require_pair(program: Path, graph: Path) -> None:
    """Makes sure that a program and the graph beside it are of one build, where the build's digests tell.

    Raises:
        FileError: They are not; a build that was killed between its files leaves such a pair.
    """
    listing = program.with_suffix(SUFFIX)
    if graph.is_file() and graph.parent == program.parent:
        remedy = f"build {program.name} again, or remove {listing.name} if they belong together"
        require_listed(listing, (program, graph), remedy)


def broken_rules(program: AnyProgram, graph: AnyGraph | None) -> list[str]:
    """The rules that a program breaks, in program order.

    With its graph every value is followed through every instruction; without, only tokens, addresses and
    whether what is read was written are checked. Of a network in segments every program is checked against
    the graph of its segment, and that all else is the same in both.
    """
    if not isinstance(program, Partitioned) and not isinstance(graph, Partitioned):
        return _core.check(graph, program)
    if not isinstance(program, Partitioned) or not isinstance(graph, Partitioned | None):
        return ["one is in segments of device and host, the other is not"]
    if graph is not None and graph.map(lambda _: None) != program.map(lambda _: None):
        return ["its segments, or the host's parts, are not those of the graph"]
    graphs = [None] * len(program.device) if graph is None else [part.network for part in graph.device]
    return [
        f"{part.name}: {rule}"
        for part, own in zip(program.device, graphs, strict=True)
        for rule in _core.check(own, part.network)
    ]
