"""What is in the shared cache at its peak, against every moment of a program; threads change no bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import tpuflow
from cli.conftest import run_command
from conftest import REPOSITORY
from models.builder import Builder
from tpuflow import _core
from tpuflow.compiler.peak import at_peak


def network() -> onnx.ModelProto:
    """Branches that live side by side."""
    b = Builder("branches")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 16, 16]), 8, pads=(1, 1, 1, 1)))
    parts = [b.node("Relu", b.conv(x, 4 * n, (1, 1))) for n in (1, 2, 3)]
    b.output(b.gemm(b.node("GlobalAveragePool", b.node("Concat", *parts, x, axis=1)), 5))
    return b.model()


def program(level: int) -> _core.Program:
    model = tpuflow.load(network())
    data = np.random.default_rng(0).standard_normal((8, 3, 16, 16)).astype(np.float32)
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, {"x": data}))
    made = tpuflow.compile(graph, level=level)
    assert isinstance(made, _core.Program)
    return made


@pytest.mark.feature("CMP-20")
@pytest.mark.parametrize("level", [1, 5])
def test_tensors_alive_at_the_peak_are_those_of_the_fullest_moment(level: int) -> None:
    made = program(level)
    entries = json.loads(made.metadata())["allocations"]
    found = at_peak(made)
    moments = []
    for moment in range(len(made)):
        used = np.zeros(max(entry["address"] + entry["bytes"] for entry in entries), bool)
        alive = [entry for entry in entries if entry["first"] <= moment <= entry["last"]]
        for entry in alive:
            used[entry["address"] : entry["address"] + entry["bytes"]] = True
        moments.append((int(used.sum()), alive))
    most = max(used for used, _ in moments)
    assert most == made.cache_in_use()
    fullest = next(alive for used, alive in moments if used == most)
    assert len(found) > 1 and sorted(map(str, found)) == sorted(map(str, fullest))


@pytest.mark.feature("CMP-20")
def test_inspect_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "a.tpu"
    made = program(1)
    made.save(path)
    done = run_command("inspect", str(path), "--json", str(tmp_path / "a.json"))
    assert done.status == 0 and "In the shared cache at the peak" in done.out
    (shown,) = json.loads((tmp_path / "a.json").read_text())["programs"]
    assert shown["at_peak"] == at_peak(made)


@pytest.mark.feature("SIM-10")
@pytest.mark.slow
def test_threads_of_the_host_change_neither_bits_nor_cycles(tmp_path: Path) -> None:
    path = tmp_path / "a.tpu"
    program(5).save(path)
    script = (
        "import hashlib, sys, numpy as np, tpuflow\n"
        "x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)\n"
        "run = tpuflow.simulate(tpuflow.Program.load(sys.argv[1]), {'x': x})\n"
        "print(run.cycles, [hashlib.sha256(each.tobytes()).hexdigest() for each in run.outputs.values()])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, str(path)],
            check=True,
            capture_output=True,
            text=True,
            env={"RAYON_NUM_THREADS": threads, "PYTHONPATH": str(REPOSITORY / "python")},
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(outputs) == 1 and int(outputs.pop().split()[0]) > 1000
