"""How far long work is, on a terminal and in a file; tables whose cells are never cut."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tpuflow.cli.commands import console
from tpuflow.cli.commands.progress import Lines, Task, render

BAR = re.compile("[━╸╺]+")


class Clock:
    """Seconds as a test has them pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def followed(label: str) -> tuple[Clock, Task, Lines, io.StringIO]:
    clock, stream = Clock(), io.StringIO()
    task = Task(label, clock)
    return clock, task, Lines(task, stream, clock), stream


def said(stream: io.StringIO) -> str:
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


def drawn(task: Task) -> str:
    """The line of a task on a terminal of 80 columns, without its colors."""
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, no_color=True, width=80).print(render(task))
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).rstrip()


def test_the_first_step_and_what_is_before_it_say_nothing_about_the_others() -> None:
    clock, step, lines, stream = followed("calibrate")
    clock.now += 60
    step(1, 64)
    lines.look()
    assert said(stream) == "calibrate: 1 of 64, 60 s so far\n"
    for done in range(2, 12):
        clock.now += 1
        step(done, 64)
    lines.look()
    assert said(stream) == "calibrate: 11 of 64, about 53 s left\n"
    clock.now += 1000
    step(64, 64)
    lines.look()
    assert said(stream) == "calibrate: 64 of 64 done, 18 min so far\n"


def test_every_part_of_the_work_has_its_own_pace() -> None:
    clock, step, lines, stream = followed("calibrate")
    for done in range(1, 5):
        clock.now += 1
        step(done, 4)
    clock.now += 3000
    step(1, 9)
    clock.now += 90
    step(2, 9)
    lines.look()
    assert said(stream) == "calibrate: 2 of 9, about 10 min left\n"
    clock.now += 500
    step(1, 9)
    clock.now += 2 * 3600
    step(2, 9)
    lines.look()
    assert said(stream) == "calibrate: 2 of 9, about 14 h left\n"


def test_quick_work_says_nothing_and_work_without_counts_says_how_long_it_takes() -> None:
    clock, step, lines, stream = followed("run")
    for done in range(100):
        step(done, 100)
        lines.look()
    assert said(stream) == ""
    step.begin("schedule")
    lines.look()
    for _ in range(30):
        clock.now += 1
        lines.look()
    assert said(stream).splitlines() == [f"schedule: {seconds} s so far" for seconds in (2, 12, 22)]


def test_no_redraw_shows_a_question_mark_or_a_full_bar() -> None:
    """Records a line for each second of two parts, the second of which begins without a count."""
    clock = Clock()
    task = Task("calibrate", clock)
    recorded = [drawn(task)]
    for total in (16, 5):
        for done in range(1, total + 1):
            clock.now += 1.5
            task(done, total)
            recorded.append(drawn(task))
        for _ in range(3):  # work goes on after the last step
            clock.now += 1
            recorded.append(drawn(task))
    task.begin("calibrate: tune")
    recorded.append(drawn(task))
    assert recorded[0] == "calibrate 0 s so far"
    assert recorded[-1] == "calibrate: tune 0 s so far"
    assert any(BAR.search(line) for line in recorded)
    for line in recorded:
        assert line.startswith("calibrate"), line
        assert "?" not in line
        if BAR.search(line):
            counts = re.search(r"(\d+) of (\d+)", line)
            assert counts is not None
            assert int(counts[1]) < int(counts[2])


@pytest.mark.feature("MSC-17")
def test_a_time_left_is_shown_only_where_a_pace_was_measured_and_counts_are_those_reported() -> None:
    clock = Clock()
    task = Task("steps", clock)
    line = ""
    for done in range(1, 8):
        clock.now += 2
        task(done, 8)
        line = drawn(task)
        assert f"{done} of 8" in line
        assert ("left" in line) == (done > 1)
    assert "about 2 s left" in line


def test_a_row_in_a_file_is_one_line_with_every_cell_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"/model/{'deep/' * 40}conv_{number}" for number in range(3)]
    console.reset()
    console.table([("layer", "left"), ("cycles", "right")], [(name, 7) for name in names])
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()[2:]] == [[name, "7"] for name in names]
    assert not any(line.endswith(" ") for line in printed.splitlines())
