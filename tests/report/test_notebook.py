"""What notebooks show of graph, program and run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import tpuflow
from models.builder import Builder, samples
from tpuflow.report.words import UNITS


class Cells(HTMLParser):
    """Texts of all cells of all tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img"), attrs
        self._in = tag == "td"

    def handle_data(self, data: str) -> None:
        if self._in:
            self.found.append(data)


@pytest.fixture(scope="module")
def stages() -> tuple[Any, Any, Any]:
    b = Builder("net<script>")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 8))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 4))
    network = b.model()
    arrays = samples(network, 2)
    model = tpuflow.load(network)
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, arrays))
    program = tpuflow.compile(graph, level=5)
    return graph, program, tpuflow.simulate(program, arrays)


def test_a_graph_is_shown_as_its_picture(stages: tuple[Any, Any, Any]) -> None:
    graph = stages[0]
    text = graph._repr_html_()
    assert f"{len(graph.layers)} layers, {graph.macs:,} multiply" in text
    assert len(re.findall('<g class="layer"', text)) == len(graph.layers)
    assert "<script" not in text


def test_a_program_is_shown_with_ports_and_layers(stages: tuple[Any, Any, Any]) -> None:
    program = stages[1]
    cells = Cells(program._repr_html_()).found
    assert "image" in cells
    assert all(layer.name in cells for layer in stages[0].layers)


def test_a_run_is_shown_with_units_layers_and_outputs(stages: tuple[Any, Any, Any]) -> None:
    run = stages[2]
    text = run._repr_html_()
    cells = Cells(text).found
    assert f"{run.cycles:,} cycles" in text
    assert {short for short, _ in UNITS.values()} <= set(cells)
    assert all(layer["name"] in cells for layer in run.layers)
    ((name, array),) = run.outputs.items()
    assert name in cells and f"{np.dtype(array.dtype)} {list(array.shape)}" in cells
