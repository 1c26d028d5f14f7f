"""Runs independent pieces of work, here or in processes beside, and hands out results as they come.

    with LocalProcesses(workers=2) as executor:
        tasks = [executor.submit(cycles, machine) for machine in machines]
        for task in executor.as_completed():
            print(task.number, task.result())
            if good_enough(task):
                executor.cancel(tasks[-1])

| executor | work runs | `cancel` of work under way |
|---|---|---|
| `InProcess` | in this process, one piece after another, when results are asked for | cannot occur |
| `LocalProcesses` | in so many processes of this computer at a time | ends its process |
| `RayCluster` (`tpuflow.ray_cluster`) | on a cluster | ends its process |

All give the same results for work that depends on its arguments alone; only the order in which they come may
differ. A piece that fails raises its own exception where its result is asked for, the others go on. Leaving
the block cancels whatever has not begun or not ended, so that an interrupted search leaves no process behind.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar

from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

__all__ = [
    "COPIES",
    "CancelledError",
    "Executor",
    "ExecutorError",
    "InProcess",
    "LocalProcesses",
    "Task",
    "TaskQueue",
    "local_copy",
    "outcome",
    "portable",
]

COPIES: dict[Path, Path] = {}
"""Where this process finds files that were shipped to it from another computer."""


def local_copy(path: Path) -> Path:
    """Where work finds a file that was shipped: on a cluster it may lie elsewhere than where it was named."""
    return COPIES.get(path, path)


Result = TypeVar("Result")
Given = ParamSpec("Given")
State = Literal["waiting", "running", "done", "failed", "cancelled"]


class ExecutorError(TpuflowError):
    """Work could not be run to its end."""


class CancelledError(ExecutorError):
    """The result of cancelled work was asked for."""


@dataclass(eq=False)
class Task(Generic[Result]):
    """A piece of work.

    Attributes:
        number: In the order of submission, from 0.
        state: What has become of it.
    """

    number: int
    state: State = "waiting"
    _work: Callable[[], Result] | None = field(default=None, repr=False)
    _value: Any = field(default=None, repr=False)

    def result(self) -> Result:
        """Gives what the work returned.

        Raises:
            CancelledError: It was cancelled.
            ExecutorError: It has not ended yet; `Executor.as_completed` hands out tasks that have.
            BaseException: Whatever the work raised.
        """
        if self.state == "cancelled":
            raise CancelledError(f"task {self.number} was cancelled")
        if self.state == "failed":
            raise self._value
        if self.state != "done":
            raise ExecutorError(f"task {self.number} is {self.state}: it has no result yet")
        value: Result = self._value
        return value


class Executor(Protocol):
    """Where work runs."""

    def submit(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Task[Result]:
        """Adds a call to what is to be done."""

    def as_completed(self) -> Iterator[Task[Any]]:
        """Hands out every task once it has ended, whether it is done or failed, until none is left."""

    def ship(self, files: Sequence[Path]) -> None:
        """Sees to it that work finds files by `local_copy`, each sent once to a computer."""

    def cancel(self, task: Task[Any]) -> bool:
        """Sees to it that a task is not run, or not to its end; tells whether it came in time."""

    def __enter__(self) -> Self:
        """Opens the executor."""

    def __exit__(self, *_: object) -> None:
        """Cancels what has not ended."""


class TaskQueue:
    """Tasks in the order of submission."""

    def __init__(self) -> None:
        self._waiting: deque[Task[Any]] = deque()
        self._count = 0

    def submit(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Task[Result]:
        """See `Executor`."""
        task = Task[Result](self._count, _work=_Call(work, args, kwargs))
        self._count += 1
        self._waiting.append(task)
        return task

    def ship(self, files: Sequence[Path]) -> None:
        """See `Executor`."""
        del files  # work runs where they lie

    def cancel(self, task: Task[Any]) -> bool:
        """See `Executor`."""
        if task.state != "waiting":
            return False
        self._waiting.remove(task)
        task.state = "cancelled"
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task in list(self._waiting):
            self.cancel(task)


@dataclass(frozen=True)
class _Call:
    """A function with its arguments, which another process can be sent."""

    work: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.work(*self.args, **self.kwargs)


class InProcess(TaskQueue):
    """Runs work in this process, one piece after another."""

    def as_completed(self) -> Iterator[Task[Any]]:
        """See `Executor`."""
        while self._waiting:
            task = self._waiting.popleft()
            task.state, task._value = outcome(task._work)  # noqa: SLF001 - executors fill in their tasks
            yield task


class LocalProcesses(TaskQueue):
    """Runs work in processes of this computer, which are started when there is work for them.

    Work, arguments and results are sent between processes, so they must be picklable: functions of a module,
    not lambdas. A process is used for many pieces.

    Args:
        workers: How many processes run at a time.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ExecutorError(f"{workers} workers: there must be at least one")
        super().__init__()
        self._workers = workers
        self._idle: list[_Worker] = []
        self._running: dict[Connection, tuple[_Worker, Task[Any]]] = {}

    def as_completed(self) -> Iterator[Task[Any]]:
        """See `Executor`."""
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._workers:
                self._start(self._waiting.popleft())
            for ready in wait(list(self._running)):
                # A caller may have cancelled one of them between two results.
                if ready in self._running:
                    yield self._end(*self._running.pop(ready))

    def _start(self, task: Task[Any]) -> None:
        worker = self._idle.pop() if self._idle else _Worker()
        worker.connection.send(task._work)  # noqa: SLF001 - executors fill in their tasks
        task.state = "running"
        self._running[worker.connection] = (worker, task)

    def _end(self, worker: _Worker, task: Task[Any]) -> Task[Any]:
        try:
            task.state, task._value = worker.connection.recv()  # noqa: SLF001 - as above
            self._idle.append(worker)
        except EOFError:
            code = worker.status()
            reason = f"its process ended with status {code}" + (", out of memory?" if code == -9 else "")
            task.state, task._value = "failed", ExecutorError(f"task {task.number}: {reason}")  # noqa: SLF001
        return task

    def cancel(self, task: Task[Any]) -> bool:
        """See `Executor`."""
        for connection, (worker, running) in self._running.items():
            if running is task:
                del self._running[connection]
                worker.end()
                task.state = "cancelled"
                return True
        return super().cancel(task)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for _worker, task in list(self._running.values()):
            self.cancel(task)
        for idle in self._idle:
            idle.end()
        self._idle.clear()


class _Worker:
    """A process that runs what it is sent, one piece after another, and sends back what became of it."""

    def __init__(self) -> None:
        # A fork would copy the threads' locks of onnxruntime and NumPy in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def status(self) -> int | None:
        """Waits for a process that ends by itself; gives its exit status."""
        self._process.join()
        self.connection.close()
        return self._process.exitcode

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    """Runs in a worker's process until the other side is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            call = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:  # noqa: BLE001 - such as a function of a module that is not there
            connection.send(("failed", ExecutorError(f"the work cannot be received: {error}")))
            continue
        state, value = outcome(call)
        if state == "failed":
            value = portable(value)
        try:
            connection.send((state, value))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises is the caller's to know
            connection.send(("failed", ExecutorError(f"the result cannot be sent back: {error}")))


def _end_with_parent() -> None:
    """Ends this process with the one that started it: nobody would take the result of what it is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by multiprocessing"
    wait([parent.sentinel])
    os._exit(1)


def portable(error: Exception) -> Exception:
    """Gives an error that another process can be sent: itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - as above
        return ExecutorError(f"{type(error).__name__}: {error}")
    return error


def outcome(work: Callable[[], Any] | None) -> tuple[State, Any]:
    """Runs work; what it returned or raised."""
    assert work is not None, "tasks are submitted with their work"
    try:
        return "done", work()
    except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
        return "failed", error
