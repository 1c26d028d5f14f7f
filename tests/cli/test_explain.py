"""`explain`: who held a layer up, and what a change would save."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Built, Command
from tpuflow.execution.explanation import _idle, explain
from tpuflow.execution.simulation import simulate
from tpuflow.partitioning import device_networks
from tpuflow.partitioning.storage import load_graph, load_program


def test_every_layer_is_explained(built: Built, command: Command, tmp_path: Path) -> None:
    figures = tmp_path / "e.json"
    result = command("explain", built.program, "--graph", built.graph, "--json", figures)
    assert result.status == 0, result.err
    found = json.loads(figures.read_text(encoding="utf-8"))
    program = load_program(built.program)
    run = simulate(program, values=False).report
    assert (found["cycles"], found["bound"], found["binding"]) == (
        run["cycles"],
        run["bound"],
        run["binding"],
    )
    assert [layer["name"] for layer in found["layers"]] == [layer["name"] for layer in run["layers"]]
    # What layers hold up adds up to the whole but for what comes after the last of them.
    assert sum(layer["holds"] for layer in found["layers"]) == max(layer["end"] for layer in run["layers"])
    names = {layer["name"] for layer in found["layers"]}
    for layer, ran in zip(found["layers"], run["layers"], strict=True):
        assert layer["busy"] == ran["busy"] and layer["bound"] == ran["bound"]
        waited = sum(wait["cycles"] for wait in layer["waits"])
        assert waited + layer["startup"] <= layer["end"]
        assert {wait["layer"] for wait in layer["waits"]} <= names
    assert any(layer["waits"] for layer in found["layers"])
    assert found["layers"][0]["name"] in result.out
    assert "twice the DDR bandwidth" in result.out and "recompiled" in result.out


def test_changes_are_measured(built: Built) -> None:
    (program,) = device_networks(load_program(built.program))
    (graph,) = device_networks(load_graph(built.graph))
    found = explain(program, graph)
    saved = {change.what: change for change in found.changes}
    assert [change.saved for change in found.changes] == sorted(
        (c.saved for c in found.changes), reverse=True
    )
    assert all(change.cycles + change.saved == found.cycles for change in found.changes)
    # This network waits for its weights: faster memory helps, faster units without work to do help less.
    assert saved["transfers that start at once"].saved > 0
    assert saved["twice the DDR bandwidth"].saved >= 0
    assert saved["twice the cache"].rebuilt
    helped = [layer.helps for layer in found.layers if layer.helps is not None]
    assert helped and all(cycles > 0 and what in saved for what, cycles in helped)
    assert {change.what for change in explain(program).changes} < set(saved)


def test_wrong_files_are_refused(built: Built, command: Command, tmp_path: Path) -> None:
    for words in ((tmp_path / "absent.tpu",), (built.program, "--graph", tmp_path / "absent.tpuq")):
        result = command("explain", *words)
        assert result.status == 1
        assert len(result.err.strip().splitlines()) == 1


def test_who_waits_for_whom_by_hand() -> None:
    """Two instructions of one unit, the second after a load: free from 10 on, loaded at 25, begun at 30."""
    wait = [{"unit": "dtl0", "count": 1}]
    instructions = [
        {"unit": "dtl0", "layer": 1, "waits": []},
        {"unit": "me", "layer": 0, "waits": []},
        {"unit": "me", "layer": 1, "waits": wait},
    ]
    spans = [(0, 0, 20, "execute"), (0, 20, 25, "drain"), (1, 0, 10, "execute"), (2, 30, 40, "execute")]
    intervals = [
        {"instruction": number, "start": start, "end": end, "phase": phase}
        for number, start, end, phase in spans
    ]
    assert list(_idle(instructions, intervals)) == [(1, "me", 15, ("dtl0", 1)), (1, "me", 5, None)]
