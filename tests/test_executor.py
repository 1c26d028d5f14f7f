"""Executors: the same results here and in processes, failures that stay with their task, cancelling."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from executor_work import (
    die,
    die_once_at,
    fail_from,
    odd_error,
    process_number,
    shared_item,
    square,
    unsendable,
    wait_for_ever,
)
from tpuflow.errors import ModelError
from tpuflow.executors import CancelledError, ExecutorError, InProcess, LocalProcesses, run_all

Made = Callable[[], InProcess | LocalProcesses]
BOTH = pytest.mark.parametrize("make", [InProcess, lambda: LocalProcesses(2)], ids=["here", "processes"])


@BOTH
def test_results_come_as_they_are_done_and_failures_stay_with_their_task(make: Made) -> None:
    with make() as executor:
        tasks = [executor.submit(square, number) for number in range(6)]
        ended = list(executor.as_completed())
        assert sorted(task.number for task in ended) == list(range(6))
        assert [task.result() for task in tasks if task.number != 3] == [0, 1, 4, 16, 25]
        with pytest.raises(ModelError, match="3 is not squared"):
            tasks[3].result()
        again = executor.submit(square, number=7)
        assert [task.result() for task in executor.as_completed()] == [49]
        assert again.number == 6
    assert not multiprocessing.active_children()


@BOTH
def test_what_has_not_begun_can_be_canceled(make: Made) -> None:
    with make() as executor:
        first, second = executor.submit(square, 1), executor.submit(square, 2)
        with pytest.raises(ExecutorError, match="task 0 is waiting"):
            first.result()
        assert executor.cancel(second)
        assert not executor.cancel(second)
        assert list(executor.as_completed()) == [first]
        assert not executor.cancel(first)
        with pytest.raises(CancelledError):
            second.result()


def test_a_task_under_way_is_canceled_and_its_place_taken() -> None:
    with LocalProcesses(2) as executor:
        endless, quick = executor.submit(wait_for_ever), executor.submit(square, 2)
        finished = executor.as_completed()
        assert next(finished) is quick
        assert endless.state == "running"
        assert executor.cancel(endless)
        more = [executor.submit(square, number) for number in (4, 5)]
        assert sorted(task.number for task in finished) == [task.number for task in more]
        with pytest.raises(CancelledError):
            endless.result()
    assert not multiprocessing.active_children()


@BOTH
def test_a_shared_value_is_read_by_many_pieces(make: Made) -> None:
    with make() as executor:
        shared, later = executor.share([5, 6, 7]), executor.share([8])
        assert run_all(executor, shared_item, [(shared, at) for at in (2, 0, 1)]) == [7, 5, 6]
        assert run_all(executor, shared_item, [(later, 0), (shared, 1)]) == [8, 6]
        assert shared.value == [5, 6, 7]


def test_a_value_that_cannot_be_sent_is_an_error_where_it_is_shared() -> None:
    with LocalProcesses(1) as executor, pytest.raises(ExecutorError, match="cannot be sent to other proc"):
        executor.share(lambda: None)


@BOTH
def test_the_first_failure_in_order_is_raised_and_nothing_behind_it_begun(make: Made) -> None:
    with make() as executor:
        for _ in range(3):
            with pytest.raises(ModelError, match=r"^4 is too much"):
                run_all(executor, fail_from, [(4, at) for at in range(12)])
        assert run_all(executor, fail_from, [(4, at) for at in range(4)]) == [0, 1, 2, 3]
        assert run_all(executor, fail_from, []) == []


def test_a_process_killed_between_two_pieces_is_replaced() -> None:
    with LocalProcesses(1) as executor:
        (first,) = run_all(executor, process_number, [()])
        os.kill(first, signal.SIGKILL)
        time.sleep(0.2)
        (second,) = run_all(executor, process_number, [()])
        assert second != first


def test_work_of_a_lost_process_is_run_once_more(tmp_path: Path) -> None:
    told = []
    with LocalProcesses(2) as executor:
        found = run_all(
            executor,
            die_once_at,
            [(tmp_path / "mark", at) for at in range(4)],
            lambda *each: told.append(each),
        )
        assert found == [0, 1, 5, 3]
        assert sorted(told) == [(0, 0), (1, 1), (2, 5), (3, 3)]
        with pytest.raises(ExecutorError, match="ended with status 7"):
            run_all(executor, die, [()])


def test_leaving_early_leaves_no_process_behind() -> None:
    with LocalProcesses(2) as executor:
        endless, quick = executor.submit(wait_for_ever), executor.submit(square, 1)
        assert next(executor.as_completed()) is quick
    assert endless.state == "cancelled"
    assert not multiprocessing.active_children()


def test_a_process_that_dies_and_a_result_that_cannot_be_sent_are_failures() -> None:
    with LocalProcesses(1) as executor:
        dead, odd, well = executor.submit(die), executor.submit(unsendable), executor.submit(square, 2)
        strange = executor.submit(odd_error)
        assert list(executor.as_completed()) == [dead, odd, well, strange]
        with pytest.raises(ExecutorError, match="OddError: one, two"):
            strange.result()
        with pytest.raises(ExecutorError, match="task 0: its process ended with status 7"):
            dead.result()
        with pytest.raises(ExecutorError, match="cannot be sent back"):
            odd.result()
        assert well.result() == 4
    with pytest.raises(ExecutorError, match="0 workers"):
        LocalProcesses(0)


DRIVER = """
import sys
from pathlib import Path
from executor_work import tell_and_wait
from tpuflow.executors import LocalProcesses
if __name__ == "__main__":
    with LocalProcesses(1) as executor:
        executor.submit(tell_and_wait, Path(sys.argv[1]))
        list(executor.as_completed())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells by /proc whether a process runs")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_work_ends_with_the_process_that_asked_for_it(tmp_path: Path, number: signal.Signals) -> None:
    told, script = tmp_path / "process", tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, script, told], env=os.environ | path) as driver:
        wait_until(lambda: told.exists() and bool(told.read_text(encoding="utf-8")))
        worker = int(told.read_text(encoding="utf-8"))
        driver.send_signal(number)
    wait_until(lambda: not is_running(worker))


def is_running(process: int) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
