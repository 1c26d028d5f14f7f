"""Headless Chromium, driven over a pipe in the protocol of its developer tools.

Messages are JSON ended by a zero byte: commands go to the browser's file descriptor 3, answers and events
come from 4 (https://chromedevtools.github.io/devtools-protocol/). Keys and mouse are real ones to the page.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "Tab"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--remote-debugging-pipe",
    "--window-size=1366,768",
)
PATIENCE_SECONDS = 60.0

Json = dict[str, Any]


class Browser:
    """A running browser; `with Browser(folder) as browser`."""

    def __init__(self, profile: Path) -> None:
        found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
        if found is None:
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
        read, self._commands = os.pipe()
        self._answers, write = os.pipe()
        # Above 3 and 4, so that putting one in its place does not close the other.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 16) for end in (read, write)]

        def place() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,  # noqa: PLW1509 - the child does nothing but this before it becomes the browser
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in high:
            os.close(end)
        os.close(read)
        os.close(write)
        self._pending = b""
        self._number = 0
        self.events: list[Json] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)

    def command(self, method: str, session: str | None = None, **parameters: Any) -> Json:
        """Sends a command and waits for its answer; events on the way are kept."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: Json = answer["result"]
                return result

    def _message(self) -> Json:
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._pending += part
        first, _, self._pending = self._pending.partition(b"\0")
        message: Json = json.loads(first)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: str, folder: Path) -> Tab:
        """Opens a page in a tab of its own, and waits until it says that it is ready."""
        path = folder / "page.html"
        path.write_text(page, encoding="utf-8")
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for method in ("Page.enable", "Runtime.enable", "Log.enable"):
            tab.command(method)
        tab.command("Page.navigate", url=path.as_uri())
        tab.wait("document.documentElement?.dataset.ready")
        return tab


class Tab:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def command(self, method: str, **parameters: Any) -> Json:
        """Sends a command to this page."""
        return self._browser.command(method, self._session, **parameters)

    def value(self, expression: str) -> Any:
        """The value of an expression of the page's."""
        found = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression is true."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)
        return found

    def frame(self) -> None:
        """Waits until what was asked for is drawn."""
        # A tab behind another one is never drawn.
        self.command("Page.bringToFront")
        self.value("new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(() => next(1))))")

    def key(self, name: str, text: str = "") -> None:
        """Presses a key."""
        parameters: Json = {"key": name} | ({"text": text} if text else {})
        self.command("Input.dispatchKeyEvent", type="keyDown", **parameters)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=name)
        self.frame()

    def mouse(self, kind: str, x: float, y: float, **parameters: Any) -> None:
        """A movement, click or turn of the wheel: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **parameters)

    def click(self, x: float, y: float) -> None:
        """A click."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)
        self.frame()

    def place(self, name: str) -> tuple[float, float]:
        """Where the element with an id begins on the screen, once it is scrolled there."""
        box = self.value(
            f'(() => {{ const e = document.getElementById("{name}"); e.scrollIntoView({{ block: "center", '
            'behavior: "instant" }); const b = e.getBoundingClientRect(); return [b.left, b.top]; })()'
        )
        self.frame()
        return box[0], box[1]

    def said(self) -> list[str]:
        """Errors and warnings of the page: uncaught ones, and those on its console."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                found.append(json.dumps(event["params"]))
        return found
