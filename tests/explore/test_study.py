"""Studies: the same trials whoever runs them, nothing lost or done twice, and nothing pruned that counts."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import tiny
from conftest import slow_except
from frontend.graphs import graph
from models.builder import samples
from tpuflow.errors import FileError
from tpuflow.executors import ExecutorError, InProcess, LocalProcesses, Task
from tpuflow.explore import ExploreError, Results, Settings, Space, Workload, explore, load_results
from tpuflow.explore.objectives import dominates, front, rank
from tpuflow.explore.page import study_page
from tpuflow.io.journal import Journal
from tpuflow.pipeline.exploration import workloads

SPACE = Space({"cache.bytes": (65536, 1 << 20), "ddr.channels": (1, 2, 3), "array.size": (32, 64, 128)})
BOTH = ("latency", "area")
ALL = (*BOTH, "energy", "edp", "throughput")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, Settings]:
    folder = tmp_path_factory.mktemp("study")
    model = tiny()
    onnx.save(model, folder / "tiny.onnx")
    np.savez(folder / "samples.npz", allow_pickle=False, **samples(model, 4))
    settings = Settings((str(folder / "tiny.onnx"),), SPACE, wave=3)
    return workloads(settings, folder / "graphs", folder / "samples.npz")[0], settings


Made = Callable[[], Any]


def run(
    network: tuple[Workload, Settings], path: Path, make: Made = InProcess, **changes: Any
) -> tuple[Results, list[tuple[int, str, Any]]]:
    settings = replace(network[1], **changes)
    with make() as executor, Journal.open(path, "explore", {"settings": str(settings)}) as journal:
        found = explore(settings, [network[0]], executor, journal)
        rows = [(row.number, row.key, row.content) for row in journal.rows()]
    return found, rows


class Reversed(InProcess):
    """Hands out results in the reverse order."""

    def as_completed(self) -> Iterator[Task[Any]]:
        yield from reversed(list(super().as_completed()))


@pytest.mark.slow
def test_same_rows_for_any_number_of_workers_and_order_of_arrival(
    network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    _, wanted = run(network, tmp_path / "one")
    for number, make in enumerate((Reversed, lambda: LocalProcesses(2))):
        assert run(network, tmp_path / f"{number}", make)[1] == wanted


class Dying(InProcess):
    """A process that ends after so many pieces of work, and counts what was run before."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def as_completed(self) -> Iterator[Task[Any]]:
        for task in super().as_completed():
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
            yield task


@pytest.mark.parametrize("strategy", ["grid", "nsga2"])
def test_a_study_that_was_killed_goes_on_and_does_nothing_twice(
    strategy: str, network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    if strategy != "grid":
        pytest.importorskip("optuna")
    changes: dict[str, Any] = {"strategy": strategy, "trials": 12}
    found, wanted = run(network, tmp_path / "whole", **changes)
    for _ in range(100):
        try:
            again, rows = run(network, tmp_path / "cut", lambda: Dying(5), **changes)
            break
        except KeyboardInterrupt:
            continue
    assert rows == wanted
    assert [row | {"seconds": 0} for row in again.rows] == [row | {"seconds": 0} for row in found.rows]
    assert len({key for _, key, _ in rows}) == len(rows)


@pytest.mark.parametrize("objectives", [BOTH, ("energy", "area"), ALL])
@pytest.mark.parametrize("levels", slow_except([(1,)], [(1,), (1, 5)]))
def test_pruning_changes_no_front_and_no_figure_lies_below_its_bound(
    objectives: tuple[str, ...], levels: tuple[int, ...], network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    pruned, _ = run(network, tmp_path / "pruned", objectives=objectives, levels=levels)
    full, _ = run(network, tmp_path / "full", objectives=objectives, levels=levels, prune=False)
    assert pruned.front == full.front
    assert full.counts["finished"] == 12
    assert full.counts["impossible"] == 6
    assert "pruned" not in full.counts
    for found in (pruned, full):
        assert found.below_bound == []
    if objectives == BOTH and levels == (1, 5):
        assert pruned.counts["pruned"] >= 3
    for row in pruned.rows:
        if row["status"] == "pruned":
            by = pruned.rows[row["pruned_by"]]
            assert all(by[name] <= full.rows[row["trial"]][name] for name in BOTH if name in objectives)


@pytest.fixture(scope="module")
def networks(
    network: tuple[Workload, Settings], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Workload], Settings]:
    """Two networks, of which the one with the higher bound is listed first."""
    folder = tmp_path_factory.mktemp("wide")
    model = graph(
        [("Conv", "x w", "y")], {"x": [1, 8, 32, 32]}, ["y"], {"w": np.ones((64, 8, 3, 3), np.float32)}
    )
    onnx.save(model, folder / "wide.onnx")
    settings = replace(network[1], networks=(str(folder / "wide.onnx"), *network[1].networks))
    return workloads(settings, folder / "graphs"), settings


@pytest.mark.parametrize("combine", ["geomean", "worst"])
@pytest.mark.slow
def test_of_several_networks_those_left_are_not_built_once_the_point_is_dominated(
    combine: str, networks: tuple[list[Workload], Settings], tmp_path: Path
) -> None:
    def made(name: str, *, prune: bool, make: Made = InProcess) -> Results:
        settings = replace(
            networks[1], combine=combine, levels=(5,), objectives=("latency",), wave=1, prune=prune
        )
        with make() as executor, Journal.open(tmp_path / name, "explore", {}) as journal:
            return explore(settings, networks[0], executor, journal)

    pruned, full = made("pruned", prune=True), made("full", prune=False)
    assert [full.rows[trial] | {"seconds": 0} for trial in full.front] == [
        pruned.rows[trial] | {"seconds": 0} for trial in pruned.front
    ]
    assert pruned.below_bound == full.below_bound == []
    with pytest.raises(KeyboardInterrupt):
        made("cut", prune=True, make=lambda: Dying(7))
    for again in (made("cut", prune=True), made("reversed", prune=True, make=Reversed)):
        assert [row | {"seconds": 0} for row in again.rows] == [row | {"seconds": 0} for row in pruned.rows]
    with Journal.existing(tmp_path / "pruned", "explore") as journal:
        measured = [row.content for row in journal.rows() if row.number % 16 == 5]
    partial = [row for row in measured if row["dominated_by"] is not None]
    # The worst of two is mostly the larger one, which is built last.
    assert partial or combine == "worst"
    assert all(list(row["networks"]) == [networks[0][1].name] for row in partial)
    status = {row["trial"]: row for row in pruned.rows if row["status"] == "pruned"}
    assert len(status) >= len(partial)
    assert all((row["pruned_before"], row["latency"]) == (5, None) for row in status.values())


def test_impossible_machines_are_rows_with_a_reason(
    network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    found, _ = run(network, tmp_path / "s")
    reasons = {row["reason"] for row in found.rows if row["ddr.channels"] == 3}
    assert len(reasons) == 3 or len(reasons) == 6
    assert all("channels" in reason for reason in reasons)
    with pytest.raises(ExploreError, match=r"no point of the space is possible; the first: .*channels"):
        run(network, tmp_path / "none", space=Space({"ddr.channels": (3, 5)}))


@pytest.mark.parametrize("strategy", ["random", "tpe", "nsga2"])
def test_strategies_choose_as_many_points_and_repeat_by_seed(
    strategy: str, network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    if strategy != "random":
        pytest.importorskip("optuna")
    changes: dict[str, Any] = {"strategy": strategy, "trials": 7, "levels": (1,)}
    first, _ = run(network, tmp_path / "a", **changes)
    second, _ = run(network, tmp_path / "b", **changes)
    other, _ = run(network, tmp_path / "c", **changes, seed=1)
    points = [[row[name] for name in SPACE.fields] for row in first.rows]
    assert points == [[row[name] for name in SPACE.fields] for row in second.rows]
    assert points != [[row[name] for name in SPACE.fields] for row in other.rows]
    assert len(points) <= 7
    assert len({tuple(point) for point in points}) == len(points)


def test_a_point_that_a_sampler_asks_for_again_is_one_trial(
    network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    space = Space({"array.size": (32, 64)})
    found, _ = run(network, tmp_path / "s", space=space, strategy="nsga2", trials=8, wave=8, levels=(1,))
    assert len(found.rows) == 2


class Killed(InProcess):
    """Ends the process of every piece of work whose number is given."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__()
        self._numbers = numbers

    def as_completed(self) -> Iterator[Task[Any]]:
        for task in super().as_completed():
            if task.number in self._numbers:
                task.state, task._value = "failed", ExecutorError("its process ended with status -9")
            yield task


def test_a_killed_worker_costs_an_attempt_and_two_the_trial(
    network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    space = Space({"array.size": (32, 64)})
    changes: dict[str, Any] = {"space": space, "levels": (1,), "prune": False}
    _, wanted = run(network, tmp_path / "a", **changes)
    assert run(network, tmp_path / "b", lambda: Killed({0, 3}), **changes)[1] == wanted
    found, _ = run(network, tmp_path / "c", lambda: Killed({2, 4}), **changes)
    assert Counter(row["status"] for row in found.rows) == {"finished": 1, "impossible": 1}
    assert "status -9" in next(row["reason"] for row in found.rows if row["status"] == "impossible")


def test_results_are_read_again_and_written_as_tables(
    network: tuple[Workload, Settings], tmp_path: Path
) -> None:
    found, _ = run(network, tmp_path / "s")
    again = load_results(tmp_path / "s")
    assert (again.rows, again.front) == (found.rows, found.front)
    found.save_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["status"] for row in rows] == [row["status"] for row in found.rows]
    assert [row["latency"] for row in rows] == [
        "" if r["latency"] is None else repr(r["latency"]) for r in found.rows
    ]
    parquet = pytest.importorskip("pyarrow.parquet")
    found.save_parquet(tmp_path / "s.parquet")
    assert parquet.read_table(tmp_path / "s.parquet").to_pylist() == found.rows
    page = study_page(found)
    assert "/*DATA*/null" not in page
    assert page.count("</script>") == 1
    assert found.machine_toml(found.front[0]).startswith("name = ")
    with pytest.raises(FileError, match="no such file"):
        load_results(tmp_path / "none")
    with pytest.raises(FileError, match="not a journal"):
        load_results(tmp_path / "s.csv")


def test_fronts_hold_what_nothing_dominates() -> None:
    vectors = {0: (1.0, 3.0), 1: (2.0, 2.0), 2: (2.0, 3.0), 3: (3.0, 1.0), 4: (1.0, 3.0), 5: (4.0, 4.0)}
    assert front(vectors) == [0, 4, 1, 3]
    assert rank(vectors) == [0, 4, 1, 3, 2, 5]
    assert not dominates((1.0, 3.0), (1.0, 3.0))
    assert dominates((1.0, 2.0), (1.0, 3.0))
