"""The plots of a page that need no script: roofline and similarity, as coordinates the template draws as SVG.

A roofline (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 2009)
sets what a layer reaches, in multiply-accumulates a cycle, against its intensity, in multiply-accumulates a
byte of external memory. No layer is above the array's peak; one above the slanted line had its data in the
cache before it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["bandwidth", "line_plot", "roofline", "similarity_plot"]

Json = dict[str, Any]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 980, 330, 58, 14, 12, 42
APART = 90
ASIDE, LINE, TICKS, HEADROOM = 110, 14, 6, 1.1
"""Width for names beside lines, height of a name, steps of an axis at most, its length over a line's."""
LABELS, LONGEST, LETTER = 8, 28, 6.2
"""Layers named beside their points at most, letters of such a name, and the width of a letter."""
DIAMOND = 9.0
"""From the center of the whole network's mark to where text may begin."""
LETTERS = "AB"
GOOD = 0.99
"""Cosine similarity below which a tensor is drawn as one to look at."""


def bandwidth(machine: Mapping[str, Any]) -> float:
    """Most bytes of external memory in a cycle of the machine."""
    ddr = machine["ddr"]
    return float(ddr["channels"] * ddr["word_bytes"] * ddr["clock_hz"] / machine["clock_hz"])


def roofline(report: Mapping[str, Any], machine: Mapping[str, Any], moved: Sequence[int]) -> Json | None:
    """Layers and roofs.

    Args:
        report: Figures of the run.
        machine: Its machine.
        moved: Bytes of external memory by layer.

    Returns:
        Coordinates of points, roofs and axes; None where nothing is multiplied.
    """
    points = [
        (layer, layer["macs"] / size if size else None, layer["macs"] / (layer["end"] - layer["start"]))
        for layer, size in zip(report["layers"], moved, strict=True)
        if layer["macs"] and layer["end"] > layer["start"]
    ]
    if not points:
        return None
    peak = machine["array"]["rows"] * machine["array"]["columns"]
    rate = bandwidth(machine)
    total = report["memory"]["ddr_read_bytes"] + report["memory"]["ddr_write_bytes"]
    own = (report["macs"] / max(1, total), report["macs"] / max(1, report["cycles"]))
    ridge = peak / rate
    # What needs nothing from outside stands apart, at the right.
    across = _Axis([*(x for _, x, _ in points if x is not None), own[0], ridge], LEFT, WIDTH - RIGHT - APART)
    up = _Axis([*(y for _, _, y in points), own[1], peak], HEIGHT - BOTTOM, TOP)
    knee = (across.place(ridge), up.place(peak))
    foot = max(across.low, up.low / rate)
    most = max(layer["end"] - layer["start"] for layer, _, _ in points)
    placed = [
        {
            "name": layer["name"],
            "unit": layer["unit"],
            "cycles": layer["end"] - layer["start"],
            "x": WIDTH - RIGHT - APART / 2 if x is None else across.place(x),
            "y": up.place(y),
            "radius": 2.5 + 6 * math.sqrt((layer["end"] - layer["start"]) / most),
            "text": f"{layer['name']}: {y:,.0f} MAC a cycle at "
            f"{'no external memory' if x is None else f'{x:,.1f} MAC a byte'}, "
            f"{layer['end'] - layer['start']:,} cycles",
        }
        for layer, x, y in points
    ]
    network = {"x": across.place(own[0]), "y": up.place(own[1]), "intensity": own[0], "reached": own[1]}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "box": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        "across": across.ticks(),
        "up": up.ticks(),
        "roof": f"M{across.place(foot):.1f} {up.place(foot * rate):.1f}"
        f"L{knee[0]:.1f} {knee[1]:.1f}H{WIDTH - RIGHT}",
        "apart": WIDTH - RIGHT - APART / 2 if any(x is None for _, x, _ in points) else None,
        "peak": peak,
        "rate": rate,
        "network": network,
        "points": placed,
        "ridge": {"x": knee[0], "y": knee[1], "intensity": ridge},
        "slope": {
            "x": 0.7 * across.place(foot) + 0.3 * knee[0],
            "y": 0.7 * up.place(foot * rate) + 0.3 * knee[1],
        },
        "labels": _labels(placed, network),
    }


def _labels(points: Sequence[Json], network: Json) -> list[Json]:
    """Names beside the points of the layers that take longest, as many as find room; the network's first."""
    taken: list[tuple[float, float, float, float]] = []
    for mark in (*points, {**network, "radius": DIAMOND}):
        x, y, radius = mark["x"], mark["y"], mark["radius"]
        taken.append((x - radius, y - radius, x + radius, y + radius))
    labels: list[Json] = []
    wanted = [(network["x"], network["y"], DIAMOND, "whole network")]
    longest = sorted(points, key=lambda point: -point["cycles"])[: 3 * LABELS]
    wanted += [(point["x"], point["y"], point["radius"], _short(point["name"])) for point in longest]
    for x, y, radius, text in wanted:
        if len(labels) > LABELS:
            break
        length = LETTER * len(text)
        aside, above = radius + 3, radius + 9
        beside = [
            ("start", aside, 0.0),
            ("end", -aside, 0.0),
            ("middle", 0.0, -above),
            ("middle", 0.0, above),
        ]
        for anchor, right, down in beside:
            left = x + right - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            box = (left, y + down - 7, left + length, y + down + 5)
            inside = box[0] > LEFT and box[2] < WIDTH - RIGHT and box[1] > TOP and box[3] < HEIGHT - BOTTOM
            apart = all(
                box[2] < other[0] or other[2] < box[0] or box[3] < other[1] or other[3] < box[1]
                for other in taken
            )
            if inside and apart:
                taken.append(box)
                labels.append({"x": x + right, "y": y + down + 4, "anchor": anchor, "text": text})
                break
    return labels


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


class _Axis:
    """A logarithmic axis over whole decades."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        self._first = math.floor(math.log10(min(positive)))
        self._last = max(self._first + 1, math.ceil(math.log10(max(positive)) + 0.05))
        self._start, self._end = start, end

    @property
    def low(self) -> float:
        return float(10.0**self._first)

    def place(self, value: float) -> float:
        share = (math.log10(max(value, self.low)) - self._first) / (self._last - self._first)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        decades = range(self._first, self._last + 1)
        return [(self.place(10.0**decade), f"{10.0**decade:,g}") for decade in decades]


def line_plot(lines: Sequence[Mapping[str, Any]], x_name: str, y_name: str) -> Json:
    """Lines over one axis, both axes from zero.

    Args:
        lines: Each with a `name` and `points`, pairs in the order of x.
        x_name: What x is.
        y_name: What y is.

    Returns:
        Coordinates of lines, points and axes.
    """
    end = WIDTH - RIGHT - ASIDE
    across = _LinearAxis([x for line in lines for x, _ in line["points"]], LEFT, end)
    up = _LinearAxis([y for line in lines for _, y in line["points"]], HEIGHT - BOTTOM, TOP)
    drawn: list[Json] = []
    for number, line in enumerate(lines):
        points = [
            {
                "x": across.place(x),
                "y": up.place(y),
                "text": f"{line['name']}: {y:,.4g} {y_name}, {x:,.0f} {x_name}",
            }
            for x, y in line["points"]
        ]
        path = "L".join(f"{point['x']:.1f} {point['y']:.1f}" for point in points)
        drawn.append(
            {"name": line["name"], "number": number, "path": f"M{path}", "points": points, "end": points[-1]}
        )
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "box": (LEFT, TOP, end, HEIGHT - BOTTOM),
        "across": across.ticks(),
        "up": up.ticks(),
        "x_name": x_name,
        "y_name": y_name,
        "lines": _labels_apart(drawn),
    }


def _labels_apart(lines: list[Json]) -> list[Json]:
    """The lines with the names at their ends moved apart where they would cover each other."""
    lowest = float(HEIGHT - BOTTOM)
    for line in sorted(lines, key=lambda line: -line["end"]["y"]):
        place = min(line["end"]["y"], lowest)
        line["end"] = {"x": line["end"]["x"], "y": place}
        lowest = place - LINE
    return lines


class _LinearAxis:
    """An axis from zero to a round number."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        most = HEADROOM * max([*values, 0.0]) or 1.0
        power = 10.0 ** math.floor(math.log10(most / TICKS))
        self._step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * TICKS >= most)
        self._last = math.ceil(most / self._step)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        return self._start + value / (self._step * self._last) * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        values = [self._step * number for number in range(self._last + 1)]
        return [(self.place(value), f"{value:,g}") for value in values]


def similarity_plot(rows: Sequence[Mapping[str, Any]]) -> Json | None:
    """Cosine similarity of every compared tensor, in the order of the network; None where there is none."""
    shown = [row for row in rows if any("cosine" in measures for measures in row.get("compared", ()))]
    if not shown:
        return None
    cosines = [measures["cosine"] for row in shown for measures in row["compared"] if "cosine" in measures]
    numbers: list[float] = [cosine for cosine in cosines if not isinstance(cosine, str)]
    low = min([0.9, *numbers]) - 0.005
    height = 170

    def y(cosine: float) -> float:
        return TOP + (1.0 - cosine) / (1.0 - low) * (height - TOP - 24)

    step = (WIDTH - LEFT - RIGHT) / len(shown)
    branches = len(shown[0]["compared"])
    points = []
    for place, row in enumerate(shown):
        for number, measures in enumerate(row["compared"]):
            if "cosine" not in measures:
                continue
            cosine = measures["cosine"]
            letter = f" {LETTERS[number]}" if branches > 1 else ""
            points.append(
                {
                    "name": row["name"],
                    "x": LEFT + (place + 0.5) * step,
                    "y": y(low if isinstance(cosine, str) else cosine),
                    "good": not isinstance(cosine, str) and cosine >= GOOD,
                    "second": number > 0,
                    "text": f"{row['name']}{letter}: "
                    f"{cosine if isinstance(cosine, str) else f'{cosine:.4f}'}",
                }
            )
    levels = [1.0, GOOD, 0.95, 0.9, 0.75, 0.5, 0.0]
    return {
        "width": WIDTH,
        "height": height,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "points": points,
        "lines": [(y(level), f"{level:g}") for level in levels if level >= low],
        "low": sum(not point["good"] for point in points),
        "branches": branches,
    }
