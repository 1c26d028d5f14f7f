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
        yield _lines(label)
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


def _lines(label: str) -> Progress:
    start = last = time.monotonic()

    def step(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY_SECONDS and done < total:
            last = now
            left = (now - start) / done * (total - done) if done else 0.0
            sys.stderr.write(f"{label}: {done} of {total}, about {left:.0f} s left\n")

    return step


def bytes_text(count: float) -> str:
    """A number of bytes in the largest binary unit that leaves at least 1: `1.50 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
