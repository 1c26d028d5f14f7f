"""The contents of the shared cache where most of it is in use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuflow._core import Program

__all__ = ["at_peak"]


def at_peak(program: Program) -> list[dict[str, Any]]:
    """The allocations alive at the moment most bytes are, the first such one, by address.

    Bytes that several share count once, so that they add up to `program.cache_in_use()`, which a union of
    their places does.
    """
    entries = [e for e in json.loads(program.metadata())["allocations"] if e["first"] <= e["last"]]
    begins = sorted(range(len(entries)), key=lambda at: entries[at]["first"])
    ends = sorted(range(len(entries)), key=lambda at: entries[at]["last"])
    alive: dict[int, dict[str, Any]] = {}
    most, found, ended, total = -1, [], 0, 0
    for place, at in enumerate(begins):
        moment = entries[at]["first"]
        while ended < len(ends) and entries[ends[ended]]["last"] < moment:
            total -= alive.pop(ends[ended])["bytes"]
            ended += 1
        alive[at] = entries[at]
        total += entries[at]["bytes"]
        if place + 1 < len(begins) and entries[begins[place + 1]]["first"] == moment:
            continue
        if total > most and (used := _union(alive.values())) > most:
            most, found = used, list(alive.values())
    return sorted(found, key=lambda entry: (entry["address"], entry["name"]))


def _union(entries: Iterable[dict[str, Any]]) -> int:
    """Bytes that any of the entries holds."""
    used = end = 0
    for address, size in sorted((entry["address"], entry["bytes"]) for entry in entries):
        used += max(0, address + size - max(address, end))
        end = max(end, address + size)
    return used
