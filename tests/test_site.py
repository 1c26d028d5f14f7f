"""The documentation as a site: every page is in it, and nothing it refers to is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_holds_every_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert (tmp_path / f"{page.stem}.html").is_file()
        assert page.stem == "index" or f'href="{page.stem}.html"' in index, page.name
    assert "tpuflow.FloatModel" in (tmp_path / "reference.html").read_text(encoding="utf-8")
