"""Pages in a real browser: nothing goes wrong, all that was recorded is drawn, mouse and keys work."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.browser import Browser, Tab
from report.made_up import made_up_comparison, made_up_explanation, made_up_histograms, made_up_run
from tpuflow.report import RunView, render_page, tensor_rows, timeline

ROWS = "[...document.getElementById('{table}').tBodies[0].rows]"


def view(layers: int, tiles: int, seed: int = 0) -> tuple[RunView, list[dict[str, Any]], dict[str, Any]]:
    report, program, intervals = made_up_run(layers, tiles, seed)
    explanation = made_up_explanation(report)
    found = RunView(report, program["machine"], timeline(program, intervals), explanation=explanation)
    return found, intervals, program


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


FIRST, SECOND = view(20, 12), view(20, 6, seed=3)


@pytest.fixture(scope="module")
def tab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of two runs with all it can hold."""
    rows = tensor_rows([made_up_comparison(15)], made_up_histograms(12))
    opened = browser.open(render_page(FIRST[0], SECOND[0], rows), tmp_path_factory.mktemp("page"))
    yield opened
    assert opened.said() == []


def window(tab: Tab) -> float:
    start, end = map(float, tab.value("document.getElementById('charts').dataset.window").split())
    return end - start


def column(tab: Tab, table: str, title: str) -> list[str]:
    """The texts of a column as it is shown."""
    rows = ROWS.format(table=table)
    names = f"[...document.getElementById('{table}').tHead.rows[0].cells].map((c) => c.textContent)"
    found: list[str] = tab.value(f"{rows}.map((r) => r.cells[{names}.indexOf('{title}')].textContent)")
    return found


def numbers(texts: list[str]) -> list[int]:
    return [int(text.replace(",", "")) for text in texts]


def lengths(run: RunView, word: str = "") -> list[int]:
    return [layer["end"] - layer["start"] for layer in run.report["layers"] if word in layer["op"]]


@pytest.mark.feature("VIS-11")
def test_everything_that_was_recorded_is_drawn(tab: Tab) -> None:
    expected = {
        (letter, unit): count
        for letter, (_, intervals, _) in (("A", FIRST), ("B", SECOND))
        for unit, count in Counter(part["unit"] for part in intervals).items()
    }
    drawn = tab.value("JSON.parse(document.getElementById('units').dataset.drawn)")
    assert {(letter, unit): count for letter, unit, count in drawn if count} == expected
    for letter, run in (("A", FIRST), ("B", SECOND)):
        tab.value(f"document.querySelector('input[name=shown][value={letter}]').click()")
        tab.frame()
        assert int(tab.value("document.getElementById('cache').dataset.drawn")) == len(run[2]["allocations"])
    tab.value("document.querySelector('input[name=shown][value=A]').click()")
    assert window(tab) == max(run[0].report["cycles"] for run in (FIRST, SECOND))


@pytest.mark.feature("VIS-11")
def test_keys_move_through_time_and_layers(tab: Tab) -> None:
    whole = window(tab)
    tab.value("document.getElementById('charts').focus()")
    tab.key("+", "+")
    nearer = window(tab)
    assert nearer < whole
    tab.key("ArrowRight")
    assert window(tab) == pytest.approx(nearer)
    tab.key("Escape")
    assert window(tab) == whole
    place = tab.value("scrollY")
    for _ in range(18):
        tab.key("ArrowDown")
    assert tab.value("scrollY") == place
    assert tab.value("document.getElementById('said').textContent").startswith("block_")
    assert tab.value("document.querySelectorAll('#layers tr.marked').length") == 1
    assert tab.value("document.querySelectorAll('.point.marked').length") <= 1
    assert window(tab) < whole
    tab.key("Escape")
    assert tab.value("document.querySelectorAll('#layers tr.marked').length") == 0


@pytest.mark.feature("VIS-11")
def test_the_mouse_zooms_drags_tells_and_marks(tab: Tab) -> None:
    tab.value("document.activeElement.blur()")
    x, y = tab.place("units")
    whole, lane = window(tab), 14
    tab.mouse("mouseWheel", x + 600, y + lane, deltaX=0, deltaY=-300, modifiers=2)
    tab.frame()
    nearer = tab.value("document.getElementById('charts').dataset.window")
    assert window(tab) < whole
    tab.mouse("mousePressed", x + 600, y + lane, button="left", clickCount=1)
    tab.mouse("mouseMoved", x + 500, y + lane, button="left", buttons=1)
    tab.mouse("mouseReleased", x + 500, y + lane, button="left", clickCount=1)
    tab.frame()
    assert tab.value("document.getElementById('charts').dataset.window") != nearer
    tab.key("Escape")
    # The first instruction of the matrix engine, where it stands on the screen.
    intervals = FIRST[1]
    first = next(part for part in intervals if (part["unit"], part["phase"]) == ("me", "execute"))
    width = tab.value("document.getElementById('units').clientWidth") - 74
    at = x + 66 + (first["start"] + first["end"]) / 2 / whole * width
    tab.mouse("mouseMoved", at, y + lane)
    tab.frame()
    assert "ME executes" in tab.value("document.getElementById('tip').textContent")
    tab.click(at, y + lane)
    assert tab.value("document.querySelectorAll('#layers tr.marked').length") == 1
    tab.key("Escape")


@pytest.mark.feature("VIS-09")
def test_layers_sort_filter_and_answer_to_keys(tab: Tab) -> None:
    run = FIRST[0]
    assert len(column(tab, "layers", "layer")) == len(lengths(run))
    head = "[...document.querySelectorAll('#layers th button')].find((b) => b.textContent === 'cycles')"
    tab.value(f"{head}.focus()")
    tab.key("Enter", "\r")
    assert numbers(column(tab, "layers", "cycles")) == sorted(lengths(run), reverse=True)
    assert tab.value("document.querySelector('#layers th[aria-sort]').textContent") == "cycles"
    limit = sorted(lengths(run, "conv"))[1]
    filtering = "document.getElementById('layers-filter')"
    tab.value(f"{filtering}.focus()")
    tab.command("Input.insertText", text=f"int8 conv cycles>{limit}")
    kept = [layer["end"] - layer["start"] for layer in run.report["layers"] if "conv" in layer["name"]]
    assert numbers(column(tab, "layers", "cycles")) == sorted((n for n in kept if n > limit), reverse=True)
    tab.value(f"{filtering}.value = ''")
    tab.value(f"{filtering}.dispatchEvent(new Event('input'))")
    tab.value(f"{ROWS.format(table='layers')}[0].focus()")
    tab.key("ArrowDown")
    tab.key("Enter", "\r")
    assert tab.value(f"{ROWS.format(table='layers')}[1].classList.contains('marked')")
    assert tab.value("document.querySelectorAll('#layers tr[tabindex=\"0\"]').length") == 1


@pytest.mark.feature("VIS-09")
def test_tensors_show_similarity_and_thresholds(tab: Tab) -> None:
    assert column(tab, "tensors", "cosine")[7] == "NaN"
    low = sum(row["quantized"]["cosine"] != 0.999 for row in made_up_comparison(15)["tensors"])
    assert tab.value("document.querySelectorAll('#bytensor circle.low').length") == low
    assert tab.value("document.querySelectorAll('#bytensor circle').length") == 15
    assert tab.value("document.querySelectorAll('#tensors svg.histogram').length") == 12
    tab.value(f"{ROWS.format(table='tensors')}[0].click()")
    assert tab.value("document.querySelectorAll('#histogram svg line').length") == 2


def test_tensors_of_two_comparisons_have_columns_of_both(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    worse, better = made_up_comparison(15), made_up_comparison(15)
    for tensor in better["tensors"]:
        tensor["quantized"] |= {"cosine": 1.0, "euclid": 1.0, "sqnr": None, "max_error": 0.0}
    rows = tensor_rows([better, worse])
    tab = browser.open(render_page(FIRST[0], SECOND[0], rows), tmp_path_factory.mktemp("branches"))
    assert column(tab, "tensors", "cosine A") == ["1.0000"] * 15
    assert column(tab, "tensors", "SQNR A") == ["equal"] * 15
    assert column(tab, "tensors", "cosine B")[7] == "NaN"
    low = sum(row["quantized"]["cosine"] != 0.999 for row in worse["tensors"])
    assert tab.value("document.querySelectorAll('#bytensor circle.low.ring').length") == low
    assert tab.value("document.querySelectorAll('#bytensor circle:not(.ring)').length") == 15
    cells = "[...document.getElementById('similarity').rows[{}].cells].map((cell) => cell.textContent)"
    assert tab.value(cells.format(2)) == ["lowest cosine similarity", "1.0000, tensor_0", "NaN, tensor_7"]
    assert tab.value(cells.format(4))[:2] == ["lowest SQNR", "all equal"]
    assert tab.said() == []


def test_light_and_dark_follow_the_system_and_the_button(tab: Tab) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        tab.command("Emulation.setEmulatedMedia", features=[feature])
        seen.append(tab.value(color))
    tab.value("document.getElementById('theme').click()")
    assert tab.value(color) == seen[0] != seen[1]


@pytest.mark.parametrize("layers", [1, 120])
def test_pages_of_any_size_load_without_errors(browser: Browser, tmp_path: Path, layers: int) -> None:
    run, intervals, _ = view(layers, 1 if layers == 1 else 30)
    tab = browser.open(render_page(run), tmp_path)
    drawn = tab.value("JSON.parse(document.getElementById('units').dataset.drawn)")
    assert sum(count for _, _, count in drawn) == len(intervals)
    assert tab.said() == []


def test_figures_alone_load_without_errors(browser: Browser, tmp_path: Path) -> None:
    report = view(5, 2)[0].report
    tab = browser.open(render_page(RunView(report), RunView(report)), tmp_path)
    assert len(column(tab, "layers", "layer")) == 5
    assert tab.said() == []


def filtered(tab: Tab, text: str) -> str:
    """Types into the layers' filter; what is said to be wrong with it."""
    field = "document.getElementById('layers-filter')"
    tab.value(f"{field}.value = {text!r}")
    tab.value(f"{field}.dispatchEvent(new Event('input'))")
    wrong: str = tab.value("document.getElementById('layers-wrong').textContent")
    assert tab.value("document.getElementById('layers-wrong').hidden") == (wrong == "")
    return wrong


def test_a_filter_compares_texts_and_numbers(tab: Tab) -> None:
    layers = FIRST[0].report["layers"]
    assert filtered(tab, "unit=me") == ""
    assert len(column(tab, "layers", "layer")) == sum(layer["unit"] == "me" for layer in layers)
    assert filtered(tab, "unit!=me operator=conv") == ""
    kept = [layer for layer in layers if layer["unit"] != "me" and layer["op"] == "conv"]
    assert len(column(tab, "layers", "layer")) == len(kept)
    assert filtered(tab, "busy>=1k") == ""
    assert len(column(tab, "layers", "layer")) == sum(layer["busy"] >= 1000 for layer in layers)
    assert filtered(tab, "") == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cycels>5", 'unknown column "cycels"; columns: #, layer'),
        ("bound=array", 'bound is a number and "array" is none; did you mean binding=array?'),
        ("cycles>many", 'cycles is a number and "many" is none'),
        ("unit=gpu", 'no unit is "gpu"; there are'),
        ("unit>me", "unit is text; use = or !="),
        (">5", "write a column, a comparison and a value"),
    ],
)
def test_a_filter_says_what_is_wrong_with_it(tab: Tab, text: str, said: str) -> None:
    assert said in filtered(tab, f"{text} cycles>0")
    # What can be understood still holds.
    assert len(column(tab, "layers", "layer")) == sum(length > 0 for length in lengths(FIRST[0]))
    assert filtered(tab, "") == ""


def test_layers_say_what_limits_them_and_changes_what_they_save(tab: Tab) -> None:
    limits = column(tab, "layers", "limited by")
    assert {"waits for DTL0" in limit for limit in limits} == {True, False}
    texts = tab.value("document.getElementById('advice').textContent")
    assert "twice the DDR bandwidth" in texts
    assert "program compiled again" in texts
    assert "level 1" not in texts
    assert "word_bytes" in tab.value("document.getElementById('machine').textContent")


def test_rows_and_figures_are_handed_out_as_files(tab: Tab) -> None:
    # The browser without a window has nowhere to put a file.
    tab.value("window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#'; }")
    tab.value("HTMLAnchorElement.prototype.click = () => {}")
    filtered(tab, "unit=me")
    tab.value("document.getElementById('download-csv').click()")
    lines = tab.value("saved[0].text()").splitlines()
    assert lines[0].startswith("#,layer,operator,type,unit,start,cycles,")
    assert len(lines) - 1 == sum(layer["unit"] == "me" for layer in FIRST[0].report["layers"])
    filtered(tab, "")
    tab.value("document.getElementById('download-json').click()")
    figures = json.loads(tab.value("saved[1].text()"))
    report = FIRST[0].report
    assert figures["cycles"] == report["cycles"]
    assert figures["counters"] == report["counters"]
    assert [layer["name"] for layer in figures["layers"]] == [layer["name"] for layer in report["layers"]]


def test_a_span_of_time_is_measured(tab: Tab) -> None:
    tab.value("document.getElementById('charts').focus()")
    tab.key("Escape")
    tab.key("m", "m")
    text = tab.value("document.getElementById('span').textContent")
    cycles = max(run[0].report["cycles"] for run in (FIRST, SECOND))
    assert f"{cycles:,} cycles" in text
    moved = sum(part.moved for part in FIRST[0].charts.slices if part.moved > 0) if FIRST[0].charts else 0
    assert f"read {moved / 2**20:.2f} MiB" in text or f"read {moved / 1024:.1f} KiB" in text
    x, y = tab.place("units")
    width = tab.value("document.getElementById('units').clientWidth") - 74
    for kind, at in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.75)):
        place = {"x": x + 66 + at * width, "y": y + 14}
        tab.mouse(kind, **place, button="left", buttons=1, clickCount=1, modifiers=8)
    tab.frame()
    found = re.search(r": ([\d,]+) cycles", tab.value("document.getElementById('span').textContent"))
    assert found is not None
    assert int(found[1].replace(",", "")) == pytest.approx(cycles / 4, rel=0.02)
    tab.key("Escape")
    assert tab.value("document.getElementById('span').hidden")


def test_every_chart_tells_exact_figures(tab: Tab) -> None:
    for chart, said in (("units", "cycle"), ("cache", "cycle"), ("traffic", "bytes per cycle")):
        x, y = tab.place(chart)
        tab.mouse("mouseMoved", x + 400, y + 40)
        tab.frame()
        assert said in tab.value("document.getElementById('tip').textContent"), chart
        assert not tab.value("document.getElementById('tip').hidden")
    bars = "[...document.querySelectorAll('.bar.bound')].map((bar) => bar.title)"
    assert all("cycles" in title for title in tab.value(bars))
    points = "[...document.querySelectorAll('#roofline-plot circle title')].map((one) => one.textContent)"
    assert all("MAC a cycle" in title for title in tab.value(points))
    labels = tab.value(
        "[...document.querySelectorAll('#roofline-plot .label')].map((one) => one.textContent)"
    )
    assert "whole network" in labels
    assert len(labels) > 1
    roofs = tab.value("[...document.querySelectorAll('.rooftext')].map((one) => one.textContent).join(' ')")
    assert "16,384 MAC a cycle" in roofs
    assert "ridge: 320 MAC a byte" in roofs


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_no_width_of_the_window_scrolls_sideways(tab: Tab, width: int) -> None:
    tab.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
    )
    tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    tab.frame()
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("window.innerWidth") == width
    tab.command("Emulation.clearDeviceMetricsOverride")
