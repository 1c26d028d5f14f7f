"""Studies on clusters of any size, simulated: the real driver, recorded trials, a clock that only counts.

    python benches/cluster.py NETWORK [--points 700] [--workers 1 10 100 1000 10000] [--record FILE.db]

First every point is built and simulated at both levels, nothing pruned, by two processes (once: results stay
in the file). Then `tpuflow.explore` decides on the same points again, on a cluster that hands out the
recorded results at the time they would come: trials take what they took, on as many workers as there are;
the coordinating process takes its time to send a trial, to receive it and to commit it. Printed are hours of
trials, the time of the study, how busy workers are, what is pruned, and the share of the coordination.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuflow.compiler import Machine
from tpuflow.executors import InProcess, LocalProcesses, Task
from tpuflow.explore import Settings, Space, explore, load_results
from tpuflow.explore.measure import Measurement, bound_point
from tpuflow.io.journal import Journal
from tpuflow.pipeline.exploration import workloads

SEND, RECEIVE, NOTE = 0.5e-3, 1.0e-3, 0.1e-3
"""Seconds of the coordinating process for a trial on Ray (`benches/executors.py`), and to note a result."""

COMMIT, APART = 8e-3, 0.1
"""Seconds of a commit, and from one to the next."""

SPACE = Space(
    {
        "cache.bytes": (1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23),
        "ddr.channels": (1, 2, 3, 4),
        "array.rows": (16, 32, 64, 128, 256),
        "array.columns": (16, 32, 64, 128, 256),
        "clock_hz": (500_000_000, 1_000_000_000),
    }
)


@dataclass
class Cluster(InProcess):
    """An executor of recorded results on a clock that only counts."""

    workers: int
    results: Mapping[tuple[str, int], tuple[Measurement, float]]

    def __post_init__(self) -> None:
        super().__init__()
        self.clock = self.busy = self.coordination = self.committed = 0.0

    def as_completed(self) -> Iterator[Task[Any]]:
        """See `Executor`."""
        under_way: list[tuple[float, int, Task[Any]]] = []
        while self._waiting or under_way:
            while self._waiting and len(under_way) < self.workers:
                task = self._waiting.popleft()
                self._coordinate(SEND)
                work, arguments = task._work.args  # type: ignore[union-attr]  # noqa: SLF001 - of `_run_timed`
                level = 0 if work is bound_point else arguments[3]
                found, seconds = self.results[_key(arguments[0]), level]
                self.busy += seconds
                task.state, task._value = "done", (found, seconds)  # noqa: SLF001 - executors fill in tasks
                heapq.heappush(under_way, (self.clock + seconds, task.number, task))
            finish, _, task = heapq.heappop(under_way)
            self.clock = max(self.clock, finish)
            self._coordinate(RECEIVE)
            yield task
            self._coordinate(NOTE)
            if self.clock > self.committed + APART:
                self._coordinate(COMMIT)
                self.committed = self.clock

    def _coordinate(self, seconds: float) -> None:
        self.clock += seconds
        self.coordination += seconds


def _key(machine: Machine | str) -> str:
    return machine if isinstance(machine, str) else machine.to_toml()


def record(settings: Settings, path: Path, folder: Path) -> dict[tuple[str, int], tuple[Measurement, float]]:
    """Results of all points at all levels, with the seconds each took; made where the file lacks them."""
    networks = workloads(settings, folder)
    start = time.perf_counter()
    with LocalProcesses(2) as executor, Journal.open(path, "explore", {"settings": str(settings)}) as journal:
        explore(settings, networks, executor, journal)
        sys.stdout.write(f"recorded in {time.perf_counter() - start:.0f} s\n")
        found = {}
        for row in journal.rows():
            if "mm2" not in row.content:
                continue
            point, level = row.content["point"], row.content["slot"]
            try:
                key = _key(settings.space.machine(point, settings.base))
            except Exception as error:  # noqa: BLE001 - why there is no such machine
                key = str(error)
            found[key, level] = (Measurement.from_json(row.content), row.seconds)
    return found


def main() -> None:
    """Records, then simulates every size of cluster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("network", type=Path)
    parser.add_argument("--points", type=int, default=700)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 10, 100, 1000, 10000])
    parser.add_argument("--record", type=Path, default=Path("cluster.db"))
    words = parser.parse_args()
    settings = Settings(
        (str(words.network),), SPACE, strategy="random", trials=words.points, wave=32, prune=False
    )
    with tempfile.TemporaryDirectory() as folder:
        results = record(settings, words.record, Path(folder) / "graphs")
        networks = workloads(settings, Path(folder) / "graphs")
        sys.stdout.write("workers  wave   seconds  busy  pruned  coordination\n")
        for workers in words.workers:
            for wave in sorted({32, max(32, workers)}):
                own = replace(settings, wave=wave, prune=True)
                path = Path(folder) / f"{workers}-{wave}.db"
                with (
                    Cluster(workers, results) as cluster,
                    Journal.open(path, "explore", {"settings": str(own)}, commit_seconds=1.0) as journal,
                ):
                    explore(own, networks, cluster, journal)
                rows = load_results(path).rows
                pruned = sum(row["status"] == "pruned" for row in rows)
                possible = sum(row["status"] != "impossible" for row in rows)
                sys.stdout.write(
                    f"{workers:7}{wave:6}{cluster.clock:10.1f}{cluster.busy / cluster.clock / workers:6.0%}"
                    f"{pruned / possible:8.0%}{cluster.coordination / cluster.clock:14.0%}\n"
                )


if __name__ == "__main__":
    main()
