"""Ray as an executor: a real cluster of two nodes on this computer, with kills and a lost node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import run_command, tiny
from cli.test_workers import commands, write_inputs
from executor_work import (
    content,
    die,
    die_once,
    die_once_at,
    odd_error,
    shared_item,
    square,
    unsendable,
    wait_for_ever,
)
from models.builder import samples
from tpuflow.errors import ModelError
from tpuflow.executors import ExecutorError, InProcess, run_all
from tpuflow.explore import Settings, Space, explore
from tpuflow.io.journal import Journal
from tpuflow.pipeline.exploration import workloads
from tpuflow.ray_cluster import RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SPACE = Space({"cache.bytes": (65536, 1 << 20), "ddr.channels": (1, 2), "array.size": (32, 64)})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    )
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a cluster of two nodes on one computer, for a minute
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    for name in ("PYTHONPATH", "RAY_AUTH_MODE", "RAY_worker_niceness"):
        del os.environ[name]


def test_results_failures_and_kills_stay_with_their_task(cluster: Any, tmp_path: Path) -> None:
    with RayCluster(cluster.address, 2) as executor:
        tasks = [executor.submit(square, number) for number in range(6)]
        again = executor.submit(die_once, tmp_path / "marker")
        dead, odd, strange = executor.submit(die), executor.submit(unsendable), executor.submit(odd_error)
        assert sorted(task.number for task in executor.as_completed()) == list(range(10))
        assert [task.result() for task in tasks if task.number != 3] == [0, 1, 4, 16, 25]
        with pytest.raises(ModelError, match="3 is not squared"):
            tasks[3].result()
        assert again.result() == 5
        with pytest.raises(ExecutorError, match="task 7: WorkerCrashedError"):
            dead.result()
        with pytest.raises(ExecutorError, match="OddError: one, two"):
            strange.result()
        assert odd.state in {"done", "failed"}  # Ray sends functions that pickle does not


def test_shared_values_and_results_in_order(cluster: Any, tmp_path: Path) -> None:
    with RayCluster(cluster.address, 2) as executor:
        shared = executor.share([5, 6, 7])
        assert run_all(executor, shared_item, [(shared, at) for at in (2, 0, 1)]) == [7, 5, 6]
        assert run_all(executor, die_once_at, [(tmp_path / "mark", at) for at in range(4)]) == [0, 1, 5, 3]


@pytest.mark.parametrize("name", ["calibrate", "evaluate", "sensitivity", "search"])
def test_commands_write_the_same_on_a_cluster(name: str, cluster: Any, tmp_path: Path) -> None:
    words = commands(write_inputs(tmp_path))[name]
    suffix = ".tpuq" if name == "search" else ".json"
    here, there = tmp_path / f"here{suffix}", tmp_path / f"there{suffix}"
    assert run_command(*words, here).status == 0
    made = run_command(*words, there, "--ray", cluster.address, "--workers", "2")
    assert made.status == 0, made.err
    assert here.read_bytes() == there.read_bytes()


def test_files_are_shipped_and_pending_work_is_canceled(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.bin"
    path.write_bytes(b"here")
    with RayCluster(cluster.address, 2) as executor:
        executor.ship([path])
        path.write_bytes(b"changed since")  # as on a node that has another file of that name, or none
        endless, first = executor.submit(wait_for_ever), executor.submit(content, path)
        finished = executor.as_completed()
        assert next(finished) is first
        assert first.result() == b"here"
        assert executor.cancel(endless)
        assert list(finished) == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Any]:
    folder = tmp_path_factory.mktemp("study")
    model = tiny()
    onnx.save(model, folder / "tiny.onnx")
    np.savez(folder / "samples.npz", allow_pickle=False, **samples(model, 4))
    settings = Settings((str(folder / "tiny.onnx"),), SPACE, levels=(1,), wave=3)
    return settings, workloads(settings, folder / "graphs", folder / "samples.npz")


def rows(study: tuple[Settings, Any], executor: Any, path: Path) -> list[tuple[int, str, Any]]:
    with executor as opened, Journal.open(path, "explore", {"settings": "x"}) as journal:
        explore(study[0], study[1], opened, journal)
        return [(row.number, row.key, row.content) for row in journal.rows()]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_study_has_the_same_rows_on_a_cluster(
    workers: int, study: tuple[Settings, Any], cluster: Any, tmp_path: Path
) -> None:
    wanted = rows(study, InProcess(), tmp_path / "here")
    assert rows(study, RayCluster(cluster.address, workers), tmp_path / "ray") == wanted


def test_a_node_lost_on_the_way_changes_no_row(
    study: tuple[Settings, Any], cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=2)
    wanted = rows(study, InProcess(), tmp_path / "here")

    def lose() -> None:
        time.sleep(1)
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    found = rows(study, RayCluster(cluster.address, 4), tmp_path / "ray")
    thread.join()
    assert found == wanted


def test_without_ray_or_a_cluster_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExecutorError, match="0 workers"):
        RayCluster("local", 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"pip install 'tpuflow\[ray\]'"):
        RayCluster("local", 1)


def test_nothing_else_asks_for_ray() -> None:
    script = "import sys, tpuflow.explore, tpuflow.cli.commands.explore; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
