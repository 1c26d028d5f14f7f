"""Graphs in files: topology as text, constants as binary, and back to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from end_to_end.levels import config
from frontend.graphs import array, graph
from tpuflow.calibration import calibrate
from tpuflow.frontend import load
from tpuflow.lowering import lower
from tpuflow.partitioning.storage import load_graph


@pytest.mark.feature("IMP-34")
def test_a_graph_is_text_and_constants_and_comes_back_byte_for_byte(tmp_path: Path) -> None:
    proto = graph(
        [("Conv", "x w", "c"), ("Relu", "c", "r"), ("Flatten", "r", "f"), ("MatMul", "f m", "z")],
        {"x": [1, 3, 4, 4]},
        ["z"],
        {"w": array(5, 3, 3, 3), "m": array(20, 6)},
    )
    model, settings = load(proto), config("int8")
    made = lower(model, calibrate(model, {"x": array(2, 3, 4, 4)}, settings), settings)
    first, second = tmp_path / "a.tpuq", tmp_path / "b.tpuq"
    made.save(first)
    found = load_graph(first)
    assert isinstance(found, type(made))
    found.save(second)
    assert first.read_bytes() == second.read_bytes()
    content = first.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert "__metadata__" in header  # the topology; every other entry is a constant and where it lies
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert max(ends) == len(content) - 8 - length
