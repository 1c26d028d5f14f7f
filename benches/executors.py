"""Cost of coordination: pieces of 100 ms in processes and on Ray, `python benches/executors.py`."""

from __future__ import annotations

import argparse
import sys
import time

from tpuflow.executors import Executor, LocalProcesses
from tpuflow.ray_cluster import RayCluster


def seconds(executor: Executor, pieces: int, workers: int) -> float:
    """Time for all pieces once every worker is there."""
    with executor as opened:
        for _ in range(workers):
            opened.submit(time.sleep, 1.0)
        list(opened.as_completed())
        start = time.perf_counter()
        for _ in range(pieces):
            opened.submit(time.sleep, 0.1)
        list(opened.as_completed())
        return time.perf_counter() - start


def main() -> None:
    """Runs both."""
    parser = argparse.ArgumentParser(description="Measure what executors cost.")
    parser.add_argument("--pieces", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    words = parser.parse_args()
    ideal = words.pieces * 0.1 / words.workers
    for name, made in (
        ("processes", LocalProcesses(words.workers)),
        ("ray", RayCluster("local", words.workers)),
    ):
        taken = seconds(made, words.pieces, words.workers)
        more = (taken - ideal) / words.pieces * words.workers * 1e3
        sys.stdout.write(f"{name:<10} {taken:.2f} s, {more:.2f} ms a piece\n")


if __name__ == "__main__":
    main()
