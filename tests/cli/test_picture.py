"""The picture of a comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cli.conftest import Built, Command
from tpuflow.partitioning.storage import load_graph

SVG = "{http://www.w3.org/2000/svg}"
COSINE, EUCLID = 0.99999, 0.99


@pytest.mark.feature("VIS-10")
def test_what_fails_a_comparison_is_red(command: Command, built: Built, tmp_path: Path) -> None:
    words = ["compare", built.model, built.program, "--inputs", built.calibration]
    words += ["--tolerance", f"{COSINE},{EUCLID}", "--json", tmp_path / "x.json"]
    for name in ("x.svg", "x.dot"):
        result = command(*words, "--picture", tmp_path / name)
        assert result.status == 3, "the tolerance is meant to be missed"
        assert "tensors are below" in result.err
    low = {
        tensor["name"]
        for tensor in json.loads((tmp_path / "x.json").read_text())["tensors"]
        for pair in (tensor["normalized"], tensor["quantized"])
        if pair is not None and not (pair["cosine"] >= COSINE and pair["euclid"] >= EUCLID)
    }
    graph = load_graph(built.graph)
    tensors = graph.tensors  # type: ignore[union-attr]
    named = {layer.name: layer.output for layer in graph.layers}  # type: ignore[union-attr]
    wanted = {
        name for name, output in named.items() if json.loads(tensors[output].source_json or "")["name"] in low
    }
    groups = list(ET.parse(tmp_path / "x.svg").getroot().iter(f"{SVG}g"))
    assert len(groups) == len(named) + 1
    red = [next(group.iter(f"{SVG}title")).text or "" for group in groups if group.get("class") == "failed"]
    assert {text.splitlines()[0] for text in red} - {"image"} == wanted != set()
    assert all("cos " in text and "euclid " in text for text in red)
    dot = re.findall(r'label="([^"]*?)\\n[^"]*", fillcolor="#f8c9c4"', (tmp_path / "x.dot").read_text())
    assert set(dot) - {"image"} == wanted


def test_other_kinds_of_pictures_are_refused(command: Command, built: Built, tmp_path: Path) -> None:
    result = command("compare", built.model, built.program, "--picture", tmp_path / "x.png")
    assert result.status == 1
    assert "a picture is .svg or .dot" in result.err
