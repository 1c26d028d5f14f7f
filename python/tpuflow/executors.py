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

What many pieces read, such as a model with its samples, is shared: sent once to a process, or to a node.

    shared = executor.share(model)
    found = run_all(executor, score, [(shared, shard) for shard in shards])   # in the order of shards
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar

from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

__all__ = [
    "COPIES",
    "RECEIVED",
    "CancelledError",
    "Executor",
    "ExecutorError",
    "InProcess",
    "LocalProcesses",
    "Shared",
    "Task",
    "TaskQueue",
    "WorkerLostError",
    "local_copy",
    "outcome",
    "pickle_for_workers",
    "portable",
    "receive",
    "run_all",
]


@dataclass(frozen=True)
class _Read:
    """A shared value that this process has read."""

    value: Any


COPIES: dict[Path, Path] = {}
"""Where this process finds files that were shipped to it from another computer."""


def local_copy(path: Path) -> Path:
    """Where work finds a file that was shipped: on a cluster it may lie elsewhere than where it was named."""
    return COPIES.get(path, path)


RECEIVED: dict[str, bytes | _Read] = {}
"""By key, what this process was sent of shared values: pickled, then as it was read."""

Result = TypeVar("Result")
Value = TypeVar("Value")
Given = ParamSpec("Given")
State = Literal["waiting", "running", "done", "failed", "cancelled"]


class ExecutorError(TpuflowError):
    """Work could not be run to its end."""


class CancelledError(ExecutorError):
    """The result of cancelled work was asked for."""


class WorkerLostError(ExecutorError):
    """The process or the node that ran the work is gone."""


@dataclass(frozen=True, eq=False)
class Shared(Generic[Value]):
    """A value that many pieces of work read, see `Executor.share`; sent to other processes it is its key.

    Attributes:
        key: Its own.
    """

    key: str
    _held: Value | None = field(default=None, repr=False)

    @property
    def value(self) -> Value:
        """The value, in whichever process this is."""
        if self._held is not None:
            return self._held
        found = RECEIVED[self.key]
        if isinstance(found, bytes):
            found = RECEIVED[self.key] = _Read(pickle.loads(found))
        value: Value = found.value
        return value

    def __reduce__(self) -> tuple[type[Shared[Value]], tuple[str]]:
        return type(self), (self.key,)


def receive(key: str, data: bytes) -> None:
    """Keeps what this process was sent of a shared value."""
    RECEIVED.setdefault(key, data)


def pickle_for_workers(value: object) -> bytes:
    """A value as it is sent to other processes.

    Raises:
        ExecutorError: It cannot be.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ExecutorError(f"cannot be sent to other processes, run it in one: {reason}") from error


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

    @property
    def lost(self) -> bool:
        """Whether it failed because the process or node that ran it is gone."""
        return self.state == "failed" and isinstance(self._value, WorkerLostError)

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

    def share(self, value: Value) -> Shared[Value]:
        """A value for arguments of work, which reads it as `value` of the result; it must not change."""

    @property
    def runs_here(self) -> bool:
        """Whether work runs in this process, one piece after another."""

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

    def share(self, value: Value) -> Shared[Value]:
        """See `Executor`."""
        return Shared(uuid.uuid4().hex, value)

    @property
    def runs_here(self) -> bool:
        """See `Executor`."""
        return False

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
    answers: bool = True

    def __call__(self) -> Any:
        return self.work(*self.args, **self.kwargs)


class InProcess(TaskQueue):
    """Runs work in this process, one piece after another."""

    @property
    def runs_here(self) -> bool:
        """See `Executor`."""
        return True

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
        self._shared: dict[str, bytes] = {}

    def share(self, value: Value) -> Shared[Value]:
        """See `Executor`."""
        shared = super().share(value)
        self._shared[shared.key] = pickle_for_workers(value)
        return shared

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
        worker = self._free_worker()
        # Of a process that has just been killed the answer is that it is gone.
        with contextlib.suppress(ConnectionError):
            worker.send_shared(self._shared)
            worker.connection.send(task._work)  # noqa: SLF001 - executors fill in their tasks
        task.state = "running"
        self._running[worker.connection] = (worker, task)

    def _free_worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.end()
        return _Worker(max(1, (os.cpu_count() or 1) // self._workers))

    def _end(self, worker: _Worker, task: Task[Any]) -> Task[Any]:
        try:
            task.state, task._value = worker.connection.recv()  # noqa: SLF001 - as above
            self._idle.append(worker)
        except (EOFError, ConnectionError):
            code = worker.status()
            reason = f"its process ended with status {code}" + (", out of memory?" if code == -9 else "")
            task.state, task._value = "failed", WorkerLostError(f"task {task.number}: {reason}")  # noqa: SLF001
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

    def __init__(self, threads: int) -> None:
        # A fork would copy the threads' locks of onnxruntime and NumPy in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self._process.start()
        theirs.close()
        self._sent: set[str] = set()

    def send_shared(self, values: Mapping[str, bytes]) -> None:
        """Sends what it has not been sent."""
        for key in values.keys() - self._sent:
            self.connection.send(_Call(receive, (key, values[key]), {}, answers=False))
            self._sent.add(key)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

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


def _serve(connection: Connection, threads: int) -> None:
    """Runs in a worker's process until the other side is closed."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # results are the same for any number
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
        if not call.answers:
            continue
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


def run_all(
    executor: Executor,
    work: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    ended: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """Results of the same work for many arguments, in their order, whoever is ready first.

    Work whose process was lost is run once more.

    Args:
        executor: Where it runs; no other work may be under way there.
        work: A function of a module.
        arguments: Of every call.
        ended: Handed every result as it comes, with its place among the arguments.

    Raises:
        BaseException: What the first call that failed raised, in the order of arguments; those behind it
            are not begun.
    """
    tasks = {executor.submit(work, *each): at for at, each in enumerate(arguments)}
    found: dict[int, Result] = {}
    failed: dict[int, Task[Result]] = {}
    again: set[int] = set()
    for task in executor.as_completed():
        at = tasks[task]
        if task.lost and at not in again:
            again.add(at)
            tasks[executor.submit(work, *arguments[at])] = at
        elif task.state == "failed":
            failed[at] = task
            for later in [each for each, place in tasks.items() if place > min(failed)]:
                executor.cancel(later)
        else:
            found[at] = task.result()
            if ended is not None:
                ended(at, found[at])
    if failed:
        failed[min(failed)].result()
    return [found[at] for at in range(len(arguments))]
