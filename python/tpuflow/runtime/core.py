"""The extension module as this package uses it: arrays in and out as flat bytes, everything else by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core

__all__ = ["Packer", "RunResult", "Session", "State"]

State = _core.State

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


def flat(array: Array) -> Bytes:
    """The bytes of an array, row-major; not copied if it lies so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Attributes:
        outputs: Bytes of every output in the model's order.
        cycles: Of an exact run, else None.
        report: Figures of an exact run, as JSON text.
        events: What went wrong without stopping the run: layer, kind and count.
        seconds: What the simulated machine took on this computer.
    """

    outputs: Sequence[Bytes]
    cycles: int | None
    report: str | None
    events: Sequence[dict[str, Any]]
    seconds: float


class Session:
    """A program, checked once for all its runs, which may go on side by side.

    Raises:
        ProgramError: The program does not fit its machine.
    """

    def __init__(self, program: _core.Program) -> None:
        self._session = _core.Session(program)

    def run(self, arrays: Sequence[Array], *, exact: bool) -> RunResult:
        """Runs the program on one array per input.

        Raises:
            SampleError: An index does not fit the stored type.
            ProgramError: The program breaks a rule of the machine.
        """
        return self._result(*self._session.run([flat(array) for array in arrays], exact))

    def state(self) -> State:
        """The program's states without rows.

        Raises:
            SampleError: It has none.
        """
        return self._session.state()

    def step(self, arrays: Sequence[Array], state: State, position: int, *, exact: bool) -> RunResult:
        """As `run`, behind the rows of a state before a position; arrays of states are empty.

        Raises:
            SampleError: The position is none of the program's or the state's, or the state is another's.
        """
        return self._result(*self._session.step([flat(array) for array in arrays], state, position, exact))

    def rows_of(self, state: State, name: str) -> tuple[list[int], Bytes]:
        """Shape and bytes of the rows of a state that count."""
        return state.read(self._session, name)

    def fill(self, state: State, rows: int, arrays: Sequence[Array]) -> None:
        """Replaces all rows of a state."""
        state.write(self._session, rows, [flat(array) for array in arrays])

    @staticmethod
    def _result(
        outputs: Sequence[Bytes], figures: tuple[int, str] | None, events: str | None, seconds: float
    ) -> RunResult:
        cycles, report = (None, None) if figures is None else figures
        return RunResult(outputs, cycles, report, [] if events is None else json.loads(events), seconds)


class Packer:
    """Packs and unpacks arrays as a program's metadata says.

    Raises:
        ProgramError: The metadata contradict themselves.
    """

    def __init__(self, metadata: str) -> None:
        self._codec = _core.Codec(metadata)

    def pack(self, number: int, array: Array) -> Bytes:
        """Cache words of input `number`, flat; padding is zero.

        Raises:
            SampleError: An index does not fit the stored type.
        """
        return self._codec.pack(number, flat(array))

    def unpack(self, number: int, words: Array) -> Bytes:
        """Bytes of the user's array in the cache words of output `number`."""
        return self._codec.unpack(number, flat(words))
