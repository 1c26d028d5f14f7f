"""The terminal: where commands write, how tables look, how long work shows that it goes on.

Results go to standard output, progress to standard error, so that output can be piped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tpuflow.store import AnyGraph, AnyProgram

__all__ = ["Progress", "bytes_text", "heading", "progress", "say", "say_host", "table"]

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the number there are."""

WIDTH = 100
"""Columns where output is no terminal; on one, at most this many."""
LINE_EVERY_SECONDS = 10.0


def say(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")


def say_host(network: AnyGraph | AnyProgram) -> None:
    """A line for every part of a network that the host computes: its size and why it is there."""
    from tpuflow.partition import Partitioned

    if isinstance(network, Partitioned):
        for part in network.host:
            nodes = f"{len(part.nodes):,} node{'s' if len(part.nodes) > 1 else ''}"
            say(f"{part.name:<10} {nodes} run on the host: {part.reason}")


def heading(text: str) -> None:
    """The first line of a block of output, after an empty one."""
    say()
    if sys.stdout.isatty():
        text = f"\x1b[1m{text}\x1b[0m"
    say(text)


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
        shown.add_row(*(Text(str(cell)) for cell in row))
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


def bytes_text(count: float) -> str:
    """A number of bytes in the largest binary unit that leaves at least 1: `1.50 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
