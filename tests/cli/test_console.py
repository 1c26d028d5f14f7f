"""What long work says of itself where nobody sees a bar."""

from __future__ import annotations

import pytest

from tpuflow.cli.commands import console


class Clock:
    """Seconds as a test has them pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("tpuflow.cli.commands.console.time.monotonic", lambda: self.now)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_the_first_step_and_what_is_before_it_say_nothing_about_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with console.progress("calibrate") as step:
        clock.now += 60
        step(1, 64)
        assert said(capsys) == "calibrate: 1 of 64\n"
        for done in range(2, 12):
            clock.now += 1
            step(done, 64)
        assert said(capsys) == "calibrate: 11 of 64, about 53 s left\n"
        clock.now += 1000
        step(64, 64)
        assert said(capsys) == ""


def test_every_part_of_the_work_has_its_own_pace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with console.progress("calibrate") as step:
        for done in range(1, 5):
            clock.now += 1
            step(done, 4)
        clock.now += 3000
        step(1, 9)
        clock.now += 90
        step(2, 9)
        assert said(capsys).splitlines() == ["calibrate: 1 of 9", "calibrate: 2 of 9, about 10 min left"]
        clock.now += 500
        step(1, 9)
        assert said(capsys) == "calibrate: 1 of 9\n"
        clock.now += 2 * 3600
        step(2, 9)
        assert said(capsys) == "calibrate: 2 of 9, about 14 h left\n"


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("run") as step:
        for done in range(100):
            step(done, 100)
    assert said(capsys) == ""
