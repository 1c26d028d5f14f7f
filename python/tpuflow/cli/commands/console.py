"""The terminal: where commands write, and how tables look; `progress.py` shows how far long work is.

Results go to standard output, progress to standard error, so that output can be piped.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TextIO

from tpuflow.io.memory import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = [
    "Color", "Column", "PrintableFormatter", "be_verbose", "bytes_text", "colored", "emit", "heading", "note",
    "printable", "reset", "results", "say", "say_host", "settings", "table", "write_figures",
]  # fmt: skip

Column = tuple[str, Literal["left", "right"]]
"""A table's column: its name, and where its cells are aligned."""

FORMAT = 2
"""Of the figures in JSON. Keys of format 1 stand beside those that replace them."""

# What terminals act upon, or what reorders the text around it: controls but for the end of a line and tabs,
# marks of direction, separators of lines and paragraphs, halves of characters.
CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with escapes for control characters: names in files must not command the terminal."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PrintableFormatter(logging.Formatter):
    """Messages of the log as the terminal may show them."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return printable(super().format(record))


class Color(StrEnum):
    """When output has colors, and progress is redrawn."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass
class Settings:
    """Settings by the options that all commands have.

    Attributes:
        quiet: Nothing but errors is printed, and what a command was asked to write to standard output.
        verbose: More is printed the larger it is.
        color: When to use colors and redraw lines.
        figures: Figures go to standard output, so that all other results go to standard error.
    """

    quiet: bool = False
    verbose: int = 0
    color: Color = Color.auto
    figures: bool = False


settings = Settings()


def reset() -> None:
    """Sets everything back to how a process starts."""
    vars(settings).update(vars(Settings()))


def be_verbose(level: int) -> None:
    """Shows more: messages of this package's log from 1 on, those of libraries from 2 on."""
    settings.verbose = level
    logging.getLogger("tpuflow").setLevel(logging.INFO if level == 1 else logging.DEBUG)
    if level > 1:
        logging.getLogger().setLevel(logging.INFO)


def colored(stream: TextIO) -> bool:
    """Whether a stream gets colors and is redrawn."""
    if settings.color is not Color.auto:
        return settings.color is Color.always
    return stream.isatty() and "NO_COLOR" not in os.environ


def results() -> TextIO:
    """The stream of results for people."""
    return sys.stderr if settings.figures else sys.stdout


def say(text: str = "") -> None:
    """A line of the result."""
    if not settings.quiet:
        results().write(printable(text) + "\n")


def emit(text: str) -> None:
    """Writes what a command was asked to write to standard output, as it is."""
    sys.stdout.write(text)


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    sys.stderr.write(printable(text) + "\n")


def write_figures(path: Path | None, content: Mapping[str, Any]) -> None:
    """Writes the figures of a command as JSON, where they were asked for; `-` is standard output."""
    if path is None:
        return
    from tpuflow.io.files import json_text, write_text

    text = json_text({"format": FORMAT} | _named_bounds(content))
    if str(path) == "-":
        emit(text)
    else:
        write_text(path, text)


def say_host(network: AnyGraph | AnyProgram) -> None:
    """A line for every part of a network that the host computes: its size and why it is there."""
    from tpuflow.partitioning import Partitioned

    if isinstance(network, Partitioned):
        for part in network.host:
            nodes = f"{len(part.nodes):,} node{'s' if len(part.nodes) > 1 else ''}"
            say(f"{part.name:<10} {nodes} run on the host: {part.reason}")


def _named_bounds(content: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run with its bounds under their names, too."""
    bounds = content.get("bounds")
    if not isinstance(bounds, dict):
        return dict(content)
    from tpuflow.report.words import BOUND_KEYS, BOUND_NAMES

    named = {BOUND_KEYS[key]: cycles for key, cycles in bounds.items()}
    name = BOUND_NAMES.get(content.get("binding", ""))
    return {**content, "bounds": {**named, **bounds}, "binding_name": name}


def heading(text: str) -> None:
    """The first line of a block of output, after an empty one."""
    say()
    if not settings.quiet:
        text = printable(text)
        stream = results()
        stream.write((f"\x1b[1m{text}\x1b[0m" if colored(stream) else text) + "\n")


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[object]],
) -> None:
    """Prints rows under their column names, every cell in full.

    On a terminal long cells are continued on the next line; in a file or pipe a row is one line.

    Args:
        columns: Name and side of each column.
        rows: Cells; shown as `str` shows them.
    """
    if settings.quiet:
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = results()
    terminal = stream.isatty()
    console = Console(
        file=stream,
        highlight=False,
        force_terminal=colored(stream),
        width=None if terminal else _width(columns, rows),
    )
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, side in columns:
        shown.add_column(name, justify=side, no_wrap=side == "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    if terminal:
        console.print(shown)
        return
    with console.capture() as printed:
        console.print(shown)
    stream.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def _width(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> int:
    """Columns of text that hold every row on one line."""
    from rich.cells import cell_len

    texts = [[name for name, _ in columns], *([printable(str(cell)) for cell in row] for row in rows)]
    widths = (
        max(cell_len(line) for text in column for line in text.split("\n"))
        for column in zip(*texts, strict=True)
    )
    return sum(width + 4 for width in widths)
