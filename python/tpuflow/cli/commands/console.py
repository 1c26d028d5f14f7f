"""The terminal: where commands write, how tables look, how long work shows that it goes on.

Results go to standard output, progress to standard error, so that output can be piped.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tpuflow.io.memory import bytes_text

if TYPE_CHECKING:
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = [
    "PrintableFormatter", "Progress", "bytes_text", "heading", "note", "printable", "progress", "say",
    "say_host", "table",
]  # fmt: skip

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the number there are."""

WIDTH = 100
"""Columns where output is no terminal; on one, at most this many."""
LINE_EVERY_SECONDS = 10.0


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


def say(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(printable(text) + "\n")


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    sys.stderr.write(printable(text) + "\n")


def say_host(network: AnyGraph | AnyProgram) -> None:
    """A line for every part of a network that the host computes: its size and why it is there."""
    from tpuflow.partitioning import Partitioned

    if isinstance(network, Partitioned):
        for part in network.host:
            nodes = f"{len(part.nodes):,} node{'s' if len(part.nodes) > 1 else ''}"
            say(f"{part.name:<10} {nodes} run on the host: {part.reason}")


def heading(text: str) -> None:
    """The first line of a block of output, after an empty one."""
    say()
    text = printable(text)
    sys.stdout.write((f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text) + "\n")


def table(
    columns: Sequence[tuple[str, Literal["left", "right"]]],
    rows: Sequence[Sequence[object]],
    *,
    wide: bool = False,
) -> None:
    """Prints rows under their column names.

    Args:
        columns: Name and side of each column.
        rows: Cells; shown as `str` shows them.
        wide: Let lines grow beyond `WIDTH` where output is no terminal, so that nothing is cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if console.is_terminal:
        console.width = min(console.width, WIDTH) if not wide else console.width
    else:
        console.width = 400 if wide else WIDTH
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, side in columns:
        shown.add_column(name, justify=side, no_wrap=side == "right", overflow="ellipsis")
    for row in rows:
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    console.print(shown)


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Shows how far `label` is: a bar with the time left on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines(label)
        return
    from rich import progress as bars
    from rich.console import Console

    parts = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """A line every `LINE_EVERY_SECONDS`, with the time left at the pace since the first report.

    The first step waits for all that is made ready before it, so its time says nothing about the others.
    Steps that begin anew, or are another number, belong to another part of the work.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = time.monotonic()
        self._first = (0.0, 0)
        self._last = (1, 0)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < self._last[0] or total != self._last[1]:
            self._first = (now, done)
        self._last = (done, total)
        if now - self._shown < LINE_EVERY_SECONDS or done >= total:
            return
        self._shown = now
        begun, before = self._first
        pace = (now - begun) / (done - before) if done > before else None
        left = "" if pace is None else f", about {_time_text(pace * (total - done))} left"
        sys.stderr.write(f"{self._label}: {done} of {total}{left}\n")


def _time_text(seconds: float) -> str:
    """A time in the largest unit that leaves at least two."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
