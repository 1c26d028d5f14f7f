"""The page of a study in a real browser: points are drawn, names stay text, choosing shows a machine file."""

from __future__ import annotations

from pathlib import Path

from report.browser import Browser
from tpuflow.explore import Results, Settings, Space
from tpuflow.explore.page import study_page


def results() -> Results:
    """Six points of a network with a name that would end a script; two on the front, one without figures."""
    space = Space({"cache.bytes": (65536, 1 << 20, 4 << 20), "ddr.channels": (1, 2)})
    settings = Settings(("</script><b>net.tpuq",), space)
    rows = []
    for number, point in enumerate(space.points()):
        failed, best = number == 5, number in (0, 2)
        known = {
            "latency": None if failed else 10.0 - number if best else 20.0,
            "area": None if failed else 5.0 + number,
        }
        fixed = {"status": "impossible" if failed else "finished", "front": best, "level": 5, "reason": ""}
        rows.append({"trial": number, **fixed, **point, **known, "pruned_by": None, "pruned_before": None})
    for row in rows:
        row |= {f"bound_{name}": row[name] for name in ("latency", "area")}
    return Results(settings, rows, [0, 2])


def test_the_page_draws_every_point_and_shows_machine_files(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        tab = browser.open(study_page(results()), tmp_path)
        assert tab.value("document.querySelectorAll('#chart circle').length") == 5
        assert tab.value("document.querySelectorAll('#chart circle.front').length") == 2
        assert tab.value("document.querySelectorAll('#ways path.way').length") == 5
        assert tab.value("document.querySelectorAll('h1 b').length") == 0
        assert "script><b>net: latency" in tab.value("document.getElementById('title').textContent")
        rows = "document.getElementById('front').tBodies[0].rows"
        assert tab.value(f"{rows}.length") == 2
        toml = "document.getElementById('toml').value"
        assert "words = 16\n" in tab.value(toml)
        tab.value(f"{rows}[1].click()")
        assert "words = 256\n" in tab.value(toml)
        assert "1 Mi" in tab.value("document.getElementById('ways').textContent")
        assert tab.said() == []
