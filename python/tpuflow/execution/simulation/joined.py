"""The figures of programs that run one after another, as one report of the same form.

Cycles, counts and bounds add up, peaks are the largest; layers and intervals move to where their program
begins. From its last instruction in one program to its first in the next a unit waits for what is computed
elsewhere: those cycles are stalls by dependency, so that its stalls still sum to its idle cycles. The time
of the host is in `host_us`, outside `cycles`; `segments` lists both in the order they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuflow.partitioning import HostSegment, Partitioned

__all__ = ["join_reports"]

Json = dict[str, Any]
Intervals = list[Json]


def join_reports(
    network: Partitioned[Any],
    figures: Mapping[str, tuple[Json, Intervals | None]],
    host_seconds: Mapping[str, float],
) -> tuple[Json, Intervals | None]:
    """One report and one list of intervals.

    Args:
        network: The segments.
        figures: Report and intervals of every device segment by name.
        host_seconds: What host segments took, by name; empty where they did not run.

    Returns:
        The report, with `segments` and `host_subgraphs`; the intervals, each with the number of its `segment`
        among those of the device, or None where there are none.
    """
    reports = [figures[part.name][0] for part in network.device]
    starts = [sum(report["cycles"] for report in reports[:index]) for index in range(len(reports))]
    cycles = sum(report["cycles"] for report in reports)
    bound = sum(report["bound"] for report in reports)
    units = _units(reports, starts)
    first = reports[0]
    content: Json = first | {
        "program": network.name,
        "cycles": cycles,
        "time_us": sum(report["time_us"] for report in reports),
        "macs": sum(report["macs"] for report in reports),
        "utilization": {
            unit: sum(report["utilization"][unit] * report["cycles"] for report in reports) / max(1, cycles)
            for unit in first["utilization"]
        },
        "bounds": {key: sum(report["bounds"][key] for report in reports) for key in first["bounds"]},
        "bound": bound,
        "binding": max(reports, key=lambda report: int(report["bound"]))["binding"],
        "gap": cycles / bound - 1 if bound else 0.0,
        "stalls": {cause: sum(unit["stalls"][cause] for unit in units) for cause in first["stalls"]},
        "host_us": sum(host_seconds.values()) * 1e6,
        "memory": _memory([report["memory"] for report in reports]),
        "layers": [
            layer | {"start": layer["start"] + start, "end": layer["end"] + start}
            for report, start in zip(reports, starts, strict=True)
            for layer in report["layers"]
        ],
        "counters": _counters([report["counters"] for report in reports], units),
        "events": [event for report in reports for event in report["events"]],
        "host_seconds": sum(report["host_seconds"] for report in reports),
        "segments": _segments(network, figures, host_seconds),
        "host_subgraphs": [part.summary() for part in network.host],
    }
    traced = [figures[part.name][1] for part in network.device]
    intervals: Intervals = [
        interval | {"start": interval["start"] + start, "end": interval["end"] + start, "segment": number}
        for number, (own, start) in enumerate(zip(traced, starts, strict=True))
        for interval in own or []
    ]
    return content, None if None in traced else intervals


def _units(reports: Sequence[Json], starts: Sequence[int]) -> list[Json]:
    found = []
    for parts in zip(*(report["counters"]["units"] for report in reports), strict=True):
        working = [(part, start) for part, start in zip(parts, starts, strict=True) if part["instructions"]]
        unit = {
            "start": working[0][1] + working[0][0]["start"] if working else 0,
            "end": working[-1][1] + working[-1][0]["end"] if working else 0,
            "busy": sum(part["busy"] for part in parts),
            "stalls": {cause: sum(part["stalls"][cause] for part in parts) for cause in parts[0]["stalls"]},
            "instructions": sum(part["instructions"] for part in parts),
        }
        own = sum(part["end"] - part["start"] for part, _ in working)
        unit["stalls"]["dependency"] += unit["end"] - unit["start"] - own
        found.append(unit)
    return found


def _memory(parts: Sequence[Json]) -> Json:
    peaks = {"cache_peak_bytes", "cache_in_use_bytes", "cache_bytes"}
    return {key: (max if key in peaks else sum)(part[key] for part in parts) for key in parts[0]}


def _counters(parts: Sequence[Json], units: list[Json]) -> Json:
    found: Json = {key: _sum([part[key] for part in parts]) for key in parts[0] if key != "units"}
    return {"units": units} | found


def _sum(values: Sequence[Any]) -> Any:
    """Numbers added, lists of them element by element."""
    if isinstance(values[0], list):
        return [_sum(column) for column in zip(*values, strict=True)]
    return sum(values)


def _segments(
    network: Partitioned[Any],
    figures: Mapping[str, tuple[Json, Intervals | None]],
    host_seconds: Mapping[str, float],
) -> list[Json]:
    found: list[Json] = []
    for part in network.segments:
        if isinstance(part, HostSegment):
            seconds = host_seconds.get(part.name)
            figure: Json = {"cycles": None, "us": None if seconds is None else seconds * 1e6, "macs": 0}
            count = len(part.nodes)
        else:
            report = figures[part.name][0]
            figure = {"cycles": report["cycles"], "us": report["time_us"], "macs": report["macs"]}
            count = len(report["layers"])
        side = "host" if isinstance(part, HostSegment) else "device"
        tensors = {"inputs": list(part.inputs), "outputs": list(part.outputs)}
        found.append({"name": part.name, "side": side, "nodes": count} | figure | tensors)
    return found
