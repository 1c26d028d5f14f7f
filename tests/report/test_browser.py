"""Pages in a real browser: nothing goes wrong, all that was recorded is drawn, mouse and keys work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.browser import Browser, Tab
from report.made_up import made_up_comparison, made_up_histograms, made_up_run
from tpuflow.report import RunView, render_page, tensor_rows, timeline

ROWS = "[...document.getElementById('{table}').tBodies[0].rows]"


def view(layers: int, tiles: int, seed: int = 0) -> tuple[RunView, list[dict[str, Any]], dict[str, Any]]:
    report, program, intervals = made_up_run(layers, tiles, seed)
    return RunView(report, program["machine"], timeline(program, intervals)), intervals, program


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


FIRST, SECOND = view(20, 12), view(20, 6, seed=3)


@pytest.fixture(scope="module")
def tab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of two runs with all it can hold."""
    rows = tensor_rows(made_up_comparison(15), made_up_histograms(12))
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


def test_vis_11_everything_that_was_recorded_is_drawn(tab: Tab) -> None:
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


def test_vis_11_keys_move_through_time_and_layers(tab: Tab) -> None:
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


def test_vis_11_the_mouse_zooms_drags_tells_and_marks(tab: Tab) -> None:
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


def test_vis_09_layers_sort_filter_and_answer_to_keys(tab: Tab) -> None:
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


def test_vis_09_tensors_show_similarity_and_thresholds(tab: Tab) -> None:
    assert column(tab, "tensors", "cosine")[7] == "NaN"
    low = sum(row["quantized"]["cosine"] != 0.999 for row in made_up_comparison(15)["tensors"])
    assert tab.value("document.querySelectorAll('#bytensor circle.low').length") == low
    assert tab.value("document.querySelectorAll('#bytensor circle').length") == 15
    assert tab.value("document.querySelectorAll('#tensors svg.histogram').length") == 12
    tab.value(f"{ROWS.format(table='tensors')}[0].click()")
    assert tab.value("document.querySelectorAll('#histogram svg line').length") == 2


def test_light_and_dark_follow_the_system_and_the_button(tab: Tab) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        tab.command("Emulation.setEmulatedMedia", features=[feature])
        seen.append(tab.value(colour))
    tab.value("document.getElementById('theme').click()")
    assert tab.value(colour) == seen[0] != seen[1]


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
