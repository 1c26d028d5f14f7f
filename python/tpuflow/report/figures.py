"""Tables and bars of a page about runs: units, bounds, stalls, what costs most, two side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuflow.compiler.units import UNITS as LISTED
from tpuflow.report.words import BOUND_NAMES, BOUNDS, STALLS, UNITS

__all__ = [
    "advice",
    "bounds",
    "costs",
    "differences",
    "energy",
    "limit",
    "machine_parameters",
    "moved_bytes",
    "size_text",
    "stalls",
    "units",
    "versus",
]

Json = dict[str, Any]
Report = Mapping[str, Any]
MOST = 8


def size_text(count: float) -> str:
    """A number of bytes: `24.8 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def units(report: Report) -> list[Json]:
    """Every unit's cycles as parts of the run: before its first instruction, at work, stalled by cause."""
    counters = dict(zip((unit.name for unit in LISTED), report["counters"]["units"], strict=True))
    cycles = max(1, report["cycles"])
    found = []
    for name, (short, long) in UNITS.items():
        unit = counters[name]
        parts = [{"cause": "busy", "text": "busy", "cycles": unit["busy"]}]
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


def bounds(report: Report) -> list[Json]:
    """Lower bounds, the largest first."""
    # Figures from files also have the bounds under their names.
    found = {key: cycles for key, cycles in report["bounds"].items() if key in BOUND_NAMES}
    scale = max(1, report["cycles"], *found.values())
    rows = [
        {
            "key": name,
            "name": BOUND_NAMES[name],
            "cycles": cycles,
            "width": cycles / scale,
            "why": BOUNDS[name],
        }
        for name, cycles in found.items()
    ]
    return sorted(rows, key=lambda row: -row["cycles"])


def stalls(report: Report) -> list[Json]:
    """Causes, the worst first, each with its cycles by unit."""
    total = sum(report["stalls"].values())
    counters = dict(zip((unit.name for unit in LISTED), report["counters"]["units"], strict=True))
    rows = [
        {
            "cause": cause,
            "text": STALLS[cause],
            "units": [counters[unit]["stalls"][cause] for unit in UNITS],
            "cycles": cycles,
            "share": cycles / max(1, total),
        }
        for cause, cycles in report["stalls"].items()
    ]
    return sorted(rows, key=lambda row: -row["cycles"])


def costs(report: Report) -> list[str]:
    """The layers that take longest, in words."""
    layers = sorted(report["layers"], key=lambda layer: layer["start"] - layer["end"])[:3]
    cycles = max(1, report["cycles"])
    return [
        f"{layer['name']} ({layer['op']}, {(layer['end'] - layer['start']) / cycles:.1%} of the time)"
        for layer in layers
        if layer["end"] > layer["start"]
    ]


def versus(first: Report, second: Report) -> list[Json]:
    """Key figures of two runs, with how many times the second has what the first has.

    Returns:
        Rows of `what`, both texts, `ratio` (None where the first has nothing), and whether `less` is better.
    """
    rows: list[tuple[str, str, list[str], str]] = [
        ("cycles", "count", ["cycles"], "less"),
        ("microseconds", "time", ["time_us"], "less"),
        ("lower bound, cycles", "count", ["bound"], "less"),
        ("above the bound", "share", ["gap"], "less"),
    ]
    rows += [(f"{short} busy", "share", ["utilization", unit], "") for unit, (short, _) in UNITS.items()]
    rows += [(f"stalls: {text}", "count", ["stalls", cause], "less") for cause, text in STALLS.items()]
    rows += [
        ("read from DDR", "size", ["memory", "ddr_read_bytes"], "less"),
        ("written to DDR", "size", ["memory", "ddr_write_bytes"], "less"),
        ("spilled activations", "size", ["memory", "spill_bytes"], "less"),
        ("cache peak", "size", ["memory", "cache_in_use_bytes"], "less"),
    ]

    if "energy" in first and "energy" in second:
        rows += [("joules", "joules", ["energy", "joules"], "less")]

    def figure(run: Report, keys: list[str]) -> float:
        found: Any = run
        for key in keys:
            found = found[key]
        # Of a figure with an interval the value comes first.
        found = found[0] if isinstance(found, list) else found
        return float(found) if isinstance(found, float) else int(found)

    texts = {
        "count": "{:,}".format,
        "time": "{:,.1f}".format,
        "share": "{:.1%}".format,
        "size": size_text,
        "joules": "{:.3g}".format,
    }
    found = []
    for what, form, keys, better in rows:
        a, b = figure(first, keys), figure(second, keys)
        found.append(
            {
                "what": what,
                "first": texts[form](a),
                "second": texts[form](b),
                "ratio": b / a if a else None,
                "less": b < a if better and a != b else None,
            }
        )
    return found


def differences(first: Report, second: Report) -> list[Json]:
    """Layers both runs have, by how far their microseconds are apart, the widest first.

    Returns:
        Rows of `name`, microseconds `first` and `second`, and what the second has more, `by`.
    """

    def lengths(run: Report) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        seen: dict[str, int] = {}
        for layer in run["layers"]:
            name = layer["name"]
            seen[name] = seen.get(name, 0) + 1
            found[name, seen[name]] = (layer["end"] - layer["start"]) * 1e6 / run["clock_hz"]
        return found

    ours, theirs = lengths(first), lengths(second)
    apart = {key: theirs[key] - length for key, length in ours.items() if theirs.get(key, length) != length}
    widest = sorted(apart, key=lambda key: -abs(apart[key]))[:MOST]
    return [{"name": key[0], "first": ours[key], "second": theirs[key], "by": apart[key]} for key in widest]


def energy(report: Report) -> Json | None:
    """Microjoules and square millimetres by part, the largest first; None of a run without energy.

    Returns:
        `table`, `total`, `watts`, `area`; rows `parts` and `areas` have `name`, `value`, `low`, `high`,
        `share`.
    """
    found = report.get("energy")
    if found is None:
        return None

    def rows(parts: Mapping[str, Sequence[float]], whole: float, factor: float) -> list[Json]:
        ordered = sorted(parts.items(), key=lambda part: -part[1][0])
        keys = ("value", "low", "high")
        return [
            {"name": name, "share": figure[0] / whole if whole else 0.0}
            | {key: each * factor for key, each in zip(keys, figure, strict=True)}
            for name, figure in ordered
        ]

    seconds, joules = report["time_us"] * 1e-6, found["joules"]
    return {
        "table": found["table"],
        "total": [each * 1e6 for each in joules],
        "watts": joules[0] / seconds if seconds else 0.0,
        "area": found["area_mm2"],
        "parts": rows(found["parts"], joules[0], 1e6),
        "areas": rows(found["area"], found["area_mm2"][0], 1.0),
    }


def moved_bytes(layers: int, slices: Sequence[Any]) -> list[int]:
    """Bytes moved from and to external memory, by layer."""
    found = [0] * layers
    for part in slices:
        found[part.layer] += abs(part.moved)
    return found


def limit(layer: Mapping[str, Any], explanation: Mapping[str, Any] | None) -> str:
    """Names what limits a layer: its unit being busy, the layer it waits for, start-up, memory.

    Args:
        layer: The layer's figures of a run.
        explanation: What `explain` found for it; without it the largest bound of the layer alone is named.
    """
    work = BOUND_NAMES.get(layer["binding"], "")
    if explanation is None or layer["end"] <= layer["start"]:
        return work
    cycles = layer["end"] - layer["start"]
    causes = [(explanation["busy"], f"{UNITS[layer['unit']][0]} busy" + (f", {work}" if work else ""))]
    waits = explanation["waits"]
    if waits:
        longest = waits[0]
        causes.append((longest["cycles"], f"waits for {UNITS[longest['unit']][0]}, {longest['layer']}"))
    causes.append((explanation["startup"], "starts up"))
    causes.append((explanation["held"], "held up by cache banks, DDR or weight loads"))
    most, text = max(causes, key=lambda cause: cause[0])
    return f"{min(1.0, most / cycles):.0%} {text}" if most else work


def advice(explanation: Mapping[str, Any] | None) -> list[Json]:
    """Changes that `explain` measured and that save cycles, the most helpful first."""
    if explanation is None:
        return []
    cycles = max(1, explanation["cycles"])
    return [
        {
            "what": change["what"],
            "cycles": change["cycles"],
            "saved": change["saved"],
            "share": change["saved"] / cycles,
            "how": "program compiled again" if change["rebuilt"] else "same program",
        }
        for change in explanation["changes"]
        if change["saved"] > 0
    ]


def machine_parameters(machines: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Every parameter of one or two machines, by section.

    Returns:
        Sections of `name` and `rows`; a row has the `key`, a text for each machine, and whether these differ.
    """

    def flat(machine: Mapping[str, Any]) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        for key, value in machine.items():
            if isinstance(value, Mapping):
                found |= {(key, inner): _parameter(one) for inner, one in value.items()}
            else:
                found["machine", key] = _parameter(value)
        return found

    tables = [flat(machine) for machine in machines]
    keys = dict.fromkeys(key for table in tables for key in table)
    sections: dict[str, list[Json]] = {}
    for section, key in keys:
        texts = [table.get((section, key), "") for table in tables]
        sections.setdefault(section, []).append({"key": key, "texts": texts, "differs": len(set(texts)) > 1})
    return [{"name": name, "rows": rows} for name, rows in sections.items()]


def _parameter(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else str(value)
