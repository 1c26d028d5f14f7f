"""Commands over a replay, as text in and text out; a terminal or a script stands in front of it.

break layer conv1          stop when an instruction of a layer is about to begin
break instruction 12       ... this one
break cycle 5000           ... in this cycle
watch cache 0x1000 64      stop after bytes have changed
continue, step [N], restart, cycle N
show tokens|units|next|bank B [WORD [COUNT]]|cache ADDRESS [BYTES]|ewp ...|ddr0 ...|accumulators [N]
list [N], layers, breaks, delete N, help, quit
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import TpuflowError
from tpuflow.execution.debug.replay import UNITS, Instruction, Replay

__all__ = ["Debugger", "DebuggerError"]

ROW = 16
MOST_BYTES = 4096
MOST_SUMS = 8
SHORT = {"b": "break", "c": "continue", "run": "continue", "s": "step", "next": "step", "q": "quit"}


class DebuggerError(TpuflowError):
    """A command makes no sense; the text says what would."""


@dataclass(frozen=True)
class Break:
    """Where to stop.

    Attributes:
        kind: `layer`, `instruction`, `cycle` or `watch`.
        text: As it was typed.
        number: Of the layer, instruction or cycle.
        space: Memory that is watched.
        start: First byte watched.
        length: Bytes watched.
    """

    kind: str
    text: str
    number: int = 0
    space: str = ""
    start: int = 0
    length: int = 0


class Debugger:
    """See the module.

    Attributes:
        replay: The program.
        ended: Whether `quit` was said.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.ended = False
        self._breaks: dict[int, Break] = {}
        self._number = 0
        self._passed: int | None = None

    def execute(self, line: str) -> str:
        """Runs a command and returns its answer.

        Raises:
            DebuggerError: There is no such command, or its words make no sense.
            ProgramError: The program breaks a rule of the machine.
        """
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise DebuggerError(f"{line}: {error}") from None
        if not words:
            return ""
        commands: dict[str, Callable[[Sequence[str]], str]] = {
            "break": self._break,
            "watch": self._watch,
            "breaks": self._list_breaks,
            "delete": self._delete,
            "continue": self._continue,
            "step": self._step,
            "cycle": self._cycle,
            "restart": self._restart,
            "show": self._show,
            "list": self._list,
            "layers": self._layers,
            "help": self._help,
            "quit": self._quit,
        }
        name = SHORT.get(words[0], words[0])
        if name not in commands:
            raise DebuggerError(f'unknown command "{words[0]}" (known: {", ".join(commands)})')
        return commands[name](words[1:])

    def where(self) -> str:
        """Where the program stands, in a line."""
        found = self.replay.next()
        begins = "the program has ended" if found is None else f"next {self._break_text(found)}"
        return f"cycle {self.replay.cycle:,} of {self.replay.cycles:,}: {begins}"

    def _break_text(self, each: Instruction) -> str:
        layer = self.replay.layer_name(each.layer)
        return f"{each.number} ({each.unit}, {layer}, cycles {each.begin}-{each.end})"

    def _break(self, words: Sequence[str]) -> str:
        kinds = {"layer": self.replay.find_layer, "instruction": self._instruction, "cycle": _number}
        if len(words) != 2 or words[0] not in kinds:
            raise DebuggerError("break: write break layer NAME, break instruction N or break cycle N")
        return self._add(Break(words[0], " ".join(words), kinds[words[0]](words[1])))

    def _watch(self, words: Sequence[str]) -> str:
        if len(words) not in (2, 3):
            raise DebuggerError("watch: write watch SPACE ADDRESS [BYTES], such as watch cache 0x1000 64")
        length = _number(words[2]) if len(words) == 3 else 1
        self.replay.read(words[0], 0, 0)  # is there such a memory?
        return self._add(Break("watch", "watch " + " ".join(words), 0, words[0], _number(words[1]), length))

    def _add(self, made: Break) -> str:
        self._number += 1
        self._breaks[self._number] = made
        return f"{self._number}: {made.text}"

    def _list_breaks(self, words: Sequence[str]) -> str:
        _nothing("breaks", words)
        return "\n".join(f"{number}: {each.text}" for number, each in self._breaks.items()) or "none"

    def _delete(self, words: Sequence[str]) -> str:
        if len(words) != 1 or _number(words[0]) not in self._breaks:
            raise DebuggerError("delete: write the number of a break, see breaks")
        del self._breaks[_number(words[0])]
        return ""

    def _step(self, words: Sequence[str]) -> str:
        count = _number(words[0]) if words else 1
        shown = []
        for _ in range(count):
            if self.replay.ended:
                break
            shown.append(self._break_text(self.replay.step()))
        self._passed = None
        return "\n".join([*shown, self.where()])

    def _continue(self, words: Sequence[str]) -> str:
        _nothing("continue", words)
        first = True
        while (following := self.replay.next()) is not None:
            number = None if first and self._passed == following.number else self._stop(following)
            if number is not None:
                self._passed = following.number
                return f"break {number} ({self._breaks[number].text})\n{self.where()}"
            first = False
            before = self._watched_bytes()
            done = self.replay.step()
            for key, seen in self._watched_bytes().items():
                if not np.array_equal(seen, before[key]):
                    self._passed = None
                    changed = f"changed by {self._break_text(done)}"
                    return f"break {key} ({self._breaks[key].text}): {changed}\n{self.where()}"
        return self.where()

    def _stop(self, following: Instruction) -> int | None:
        """The break that applies before an instruction."""
        for number, each in self._breaks.items():
            if each.kind == "layer" and following.layer == each.number:
                return number
            if each.kind == "instruction" and following.number == each.number:
                return number
            if each.kind == "cycle" and self.replay.cycle <= each.number <= following.begin:
                return number
        return None

    def _watched_bytes(self) -> dict[int, NDArray[np.uint8]]:
        return {
            number: self.replay.read(each.space, each.start, each.length)[0].copy()
            for number, each in self._breaks.items()
            if each.kind == "watch"
        }

    def _cycle(self, words: Sequence[str]) -> str:
        if len(words) != 1:
            raise DebuggerError("cycle: write the cycle to go to")
        wanted = _number(words[0])
        if wanted < self.replay.cycle:
            self.replay.restart()
        while (following := self.replay.next()) is not None and following.begin < wanted:
            self.replay.step()
        self.replay.cycle = min(wanted, self.replay.cycles)
        self._passed = None
        return self.where()

    def _restart(self, words: Sequence[str]) -> str:
        _nothing("restart", words)
        self.replay.restart()
        self._passed = None
        return self.where()

    def _show(self, words: Sequence[str]) -> str:
        what, *rest = words or ("",)
        if what == "tokens":
            return "\n".join(f"{unit:<5} {count}" for unit, count in self.replay.tokens().items())
        if what == "units":
            busy = self.replay.under_way()
            return "\n".join(
                f"{unit:<5} {', '.join(map(self._break_text, busy[unit])) or 'idle'}" for unit in UNITS
            )
        if what == "next":
            following = self.replay.next()
            return self.where() if following is None else following.text
        if what == "accumulators":
            return self._accumulators(rest)
        if what == "bank":
            return self._bank(rest)
        if what in ("cache", "ewp") or what.startswith("ddr"):
            if len(rest) not in (1, 2):
                raise DebuggerError(f"show {what}: write show {what} ADDRESS [BYTES]")
            return self._bytes(what, _number(rest[0]), _number(rest[1]) if len(rest) == 2 else 64)
        raise DebuggerError("show: write tokens, units, next, accumulators, bank, cache, ewp or ddr0")

    def _bank(self, words: Sequence[str]) -> str:
        cache = self.replay.content["machine"]["cache"]
        if not 1 <= len(words) <= 3 or _number(words[0]) >= cache["banks"]:
            raise DebuggerError(
                f"show bank: write show bank B [WORD [COUNT]], B from 0 to {cache['banks'] - 1}"
            )
        bank, first, count = (*map(_number, words), *(0, 4)[len(words) - 1 :])
        word, words_per_bank = cache["word_bytes"], cache["words"]
        if first >= words_per_bank:
            raise DebuggerError(f"show bank: a bank has {words_per_bank} words")
        start = (bank * words_per_bank + first) * word
        return self._bytes("cache", start, min(count, words_per_bank - first) * word)

    def _bytes(self, space: str, start: int, length: int) -> str:
        found, known = self.replay.read(space, start, min(length, MOST_BYTES))
        lines = []
        for at in range(0, len(found), ROW):
            row = " ".join(
                f"{byte:02x}" if seen else ".."
                for byte, seen in zip(found[at : at + ROW], known[at : at + ROW], strict=True)
            )
            lines.append(f"{start + at:#010x}  {row}")
        return "\n".join(lines) or f"{space} ends before {start:#x}"

    def _accumulators(self, words: Sequence[str]) -> str:
        if words:
            number = self._instruction(words[0])
        else:
            busy = self.replay.under_way()["me"]
            if not busy:
                raise DebuggerError("show accumulators: the array is idle; name an instruction")
            number = busy[-1].number
        sums = self.replay.accumulators(number)
        if not sums.size:
            return f"instruction {number} sums no integers"
        lines = [f"instruction {number}: {sums.shape[0]} pixels of {sums.shape[1]} columns"]
        more = " ..." if sums.shape[1] > MOST_SUMS else ""
        lines += [
            f"{pixel:>5}  {' '.join(f'{total:>9}' for total in row[:MOST_SUMS])}{more}"
            for pixel, row in enumerate(sums[:MOST_SUMS].tolist())
        ]
        return "\n".join(lines + (["  ..."] if len(sums) > MOST_SUMS else []))

    def _list(self, words: Sequence[str]) -> str:
        count = _number(words[0]) if words else 10
        numbers = self.replay.order[self.replay.done : self.replay.done + count]
        return (
            "\n".join(self._break_text(self.replay.instructions[number]) for number in numbers)
            or self.where()
        )

    def _layers(self, words: Sequence[str]) -> str:
        _nothing("layers", words)
        return "\n".join(
            f"{number:<4} {layer['unit']:<5} {layer['op']:<14} {layer['name']}"
            for number, layer in enumerate(self.replay.content["layers"])
        )

    def _help(self, words: Sequence[str]) -> str:
        _nothing("help", words)
        return (__doc__ or "").partition("\n\n")[2].rstrip()

    def _quit(self, words: Sequence[str]) -> str:
        _nothing("quit", words)
        self.ended = True
        return ""

    def _instruction(self, word: str) -> int:
        number = _number(word)
        if number >= len(self.replay.instructions):
            raise DebuggerError(
                f"instruction {number} does not exist, there are {len(self.replay.instructions)}"
            )
        return number


def _number(word: str) -> int:
    try:
        value = int(word, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise DebuggerError(f'"{word}" is not a whole number')
    return value


def _nothing(name: str, words: Sequence[str]) -> None:
    if words:
        raise DebuggerError(f"{name}: takes no words")
