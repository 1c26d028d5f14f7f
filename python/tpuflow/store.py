"""Graphs and programs in files, and whether they are what they claim to be.

Reading proves that a file is whole and unaltered; `broken_rules` proves that a program obeys its machine and
computes its graph.
"""

from __future__ import annotations

from pathlib import Path

from tpuflow import _core
from tpuflow.errors import FileError, ProgramError

__all__ = ["broken_rules", "graph_beside", "load_graph", "load_program", "parse_program"]


def load_graph(path: Path) -> _core.Graph:
    """Reads a `.tpuq` file.

    Raises:
        FileError: It cannot be read, was cut or altered, or is of another version.
    """
    return _core.Graph.load(path)


def load_program(path: Path) -> _core.Program:
    """Reads a `.tpu` file.

    Raises:
        FileError: It cannot be read, was cut or altered, or is of another version.
    """
    return _core.Program.load(path)


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


def broken_rules(program: _core.Program, graph: _core.Graph | None) -> list[str]:
    """What is wrong with a program, in program order; nothing if it is sound.

    With its graph every value is followed through every instruction; without, only tokens, addresses and
    whether what is read was written are checked.
    """
    return _core.check(graph, program)
