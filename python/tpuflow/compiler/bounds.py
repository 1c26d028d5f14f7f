"""Lower bounds of all programs of a graph on a machine: of their cycles, and of what their energy counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuflow import _core
from tpuflow.compiler.units import UNITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.compiler.machine import Machine

__all__ = ["LowerBounds", "lower_bounds"]

BUSY = {"me": "array", "ewp": "ewp"}
"""Units whose least work is counted, and its key."""


@dataclass(frozen=True)
class LowerBounds:
    """Cycles and counters that no program of a graph, with its layers computed whole, stays below.

    Attributes:
        cycles: The largest of the bounds of the makespan.
        interval: The largest of the bounds of the cycles from one inference of a stream to the next.
        report: Least counters, under the keys of a report of a run: `cycles`, `counters`, `layers`.
    """

    cycles: int
    interval: int
    report: Mapping[str, Any]


def lower_bounds(graph: _core.Graph, machine: Machine) -> LowerBounds:
    """The lower bounds of all programs of a graph.

    Raises:
        MachineError: The machine makes no sense.
    """
    found = json.loads(_core.lower_bounds(graph, machine.to_toml(), origin=machine.name))
    cycles, counters = max(found["cycles"].values()), found["counters"]
    moved = {key: counters[key] for key in ("ddr_read_bytes", "ddr_write_bytes")}
    # Every byte lies in a page that is opened at least once.
    page = machine["ddr.page_bytes"] * max(1, machine["ddr.channels"] // machine["dma.lines"])
    transfers = _layer("transfers", "int8") | moved | {"page_misses": sum(moved.values()) / page}
    layers = [
        _layer(layer.name, graph.tensors[layer.output].dtype, layer.macs, least)
        for layer, least in zip(graph.layers, counters["layers"], strict=True)
    ]
    banks = {"bank_accesses": [counters["bank_accesses"]]}
    return LowerBounds(
        cycles,
        max(found["interval"].values()),
        {"cycles": cycles, "counters": banks, "layers": [*layers, transfers]},
    )


def _layer(name: str, dtype: str, macs: int = 0, least: Mapping[str, int] | None = None) -> dict[str, Any]:
    busy = least or {}
    return {
        "name": name,
        "dtype": dtype,
        "macs": macs,
        "busy_by_unit": [busy.get(BUSY.get(unit.name, ""), 0) for unit in UNITS],
        "ddr_read_bytes": 0,
        "ddr_write_bytes": 0,
        "page_misses": 0,
    }
