"""The page and the trace, drawn from made-up runs of several sizes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from report.made_up import made_up_run
from tpuflow.report import RunView, render_page, timeline
from tpuflow.report.words import verdict


class Page(HTMLParser):
    """Collects what a page refers to, its text and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.void = {"meta", "input", "br", "link", "img"}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        self.texts[where] = self.texts.get(where, "") + data


def page(layers: int, tiles: int, **changes: Any) -> tuple[str, dict[str, Any]]:
    report, program, intervals = made_up_run(layers, tiles)
    report |= changes
    text = render_page(RunView(report, program["machine"], timeline(program, intervals)))
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return text, json.loads(found[1])


def test_energy_is_on_the_page_of_a_run_that_has_it() -> None:
    layers = [
        {"name": f"layer {i}", "joules": [i * 1e-6, 0.0, 1.0], "mac": [i * 1e-6, 0.0, 1.0]} for i in range(3)
    ]
    found = {
        "table": "45nm",
        "joules": [8e-6, 4e-6, 16e-6],
        "parts": {"cache": [2e-6, 1e-6, 4e-6], "mac": [6e-6, 3e-6, 12e-6]},
        "layers": layers,
        "area_mm2": [5.0, 4.0, 6.0],
        "area": {"array": [5.0, 4.0, 6.0]},
    }
    text, data = page(3, 2, energy=found, time_us=2.0)
    shown = re.sub(r"<[^>]+>|\s+", " ", text)
    assert re.search(r"8 µJ +\(4 to 16\), 4 W on average, by the table 45nm", shown)
    assert re.search(r"mac +6 +3 to 12 +75.0% .* cache +2 +1 to 4 +25.0% .* array +5 +4 to 6 +100.0%", shown)
    assert [layer["microjoules"] for layer in data["runs"][0]["layers"]] == [0.0, 1.0, 2.0]
    assert 'id="energy"' not in page(3, 2)[0]


@pytest.mark.parametrize(("layers", "tiles"), [(1, 1), (7, 3), (60, 20)])
def test_the_page_is_whole_and_needs_nothing_else(layers: int, tiles: int) -> None:
    text, data = page(layers, tiles)
    parsed = Page(text)
    assert parsed.open == []
    assert all(reference.startswith("#") for reference in parsed.references)
    assert not re.search(r"https?://|@import|url\(", text)
    (run,) = data["runs"]
    assert len(run["layers"]) == layers
    assert sum(len(lane["start"]) for lane in run["lanes"].values()) == layers * tiles * 4
    assert len(run["allocations"]) == 2 * layers


def test_slices_come_back_as_they_were() -> None:
    report, program, intervals = made_up_run(9, 4)
    _, data = page(9, 4)
    (run,) = data["runs"]
    found = set()
    for unit, lane in run["lanes"].items():
        at = 0
        for step, length, layer, phase in zip(
            lane["start"], lane["length"], lane["layer"], lane["phase"], strict=True
        ):
            at += step
            found.add((unit, at, at + length, layer, data["phases"][phase]))
    assert found == {
        (part["unit"], part["start"], part["end"], part["layer"], part["phase"]) for part in intervals
    }
    assert run["cycles"] == report["cycles"]
    moved = sum(sum(lane["moved"]) for lane in run["lanes"].values())
    transfers = (part["work"]["Transfer"] for part in program["instructions"] if "Transfer" in part["work"])
    assert moved == sum(part["bytes"] * 4 for part in transfers)


def test_allocations_last_from_their_first_to_their_last_instruction() -> None:
    _, program, intervals = made_up_run(5, 3)
    charts = timeline(program, intervals)
    for entry, drawn in zip(program["allocations"], charts.allocations, strict=True):
        assert drawn.start == min(p["start"] for p in intervals if p["instruction"] == entry["first"])
        assert drawn.end == max(p["end"] for p in intervals if p["instruction"] == entry["last"])


def test_names_cannot_break_the_page() -> None:
    evil = '</script><img src="x" onerror="alert(1)">'
    report, program, intervals = made_up_run(2, 2)
    report["program"] = evil
    report["layers"][0]["name"] = program["layers"][0]["name"] = evil
    program["allocations"][0]["name"] = evil
    text = render_page(RunView(report, program["machine"], timeline(program, intervals)))
    assert "<img" not in text
    assert all(reference.startswith("#") for reference in Page(text).references)
    assert 'onerror="alert' not in text


@pytest.mark.slow
def test_a_large_run_stays_small_on_disk() -> None:
    text, _ = page(250, 40)
    assert len(text) < 3_000_000


def test_events_are_shown() -> None:
    text, _ = page(2, 2, events=[{"layer": "block_1/conv", "kind": "accumulator overflow", "count": 12}])
    assert "12 × accumulator overflow" in text


@pytest.mark.parametrize(
    ("gap", "text"), [(0.0, "at the bound"), (0.0004, "at the bound"), (0.016, "1.6% above the bound")]
)
def test_verdict(gap: float, text: str) -> None:
    assert verdict(gap) == text
