"""Programs kept in a folder, found again by all they follow from.

A program follows from its graph, its machine, the parameters of its schedule and this build of the package.
An entry is a `.tpu` file whose name is the SHA-256 of these, so that anything that changes leads to another
name.

Nothing in the folder is trusted: files may be damaged, exchanged or of somebody else. An entry is taken only
if it is for the machine and level that are asked for and the checker proves that it computes the graph. Any
other is compiled anew and replaced. Entries are complete or absent, also where several processes share the
folder; deleting any of them costs time alone.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.errors import TpuflowError
from tpuflow.io.files import make_folder, replace_atomically, temporary_folder
from tpuflow.io.journal import content_digest, package_digest
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import broken_rules, load_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuflow import _core

__all__ = ["compile_or_reuse"]

logger = logging.getLogger(__name__)


def compile_or_reuse(
    folder: Path,
    graph: _core.Graph,
    machine_toml: str,
    level: int,
    details: tuple[str | int | None, ...],
    make: Callable[[], _core.Program],
) -> _core.Program:
    """The program of a graph out of a folder, where it is put if it is not there.

    Args:
        folder: Where entries lie; made if it is missing.
        graph: The quantised network.
        machine_toml: Text of the machine.
        level: Optimisation level.
        details: Everything else the program follows from.
        make: Compiles it.

    Raises:
        FileError: The folder cannot be made or written.
    """
    make_folder(folder)
    path = folder / f"{_key(graph, machine_toml, level, details)}.tpu"
    found = _entry(path, graph, machine_toml, level)
    if found is not None:
        logger.info("%s: taken from %s", found.name, path)
        return found
    program = make()
    with replace_atomically(path) as staged:
        program.save(staged)
    return program


def _key(graph: _core.Graph, machine_toml: str, level: int, details: tuple[str | int | None, ...]) -> str:
    with temporary_folder() as scratch:
        file = Path(scratch) / "graph.tpuq"
        graph.save(file)
        parts = (package_digest(), content_digest(file), machine_toml, level, details)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _entry(path: Path, graph: _core.Graph, machine_toml: str, level: int) -> _core.Program | None:
    """The program in a file; None if there is none, or none that is proven to be what is asked for."""
    if not path.exists():
        return None
    try:
        program = load_program(path)
        wrong = broken_rules(program, graph)
        if not wrong and not isinstance(program, Partitioned):
            if program.level == level and not program.is_raw and _is_for(program, machine_toml):
                return program
            wrong = ["it is for another machine or level"]
    except TpuflowError as error:
        wrong = [str(error)]
    logger.warning("%s: compiled anew, its entry is not used: %s", path, wrong[0])
    return None


def _is_for(program: _core.Program, machine_toml: str) -> bool:
    return program.on_machine(machine_toml).metadata() == program.metadata()
