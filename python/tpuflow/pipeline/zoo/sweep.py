"""All networks: one process per network and part, records that outlive an interruption.

A record belongs to a network, the settings and the package, each known by what is in it: a record of the same
three is not made again, unless a crash or a limit ended it. So a sweep that was interrupted goes on where it
was, and one after a change starts anew, unless it is told to take records of other versions of the package.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tpuflow.config import QuantizeConfig
from tpuflow.executors import InProcess
from tpuflow.io.files import write_json
from tpuflow.io.journal import package_digest
from tpuflow.pipeline.zoo.networks import MODELS
from tpuflow.pipeline.zoo.stages import FLOAT

if TYPE_CHECKING:
    from tpuflow.executors import Executor
    from tpuflow.executors import Task as ExecutorTask
    from tpuflow.pipeline.zoo.networks import Network

__all__ = ["DTYPES", "Record", "Settings", "sweep"]

DTYPES: tuple[str, ...] = get_args(QuantizeConfig.model_fields["dtype"].annotation)
"""Element types of a whole network, as far as the package has them."""

FORMAT = 1
"""Form of a record; to be raised with every change of what a stage notes."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Settings of a sweep.

    Attributes:
        samples: Samples to calibrate with.
        held_out: Further samples on which results are compared.
        dtypes: Element types.
        levels: Optimisation levels.
        machine: Preset or TOML file.
    """

    samples: int = 8
    held_out: int = 1
    dtypes: tuple[str, ...] = DTYPES
    levels: tuple[int, ...] = (1, 5)
    machine: str = "128x128_asic"


@dataclass(frozen=True)
class _Task:
    network: Network
    part: str
    head: Record

    def record(self, work: Path) -> Path:
        return work / "records" / f"{self.network.name}.{self.part}.json"


def sweep(
    wanted: Sequence[Network],
    work: Path,
    settings: Settings,
    *,
    executor: Executor | None = None,
    limit_seconds: float = 3600,
    other_versions: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Record]]:
    """Runs every part of every network whose record is not there yet.

    Args:
        wanted: The networks.
        work: Folder of records and of what stages leave for others; on a cluster, one that all nodes have.
        settings: What is measured.
        executor: Where parts are waited for, each of which is a process of its own; here without one.
        limit_seconds: How long a part may take; it is ended then.
        other_versions: Take finished records that another version of the package made.
        progress: Told after every part.

    Returns:
        Records by network and part.

    Raises:
        ExecutorError: A process that waited for a part was lost.
    """
    for folder in ("records", "logs", "ranges", "held_out"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    run = _Sweep(work.resolve(), settings, executor or InProcess(), limit_seconds, other_versions)
    return run.all(sorted(wanted, key=lambda network: _bytes(network, work)), progress)


@dataclass
class _Sweep:
    """Parts that are done and those under way; the float part of a network comes before its others."""

    work: Path
    settings: Settings
    executor: Executor
    limit_seconds: float
    other_versions: bool
    records: dict[str, dict[str, Record]] = field(default_factory=dict)
    waiting: dict[ExecutorTask[Record], _Task] = field(default_factory=dict)
    done: int = 0

    def all(
        self, wanted: Sequence[Network], progress: Callable[[int, int], None] | None
    ) -> dict[str, dict[str, Record]]:
        """Records of all networks; `progress` is told after every part."""
        self.records = {network.name: {} for network in wanted}
        total = len(wanted) * (1 + len(self.settings.dtypes))
        for network in wanted:
            self._begin(_Task(network, FLOAT, self._head(network, FLOAT)))
        while True:
            if progress is not None:
                progress(self.done, total)
            ended = next(self.executor.as_completed(), None)
            if ended is None:
                parts = (FLOAT, *self.settings.dtypes)
                return {
                    name: {part: own[part] for part in parts if part in own}
                    for name, own in self.records.items()
                }
            self._end(self.waiting.pop(ended), ended.result())

    def _head(self, network: Network, part: str) -> Record:
        return {
            "format": FORMAT,
            "network": network.name,
            "part": part,
            "digest": network.digest(),
            "version": package_digest(),
            "settings": json.loads(json.dumps(asdict(self.settings))),
        }

    def _begin(self, task: _Task) -> None:
        record = _reusable_record(task, self.work, other_versions=self.other_versions)
        if record is not None:
            self._end(task, record)
        else:
            self.waiting[self.executor.submit(_measure, task, self.work, self.limit_seconds)] = task

    def _end(self, task: _Task, record: Record) -> None:
        self.records[task.network.name][task.part] = record
        self.done += 1
        if task.part != FLOAT:
            return
        if not _complete(record):
            self.done += len(self.settings.dtypes)
            return
        for dtype in self.settings.dtypes:
            self._begin(_Task(task.network, dtype, task.head | {"part": dtype}))


def _bytes(network: Network, work: Path) -> int:
    """Size of the model, as far as it is known: small networks come first, so that much is known early."""
    made = work / MODELS / network.file.name
    return (made if made.is_file() else network.file).stat().st_size


def _complete(record: Record | None) -> bool:
    """Whether the last stage of a part was reached and ended well."""
    return record is not None and all(stage["status"] == "ok" for stage in record["stages"].values())


def _reusable_record(task: _Task, work: Path, *, other_versions: bool) -> Record | None:
    """The finished record of an earlier sweep, if it tells of the same."""
    try:
        record: Record = json.loads(task.record(work).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = [key for key in task.head if not (key == "version" and other_versions)]
    fits = record.get("finished") and all(record.get(key) == task.head[key] for key in same)
    return record if fits else None


def _measure(task: _Task, work: Path, limit_seconds: float) -> Record:
    """Runs a part in a process of its own and completes its record if the process did not."""
    path = task.record(work)
    path.unlink(missing_ok=True)
    request = {
        "file": str(task.network.file),
        "preset": task.network.preset,
        "part": task.part,
        "work": str(work),
        "record": str(path),
        "head": task.head,
    }
    log = work / "logs" / f"{task.network.name}.{task.part}.txt"
    with _process(log) as process:
        try:
            process.communicate(json.dumps(request).encode(), timeout=limit_seconds)
            ended = "" if process.returncode == 0 else _cause(process.returncode, log)
        except subprocess.TimeoutExpired:
            ended = f"took longer than {limit_seconds:g} s"
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {**task.head, "stages": {}}
    if ended:
        _close(record, ended)
        write_json(path, record)
    return record


@contextmanager
def _process(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, out of reach of the interrupts of a terminal, which are for this process to handle."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tpuflow.pipeline.zoo.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _close(record: Record, ended: str) -> None:
    """Blames the stage that was running when its process ended; the record stays unfinished."""
    running = [stage for stage in record["stages"].values() if stage["status"] == "running"]
    if not running:
        running = [record["stages"].setdefault("start", {})]
    for stage in running:
        stage |= {"status": "defect", "message": ended, "seconds": None, "peak_bytes": None}


def _cause(code: int, log: Path) -> str:
    """Why a process failed, in a line."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit status {code}: {lines[-1]}" if lines else f"exit status {code}"
