"""Notebook display of a graph, a program and a run: key figures, and the picture or the longest layers.

The package gives these to the classes as `_repr_html_`, which Jupyter and its kin call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tpuflow.report.figures import size_text
from tpuflow.report.picture import graph_nodes, svg_picture
from tpuflow.report.words import UNITS, verdict

if TYPE_CHECKING:
    from tpuflow.execution.simulation import Run

__all__ = ["graph_html", "program_html", "run_html"]

LONGEST = 10


def graph_html(graph: Any) -> str:
    """A `Graph`: its size, and its picture in a frame that scrolls."""
    head = f"{len(graph.layers):,} layers, {graph.macs:,} multiply-accumulates"
    picture = svg_picture(graph_nodes(graph))
    return f'{_title(graph.name, head)}<div style="max-height:420px;overflow:auto">{picture}</div>'


def program_html(program: Any) -> str:
    """A `Program`: what it was compiled for, what it takes and gives, its layers of the largest bounds."""
    content = json.loads(program.metadata())
    bound = max(content["bounds"].values(), default=0)
    head = (
        f"batch {content['batch']}, -O{content['level']} for {content['machine']['name']}: "
        f"{len(program):,} instructions, {content['predicted_cycles']:,} cycles expected, bound {bound:,}, "
        f"cache peak {size_text(program.cache_in_use())}"
    )
    ports = [
        (way, port["name"], f"{port['dtype']} {port['shape']}")
        for way in ("input", "output")
        for port in content[f"{way}s"]
    ]
    layers = sorted(content["layers"], key=lambda layer: -int(layer["bound"]))[:LONGEST]
    rows = [
        (
            layer["name"],
            layer["op"],
            layer["dtype"],
            layer["unit"],
            f"{layer['macs']:,}",
            f"{layer['bound']:,}",
        )
        for layer in layers
    ]
    return (
        _title(content["name"], head)
        + _table(("", "name", "stored as"), ports)
        + _table(("layer", "operator", "type", "unit", "MAC", "bound"), rows)
    )


def run_html(run: Run) -> str:
    """A `Run`: cycles and bound, work of each unit, the layers that took longest, shapes of outputs."""
    report = run.report
    head = f"{report['cycles']:,} cycles, {report['time_us']:,.1f} us on {report['machine']}"
    if report["bound"]:
        head += f"; {verdict(report['gap'])} ({report['binding']})"
    units = [(short, f"{report['utilization'][unit]:.1%}") for unit, (short, _) in UNITS.items()]
    layers = sorted(report["layers"], key=lambda layer: layer["start"] - layer["end"])[:LONGEST]
    rows = [
        (
            layer["name"],
            layer["op"],
            UNITS[layer["unit"]][0],
            f"{layer['end'] - layer['start']:,}",
            f"{layer['bound']:,}",
        )
        for layer in layers
    ]
    outputs = [(name, f"{array.dtype} {list(array.shape)}") for name, array in run.outputs.items()]
    return (
        _title(f"{report['program']} -O{report['level']}", head)
        + _table(("unit", "busy"), units)
        + _table(("layer", "operator", "unit", "cycles", "bound"), rows)
        + (_table(("output", ""), outputs) if outputs else "")
    )


def _title(name: str, text: str) -> str:
    return f"<p><b>{escape(name)}</b>: {escape(text)}</p>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
