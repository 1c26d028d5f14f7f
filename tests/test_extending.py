"""The walks of docs/extending.md, carried out in a copy of the package: every change, then its check.

That of docs/adding-a-unit.md compiles the simulator: `./start walks` carries it out, elsewhere its changes
are made and no more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY, slow_except

PAGE = REPOSITORY / "docs" / "extending.md"
UNIT = REPOSITORY / "docs" / "adding-a-unit.md"
STEP = re.compile(
    r"^(?:(?P<new>New file) `(?P<made>[^`]+)`"
    r"|In `(?P<changed>[^`]+)`, (?P<place>behind|in front of|in place of) the line `(?P<line>[^`]+)`"
    r"|(?P<check>Check)):\n\n```\w+\n(?P<block>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
WALKS = {
    title: list(STEP.finditer(body))
    for title, body in re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
}
UNIT_STEPS = list(STEP.finditer(UNIT.read_text(encoding="utf-8")))
UNIT_FILES = sorted({step["made"] or step["changed"] for step in UNIT_STEPS})


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
    at = places[0] + (step["place"] == "behind")
    lines[at : at + (step["place"] == "in place of")] = [step["block"]]
    path.write_text("".join(lines), encoding="utf-8")


STEPPED = [title for title, steps in WALKS.items() if steps]


@pytest.mark.parametrize("title", slow_except(["A machine"], STEPPED))
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


def test_a_unit_takes_at_most_twelve_files_with_tests_and_docs(tmp_path: Path) -> None:
    for path in UNIT_FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / path).exists():
            shutil.copy(REPOSITORY / path, tmp_path / path)
    for step in UNIT_STEPS:
        carry_out(step, tmp_path)
    assert {path.split("/")[0] for path in UNIT_FILES} == {"CHANGELOG.md", "crates", "docs", "python"}
    assert len(UNIT_FILES) <= 12
    assert f"adds a unit in {len(UNIT_FILES)} files" in UNIT.read_text(encoding="utf-8")


@pytest.mark.skipif("TPUFLOW_WALKS" not in os.environ, reason="it compiles the simulator: ./start walks")
def test_a_unit_can_be_added(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    left = shutil.ignore_patterns("target", ".git", ".venv", "site", "__pycache__", "shared", "*.so")
    shutil.copytree(REPOSITORY, copy, ignore=left)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(REPOSITORY / "target")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["cargo", "test", "--locked", "--quiet", "--profile", "checked", "--package", *words]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)

    for step in UNIT_STEPS:
        carry_out(step, copy)
    for words in (
        ("tpuflow-ir", "--lib", "unit"),
        ("tpuflow-simulator", "--test", "main", "move_unit"),
        ("tpuflow-simulator", "--test", "main", "parallel"),
    ):
        done = run(*words)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
