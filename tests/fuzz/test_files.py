"""A short part of the campaign in `files.py`, in a process of its own for its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings


@pytest.mark.feature("CMP-21")
@pytest.mark.slow
def test_damaged_files_are_read_or_refused_in_a_line() -> None:
    script = Path(__file__).with_name("files.py")
    # A fifth of them in the fast tier, as of generated examples.
    cases = 15 * min(100, settings().max_examples)
    words = [sys.executable, str(script), "--cases", str(cases), "--seed", "7"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
