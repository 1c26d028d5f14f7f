"""How far long work is: one line that is redrawn on a terminal, else a line now and then.

A line says what is being done, how many of how many steps are done, and how long the rest takes at the pace
so far. Nothing is made up: before the first step, and after the last one of a part of the work, the line
shows the time that has passed and no bar; there is a time left only where a pace was measured.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from tpuflow.cli.commands import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

__all__ = ["Lines", "Task", "progress", "render"]

FIRST_LINE_SECONDS = 2.0
LINE_EVERY_SECONDS = 10.0
BAR_WIDTH = 30


class Task:
    """A piece of work: its name, its steps, its pace.

    The first step waits for all that is prepared before it, so its time says nothing about the others. Steps
    that begin anew, or are another number, belong to another part of the work, with its own pace.

    Args:
        label: What is done.
        clock: Seconds that only grow.
    """

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin(label)

    def begin(self, label: str) -> None:
        """Goes on to other work."""
        self.label = label
        self._began = self._clock()
        self.done, self.total = 0, 0
        self._first: tuple[float, int] = (self._began, 0)

    def __call__(self, done: int, total: int) -> None:
        """Notes how far the work is; a number of steps that is not known is 0."""
        if done < self.done or total != self.total or not self.done:
            self._first = (self._clock(), done)
        self.done, self.total = done, total

    @property
    def counting(self) -> bool:
        """Whether some steps are done, and not all of them."""
        return 0 < self.done < self.total

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return self._clock() - self._began

    @property
    def left(self) -> float | None:
        """Seconds that the other steps take at the pace since the first one; None: no pace is known."""
        since, before = self._first
        if not self.counting or self.done <= before:
            return None
        return (self._clock() - since) / (self.done - before) * (self.total - self.done)

    def text(self) -> str:
        """Counts and times in words."""
        passed = f"{_time_text(self.seconds)} so far"
        if not self.done:
            return passed
        if not self.total:
            return f"{self.done}, {passed}"
        if not self.counting:
            return f"{self.done} of {self.total} done, {passed}"
        left = self.left
        return f"{self.done} of {self.total}, " + (
            passed if left is None else f"about {_time_text(left)} left"
        )


class Lines:
    """Lines for a file or pipe: one after two seconds of a task, then one every ten.

    Args:
        task: What to tell about.
        stream: Where the lines go.
        clock: That of the task.
    """

    def __init__(self, task: Task, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._task = task
        self._stream = stream
        self._clock = clock
        self._label = task.label
        self._next = clock() + FIRST_LINE_SECONDS

    def look(self) -> None:
        """Writes a line if it is time for one."""
        now = self._clock()
        if self._task.label != self._label:
            self._label = self._task.label
            self._next = now + FIRST_LINE_SECONDS
        if now >= self._next:
            self._next = now + LINE_EVERY_SECONDS
            self._stream.write(console.printable(f"{self._label}: {self._task.text()}\n"))
            self._stream.flush()


@contextmanager
def progress(label: str) -> Iterator[Task]:
    """Shows how far work is until the block ends; the task is called with each step."""
    task = Task(label)
    if console.settings.quiet:
        yield task
        return
    with _redrawn(task) if console.colored(sys.stderr) else _written(task):
        yield task


@contextmanager
def _written(task: Task) -> Iterator[None]:
    lines, ended = Lines(task, sys.stderr), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            lines.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _redrawn(task: Task) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    terminal = Console(stderr=True, force_terminal=True)
    # What is written to a file meanwhile stays out of the way of the terminal.
    together = sys.stdout.isatty()
    with Live(
        console=terminal,
        get_renderable=lambda: render(task),
        refresh_per_second=5,
        transient=True,
        redirect_stdout=together,
    ):
        yield


def render(task: Task) -> RenderableType:
    """A task as a line of the terminal, with a bar while steps are counted."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = [Text(console.printable(task.label))]
    if task.counting:
        cells.append(ProgressBar(total=task.total, completed=task.done, width=BAR_WIDTH))
    cells.append(Text(task.text()))
    line.add_row(*cells)
    return line


def _time_text(seconds: float) -> str:
    """A time in the largest unit that leaves at least two."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
