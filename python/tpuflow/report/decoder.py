"""One HTML page about a decoder: its phases apart, and what a step costs the more tokens stand before it.

The page needs no script: tables, bars and plots are markup. Figures come from `execution.phases`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.units import UNITS as UNIT_SPECS
from tpuflow.report import figures
from tpuflow.report.page import page_parts, page_template, unit_styles
from tpuflow.report.plots import line_plot, roofline
from tpuflow.report.words import BOUND_NAMES, BOUNDS, UNITS, verdict

if TYPE_CHECKING:
    from tpuflow.execution.phases import PhaseCost

__all__ = ["render_decoder_page"]

Json = dict[str, Any]

LONGEST = 10
"""Layers listed by time."""


def render_decoder_page(name: str, phases: Sequence[PhaseCost]) -> str:
    """The page of a decoder.

    Args:
        name: What to call it.
        phases: Its programs, at least one.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    fewest = min(each.phase.sequence for each in phases)
    steps = sorted(
        (each for each in phases if each.phase.sequence == fewest), key=lambda each: each.phase.context
    )
    longest: dict[int, PhaseCost] = {}
    for each in sorted(phases, key=lambda each: each.phase.context):
        longest[each.phase.sequence] = each
    last = steps[-1]
    return page_template("decoder.html").render(
        name=name,
        machine=last.report["machine"],
        clock=f"{last.report['clock_hz'] / 1e9:g} GHz",
        level=last.report["level"],
        css=unit_styles() + page_parts()["page.css"],
        phases=[_row(each) for each in phases],
        details=[_detail(each) for _, each in sorted(longest.items(), reverse=True)],
        units=[(unit.name, *UNITS[unit.name]) for unit in UNIT_SPECS],
        tokens=fewest,
        first=_row(steps[0]),
        last=_row(last),
        context=last.phase.context,
        row_bytes=last.row_bytes,
        weights=last.runs[-1].traffic.weights,
        crossing=_crossing(last),
        latency=_latency(steps),
        traffic=_traffic(last),
    )


def _seconds(cost: PhaseCost, cycles: int) -> float:
    return float(cycles / cost.report["clock_hz"])


def _row(cost: PhaseCost) -> Json:
    """Key figures of a phase, at the last position and, of its speed, at the first."""
    report, end = cost.report, cost.runs[-1]
    tokens = cost.phase.sequence
    return {
        "name": cost.name,
        "tokens": tokens,
        "context": cost.phase.context,
        "cycles": end.cycles,
        "rate": tokens / _seconds(cost, end.cycles),
        "first_rate": tokens / _seconds(cost, cost.runs[0].cycles),
        "position": end.position,
        "gap": verdict(report["gap"]) if report["bound"] else "",
        "binding": BOUND_NAMES[report["binding"]] if report["bound"] else "",
        "why": BOUNDS[report["binding"]] if report["bound"] else "no bound is known",
        "traffic": end.traffic,
    }


def _detail(cost: PhaseCost) -> Json:
    """Where the time of a phase goes: by kind of layer and unit, by layer, under the roofline."""
    layers = cost.report["layers"]
    moved = [layer["ddr_read_bytes"] + layer["ddr_write_bytes"] for layer in layers]
    return _row(cost) | {
        "kinds": _kinds(layers),
        "layers": _longest(layers, cost.report["cycles"]),
        "roof": roofline(cost.report, cost.machine, moved),
        "units": figures.units(cost.report),
    }


def _kinds(layers: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Busy cycles of every unit by operator, the busiest first."""
    found: dict[str, Json] = {}
    for layer in layers:
        row = found.setdefault(
            layer["op"], {"op": layer["op"], "count": 0, "macs": 0, "moved": 0, "busy": [0] * len(UNIT_SPECS)}
        )
        row["count"] += 1
        row["macs"] += layer["macs"]
        row["moved"] += layer["ddr_read_bytes"] + layer["ddr_write_bytes"]
        row["busy"] = [sum(pair) for pair in zip(row["busy"], layer["busy_by_unit"], strict=True)]
    return sorted(found.values(), key=lambda row: -sum(row["busy"]))


def _longest(layers: Sequence[Mapping[str, Any]], cycles: int) -> list[Json]:
    """The layers with the most busy cycles."""
    ordered = sorted(layers, key=lambda layer: -sum(layer["busy_by_unit"]))
    return [
        {
            "name": layer["name"],
            "op": layer["op"],
            "busy": layer["busy_by_unit"],
            "moved": layer["ddr_read_bytes"] + layer["ddr_write_bytes"],
            "share": max(layer["busy_by_unit"]) / max(1, cycles),
        }
        for layer in ordered[:LONGEST]
        if any(layer["busy_by_unit"])
    ]


def _crossing(cost: PhaseCost) -> int | None:
    """The number of tokens before a step from which on it moves more cache than weights."""
    if not cost.row_bytes:
        return None
    return -(-cost.runs[-1].traffic.weights // cost.row_bytes)


def _latency(steps: Sequence[PhaseCost]) -> Json:
    """Microseconds a token against the tokens before, a line for every context."""
    lines = [
        {
            "name": f"context {cost.phase.context:,}",
            "points": [
                (run.position, _seconds(cost, run.cycles) * 1e6 / cost.phase.sequence) for run in cost.runs
            ],
        }
        for cost in steps
    ]
    return line_plot(lines, "tokens before", "microseconds a token")


def _traffic(cost: PhaseCost) -> Json:
    """Mebibytes a step moves against the tokens before, by what they are."""
    scale = 1 / (1 << 20)
    lines = [
        {
            "name": what,
            "points": [(run.position, getattr(run.traffic, what) * scale) for run in cost.runs],
        }
        for what in ("weights", "cache", "activations")
    ]
    return line_plot(lines, "tokens before", "MiB a step")
