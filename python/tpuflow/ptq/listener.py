"""Whom long work tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuflow.calibration import Statistics

__all__ = ["Listener"]


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """Callbacks for progress and remarks; all of them do nothing by default.

    Attributes:
        begin: A group of stages begins: import, search, calibrate, quantize, evaluate, schedule.
        end: It is done, in so many seconds.
        part: A stage of the recipe begins.
        stage: A stage of the recipe is done, in so many seconds.
        step: So much of the current stage is done, and of how much.
        remark: Something the user should know.
        counted: Handed what calibration counted, with histograms; None: they need not be made.
    """

    begin: Callable[[str], None] = _ignore
    end: Callable[[str, float], None] = _ignore
    step: Callable[[int, int], None] = _ignore
    remark: Callable[[str], None] = _ignore
    counted: Callable[[Statistics], None] | None = None
    stage: Callable[[str, float], None] = _ignore
    part: Callable[[str], None] = _ignore
