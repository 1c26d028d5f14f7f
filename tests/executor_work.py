"""Work for executors: functions of a module, which other processes can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tpuflow.errors import ModelError
from tpuflow.executors import Shared, local_copy


class OddError(Exception):
    """One that cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}, {second}")


def square(number: int) -> int:
    if number == 3:
        raise ModelError("3 is not squared")
    return number * number


def wait_for_ever() -> None:
    while True:
        time.sleep(1)


def tell_and_wait(target: Path) -> None:
    """Writes the number of its process, and does not end."""
    target.write_text(str(os.getpid()), encoding="utf-8")
    wait_for_ever()


def die() -> None:
    os._exit(7)


def unsendable() -> object:
    return lambda: None


def odd_error() -> None:
    raise OddError("one", "two")


def die_once(marker: Path) -> int:
    """Ends its process the first time it is run."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def content(path: Path) -> bytes:
    return local_copy(path).read_bytes()


def shared_item(shared: Shared[list[int]], at: int) -> int:
    return shared.value[at]


def die_once_at(marker: Path, at: int) -> int:
    """Ends its process the first time it is run for 2."""
    return die_once(marker) if at == 2 else at


def fail_from(first: int, at: int) -> int:
    if at >= first:
        raise ModelError(f"{at} is too much")
    return at


def process_number() -> int:
    return os.getpid()
