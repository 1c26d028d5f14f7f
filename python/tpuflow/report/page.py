"""One HTML page that needs nothing else: what a run costs and why, over time, by layer, beside another run.

The page is a template with its style sheet and scripts put inside; all data are one JSON block. Charts over
time and tables are drawn by the scripts, everything else is plain markup and is there without them:

    page.js      data, theme, the marked layer      charts.js   units, cache, traffic over time
    tables.js    tables that sort and filter

Slices are stored column by column, start cycles as differences: ten thousand instructions take about 200 kB.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from tpuflow.compiler.units import UNITS as UNIT_SPECS
from tpuflow.report import figures
from tpuflow.report.plots import bandwidth, roofline, similarity_plot
from tpuflow.report.tensors import similarity_summaries
from tpuflow.report.words import BOUND_NAMES, BOUNDS, PHASES, UNITS, verdict

if TYPE_CHECKING:
    from jinja2 import Template

    from tpuflow.report.timeline import Slice, Timeline

__all__ = ["RunView", "render_page"]

Json = dict[str, Any]

PARTS = ("template.html", "macros.html", "decoder.html", "page.css", "page.js", "charts.js", "tables.js")
LETTERS = "AB"


@dataclass(frozen=True)
class RunView:
    """A run as a page shows it.

    Attributes:
        report: The run's figures, `Run.to_json()` parsed.
        machine: The program's machine, as in its JSON form; None where only figures are known.
        charts: Units and cache over time; None where they were not recorded.
        tensors: The model's tensor every layer stands for, by the layer's name.
        explanation: `Explanation.to_json()` of the program: what limits its layers, what would help.
        stream: Cycles from one inference of a stream to the next, in words; empty without a stream.
    """

    report: Mapping[str, Any]
    machine: Mapping[str, Any] | None = None
    charts: Timeline | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    explanation: Mapping[str, Any] | None = None
    stream: str = ""

    @property
    def title(self) -> str:
        """Network, type, level, machine: `resnet50 int8 -O5 on 128x128_asic`; the most frequent type."""
        types = Counter(layer["dtype"] for layer in self.report["layers"])
        words = [self.report["program"], "/".join(name for name, _ in types.most_common())]
        return f"{' '.join(filter(None, words))} -O{self.report['level']} on {self.report['machine']}"

    @property
    def moved(self) -> list[int] | None:
        """Bytes of external memory by layer; None where they were not recorded."""
        if self.charts is None:
            return None
        return figures.moved_bytes(len(self.report["layers"]), self.charts.slices)


def render_page(run: RunView, other: RunView | None = None, tensors: Sequence[Json] = ()) -> str:
    """The page of a run.

    Args:
        run: What the page is about.
        other: A second run to set beside it.
        tensors: What is known of single tensors, from `tensor_rows`; comparisons in the order of the runs.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    parts = page_parts()
    report, moved = run.report, run.moved
    views = [run] if other is None else [run, other]
    roof = None if run.machine is None or moved is None else roofline(report, run.machine, moved)
    return page_template("template.html").render(
        run=report,
        title=run.title,
        stream=run.stream,
        css=unit_styles() + parts["page.css"],
        script="\n".join(parts[name] for name in PARTS if name.endswith(".js")),
        data=_embed_json(_data(views, tensors)),
        names={name: short for name, (short, _) in UNITS.items()},
        units=figures.units(report),
        bounds=figures.bounds(report),
        costs=figures.costs(report),
        verdict=verdict(report["gap"]),
        why=BOUNDS[report["binding"]],
        binding=BOUND_NAMES[report["binding"]],
        advice=figures.advice(run.explanation),
        energy=figures.energy(report),
        parameters=figures.machine_parameters([view.machine for view in views if view.machine is not None]),
        stalls=figures.stalls(report),
        clock=f"{report['clock_hz'] / 1e9:g} GHz",
        rate=1e6 / report["time_us"] if report["time_us"] else 0.0,
        roof=roof,
        similarity=similarity_plot(tensors),
        summaries=similarity_summaries(tensors),
        tensors=len(tensors),
        drawn=[letter for letter, view in zip(LETTERS, views, strict=False) if view.charts is not None],
        other=None if other is None else other.report,
        other_title=None if other is None else other.title,
        versus=[] if other is None else figures.versus(report, other.report),
        differences=[] if other is None else figures.differences(report, other.report),
    )


def page_parts() -> dict[str, str]:
    """Templates, style sheet and scripts, by file name."""
    folder = resources.files("tpuflow.report")
    return {name: (folder / name).read_text(encoding="utf-8") for name in PARTS}


def page_template(name: str) -> Template:
    """A template, which may take macros from the others."""
    from jinja2 import DictLoader, Environment, StrictUndefined  # noqa: PLC0415 - only pages need it

    environment = Environment(
        loader=DictLoader(page_parts()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["count"] = "{:,}".format
    environment.filters["size"] = figures.size_text
    environment.filters["share"] = "{:.1%}".format
    environment.filters["digits"] = "{:,.3g}".format
    return environment.get_template(name)


def unit_styles() -> str:
    """Colors of the units in bars, keys and plots."""
    colors = "".join(f"--{unit.name}: light-dark({', '.join(unit.colors)}); " for unit in UNIT_SPECS)
    fills = (
        f".bar .fill.{unit.name}, .key.{unit.name} {{ background: var(--{unit.name}); }}\n"
        f".plot .point.{unit.name} {{ fill: var(--{unit.name}); }}\n"
        for unit in UNIT_SPECS
    )
    return f":root {{ {colors}}}\n{''.join(fills)}"


def _embed_json(content: Json) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(views: Sequence[RunView], tensors: Sequence[Json]) -> Json:
    return {
        "runs": [_run(number, view, tensors) for number, view in enumerate(views)],
        "units": {name: short for name, (short, _) in UNITS.items()},
        "phases": PHASES,
        "bounds": BOUND_NAMES,
        "tensors": list(tensors),
    }


def _run(number: int, view: RunView, tensors: Sequence[Json]) -> Json:
    report = view.report
    keys = ("name", "op", "dtype", "unit", "start", "end", "busy", "macs", "bound", "binding")
    layers: list[Json] = [{key: layer[key] for key in keys} for layer in report["layers"]]
    cosines = {
        row["name"]: measures["cosine"]
        for row in tensors
        for measures in row.get("compared", ())[number : number + 1]
        if "cosine" in measures
    }
    for layer, size in zip(layers, view.moved or (), strict=False):
        layer["ddr"] = size
    for layer, figure in zip(layers, report.get("energy", {}).get("layers", ()), strict=False):
        layer["microjoules"] = figure["joules"][0] * 1e6
    explanations = [None] * len(layers) if view.explanation is None else view.explanation["layers"]
    for layer, explanation in zip(layers, explanations, strict=True):
        layer["why"] = figures.limit(layer, explanation)
    for layer in layers:
        cosine = cosines.get(view.tensors.get(layer["name"], ""))
        if cosine is not None:
            layer["cosine"] = cosine
    found: Json = {
        "letter": LETTERS[number],
        "cycles": report["cycles"],
        "clock": report["clock_hz"],
        "figures": {key: value for key, value in report.items() if key != "layers"},
        "layers": layers,
    }
    if view.charts is None or view.machine is None:
        return found
    texts: dict[str, int] = {}
    cache, slices = view.machine["cache"], view.charts.slices
    lanes = {name: _lane([part for part in slices if part.unit == name], texts) for name in UNITS}
    return found | {
        "lanes": lanes,
        "texts": list(texts),
        "bandwidth": bandwidth(view.machine),
        "cache": {"bank": cache["words"] * cache["word_bytes"], "banks": cache["banks"]},
        "allocations": [
            [part.name, part.address, part.size, part.start, part.end] for part in view.charts.allocations
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
