"""The grid samples come on: images of 8 bits stay multiples of one step, whatever they were scaled by.

Codes whose scale is that step hold such samples without any rounding. A sensor's grid is told by the distinct
values of an input, as long as there are few; whether they are multiples of a step is asked in the end, so
neither the order of samples nor their division into shards shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Levels"]

MOST, LEAST = 256, 16
"""Distinct values a grid of 8 bits has at most, and what tells a grid from a few odd numbers."""

OFF = 0.02
"""How far a value may lie from its multiple, in steps: scaling left roundings of float32."""

PEEK = 4096
"""Values that are looked at first: most tensors show here already that they lie on no grid."""


@dataclass
class Levels:
    """Distinct values of a tensor.

    Attributes:
        values: In order; None once there are more than a grid of 8 bits has.
    """

    values: NDArray[np.float32] | None = field(default_factory=lambda: np.zeros(0, np.float32))

    def observe(self, array: NDArray[np.float32]) -> None:
        """Adds the values of an array of any shape."""
        flat = array.reshape(-1)
        for part in (flat[:PEEK], flat[PEEK:]):
            if self.values is not None and part.size:
                found = np.union1d(self.values, np.unique(part))
                self.values = found if len(found) <= MOST else None

    def merge(self, later: Levels) -> None:
        """Adds what another has seen."""
        if later.values is None:
            self.values = None
        else:
            self.observe(later.values)

    def step(self) -> float | None:
        """The step all values are whole multiples of; None where there is none, or too few to tell.

        Of a few values no more than `LEAST` any numbers are multiples of something.
        """
        if self.values is None or len(self.values) < LEAST:
            return None
        values = self.values.astype(np.float64)
        if not np.all(np.isfinite(values)):
            return None
        step = float(np.diff(values).min())
        multiples = np.rint(values / step)
        if np.abs(multiples).max() >= MOST:
            return None
        step = float(values @ multiples / (multiples @ multiples))
        return step if np.all(np.abs(values - multiples * step) <= OFF * step) else None
