"""Machines as objects: a preset, a file, or either with other parameters.

    asic = Machine.preset("128x128_asic")
    small = asic.replace({"cache.bytes": 4 << 20, "ddr.channels": 1})
    wide = asic.replace({"array.size": 256}, name="wide")

A parameter is named by its table and its key in the TOML file (`docs/machine.md`). Some follow from others,
unless they are given too:

| given | follows |
|---|---|
| `array.rows`, `pdp.lanes` or `cache.word_bytes` | the other two: a word is one row vector |
| the same | `array.columns` of a square array, or as many as the word still allows |
| the same | `ewp.lanes`, which keep their share of the word |
| `array.size` | rows and columns, both |
| `cache.bytes`, `ewp_cache.bytes` | words per bank |

Every machine that exists makes sense: what contradicts itself is refused with the parameters and the reason.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow import _core
from tpuflow.config.choices import choices
from tpuflow.errors import MachineError
from tpuflow.io.files import parse_toml, read_text, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

__all__ = ["Machine", "machine_text", "machine_toml", "machines", "note_unused", "require_machine"]

logger = logging.getLogger(__name__)

Number = int | float
UNUSED = ("array.parameter_tiles",)
"""Fields of older machine files that no law of the machine uses: read, and without effect."""

ROW = ("array.rows", "pdp.lanes", "cache.word_bytes")
"""Three names of one length."""


@dataclass(frozen=True)
class Machine:
    """The parameters of a machine, checked.

    Attributes:
        name: What reports and file names call it.
        parameters: All values by `table.key`; the clock is `clock_hz`.
    """

    name: str
    parameters: Mapping[str, Number]

    @staticmethod
    def presets() -> list[str]:
        """Lists the machines that come with the package, the default first."""
        return machines()

    @classmethod
    def preset(cls, name: str) -> Machine:
        """Gives a machine that comes with the package.

        Raises:
            MachineError: There is none of that name; the message lists them.
        """
        known = machines()
        if name not in known:
            raise MachineError(f'machine "{name}" is unknown, there are {", ".join(known)}')
        return cls.parse(machine_text(name), name)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Machine:
        """Reads a machine file, or a preset by its name.

        Raises:
            MachineError: It is neither, or makes no sense; the message names the parameter.
        """
        return cls.parse(machine_text(path), str(path))

    @classmethod
    def parse(cls, text: str, origin: str = "machine") -> Machine:
        """Reads the TOML text of a machine; `origin` names it in errors.

        Raises:
            MachineError: It makes no sense; the message names the parameter.
        """
        content: dict[str, Any] = json.loads(_core.machine_json(origin, text))
        flat: dict[str, Number] = {}
        for key, value in content.items():
            if isinstance(value, dict):
                flat |= {f"{key}.{name}": number for name, number in value.items()}
            elif key != "name":
                flat[key] = value
        return cls(str(content["name"]), flat)

    def replace(self, changes: Mapping[str, Number], *, name: str | None = None) -> Machine:
        """Makes another machine.

        Args:
            changes: Values by `table.key`, and those of the table above that stand for others.
            name: What to call it; by default the name of this machine with the changes behind it.

        Raises:
            MachineError: There is no such parameter, two changes contradict each other, or the machine makes
                no sense; the message says which parameters and why.
        """
        stated = self._spelled_out(changes)
        unknown = [key for key in stated if key not in self.parameters]
        if unknown:
            listed = ", ".join(self.parameters)
            raise MachineError(f'machine "{self.name}": no parameter "{unknown[0]}", there are {listed}')
        told = "_".join(f"{key}-{value}" for key, value in changes.items())
        called = name or (f"{self.name}_{told}" if told else self.name)
        made = {**self.parameters, **self._followers(stated), **stated}
        return Machine.parse(machine_toml(_nested_table(called, made)), called)

    def _spelled_out(self, changes: Mapping[str, Number]) -> dict[str, Number]:
        """The changes with sizes in bytes, and of a square array, as the parameters they stand for."""
        stated = dict(changes)
        size = stated.pop("array.size", None)
        if size is not None:
            for key in ("array.rows", "array.columns"):
                self._state(stated, key, size, "array.size")
        word = next((stated[key] for key in ROW if key in stated), self.parameters["cache.word_bytes"])
        for memory in ("cache", "ewp_cache"):
            size = stated.pop(f"{memory}.bytes", None)
            if size is None:
                continue
            row = int(stated.get(f"{memory}.banks", self.parameters[f"{memory}.banks"])) * int(word)
            if row <= 0 or size % row:
                raise MachineError(
                    f'machine "{self.name}": {memory}.bytes {size} are not whole words in every bank '
                    f"({memory}.banks times cache.word_bytes is {row})"
                )
            self._state(stated, f"{memory}.words", int(size) // row, f"{memory}.bytes")
        return stated

    def _state(self, stated: dict[str, Number], key: str, value: Number, source: str) -> None:
        if stated.setdefault(key, value) != value:
            raise MachineError(
                f'machine "{self.name}": {key} {stated[key]} contradicts {source}, by which it is {value}'
            )

    def _followers(self, stated: Mapping[str, Number]) -> dict[str, Number]:
        """Parameters that follow from the length of a word, where that is changed."""
        given = {key: stated[key] for key in ROW if key in stated}
        if not given:
            return {}
        if len(set(given.values())) > 1:
            listed = ", ".join(f"{key} {value}" for key, value in given.items())
            raise MachineError(f'machine "{self.name}": {listed} must be equal: a word is one row vector')
        word, before = next(iter(given.values())), self.parameters["cache.word_bytes"]
        rows, columns, lanes = (self.parameters[key] for key in ("array.rows", "array.columns", "ewp.lanes"))
        return {
            **dict.fromkeys(ROW, word),
            "array.columns": word if columns == rows else min(columns, word),
            "ewp.lanes": max(1, math.floor(lanes * word / before)),
        }

    def __getitem__(self, key: str) -> Number:
        """A parameter by `table.key`, or the bytes of a cache.

        Raises:
            KeyError: There is no such parameter.
        """
        if key in ("cache.bytes", "ewp_cache.bytes"):
            memory = key.removesuffix(".bytes")
            words = self.parameters[f"{memory}.banks"] * self.parameters[f"{memory}.words"]
            return words * self.parameters["cache.word_bytes"]
        return self.parameters[key]

    def to_toml(self) -> str:
        """Writes the machine as the text of a machine file."""
        return machine_toml(_nested_table(self.name, self.parameters))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a machine file.

        Raises:
            FileError: It cannot be written.
        """
        write_text(Path(path), self.to_toml())


def _nested_table(name: str, parameters: Mapping[str, Number]) -> dict[str, Any]:
    content: dict[str, Any] = {"name": name}
    for key, value in parameters.items():
        table, dot, last = key.partition(".")
        if dot:
            content.setdefault(table, {})[last] = value
        else:
            content[key] = value
    return content


def machines() -> list[str]:
    """Names of the machines that come with the package, the default first."""
    return _core.machine_presets()


def machine_text(machine: str | PathLike[str] | Machine) -> str:
    """The parameters of a machine as TOML text.

    Args:
        machine: Name of a preset, path of a TOML file, or a machine.

    Returns:
        The text, comments included. It is not checked here.

    Raises:
        MachineError: Neither a preset nor a readable file; the message lists the presets.
    """
    if isinstance(machine, Machine):
        return machine.to_toml()
    presets = machines()
    if machine in presets:
        return _core.machine_text(str(machine))
    path = Path(machine)
    if not path.is_file():
        raise MachineError(
            f'machine "{machine}" is unknown: give a TOML file, or {choices(str(machine), presets)}'
        )
    return read_text(path, MachineError)


def machine_toml(machine: Mapping[str, Any]) -> str:
    """The TOML text of a machine given as nested values, such as a program's metadata hold."""
    lines: list[str] = []

    def write(table: Mapping[str, Any], prefix: str) -> None:
        if prefix:
            lines.append(f"[{prefix}]")
        lines.extend(f"{key} = {_toml(value)}" for key, value in table.items() if not isinstance(value, dict))
        for key, value in table.items():
            if isinstance(value, dict):
                write(value, f"{prefix}.{key}" if prefix else key)

    write(machine, "")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Numbers, texts, truth values and lists of them, which TOML writes as JSON does.

    But for characters beyond the basic plane, of which JSON escapes each half, and the one control character
    that JSON does not escape.
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_machine(program: _core.Program, machine: str | PathLike[str]) -> None:
    """Makes sure that a program was made for a machine, whose parameters must all be the same.

    Args:
        program: The program.
        machine: Name of a preset, or path of a TOML file.

    Raises:
        MachineError: The machine is unknown, or not the program's; the message names a parameter.
    """
    text = machine_text(machine)
    wanted = _flat(json.loads(_core.machine_json(str(machine), text)))
    own = _flat(json.loads(program.metadata())["machine"])
    for key in sorted((own.keys() | wanted.keys()) - set(UNUSED)):
        if own.get(key) != wanted.get(key):
            values = f"{key} is {own.get(key)}, not {wanted.get(key)}"
            raise MachineError(f"made for machine {own['name']}, not for {machine}: {values}")


@cache
def note_unused(machine: str, text: str) -> None:
    """Says once of a machine file which of its fields have no effect."""
    try:
        stated = _flat(parse_toml(text, machine, MachineError)).keys() & set(UNUSED)
    except MachineError:
        return  # the extension says it, with the line
    for field in sorted(stated):
        logger.warning("%s: %s has no effect any more; delete it", machine, field)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
