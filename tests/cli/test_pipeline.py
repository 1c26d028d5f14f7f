"""Streams of inferences: built, checked, simulated and explored by the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from cli.conftest import Command, tiny
from models.builder import Builder, samples
from tpuflow import _core, build
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import IoMemory, Schedule
from tpuflow.config import Config, ScheduleConfig
from tpuflow.errors import ProgramError
from tpuflow.execution.simulation import simulate
from tpuflow.execution.streams import simulate_stream, stream_interval
from tpuflow.partitioning.storage import load_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """A network, its samples, and its program with a stream."""
    made = tmp_path_factory.mktemp("pipeline")
    onnx.save(tiny(), made / "m.onnx")
    np.savez(made / "x.npz", allow_pickle=False, **samples(tiny(), 5))
    result = command(
        "build", made / "m.onnx", "--calib", made / "x.npz", "-O5", "--pipeline", "-o", made / "p.tpu",
        "--json", made / "p.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    (made / "out.txt").write_text(result.out)
    return made


def test_build_states_what_an_inference_takes_in_a_stream(folder: Path) -> None:
    figures = json.loads((folder / "p.json").read_text())
    interval = figures["pipeline"]
    assert interval["bound"] <= interval["cycles"] < figures["cycles"]
    assert (
        f"pipeline   {interval['cycles']:,} cycles from one inference to the next"
        in (folder / "out.txt").read_text()
    )


def test_a_program_with_a_stream_shows_it(folder: Path, command: Command) -> None:
    interval = json.loads((folder / "p.json").read_text())["pipeline"]
    sentence = f"{interval['cycles']:,} cycles from one inference to the next"
    result = command("inspect", folder / "p.tpu")
    assert f"stream: {sentence}" in result.out
    result = command("report", folder / "p.tpu", "-o", folder / "p.html")
    assert result.status == 0, result.err
    page = (folder / "p.html").read_text()
    assert f"In a stream of inferences it takes <b>{sentence}" in page
    assert "</b>. Most time goes to" in page


def test_inferences_of_a_stream_give_what_single_ones_give(folder: Path, command: Command) -> None:
    one, many = folder / "one.npz", folder / "many.npz"
    assert command("simulate", folder / "p.tpu", "--inputs", folder / "x.npz", "--outputs", one).status == 0
    result = command(
        "simulate", folder / "p.tpu", "--pipeline", "9", "--inputs", folder / "x.npz", "--outputs", many,
        "--json", folder / "many.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "stream of 9 inferences:" in result.out
    with np.load(one) as single, np.load(many) as stream:
        for name in single.files:
            # The samples in turn, beginning anew after the last.
            assert np.array_equal(stream[name], np.concatenate([single[name], single[name][:4]]))
    figures = json.loads((folder / "many.json").read_text())
    assert figures["pipeline"]["inferences"] == 9
    assert figures["bound"] <= figures["cycles"]


def test_the_checker_proves_streams_and_states_what_it_found_of_a_wrong_one(
    folder: Path, command: Command
) -> None:
    assert command("check", folder / "p.tpu").status == 0
    program = load_program(folder / "p.tpu")
    assert isinstance(program, _core.Program)
    text = program.to_text()
    stated = stream_interval(program)
    assert stated is not None
    (folder / "wrong.tpuasm").write_text(
        text.replace(f"predicted_interval={stated.cycles}", f"predicted_interval={stated.cycles - 1}")
    )
    again = _core.Program.from_text((folder / "wrong.tpuasm").read_text())
    assert _core.check(None, program) == []
    assert _core.check(None, again) == [
        f"predicted cycles from run to run: expected {stated.cycles}, found {stated.cycles - 1}"
    ]
    late = _core.Program.from_text(text.replace(" lag=1", " lag=2", 1))
    found = _core.check(None, late)
    assert found, "a stream with an instruction an iteration late"


def test_a_file_with_a_stream_has_a_version_of_its_own_and_comes_back(folder: Path, tmp_path: Path) -> None:
    program = load_program(folder / "p.tpu")
    assert isinstance(program, _core.Program)
    assert b'\\"version\\":6' in (folder / "p.tpu").read_bytes()
    program.save(tmp_path / "again.tpu")
    assert (tmp_path / "again.tpu").read_bytes() == (folder / "p.tpu").read_bytes()
    assert _core.Program.from_text(program.to_text()).digest() == program.digest()


def test_the_interval_is_that_of_long_streams(folder: Path) -> None:
    program = load_program(folder / "p.tpu")
    assert isinstance(program, _core.Program)
    interval = stream_interval(program)
    assert interval is not None
    cycles = {runs: simulate_stream(program, runs, values=False)[1].cycles for runs in (1, 30, 62)}
    assert cycles[1] == simulate(program, values=False).cycles
    assert abs((cycles[62] - cycles[30]) / 32 - interval.cycles) <= 1


@pytest.mark.parametrize("io_memory", ["separate", "shared"])
@pytest.mark.parametrize("level", [1, 5])
def test_python_compiles_streams_at_both_levels(folder: Path, level: int, io_memory: IoMemory) -> None:
    graph = _core.Graph.load(folder / "p.tpuq")
    program = compile_graph(graph, level=level, schedule=Schedule(pipeline=True, io_memory=io_memory))
    usual = compile_graph(graph, level=level, schedule=Schedule(io_memory=io_memory))
    assert stream_interval(usual) is None
    interval = stream_interval(program)
    assert interval is not None
    assert interval.cycles < simulate(usual, values=False).cycles
    _, run = simulate_stream(program, 3, dict(np.load(folder / "x.npz")))
    graph_outputs = simulate(program, dict(np.load(folder / "x.npz"))).outputs
    assert all(np.array_equal(run.outputs[name], graph_outputs[name][:3]) for name in run.outputs)
    with pytest.raises(ProgramError, match="was not built for a stream"):
        simulate_stream(usual, 2)


def test_what_cannot_overlap_is_one_line(folder: Path, tmp_path: Path, command: Command) -> None:
    result = command("build", folder / "m.onnx", "--calib", folder / "x.npz", "-o", tmp_path / "u.tpu")
    assert result.status == 0
    for words, status, text in (
        (("simulate", tmp_path / "u.tpu", "--pipeline", "4"), 1, "build it with --pipeline"),
        (("simulate", folder / "p.tpu", "--pipeline", "0"), 2, "greater than or equal to 1"),
        (("simulate", folder / "p.tpu", "--pipeline", "99999999"), 1, "the memory ends at"),
        (("simulate", folder / "p.tpu", "--pipeline", "300000"), 1, "more than 4194304 instructions"),
    ):
        found = command(*words)
        assert (found.status, "Traceback" in found.err) == (status, False)
        assert text in found.err
    b = Builder("host")
    x = b.node("Relu", b.input("x", [1, 8, 4, 4]))
    b.output(b.node("Det", x))
    onnx.save(b.model(), tmp_path / "host.onnx")
    np.savez(tmp_path / "h.npz", allow_pickle=False, **samples(b.model(), 3))
    found = command(
        "build", tmp_path / "host.onnx", "--calib", tmp_path / "h.npz", "--pipeline", "-o", tmp_path / "h.tpu"
    )
    assert found.status == 1
    assert "inferences of a network in segments cannot overlap" in found.err
    assert not (tmp_path / "h.tpu").exists()


def test_python_and_command_make_the_same_stream(folder: Path, tmp_path: Path) -> None:
    config = Config(schedule=ScheduleConfig(pipeline=True))
    made = build(folder / "m.onnx", dict(np.load(folder / "x.npz")), level=5, config=config)
    made.program.save(tmp_path / "p.tpu")
    assert (tmp_path / "p.tpu").read_bytes() == (folder / "p.tpu").read_bytes()
