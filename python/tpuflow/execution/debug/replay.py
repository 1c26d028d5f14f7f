"""A program between any two cycles.

When every instruction begins and ends is taken from a simulation with a trace. Its values are computed anew,
one instruction after another in the order in which they begin. That is what the simulator does, too: in a
run without a hazard an instruction finds the same bytes at any moment between its first and its last cycle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow import _core
from tpuflow.compiler import units
from tpuflow.errors import ProgramError

__all__ = ["UNITS", "Instruction", "Replay", "Stepper", "in_parts"]

Array = NDArray[Any]
Stepper = _core.Stepper
in_parts = _core.in_parts
UNITS = tuple(unit.name for unit in units.UNITS)


@dataclass(frozen=True)
class Instruction:
    """One instruction of a program.

    Attributes:
        number: Position in the program.
        unit: Who executes it.
        layer: Number of the layer it works for.
        begin: Cycle in which it begins.
        end: One past its last cycle.
        text: As `disasm` shows it.
    """

    number: int
    unit: str
    layer: int
    begin: int
    end: int
    text: str


class Replay:
    """See the module.

    Attributes:
        program: The program.
        content: Its JSON form, without constants.
        instructions: In the order of the program.
        order: Their numbers in the order in which they begin.
        done: How many of these have begun.
        cycle: Where the program stands: all that begins before this cycle has begun.
        cycles: Of the whole run.
    """

    def __init__(self, program: _core.Program, codes: Sequence[Array]) -> None:
        self.program = program
        self.content: dict[str, Any] = json.loads(program.to_json())
        # Which rows of a table are looked up, and so when, follows from values.
        looks_up = any(
            {"Lookup", "PackedLookup"} & entry["work"].keys() for entry in self.content["instructions"]
        )
        run = _core.simulate(program, codes if looks_up else [], values=looks_up, trace=True)
        spans: dict[int, tuple[int, int]] = {}
        for interval in json.loads(run.trace_json()):
            number, begin, end = (interval[key] for key in ("instruction", "start", "end"))
            first, last = spans.get(number, (begin, end))
            spans[number] = min(first, begin), max(last, end)
        lines = program.to_text(constants=False).splitlines()
        texts = [line for line in lines if line.split(" ", 1)[0] in UNITS]
        self.instructions = [
            Instruction(number, entry["unit"], entry["layer"], *spans[number], text)
            for number, (entry, text) in enumerate(zip(self.content["instructions"], texts, strict=True))
        ]
        self.order = sorted(spans, key=lambda number: (spans[number][0], number))
        self.cycles = run.cycles
        self._codes = list(codes)
        self.restart()

    def restart(self) -> None:
        """Back to the first cycle."""
        self._stepper = _core.Stepper(self.program, self._codes)
        self.done = 0
        self.cycle = 0

    @property
    def ended(self) -> bool:
        """Whether every instruction has begun."""
        return self.done == len(self.order)

    def layer_name(self, layer: int) -> str:
        """Name of a layer."""
        return str(self.content["layers"][layer]["name"])

    def find_layer(self, word: str) -> int:
        """The layer of a name, of a part of a name that no other has, or of a number.

        Raises:
            ProgramError: There is none, or there are several.
        """
        names = [layer["name"] for layer in self.content["layers"]]
        if word in names:
            return names.index(word)
        if word.isdecimal() and int(word) < len(names):
            return int(word)
        near = [name for name in names if word in name]
        if len(near) == 1:
            return names.index(near[0])
        listed = ", ".join((near or names)[:8])
        raise ProgramError(f'layer "{word}" is {"not clear" if near else "unknown"}: {listed}')

    def next(self) -> Instruction | None:
        """The instruction that begins next; None at the end."""
        return None if self.ended else self.instructions[self.order[self.done]]

    def step(self) -> Instruction:
        """Executes the next instruction; the program stands in the cycle after it began.

        Raises:
            ProgramError: The program has ended, or the instruction breaks a rule of the machine.
        """
        found = self.next()
        if found is None:
            raise ProgramError("the program has ended: restart")
        self._stepper.execute(found.number)
        self.done += 1
        self.cycle = found.begin + 1
        return found

    def tokens(self) -> dict[str, int]:
        """How many instructions every unit has finished."""
        finished = dict.fromkeys(UNITS, 0)
        for each in self.instructions:
            finished[each.unit] += each.end <= self.cycle
        return finished

    def under_way(self) -> dict[str, list[Instruction]]:
        """The instructions that units have begun and not finished."""
        return {
            unit: [
                each for each in self.instructions if each.unit == unit and each.begin < self.cycle < each.end
            ]
            for unit in UNITS
        }

    def read(self, space: str, start: int, length: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Bytes of a memory, and which of them have been written.

        Raises:
            ProgramError: There is no such memory.
        """
        return self._stepper.read(space, start, length)

    def signals(self, begin: int, end: int, most: int) -> _core.Signals:
        """Signals of units, ports and DDR channels from one cycle up to another.

        Raises:
            ProgramError: That are more than `most` events.
        """
        return _core.signals(self.program, self._codes, begin, end, most)

    def accumulators(self, number: int) -> NDArray[np.int64]:
        """Exact sums of a matrix instruction of integers, `[pixels, columns]`; empty for any other.

        Raises:
            ProgramError: Its operands are not there (any more).
        """
        sums = self._stepper.accumulators(number)
        work = self.content["instructions"][number]["work"]
        return sums.reshape(-1, work["Matrix"]["columns"]) if "Matrix" in work else sums.reshape(0, 0)
