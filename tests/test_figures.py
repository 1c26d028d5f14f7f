"""Figures that pages repeat are those of the page they come from."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

from conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


def table(path: Path, columns: int) -> list[list[str]]:
    """The rows of all tables of a page with so many columns, their heads left out."""
    lines = re.findall(r"^\| (.*) \|$", path.read_text(encoding="utf-8"), re.MULTILINE)
    rows = [[cell.strip() for cell in re.split(r" ?\|", line)] for line in lines]
    return [row for row in rows if len(row) == columns and not row[0].startswith("---")]


def measured() -> dict[str, dict[str, list[str]]]:
    """Rows of the page of accuracy by network and method."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in table(DOCS / "accuracy.md", 9):
        if row[0] != "network":
            found.setdefault(row[0], {})[row[1]] = row
    return found


def gains(method: str) -> list[float]:
    every = measured().values()
    return [float(by[method][2]) - float(by["default"][2]) for by in every if method in by]


def test_the_guide_repeats_the_figures_of_accuracy() -> None:
    shown = {row[0]: row[1:] for row in table(DOCS / "choosing-quantisation.md", 7) if row[0] != "network"}
    assert shown.keys() == measured().keys()
    assert len(shown) == 9
    for network, by in measured().items():
        before = float(by["default"][2])
        expected = [
            f"{before:.1f}",
            *(
                f"{float(by[method][2]) - before:+.1f}" if method in by else ""
                for method in ("search-same-size", "search")
            ),
            by["default"][5],
            by["default"][6],
            by["search"][6],
        ]
        assert shown[network] == expected, network


@pytest.mark.parametrize("method", ["search-same-size", "search"])
def test_means_and_spans_of_the_guide_follow_from_its_table(method: str) -> None:
    text = (DOCS / "choosing-quantisation.md").read_text(encoding="utf-8")
    found = gains(method)
    average, span = f"{mean(found):.1f} dB", f"on average ({min(found):.1f} to {max(found):.1f})"
    assert any(average in line and span in line for line in text.splitlines()), (average, span)
