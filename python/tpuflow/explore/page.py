"""A study as one HTML file: front, parallel coordinates, main effects, machine files."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tpuflow.explore.objectives import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.explore.results import Results

__all__ = ["study_page"]


def study_page(results: Results, reports: Mapping[int, Mapping[str, str]] | None = None) -> str:
    """The page, with all of a study's rows in it.

    Args:
        results: The study.
        reports: By trial and network, where the page of the program is, relative to this one.
    """
    text = files("tpuflow.explore").joinpath("page.html").read_text(encoding="utf-8")
    # A closing tag inside a name must not end the script that holds the data.
    data = json.dumps(_data(results) | {"reports": reports or {}}).replace("<", "\\u003c")
    return text.replace("/*DATA*/null", data)


def _data(results: Results) -> dict[str, Any]:
    settings = results.settings
    hidden = {"seconds", "seed"}
    return {
        "networks": list(settings.names),
        "fields": list(results.fields),
        "objectives": [
            {"name": name, "unit": OBJECTIVES[name].unit, "sign": OBJECTIVES[name].sign}
            for name in settings.objectives
        ],
        "rows": [{key: value for key, value in row.items() if key not in hidden} for row in results.rows],
        "front": results.front,
        "counts": results.counts,
        "pruned_before": results.pruned_before,
        "below_bound": results.below_bound,
        "machines": {number: results.machine_toml(number) for number in results.front},
        "levels": list(settings.levels),
        "energy_table": settings.energy_table,
    }
