"""The results of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["Run"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Run:
    """The result of a program: outputs, cycles and counters.

    Attributes:
        outputs: By the model's names, for all samples; empty without values.
        report: Every figure, in the form of `simulate --json`.
        intervals: What every unit did when, by first cycle; None where no trace was asked for.
    """

    outputs: dict[str, Array]
    report: dict[str, Any]
    intervals: list[dict[str, Any]] | None

    @property
    def cycles(self) -> int:
        """Cycles of one inference (of the program's whole batch)."""
        return int(self.report["cycles"])

    @property
    def time_us(self) -> float:
        """The same in microseconds."""
        return float(self.report["time_us"])

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Name, unit, start, end, busy cycles and lower bound of every layer."""
        layers: list[dict[str, Any]] = self.report["layers"]
        return layers

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.report, indent=1)
