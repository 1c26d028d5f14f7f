"""A short run of the mutated ONNX graphs; `./start fuzz` makes long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("cases", "words"),
    [pytest.param(80, [], id="check"), pytest.param(20, ["--build"], id="build")],
)
@pytest.mark.slow
@pytest.mark.feature("CMP-21")
def test_mutated_graphs_are_built_or_refused(cases: int, words: list[str]) -> None:
    # A process of its own, which forks: nothing of this one's threads and modules may be in the way.
    script = Path(__file__).with_name("onnx_graphs.py")
    command = [sys.executable, str(script), "--seed", "0", "--jobs", "2", "--cases", str(cases), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert summary.startswith(f"{cases} cases: ")
    assert "'ok'" in summary, "nothing is taken"
    assert "'refused'" in summary, "nothing is refused"
