"""The walks of docs/extending.md, carried out in a copy of the package: every change, then its check."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "extending.md"
STEP = re.compile(
    r"^(?:(?P<new>New file) `(?P<made>[^`]+)`"
    r"|In `(?P<changed>[^`]+)`, (?P<place>behind|in front of) the line `(?P<line>[^`]+)`"
    r"|(?P<check>Check)):\n\n```\w+\n(?P<block>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
WALKS = {
    title: list(STEP.finditer(body))
    for title, body in re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
}


def carry_out(step: re.Match[str], copy: Path) -> None:
    """One change of a file."""
    if step["made"]:
        path = copy / step["made"]
        assert not path.exists(), f"{step['made']} is there already"
        path.write_text(step["block"], encoding="utf-8")
        return
    path = copy / step["changed"]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    places = [at for at, line in enumerate(lines) if line.rstrip("\n") == step["line"]]
    assert len(places) == 1, f"{step['changed']}: the line is there {len(places)} times: {step['line']}"
    lines.insert(places[0] + (step["place"] == "behind"), step["block"])
    path.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("title", [title for title, steps in WALKS.items() if steps])
def test_a_walk_can_be_carried_out(title: str, tmp_path: Path) -> None:
    package = tmp_path / "python" / "tpuflow"
    shutil.copytree(REPOSITORY / "python" / "tpuflow", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("digits.onnx", "calibration.npz"):
        shutil.copy(REPOSITORY / "examples" / "digits" / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    *changes, check = WALKS[title]
    assert check["check"]

    def checked() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", check["block"]]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert checked().returncode != 0, "the check passes before anything was changed"
    for step in changes:
        carry_out(step, tmp_path)
    done = checked()
    assert done.returncode == 0, done.stderr


def test_every_walk_but_those_in_words_has_a_check_and_every_file_it_names_is_there() -> None:
    assert {title for title, steps in WALKS.items() if not steps} == {"A law of the DMA"}
    for path in re.findall(r"`((?:crates|python|docs|tests)/[\w./]+)`", PAGE.read_text(encoding="utf-8")):
        assert (REPOSITORY / path).exists() or f"New file `{path}`" in PAGE.read_text(encoding="utf-8"), path
