"""The executor of a Ray cluster; the one module that knows Ray.

    with RayCluster("local", workers=4) as executor:
        ...

Ray keeps what is shipped once a node and starts work anew whose process or node was lost. Its dashboard and
its usage statistics stay off.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.errors import TpuflowError
from tpuflow.executors import (
    COPIES,
    RECEIVED,
    ExecutorError,
    Shared,
    Task,
    TaskQueue,
    Value,
    WorkerLostError,
    outcome,
    pickle_for_workers,
    portable,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["RayCluster"]

RETRIES = 2
"""How often work is begun anew whose process or node was lost."""

SECONDS = 60
"""How long a cluster may take to answer at all."""

Copy = tuple[Path, str, Any]
"""A file, the hash of its content, and a list of the one reference to that."""

Sent = tuple[str, Any]
"""Key of a shared value, and a list of the one reference to it."""


class RayCluster(TaskQueue):
    """Runs work on a Ray cluster, at most `workers` pieces at a time.

    Work, arguments and results are sent between processes, as with `LocalProcesses`; the cluster needs this
    version of the package on every node.

    Args:
        address: Of the cluster, `HOST:PORT`; `local` starts one on this computer for as long as it is open.
        workers: Pieces under way at a time: memory stays bounded however many are waiting.

    Raises:
        ExecutorError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, workers: int) -> None:
        if workers < 1:
            raise ExecutorError(f"{workers} workers: there must be at least one")
        super().__init__()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Trials are what the computer is there for, as with local processes; Ray would give way to all else.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            import ray  # noqa: PLC0415 - an extra
        except ImportError:
            raise ExecutorError("--ray needs Ray: pip install 'tpuflow[ray]'") from None
        self._ray, self._address, self._workers = ray, address, workers
        self._running: dict[Any, Task[Any]] = {}
        self._copies: list[Copy] = []
        self._shared: list[Sent] = []

    def share(self, value: Value) -> Shared[Value]:
        """See `Executor`."""
        shared = super().share(value)
        self._shared.append((shared.key, [self._ray.put(pickle_for_workers(value))]))
        return shared

    def __enter__(self) -> RayCluster:
        local = self._address == "local"
        place: dict[str, Any] = {"num_cpus": self._workers} if local else {}
        try:
            self._ray.init(
                address=self._address, include_dashboard=False if local else None, log_to_driver=False,
                configure_logging=False, ignore_reinit_error=False, **place,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ExecutorError(f"--ray {self._address}: no cluster answers: {reason}") from None
        self._work = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_run)
        return self

    def ship(self, files: Sequence[Path]) -> None:
        """See `Executor`."""
        for path in files:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self._copies.append((path, digest, [self._ray.put(content)]))

    def as_completed(self) -> Iterator[Task[Any]]:
        """See `Executor`."""
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._workers:
                task = self._waiting.popleft()
                self._running[self._work.remote(task._work, self._copies, self._shared)] = task  # noqa: SLF001
                task.state = "running"
            ready, _ = self._ray.wait(list(self._running), num_returns=1)
            for reference in ready:
                # A caller may have cancelled one of them between two results.
                if reference in self._running:
                    yield self._end(reference, self._running.pop(reference))

    def _end(self, reference: Any, task: Task[Any]) -> Task[Any]:
        try:
            task.state, task._value = self._ray.get(reference)  # noqa: SLF001 - executors fill in their tasks
        except Exception as error:  # noqa: BLE001 - of Ray: a lost node, no memory, what cannot be sent
            reason = " ".join(str(error).split())[:300]
            told = f"task {task.number}: {type(error).__name__}: {reason}"
            lost = isinstance(error, self._ray.exceptions.WorkerCrashedError)
            kind = WorkerLostError if lost else ExecutorError
            task.state, task._value = "failed", kind(told)  # noqa: SLF001 - as above
        return task

    def cancel(self, task: Task[Any]) -> bool:
        """See `Executor`."""
        for reference, running in self._running.items():
            if running is task:
                del self._running[reference]
                self._ray.cancel(reference, force=True)
                task.state = "cancelled"
                return True
        return super().cancel(task)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for task in list(self._running.values()):
            self.cancel(task)
        self._ray.shutdown()


def _run(work: Any, copies: Sequence[Copy], shared: Sequence[Sent]) -> tuple[str, Any]:
    """Runs in a process of the cluster."""
    import ray  # noqa: PLC0415 - an extra

    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # programs are the same for any number of threads
    try:
        for path, digest, references in copies:
            if path not in COPIES:
                COPIES[path] = _local_copy(path, digest, references[0])
        for key, references in shared:
            if key not in RECEIVED:
                receive(key, ray.get(references[0]))
    except (OSError, TpuflowError) as error:
        return "failed", ExecutorError(f"a file cannot be copied to the node: {error}")
    state, value = outcome(work)
    return state, portable(value) if state == "failed" else value


def _local_copy(path: Path, digest: str, reference: Any) -> Path:
    """The file here if it is the same one, or a copy of what was shipped, one for all of a node."""
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        return path
    import ray  # noqa: PLC0415 - an extra

    folder = Path(tempfile.gettempdir()) / f"tpuflow-shipped-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / f"{digest}{path.suffix}"
    if not copy.is_file():
        handle, made = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as stream:
            stream.write(ray.get(reference))
        Path(made).replace(copy)
    return copy
