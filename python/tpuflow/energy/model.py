"""The laws from counters to joules and from parameters to square millimetres.

Every joule is a counter of the simulated run times a row of the table:

| part | counter | row |
|---|---|---|
| `mac` | multiply-accumulates of a layer | `mac.TYPE` |
| `registers` | slots of the array x its processing elements x bytes that move in each (data and sum) | `array.register_byte` |
| `accumulators` | slots x columns x 4 bytes, read and written | `array.accumulator_byte` |
| `elementwise` | unit cycles x lanes | `lane.elementwise` |
| `pooling` | unit cycles x lanes x taps, where they are no multiply-accumulates | `lane.pooling_tap` |
| `ddr` | bytes read and written; pages opened | `ddr.bit`, `ddr.activate_byte` |
| `cache` | words of the shared cache, of all layers together | `sram.byte_N` |
| `static` | time x area, of all layers together | `static.watt_per_mm2` |
"""  # noqa: E501 - the rows of a table

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpuflow.compiler.units import UNITS
from tpuflow.energy.table import EnergyTable, Interval

__all__ = ["Energy", "area", "energy"]

PICO, MICRO = 1e-12, 1e-6
BYTES = {"int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "float32": 4}
SUM_BYTES = 4
"""Of a running sum on its way down a column."""

WEIGHT_REGISTERS = 2
"""Of every processing element: one at work, one being loaded."""

Parameters = Mapping[str, float]


@dataclass(frozen=True)
class Energy:
    """Joules of one run; those of single layers are worked out when they are asked for.

    Attributes:
        table: Name of the table.
        shared: Joules by part of what no single layer can be charged with: cache and static.
        area: Square millimetres by part.
    """

    table: str
    shared: Mapping[str, Interval]
    area: Mapping[str, Interval]
    _counted: Sequence[Mapping[str, Any]]
    _machine: Parameters
    _rows: Mapping[str, Interval]

    @cached_property
    def layers(self) -> tuple[tuple[str, Mapping[str, Interval]], ...]:
        """By layer in their order, joules by part."""
        return tuple(
            (layer["name"], _joules(_terms((layer,), self._machine), self._rows)) for layer in self._counted
        )

    @cached_property
    def parts(self) -> Mapping[str, Interval]:
        """Joules by part, of all layers."""
        return _joules(_terms(self._counted, self._machine), self._rows) | dict(self.shared)

    @property
    def total(self) -> Interval:
        """Joules of the run."""
        return sum(self.parts.values(), Interval())

    @property
    def area_mm2(self) -> Interval:
        """Square millimetres of the machine."""
        return sum(self.area.values(), Interval())

    def to_json(self) -> dict[str, Any]:
        """All figures; each as value, low, high."""
        return {
            "table": self.table,
            "joules": self.total.to_json(),
            "parts": {part: joules.to_json() for part, joules in self.parts.items()},
            "layers": [
                {"name": name, "joules": sum(parts.values(), Interval()).to_json()}
                | {part: joules.to_json() for part, joules in parts.items()}
                for name, parts in self.layers
            ],
            "area_mm2": self.area_mm2.to_json(),
            "area": {part: size.to_json() for part, size in self.area.items()},
        }


def energy(report: Mapping[str, Any], machine: Parameters, table: EnergyTable) -> Energy:
    """Joules of a run.

    Args:
        report: Of the run, as `simulate --json` writes it; or least counters (`lower_bounds`), for what every
            run takes at least.
        machine: Parameters by `table.key`.
        table: What operations cost.
    """
    sizes = area(machine, table)
    words = sum(report["counters"]["bank_accesses"])
    bank_bytes = machine["cache.words"] * machine["cache.word_bytes"]
    seconds = report["cycles"] / machine["clock_hz"]
    mm2 = sum(sizes.values(), Interval())
    watts = table.rows["static.watt_per_mm2"]
    shared = {
        "cache": table.sram_byte(bank_bytes) * (words * machine["cache.word_bytes"] * PICO),
        "static": Interval(watts.value * mm2.value, watts.low * mm2.low, watts.high * mm2.high) * seconds,
    }
    return Energy(table.name, shared, sizes, report["layers"], machine, table.rows)


PLACES = {unit.name: number for number, unit in enumerate(UNITS)}
"""Of the units among the busy cycles of a layer."""
ME, PDP = PLACES["me"], PLACES["pdp"]

Terms = dict[str, dict[str, float]]
"""By part and row of the table, how often it counts."""


def _terms(layers: Iterable[Mapping[str, Any]], machine: Parameters) -> Terms:
    """How often each row of the table counts, of several layers together."""
    macs: dict[str, int] = {}
    slots = moved = lanes = pooled = ddr_bytes = pages = 0
    for layer in layers:
        dtype, own, busy = layer["dtype"], layer["macs"], layer["busy_by_unit"]
        if dtype not in BYTES:
            dtype = "int16"
        if own:
            macs[dtype] = macs.get(dtype, 0) + own
        else:
            pooled += busy[PDP]
        slots += busy[ME]
        moved += busy[ME] * (BYTES[dtype] + SUM_BYTES)
        lanes += busy[PLACES["ewp"]] * machine["ewp.lanes"]
        ddr_bytes += layer["ddr_read_bytes"] + layer["ddr_write_bytes"]
        pages += layer["page_misses"]
    columns = machine["array.columns"]
    page = machine["ddr.page_bytes"] * max(1, machine["ddr.channels"] // machine["dma.lines"])
    return {
        "mac": {f"mac.{dtype}": count for dtype, count in macs.items()},
        "registers": {"array.register_byte": moved * machine["array.rows"] * columns},
        "accumulators": {"array.accumulator_byte": slots * columns * SUM_BYTES * 2},
        "elementwise": {"lane.elementwise": lanes},
        "pooling": {"lane.pooling_tap": pooled * machine["pdp.lanes"] * machine["pdp.taps"]},
        "ddr": {"ddr.bit": 8 * ddr_bytes, "ddr.activate_byte": pages * page},
    }


def _joules(terms: Terms, rows: Mapping[str, Interval]) -> dict[str, Interval]:
    """Joules by part, of those of which something was counted."""
    return {
        part: sum((rows[row] * (count * PICO) for row, count in counts.items()), Interval())
        for part, counts in terms.items()
        if any(counts.values())
    }


def area(machine: Parameters, table: EnergyTable) -> dict[str, Interval]:
    """Square millimetres of a machine by part.

    Args:
        machine: Parameters by `table.key`.
        table: What parts take.
    """

    def area_interval(*terms: tuple[str, float]) -> Interval:
        return sum((table.rows[f"area.{row}"] * (count * MICRO) for row, count in terms), Interval())

    elements = machine["array.rows"] * machine["array.columns"]
    flip_flops = 8 * (WEIGHT_REGISTERS + 1 + SUM_BYTES)
    cache = machine["cache.banks"] * machine["cache.words"] * machine["cache.word_bytes"]
    ewp_cache = machine["ewp_cache.banks"] * machine["ewp_cache.words"] * machine["cache.word_bytes"]
    sums = machine["array.accumulators"] * machine["array.columns"] * SUM_BYTES
    lanes, taps = machine["ewp.lanes"], machine["pdp.lanes"] * machine["pdp.taps"]
    return {
        "array": area_interval(
            ("multiply_8", elements), ("add_32", elements), ("flip_flop", elements * flip_flops)
        ),
        "accumulators": area_interval(("sram_bit", 8 * sums)),
        "elementwise": area_interval(("multiply_32", lanes), ("add_32", lanes)),
        "pooling": area_interval(("multiply_8", taps), ("add_32", taps)),
        "cache": area_interval(("sram_bit", 8 * cache)),
        "ewp_cache": area_interval(("sram_bit", 8 * ewp_cache)),
        "ddr": table.rows["area.ddr_channel_mm2"] * machine["ddr.channels"],
    }
