"""Records as a page of tables. All but the seconds and the memory is the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuflow.frontend import PRESETS
from tpuflow.pipeline.zoo.stages import FLOAT, LOW

if TYPE_CHECKING:
    from tpuflow.pipeline.zoo.networks import PublishedNetwork
    from tpuflow.pipeline.zoo.sweep import Record, Settings

    Records = Mapping[str, Mapping[str, Record]]

__all__ = ["LEAST_COSINE", "MOST_RELATIVE_ERROR", "page", "summary", "troubles"]

LEAST_COSINE = {"int8": LOW, "int16": 0.999, "float16": 0.9999, "float32": 0.999999}
"""Least similarity of every output, by element type; below that of int8 an explanation is asked for."""
MOST_RELATIVE_ERROR = 1e-4
"""How far normalisation may move an output, relative to its largest magnitude."""

NONE = "-"
INTRODUCTION = """\
# Networks

Made by `{command}`; do not edit.

Every network is imported, normalised, calibrated with {samples} samples, lowered to every element type with
default settings, built for `{machine}` at levels {levels}, and simulated. Results are evaluated on further
samples, {held_out} of them.

- **relative error**: of the normalised model against the original, both in onnxruntime; the largest
  difference of an output over that output's largest magnitude. At most {relative:g} is asked for.
- **cosine** and **SQNR**: of the graph's outputs against the original's; the worst output counts. At least
  asked for: {asked}; what is below is listed, of int8 with the layers to blame.
- **list**: an output of which entries are chosen or put in order by value. The least difference moves whole
  entries of it, so that it is shown but not scored; the same network cut before the choice is.
- **gap**: cycles above the lower bound the report proves.
- A level is listed with its cycles only if graph and program agree in every bit of every output.
"""


COSTS = """\
Depends on the machine and on what else it does. Import and quantisation run in a fresh process; memory is the
largest resident set of the stages named before it.
"""


def page(
    records: Records, settings: Settings, published: Sequence[PublishedNetwork], command: str, extra: str = ""
) -> str:
    """The page as markdown.

    Args:
        records: By network and part.
        settings: What was measured.
        published: The list whose names get a row each; empty for a folder that is no zoo.
        command: How the page is made.
        extra: Markdown to put before the figures that depend on the machine.
    """
    parts = [
        INTRODUCTION.format(
            command=command,
            samples=settings.samples,
            held_out=settings.held_out,
            machine=settings.machine,
            levels=" and ".join(map(str, settings.levels)),
            relative=MOST_RELATIVE_ERROR,
            asked=", ".join(
                f"{dtype} {LEAST_COSINE[dtype]:g}" for dtype in settings.dtypes if dtype in LEAST_COSINE
            ),
        ),
        _table(*summary(records, settings)),
    ]
    if published:
        parts += ["## The published list\n", _table(*_published_table(records, settings, published))]
    parts += ["## Sizes\n", _table(*_sizes(records, settings))]
    parts += ["## Similarity\n", _table(*_similarity(records, settings))]
    parts += ["## Cycles\n", _table(*_cycles(records, settings))]
    found = list(troubles(records, settings))
    if found:
        parts += ["## Problems\n", _table(("network", "part", "stage", "what"), found)]
    blamed = list(_first_failures(records))
    if blamed:
        titles = ("network", "part", "layer", "operator", "dB before", "dB after", "cosine")
        parts += [
            f"## Where results below a cosine of {LOW:g} come from\n",
            "The layers that lose most decibels of signal to noise between their inputs and their output.\n",
            _table(titles, blamed),
        ]
    if extra:
        parts.append(extra)
    parts += [
        "## Seconds and memory\n",
        COSTS,
        _table(*_front_costs(records)),
    ]
    for dtype in settings.dtypes:
        parts += [f"### {dtype}\n", _table(*_costs(records, dtype, settings.levels))]
    return "\n".join(parts)


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def summary(records: Records, settings: Settings) -> Table:
    """How many networks pass what."""
    total = len(records)

    def passing(part: str, test: Callable[[Record], bool]) -> str:
        count = sum(part in parts and test(parts[part]) for parts in records.values())
        return f"{count} of {total}"

    def alike(dtype: str, least: float) -> str:
        found = [_worst(parts[dtype])[0] if dtype in parts else -1.0 for parts in records.values()]
        scored = [value for value in found if not math.isnan(value)]
        return f"{sum(value >= least for value in scored)} of {len(scored)}"

    rows = [
        ("imported and normalised", passing(FLOAT, lambda record: _ok(record, "import"))),
        (
            f"relative error at most {MOST_RELATIVE_ERROR:g}",
            passing(FLOAT, lambda record: _relative_error(record) <= MOST_RELATIVE_ERROR),
        ),
    ]
    for dtype in settings.dtypes:
        for level in settings.levels:
            working = passing(dtype, partial(_ok, stage=f"simulate O{level}"))
            rows.append((f"{dtype}, level {level}: built, graph = program", working))
        least = LEAST_COSINE.get(dtype)
        if least is not None:
            rows.append((f"{dtype}: cosine at least {least:g} at every output", alike(dtype, least)))
    return ("", "networks"), rows


def troubles(records: Records, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    """Network, part, stage and what is wrong, of all that is not as it should be."""
    for name, parts in records.items():
        for part in (FLOAT, *settings.dtypes):
            if part not in parts:
                if FLOAT in parts and all(_ok(parts[FLOAT], stage) for stage in parts[FLOAT]["stages"]):
                    yield name, part, "", "not run"
                continue
            for stage, found in parts[part]["stages"].items():
                if found["status"] != "ok":
                    yield name, part, stage, f"{found['status']}: {_line(found.get('message', ''))}"
                elif found.get("fallback"):
                    yield name, part, stage, f"fell back: {_line(found['fallback'])}"
        error = _relative_error(parts[FLOAT]) if FLOAT in parts else math.nan
        if error > MOST_RELATIVE_ERROR:
            yield name, FLOAT, "normalised", f"relative error {error:.1e}"
        for dtype in settings.dtypes:
            if dtype not in parts or not _ok(parts[dtype], "interpret"):
                continue
            cosine = _worst(parts[dtype])[0]
            if cosine < LEAST_COSINE.get(dtype, -1.0):
                yield name, dtype, "interpret", f"cosine {_cosine(cosine)}"


def _published_table(records: Records, settings: Settings, published: Sequence[PublishedNetwork]) -> Table:
    def status(part: str, files: Sequence[str]) -> str:
        good = [name for name in files if _whole(records, name, part, settings)]
        if len(good) == len(files):
            return "yes"
        return "no" if not good else f"yes ({', '.join(good)})"

    rows = []
    for entry in published:
        candidates = entry.files if entry.cut is None else (entry.cut, *entry.files)
        files = [name for name in candidates if name in records]
        states = [status(part, files) if files else NONE for part in (FLOAT, *settings.dtypes)]
        rows.append((entry.name, ", ".join(files) or NONE, _form(entry), *states))
    return ("published name", "stands for it", "published form", "import", *settings.dtypes), rows


def _form(entry: PublishedNetwork) -> str:
    """How much of a network its published form is."""
    return "whole" if entry.preset is None else f"{PRESETS[entry.preset].about} (preset {entry.preset})"


def _whole(records: Records, name: str, part: str, settings: Settings) -> bool:
    """Whether a part of a network works from end to end."""
    record = records[name].get(part)
    if record is None:
        return False
    if part == FLOAT:
        return _ok(record, "import") and _relative_error(record) <= MOST_RELATIVE_ERROR
    return all(_ok(record, f"simulate O{level}") for level in settings.levels)


def _sizes(records: Records, settings: Settings) -> Table:
    rows = []
    for name, parts in records.items():
        found = _stage(parts, FLOAT, "import")
        macs = next(
            (
                figures["macs"]
                for dtype in settings.dtypes
                for level in settings.levels
                if "macs" in (figures := _stage(parts, dtype, f"simulate O{level}"))
            ),
            None,
        )
        error = _relative_error(parts[FLOAT]) if FLOAT in parts else math.nan
        rows.append(
            (
                name,
                _number(found.get("nodes")),
                _number(found.get("normalised_nodes")),
                NONE if macs is None else f"{macs / 1e6:,.1f}",
                _mib(found.get("float_bytes")),
                *(_mib(_stage(parts, dtype, "quantize").get("graph_bytes")) for dtype in settings.dtypes),
                NONE if math.isnan(error) else f"{error:.1e}",
                _host(parts, settings),
            )
        )
    constants = (f"{dtype} MiB" for dtype in settings.dtypes)
    titles = (
        "network",
        "nodes",
        "normalised",
        "10^6 MACs",
        "float MiB",
        *constants,
        "relative error",
        "host",
    )
    return titles, rows


def _host(parts: Mapping[str, Record], settings: Settings) -> str:
    """Operators that run on the host, each with how many there are."""
    for dtype in settings.dtypes:
        operators = _stage(parts, dtype, "quantize").get("host_operators")
        if operators:
            return ", ".join(f"{count} {operator}" for operator, count in sorted(operators.items()))
    return NONE


def _similarity(records: Records, settings: Settings) -> Table:
    rows = []
    for name, parts in records.items():
        cells: list[str] = []
        for dtype in settings.dtypes:
            cells += _alike(parts.get(dtype))
        rows.append((name, *cells))
    titles = [title for dtype in settings.dtypes for title in (f"{dtype} cosine", "SQNR dB")]
    return ("network", *titles), rows


def _alike(record: Record | None) -> tuple[str, str]:
    """Cosine and decibels of the worst output; of lists where there is nothing else."""
    if record is None or not _ok(record, "interpret"):
        return NONE, NONE
    cosine, decibels = _worst(record)
    if not math.isnan(cosine):
        return _cosine(cosine), f"{decibels:.1f}"
    lists = record["stages"]["interpret"]["outputs"].values()
    worst = min((found["cosine"] for found in lists if found["cosine"] is not None), default=math.nan)
    return f"list: {_cosine(worst)}", NONE


def _cycles(records: Records, settings: Settings) -> Table:
    rows = []
    last = f"simulate O{max(settings.levels, default=0)}"
    for name, parts in records.items():
        cells = []
        for dtype in settings.dtypes:
            for level in settings.levels:
                stage = f"simulate O{level}"
                figures = _stage(parts, dtype, stage)
                cells.append(_number(figures.get("cycles") if figures.get("status") == "ok" else None))
            gap = _stage(parts, dtype, last).get("gap")
            cells.append(NONE if gap is None else f"{gap:.1%}")
        rows.append((name, *cells))
    titles = [
        title
        for dtype in settings.dtypes
        for title in (*(f"{dtype} O{level}" for level in settings.levels), "gap")
    ]
    return ("network", *titles), rows


def _front_costs(records: Records) -> Table:
    rows = []
    for name, parts in records.items():
        first, calibration = _stage(parts, FLOAT, "import"), _stage(parts, FLOAT, "calibrate")
        costs = [cell(stage) for stage in (first, calibration) for cell in (_seconds, _peak)]
        rows.append((name, _mib(first.get("file_bytes")), *costs))
    return ("network", "file MiB", "import s", "MiB", "calibrate s", "MiB"), rows


def _costs(records: Records, dtype: str, levels: Sequence[int]) -> Table:
    rows = []
    for name, parts in records.items():
        front = _stage(parts, dtype, "quantize")
        built = [_stage(parts, dtype, f"O{level}") for level in levels]
        simulated = [_stage(parts, dtype, f"simulate O{level}") for level in levels]
        peaks = (figures.get("peak_bytes") for figures in (*built, *simulated))
        peak = max((value for value in peaks if value is not None), default=None)
        cells = (
            _seconds(front),
            _mib(front.get("peak_bytes")),
            *map(_seconds, (*built, *simulated)),
            _mib(peak),
        )
        rows.append((name, *cells))
    builds, runs = ([f"{what} O{level} s" for level in levels] for what in ("build", "simulate"))
    return ("network", "import, quantise s", "MiB", *builds, *runs, "MiB"), rows


def _first_failures(records: Records) -> Iterator[tuple[str, ...]]:
    for name, parts in records.items():
        for part, record in parts.items():
            for layer in record["stages"].get("layer_losses", {}).get("layers", ()):
                yield (
                    name,
                    part,
                    layer["layer"],
                    layer["operator"],
                    _decibels(layer["before_db"]),
                    _decibels(layer["after_db"]),
                    _cosine(layer["cosine"]),
                )


def _stage(parts: Mapping[str, Record], part: str, stage: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = parts.get(part, {}).get("stages", {}).get(stage, {})
    return found


def _ok(record: Record, stage: str) -> bool:
    return bool(record["stages"].get(stage, {}).get("status") == "ok")


def _relative_error(record: Record) -> float:
    """Of the worst output; NaN where it is not known."""
    errors = record["stages"].get("normalised", {}).get("relative_error", {}).values()
    return max((math.inf if error is None else error for error in errors), default=math.nan)


def _worst(record: Record) -> tuple[float, float]:
    """Least cosine and least decibels of an output that is no list; NaN where all are, -1 without results."""
    stage = record["stages"].get("interpret", {})
    if stage.get("status") != "ok":
        return -1.0, math.nan
    outputs = [found for name, found in stage["outputs"].items() if name not in stage["lists"]]
    # JSON has neither NaN nor infinity: no cosine means there was none to compute, no decibels that nothing
    # differs.
    cosines = [-1.0 if found["cosine"] is None else found["cosine"] for found in outputs]
    decibels = [found["sqnr"] for found in outputs if found["sqnr"] is not None]
    return min(cosines, default=math.nan), min(decibels, default=math.inf if cosines else math.nan)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = ["---:" if index and _is_number(rows, index) else "---" for index in range(len(titles))]
    lines = [titles, sides, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _is_number(rows: Sequence[Sequence[str]], index: int) -> bool:
    cells = [row[index] for row in rows]
    return all(cell == NONE or cell[:1].isdigit() or cell[:2].lstrip("-").isdigit() for cell in cells)


def _line(text: str) -> str:
    """A message short enough for a cell."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."


def _cosine(value: float) -> str:
    if math.isnan(value):
        return NONE
    return f"{value:.7f}" if value > 0.9999 else f"{value:.4f}"


def _decibels(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _mib(value: int | None) -> str:
    return NONE if value is None else f"{value / 2**20:,.1f}"


def _peak(figures: Mapping[str, Any]) -> str:
    return _mib(figures.get("peak_bytes"))


def _seconds(figures: Mapping[str, Any]) -> str:
    value = figures.get("seconds")
    return NONE if value is None else f"{value:.1f}"
