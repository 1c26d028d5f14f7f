"""`debug` and `steps` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Built, Command


@pytest.mark.feature("SIM-04")
def test_commands_from_words_and_files(
    command: Command, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "session.txt"
    script.write_text("break instruction 4\ncontinue\nshow tokens\n")
    done = command("debug", built.program, "--commands", script, "-x", "step", "-x", "quit", "-x", "layers")
    assert done.status == 0, done.err
    assert "no --inputs: random codes" in done.out
    assert "> show tokens" in done.out and "dtl0" in done.out
    assert "> layers" not in done.out
    wrong = command("debug", built.program, "--inputs", built.calibration, "-x", "jump")
    assert wrong.status == 1 and 'unknown command "jump"' in wrong.err
    lines = iter(["jump", "step", "quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    talk = command("debug", built.program)
    assert talk.status == 0 and 'error: unknown command "jump"' in talk.out


@pytest.mark.feature("CMP-13")
def test_a_program_shows_what_its_graph_does(command: Command, built: Built, tmp_path: Path) -> None:
    one, two = tmp_path / "program.npz", tmp_path / "graph.npz"
    done = command("compare", built.program, "--inputs", built.calibration, "--dump", one)
    assert done.status == 0, done.err
    graph = built.program.with_suffix(".tpuq")
    done = command("run", graph, "--inputs", built.calibration, "--outputs", two, "--all-tensors")
    assert done.status == 0, done.err
    with np.load(one) as program, np.load(two) as wanted:
        assert len(program) >= 3 and set(program) <= set(wanted)
        for name in program:
            np.testing.assert_array_equal(program[name], wanted[name][: len(program[name])])
    refused = command("run", built.program, "--inputs", built.calibration, "--outputs", two, "--all-tensors")
    assert refused.status == 1 and "tpuflow compare PROGRAM" in refused.err


@pytest.mark.feature("PRG-15")
def test_steps_passes_and_names_the_layer(command: Command, built: Built, tmp_path: Path) -> None:
    figures = tmp_path / "steps.json"
    done = command("compare", built.program, "--inputs", built.calibration, "--json", figures)
    assert done.status == 0, done.err
    assert "every layer and output as the graph has it" in done.out
    assert json.loads(figures.read_text())["passed"] is True
    text = tmp_path / "wrong.tpuasm"
    assert command("disasm", built.program, "-o", text).status == 0
    lines = text.read_text().splitlines()
    at = next(
        n for n, line in enumerate(lines) if line.startswith("descriptor Matrix") and "zero_point=" in line
    )
    lines[at] = lines[at].replace("lo=-128", "lo=-3", 1)
    text.write_text("\n".join(lines) + "\n")
    assert command("asm", text, "-o", tmp_path / "wrong.tpu").status == 0
    wrong = command("compare", tmp_path / "wrong.tpu", "--graph", built.graph, "--inputs", built.calibration)
    assert wrong.status == 3
    assert "is the first wrong one: instruction" in wrong.err
