"""Signals of units, ports and DDR channels in a window of cycles, with the words that move.

The stepped simulator says who asks for which word in which cycle. The words themselves are read when the
instruction that asks is executed: a word that is read as the instruction finds it, one that is written as
the instruction leaves it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import ProgramError
from tpuflow.execution.debug.replay import UNITS, Replay

__all__ = ["Channel", "Request", "State", "Trace", "Words", "record_trace"]

Array = NDArray[Any]


@dataclass(frozen=True)
class State:
    """The state of a unit from a cycle on: `busy` for a layer, `off`, or why it does no work."""

    cycle: int
    unit: str
    state: str
    layer: int | None


@dataclass(frozen=True)
class Request:
    """A port asks a bank for a word; `data` is the word, `known` its bytes that have been written."""

    cycle: int
    port: str
    instruction: int
    bank: int
    word: int
    write: bool
    granted: bool
    data: bytes
    known: tuple[bool, ...]


@dataclass(frozen=True)
class Channel:
    """A DDR channel serves a line of the DMA from a cycle on, or none."""

    cycle: int
    channel: int
    line: str | None
    page: int


@dataclass(frozen=True)
class Trace:
    """Events of a window of cycles, each list in the order of time.

    Attributes:
        begin: First cycle.
        end: One past the last.
        states: Of units, where they change.
        requests: Of ports, every one.
        channels: Users of DDR channels, where they change.
        ports: Names of all ports, in falling priority.
        stalls: Names of all reasons to do no work.
    """

    begin: int
    end: int
    states: tuple[State, ...]
    requests: tuple[Request, ...]
    channels: tuple[Channel, ...]
    ports: tuple[str, ...]
    stalls: tuple[str, ...]


class Words:
    """Requests of a window, and the words they are for as the replay passes them."""

    def __init__(self, replay: Replay, cycles: tuple[int, int], most: int) -> None:
        """Finds the requests.

        Raises:
            ProgramError: There are more events than `most`.
        """
        try:
            self.signals = replay.signals(*cycles, most)
        except ProgramError as error:
            raise ProgramError(f"{error} (--cycles A:B)" if "events" in str(error) else str(error)) from None
        self.cycles = cycles
        self.requests = self.signals.requests.astype(np.int64)
        word = self.requests[:, 3]
        self._of: dict[tuple[int, bool], set[int]] = defaultdict(set)
        for instruction, wanted, write in zip(self.requests[:, 2], word, self.requests[:, 4], strict=True):
            self._of[int(instruction), bool(write)].add(int(wanted))
        self.found: dict[tuple[int, bool, int], tuple[bytes, tuple[bool, ...]]] = {}

    def read(self, replay: Replay, instruction: int) -> None:
        """Keeps the words an instruction is about to read."""
        self._keep(replay, instruction, write=False)

    def write(self, replay: Replay, instruction: int) -> None:
        """Keeps the words an instruction has written."""
        self._keep(replay, instruction, write=True)

    def _keep(self, replay: Replay, instruction: int, *, write: bool) -> None:
        size = replay.content["machine"]["cache"]["word_bytes"]
        for word in self._of.get((instruction, write), ()):
            content, known = replay.read("cache", word * size, size)
            self.found[instruction, write, word] = content.tobytes(), tuple(known.tolist())


def record_trace(replay: Replay, words: Words) -> Trace:
    """The events of a window, after the replay has passed it."""
    signals = words.signals
    per_bank = replay.content["machine"]["cache"]["words"]
    ports, stalls = signals.ports, signals.stalls
    states = [
        State(
            int(cycle),
            UNITS[unit],
            "busy" if layer else stalls[stall - 1] if stall else "off",
            int(layer) - 1 if layer else None,
        )
        for cycle, unit, layer, stall in signals.states.astype(np.int64)
    ]
    requests = []
    for cycle, port, instruction, word, write, granted in words.requests.tolist():
        data, known = words.found[instruction, bool(write), word]
        requests.append(
            Request(
                cycle,
                ports[port],
                instruction,
                word // per_bank,
                word % per_bank,
                bool(write),
                bool(granted),
                data,
                known,
            )
        )
    channels = [
        Channel(cycle, channel, UNITS[line - 1] if line else None, page)
        for cycle, channel, line, page in signals.channels.astype(np.int64).tolist()
    ]
    begin, end = words.cycles
    return Trace(begin, end, tuple(states), tuple(requests), tuple(channels), tuple(ports), tuple(stalls))
