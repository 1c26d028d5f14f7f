"""Tables of what operations cost: files of rows, each with a value, an interval and its source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.errors import FileError
from tpuflow.io.files import parse_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SHIPPED", "EnergyTable", "Interval", "load_table"]

SHIPPED = ("45nm", "7nm")
"""Tables that come with the package."""

ROWS = (
    *(f"mac.{dtype}" for dtype in ("int8", "int16", "float16", "bfloat16", "float32")),
    "array.register_byte", "array.accumulator_byte", "lane.elementwise", "lane.pooling_tap",
    "ddr.bit", "ddr.activate_byte", "static.watt_per_mm2",
    "area.multiply_8", "area.add_32", "area.multiply_32", "area.flip_flop", "area.sram_bit",
    "area.ddr_channel_mm2",
)  # fmt: skip
"""Rows every table has, beside those of `sram`, which name sizes of banks."""


@dataclass(frozen=True)
class Interval:
    """A figure that is known within bounds.

    Attributes:
        value: The figure.
        low: What it is at least.
        high: What it is at most.
    """

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Interval) -> Interval:
        """Both together; errors are taken to have the same sign, since they come from the same process."""
        return Interval(self.value + other.value, self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Interval:
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def to_json(self) -> list[float]:
        """Value, low, high."""
        return [self.value, self.low, self.high]


@dataclass(frozen=True)
class EnergyTable:
    """Energy of operations and area of parts in a process.

    Attributes:
        name: What reports call it.
        rows: By `section.key`.
        sources: Where each row comes from.
        sram: By bytes of a bank, in rising order: pJ of a byte read or written.
    """

    name: str
    rows: Mapping[str, Interval]
    sources: Mapping[str, str]
    sram: tuple[tuple[int, Interval], ...]

    def sram_byte(self, bank_bytes: float) -> Interval:
        """Energy of a byte of a bank of some size: on the line through the logarithms of the nearest two."""
        points = self.sram
        place = next((at for at in range(1, len(points) - 1) if bank_bytes < points[at][0]), len(points) - 1)
        (small, below), (large, above) = points[place - 1], points[place]
        share = math.log(bank_bytes / small) / math.log(large / small)

        def between(low: float, high: float) -> float:
            return float(low * (high / low) ** share)

        return Interval(
            between(below.value, above.value), between(below.low, above.low), between(below.high, above.high)
        )


@cache
def load_table(name: str) -> EnergyTable:
    """Reads a table.

    Args:
        name: One of `SHIPPED`, or a TOML file of the same form.

    Raises:
        FileError: There is no such table; a row is missing, unknown, or not `low <= value <= high`.
    """
    if name in SHIPPED:
        text = files("tpuflow.energy").joinpath("tables", f"{name}.toml").read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = read_text(name, FileError)
    else:
        raise FileError(f'energy table "{name}" is unknown: give a TOML file or one of {", ".join(SHIPPED)}')
    return _table(parse_toml(text, name, FileError), name)


def _table(content: Mapping[str, Any], source: str) -> EnergyTable:
    rows: dict[str, Interval] = {}
    sources: dict[str, str] = {}
    for section, entries in content.items():
        for key, row in entries.items() if isinstance(entries, dict) else ():
            rows[f"{section}.{key}"] = _interval(row, f"{source}: {section}.{key}")
            sources[f"{section}.{key}"] = str(row["source"])
    banks = [
        row for row in rows if row.startswith("sram.byte_") and row.removeprefix("sram.byte_").isdecimal()
    ]
    for row in ROWS:
        if row not in rows:
            raise FileError(f"{source}: row {row} is missing")
    for row in rows:
        if row not in ROWS and row not in banks:
            raise FileError(f"{source}: row {row} is unknown")
    sram = sorted((int(row.removeprefix("sram.byte_")), rows[row]) for row in banks)
    if len(sram) < 2 or sram[0][0] < 1:
        raise FileError(f"{source}: sram needs rows byte_N for at least two sizes N of a bank")
    return EnergyTable(str(content.get("name", source)), rows, sources, tuple(sram))


def _interval(row: Any, what: str) -> Interval:
    keys = ("value", "low", "high")
    if not isinstance(row, dict) or not all(isinstance(row.get(key), int | float) for key in keys):
        raise FileError(f"{what}: write {{ value = .., low = .., high = .., source = .. }}")
    found = Interval(*(float(row[key]) for key in keys))
    if not 0 < found.low <= found.value <= found.high < math.inf:
        raise FileError(
            f"{what}: low {found.low:g}, value {found.value:g}, high {found.high:g} must rise from above 0"
        )
    if not row.get("source"):
        raise FileError(f"{what}: no source")
    return found
