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
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tpuflow.config import QuantizeConfig
from tpuflow.io.files import write_json
from tpuflow.io.journal import package_digest
from tpuflow.pipeline.zoo.networks import MODELS
from tpuflow.pipeline.zoo.stages import FLOAT

if TYPE_CHECKING:
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


class _Processes:
    """The processes at work, to be ended together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    @contextmanager
    def process(self, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A worker, out of reach of the interrupts of a terminal, which are for this process to handle."""
        with log.open("wb") as output, self._lock:
            if self.stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tpuflow.pipeline.zoo.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self._processes.discard(process)

    def stop(self) -> None:
        """Ends all processes and lets none begin."""
        with self._lock:
            self.stopped = True
            for process in self._processes:
                process.kill()


def sweep(
    wanted: Sequence[Network],
    work: Path,
    settings: Settings,
    *,
    jobs: int = 1,
    limit_seconds: float = 3600,
    other_versions: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Record]]:
    """Runs every part of every network whose record is not there yet.

    Args:
        wanted: The networks.
        work: Folder of records and of what stages leave for others.
        settings: What is measured.
        jobs: Networks at a time.
        limit_seconds: How long a part may take; it is ended then.
        other_versions: Take finished records that another version of the package made.
        progress: Told after every part.

    Returns:
        Records by network and part.
    """
    for folder in ("records", "logs", "ranges", "held_out"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    parts = (FLOAT, *settings.dtypes)
    lock, done, total = threading.Lock(), 0, len(wanted) * len(parts)
    records: dict[str, dict[str, Record]] = {network.name: {} for network in wanted}
    running = _Processes()

    def step() -> None:
        nonlocal done
        with lock:
            done += 1
            if progress is not None:
                progress(done, total)

    def run(network: Network) -> None:
        digest = network.digest()
        for part in parts:
            head = {
                "format": FORMAT,
                "network": network.name,
                "part": part,
                "digest": digest,
                "version": package_digest(),
                "settings": json.loads(json.dumps(asdict(settings))),
            }
            task = _Task(network, part, head)
            record = _reusable_record(task, work, other_versions=other_versions)
            if record is None:
                record = _measure(task, work, limit_seconds, running)
            if record is not None:
                records[network.name][part] = record
            step()
            if part == FLOAT and not _complete(record):
                for _ in settings.dtypes:
                    step()
                return

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(run, sorted(wanted, key=lambda network: _bytes(network, work))))
        except BaseException:
            running.stop()
            raise
    return records


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


def _measure(task: _Task, work: Path, limit_seconds: float, running: _Processes) -> Record:
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
    with running.process(log) as process:
        try:
            process.communicate(json.dumps(request).encode(), timeout=limit_seconds)
            ended = "" if process.returncode == 0 else _cause(process.returncode, log)
        except subprocess.TimeoutExpired:
            ended = f"took longer than {limit_seconds:g} s"
    if running.stopped:
        raise KeyboardInterrupt
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {**task.head, "stages": {}}
    if ended:
        _close(record, ended)
        write_json(path, record)
    return record


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
