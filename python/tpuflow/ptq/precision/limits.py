"""How long a search may go on: in steps, which repeat, and in seconds, which do not.

A search that is cut short gives the best it has and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Limits"]


class Limits:
    """Counts the trials of a search.

    Args:
        steps: Most trials; None for no limit.
        seconds: Longest time; None for no limit.
        clock: What tells the seconds.
        told: Told after every trial how many there were.

    Attributes:
        done: Trials so far.
        cut: Whether a trial was refused.
    """

    def __init__(
        self,
        steps: int | None = None,
        seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        told: Callable[[int], None] | None = None,
    ) -> None:
        self.done = 0
        self.cut = False
        self._steps = steps
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._told = told

    def go_on(self) -> bool:
        """Whether another trial may be made, which then counts."""
        late = self._end is not None and self._clock() >= self._end
        if late or (self._steps is not None and self.done >= self._steps):
            self.cut = True
            return False
        self.done += 1
        if self._told is not None:
            self._told(self.done)
        return True
