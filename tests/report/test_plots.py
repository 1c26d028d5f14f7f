"""The roofline as coordinates: whatever a network does, no name lies on a mark or on another name."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tpuflow import Machine
from tpuflow.report.plots import DIAMOND, LETTER, LINE, TICKS, line_plot, roofline

MACHINE = tomllib.loads(Machine.preset("128x128_asic").to_toml())
LAYER = st.tuples(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**7))


def _apart(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1] or second[3] <= first[1]


@given(st.lists(LAYER, min_size=1, max_size=20))
def test_no_name_lies_on_a_mark_or_another_name(layers: list[tuple[int, int, int]]) -> None:
    report: dict[str, Any] = {
        "layers": [
            {"name": f"layer{number}", "unit": "me", "macs": macs, "start": 0, "end": cycles}
            for number, (macs, cycles, _) in enumerate(layers)
        ],
        "macs": sum(macs for macs, _, _ in layers),
        "cycles": sum(cycles for _, cycles, _ in layers),
        "memory": {"ddr_read_bytes": sum(size for _, _, size in layers), "ddr_write_bytes": 0},
    }
    plot = roofline(report, MACHINE, [size for _, _, size in layers])
    assert plot is not None
    names = []
    for label in plot["labels"]:
        length = LETTER * len(label["text"])
        left = label["x"] - length * {"start": 0, "middle": 0.5, "end": 1}[label["anchor"]]
        names.append((left, label["y"] - 11, left + length, label["y"] + 1))
    marks = [
        (p["x"] - p["radius"], p["y"] - p["radius"], p["x"] + p["radius"], p["y"] + p["radius"])
        for p in plot["points"]
    ]
    x, y = plot["network"]["x"], plot["network"]["y"]
    marks.append((x - DIAMOND, y - DIAMOND, x + DIAMOND, y + DIAMOND))
    assert all(_apart(name, mark) for name in names for mark in marks)
    assert all(_apart(first, second) for at, first in enumerate(names) for second in names[:at])


POINT = st.tuples(st.integers(0, 10**6), st.floats(0, 1e9))


@given(st.lists(st.lists(POINT, min_size=1, max_size=8), min_size=1, max_size=4))
def test_lines_stay_inside_their_axes(lines: list[list[tuple[int, float]]]) -> None:
    """And the names at their ends are a line of text apart."""
    drawn = [{"name": str(number), "points": sorted(points)} for number, points in enumerate(lines)]
    plot = line_plot(drawn, "x", "y")
    left, top, right, bottom = plot["box"]
    for line, given_points in zip(plot["lines"], lines, strict=True):
        assert len(line["points"]) == len(given_points)
        for point in line["points"]:
            assert left - 0.01 <= point["x"] <= right + 0.01
            assert top - 0.01 <= point["y"] <= bottom + 0.01
    names = sorted(line["end"]["y"] for line in plot["lines"])
    assert all(other - one >= LINE - 0.01 for one, other in pairwise(names))
    assert 2 <= len(plot["up"]) <= TICKS + 2
