"""Every command and snippet of the pages for users runs, in the order of the page, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from cli.conftest import run_command
from conftest import REPOSITORY

PAGES = ("compare", "precision", "report", "runtime", "tutorial")
DIGITS = REPOSITORY / "examples" / "digits"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits.onnx", "calibration.npz", "digits.npz"):
        shutil.copy(DIGITS / name, tmp_path)
    text = (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert {kind for kind, _ in blocks} == {"sh", "python"}
    names: dict[str, object] = {}
    for kind, block in blocks:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, f"{page}.md", "exec"), names)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] == "tpuflow", line
            done = run_command(*words[1:])
            assert done.status == 0, f"{line}\n{done.err}"


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    text = (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (REPOSITORY / "docs" / link).exists(), link
