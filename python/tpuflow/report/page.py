"""One HTML page that needs nothing else: figures, layers, units and cache over time.

The page is a template with its style sheet and script put inside; all data are one JSON block. Charts over
time are drawn by the script on canvases that share one zoom; everything else is plain markup and is there
without scripts.

Slices are stored column by column, start cycles as differences: ten thousand instructions take about 200 kB.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tpuflow.report.words import BOUNDS, PHASES, STALLS, UNITS, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuflow.report.timeline import Slice, Timeline

__all__ = ["render_page"]

Json = dict[str, Any]


def render_page(report: Mapping[str, Any], machine: Mapping[str, Any], charts: Timeline) -> str:
    """The page of a run.

    Args:
        report: The run's figures, `Run.to_json()` parsed.
        machine: The program's machine, as in its JSON form.
        charts: Units and cache over time.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - only pages need it

    folder = resources.files("tpuflow.report")
    parts = {
        name: (folder / name).read_text(encoding="utf-8") for name in ("template.html", "page.css", "page.js")
    }
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["size"] = _size
    environment.filters["share"] = lambda value: f"{value:.1%}"
    return environment.from_string(parts["template.html"]).render(
        run=report,
        css=parts["page.css"],
        script=parts["page.js"],
        data=_embedded(_data(report, machine, charts)),
        units=_units(report),
        bounds=_bounds(report),
        costs=_costs(report),
        verdict=verdict(report["gap"]),
        why=BOUNDS[report["binding"]],
        stalls=_stalls(report),
        clock=f"{report['clock_hz'] / 1e9:g} GHz",
        rate=1e6 / report["time_us"] if report["time_us"] else 0.0,
    )


def _embedded(content: Json) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _units(report: Mapping[str, Any]) -> list[Json]:
    """Every unit's cycles as parts of the run: before its first instruction, at work, stalled by cause."""
    names = ("dtl0", "dtl1", "me", "ewp", "pdp")
    counters = dict(zip(names, report["counters"]["units"], strict=True))
    cycles = max(1, report["cycles"])
    found = []
    for name, (short, long) in UNITS.items():
        unit = counters[name]
        parts = [{"cause": "busy", "text": "at work", "cycles": unit["busy"]}]
        parts += [
            {"cause": cause, "text": text, "cycles": unit["stalls"][cause]} for cause, text in STALLS.items()
        ]
        for part in parts:
            part["share"] = part["cycles"] / cycles
        found.append(
            {
                "name": name,
                "short": short,
                "long": long,
                "before": unit["start"] / cycles,
                "parts": [part for part in parts if part["cycles"]],
                "share": unit["busy"] / cycles,
                "instructions": unit["instructions"],
            }
        )
    return found


def _bounds(report: Mapping[str, Any]) -> list[Json]:
    scale = max(1, report["cycles"], *report["bounds"].values())
    rows = [
        {"name": name, "cycles": cycles, "width": cycles / scale, "why": BOUNDS[name]}
        for name, cycles in report["bounds"].items()
    ]
    return sorted(rows, key=lambda row: -row["cycles"])


def _stalls(report: Mapping[str, Any]) -> list[Json]:
    total = sum(report["stalls"].values())
    rows = [
        {"cause": cause, "text": STALLS[cause], "cycles": cycles, "share": cycles / max(1, total)}
        for cause, cycles in report["stalls"].items()
    ]
    return sorted(rows, key=lambda row: -row["cycles"])


def _costs(report: Mapping[str, Any]) -> list[str]:
    """The layers that take longest, in words."""
    layers = sorted(report["layers"], key=lambda layer: layer["start"] - layer["end"])[:3]
    cycles = max(1, report["cycles"])
    return [
        f"{layer['name']} ({layer['op']}, {(layer['end'] - layer['start']) / cycles:.1%} of the time)"
        for layer in layers
        if layer["end"] > layer["start"]
    ]


def _data(report: Mapping[str, Any], machine: Mapping[str, Any], charts: Timeline) -> Json:
    cache = machine["cache"]
    texts: dict[str, int] = {}
    lanes = {name: _lane([part for part in charts.slices if part.unit == name], texts) for name in UNITS}
    return {
        "cycles": report["cycles"],
        "clock": report["clock_hz"],
        "units": {name: short for name, (short, _) in UNITS.items()},
        "layers": [
            {
                key: layer[key]
                for key in ("name", "op", "dtype", "unit", "start", "end", "busy", "macs", "bound", "binding")
            }
            for layer in report["layers"]
        ],
        "phases": PHASES,
        "lanes": lanes,
        "texts": list(texts),
        "cache": {
            "bytes": report["memory"]["cache_bytes"],
            "bank": cache["words"] * cache["word_bytes"],
            "banks": cache["banks"],
        },
        "allocations": [
            [part.name, part.address, part.size, part.start, part.end] for part in charts.allocations
        ],
    }


def _lane(slices: Sequence[Slice], texts: dict[str, int]) -> Json:
    """A unit's slices by start, one list per property."""
    ordered = sorted(slices, key=lambda part: (part.start, part.end))
    columns: dict[str, list[int]] = {
        key: [] for key in ("start", "length", "layer", "phase", "text", "moved")
    }
    before = 0
    for part in ordered:
        columns["start"].append(part.start - before)
        columns["length"].append(part.end - part.start)
        columns["layer"].append(part.layer)
        columns["phase"].append(PHASES.index(part.phase))
        columns["text"].append(texts.setdefault(part.text, len(texts)))
        columns["moved"].append(part.moved)
        before = part.start
    if not any(columns["moved"]):
        columns["moved"] = []
    return columns
