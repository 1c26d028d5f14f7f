"""Every command on a network the host shares in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.conftest import Built, Command
from models.builder import samples
from partitioning.networks import NETWORKS, written
from tpuflow import _core
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_graph, load_program


@dataclass(frozen=True)
class Shared:
    folder: Path
    model: Path
    program: Path
    graph: Path
    inputs: Path


@pytest.fixture(scope="module")
def shared_network(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.mktemp("detector")
    model, program, inputs = folder / "detector.onnx", folder / "detector.tpu", folder / "x.npz"
    network = NETWORKS["detector"]()
    onnx.save(network, model)
    np.savez(inputs, allow_pickle=False, **samples(network, 3))
    words = ("build", model, "-O5", "--calib", inputs, "-o", program, "--json", folder / "build.json")
    result = command(*words)
    assert result.status == 0, result.err
    assert "host1" in result.out and "NonMaxSuppression" in result.out
    return Shared(folder, model, program, program.with_suffix(".tpuq"), inputs)


def done(command: Command, *words: str | Path) -> str:
    result = command(*words)
    assert result.status == 0, result.err
    return result.out


def test_build_lists_what_the_host_computes(shared_network: Shared) -> None:
    figures = json.loads((shared_network.folder / "build.json").read_text(encoding="utf-8"))
    (host,) = figures["host_subgraphs"]
    assert host.keys() == {"name", "nodes", "reason", "inputs", "outputs"}
    assert host["outputs"] == ["found", "score"]
    assert "NonMaxSuppression" in host["reason"]
    assert figures["host_us"] > 0
    assert figures["cycles"] == sum(part["cycles"] or 0 for part in figures["segments"])


@pytest.mark.feature("PRG-15")
def test_every_tensor_of_every_segment_is_compared(
    shared_network: Shared, command: Command, tmp_path: Path
) -> None:
    figures, dump, all_tensors = (tmp_path / name for name in ("steps.json", "dump.npz", "all.npz"))
    words = (shared_network.program, "--inputs", shared_network.inputs)
    text = done(command, "compare", *words, "--json", figures, "--dump", dump)
    assert "every layer and output as the graph has it" in text
    found = json.loads(figures.read_text(encoding="utf-8"))
    graph = load_graph(shared_network.graph)
    assert isinstance(graph, Partitioned) and found["passed"] is True
    assert list(found["segments"]) == [part.name for part in graph.device]
    for part in graph.device:
        rows = found["segments"][part.name]["tensors"]
        assert [row["layer"] for row in rows] == [layer.name for layer in part.network.layers]
        assert all((row["compared"], row["wrong"]) == (row["elements"], 0) for row in rows)
    done(command, "run", shared_network.graph, *words[1:], "--outputs", all_tensors, "--all-tensors")
    with np.load(dump) as program, np.load(all_tensors) as integers:
        assert len(program) >= 4
        for name in program:
            wanted = integers[name][0]
            np.testing.assert_array_equal(program[name].reshape(wanted.shape), wanted)


@pytest.mark.feature("PRG-15")
def test_the_first_wrong_layer_is_named_with_its_segment(
    shared_network: Shared, command: Command, tmp_path: Path
) -> None:
    program = load_program(shared_network.program)
    assert isinstance(program, Partitioned)

    def damaged(network: _core.Program) -> _core.Program:
        text = network.to_text()
        assert "lo=-128" in text
        return _core.Program.from_text(text.replace("lo=-128", "lo=-3", 1))

    wrong = tmp_path / "wrong.tpu"
    program.map(damaged).save(wrong)
    words = ("compare", wrong, "--graph", shared_network.graph, "--inputs", shared_network.inputs)
    result = command(*words)
    assert result.status == 3
    assert re.search(r'device1: layer ".+" is the first wrong one: instruction \d+, element', result.err)
    assert command(*words, "--fail-fast").status == 3
    done(command, "compare", shared_network.program, "--inputs", shared_network.inputs, "--fail-fast")


def test_a_program_and_the_graph_of_another_are_refused(
    shared_network: Shared, built: Built, command: Command
) -> None:
    for program, graph in (
        (shared_network.program, built.graph),
        (built.program, shared_network.graph),
    ):
        result = command("compare", program, "--graph", graph)
        assert result.status == 1
        assert "the graph has other segments: give its own" in result.err


def test_no_host_is_an_error_that_suggests_a_cut(shared_network: Shared, command: Command) -> None:
    out = shared_network.folder / "none.tpu"
    result = command("build", shared_network.model, "--no-host", "-o", out)
    assert result.status == 1
    assert "NonMaxSuppression" in result.err and "--cut-outputs" in result.err
    assert not out.exists()
    assert command("check", "--no-host", shared_network.model).status == 1
    assert "run on the host" in done(command, "check", shared_network.model)


def test_check_finds_the_segments_that_build_makes(command: Command, tmp_path: Path) -> None:
    """Only lowering refuses the comparison with infinity."""
    text = """
    odd (float[1,3,8,8] x) => (float[1,4,8,8] y, bool[1,5,8,8] odd) {
      a = Conv <pads = [1, 1, 1, 1]> (x, w)  odd = IsInf (a)  r = Relu (a)  y = Conv (r, v)
    }"""
    model, program = tmp_path / "odd.onnx", tmp_path / "odd.tpu"
    onnx.save(written(text, w=(5, 3, 3, 3), v=(4, 5, 1, 1)), model)
    shown = done(command, "check", model)
    done(command, "build", model, "-O1", "-o", program, "--json", tmp_path / "odd.json")
    hosts = json.loads((tmp_path / "odd.json").read_text(encoding="utf-8"))["host_subgraphs"]
    assert hosts
    assert f"on the host {len(hosts)}" in shown and "run on the host" in shown
    rows = [line.split() for line in shown.splitlines() if line.lstrip().startswith("host")]
    assert [(row[0], int(row[1])) for row in rows] == [(host["name"], len(host["nodes"])) for host in hosts]


def test_levels_agree(shared_network: Shared, command: Command) -> None:
    found = {}
    for file in (shared_network.graph, shared_network.program, shared_network.model):
        target = shared_network.folder / f"{file.suffix[1:]}.npz"
        done(command, "run", file, "--inputs", shared_network.inputs, "--outputs", target)
        found[file.suffix] = dict(np.load(target))
    graph, program = found[".tpuq"], found[".tpu"]
    assert graph.keys() == program.keys() >= {"found", "score"}
    assert all(np.array_equal(graph[name], program[name]) for name in graph)
    everything = shared_network.folder / "all.npz"
    words = ("--inputs", shared_network.inputs, "--outputs", everything, "--all-tensors")
    done(command, "run", shared_network.graph, *words)
    assert {"boxes", "picked", "found"} <= dict(np.load(everything)).keys()
    out = done(
        command, "compare", shared_network.model, shared_network.program, "--inputs", shared_network.inputs,
        "--samples", "3",
    )  # fmt: skip
    assert "equal in every bit" in out


def test_simulate_shows_segments_everywhere(shared_network: Shared, command: Command) -> None:
    folder = shared_network.folder
    report, trace, figures, outputs = (folder / name for name in ("r.html", "t.pf", "s.json", "y.npz"))
    out = done(
        command, "simulate", shared_network.program, "--inputs", shared_network.inputs, "--outputs", outputs,
        "--report", report, "--trace", trace, "--json", figures,
    )  # fmt: skip
    assert "host1 runs on the host" in out
    assert "Segments of device and host" in report.read_text(encoding="utf-8")
    assert trace.stat().st_size > 0
    assert json.loads(figures.read_text(encoding="utf-8"))["host_us"] > 0
    assert "found" in np.load(outputs)
    assert "not run" in done(command, "simulate", shared_network.program, "--timing-only")
    assert "random codes" in done(command, "simulate", shared_network.program)


def test_files_are_inspected_checked_and_shown_as_text(shared_network: Shared, command: Command) -> None:
    for file in (shared_network.graph, shared_network.program):
        assert "NonMaxSuppression" in done(command, "inspect", file)
    assert "computes" in done(command, "check", shared_network.program)
    alone = shared_network.folder / "alone.tpu"
    alone.write_bytes(shared_network.program.read_bytes())
    assert "not followed" in done(command, "check", alone)
    text = done(command, "disasm", shared_network.program)
    assert done(command, "disasm", shared_network.program, "--segment", "device1") == text
    assert command("disasm", shared_network.program, "--segment", "device7").status == 1
    assert "NonMaxSuppression" in done(command, "inspect", shared_network.model)


def test_a_program_of_other_segments_is_not_the_graphs(
    shared_network: Shared, command: Command, tmp_path: Path
) -> None:
    model = tmp_path / "top.onnx"
    onnx.save(NETWORKS["top_scores"](), model)
    done(command, "build", model, "-o", tmp_path / "top.tpu")
    result = command("check", shared_network.program, "--graph", tmp_path / "top.tpuq")
    assert result.status == 1
    assert "segments" in result.err


def test_stages_on_their_own_make_the_same_program(shared_network: Shared, command: Command) -> None:
    folder = shared_network.folder
    ranges, graph, program = folder / "ranges.json", folder / "stages.tpuq", folder / "stages.tpu"
    done(command, "calibrate", shared_network.model, "--calib", shared_network.inputs, "-o", ranges)
    done(command, "quantize", shared_network.model, "--ranges", ranges, "-o", graph)
    assert graph.read_bytes() == shared_network.graph.read_bytes()
    done(command, "build", graph, "-O5", "-o", program)
    assert program.read_bytes() == shared_network.program.read_bytes()


def test_evaluate_reads_outputs_of_the_host(shared_network: Shared, command: Command) -> None:
    words = ("--data", shared_network.inputs, "--metric", "cosine", "--float", shared_network.model)
    assert "score" in done(command, "evaluate", shared_network.program, *words, "--output", "score")
