"""What the compiler makes of ten small networks, as text that can be read when it changes."""

from __future__ import annotations

import difflib
import json
import re

import pytest

import tpuflow
from programs.write_programs import HERE, LEVELS, compiled, program_text

MOST_BYTES = 30_000
WORKS = {"dtl Transfer", "dtl Lookup", "me Matrix", "pdp Pool", "ewp Vector"}
"""By unit, both lines as one: which line looks up is the schedule's choice."""


def kept(name: str) -> str:
    return (HERE / f"{name}.tpuasm").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LEVELS)
def test_a_program_is_the_text_that_was_reviewed(name: str) -> None:
    before, now = kept(name).splitlines(), program_text(name).splitlines()
    changes = list(difflib.unified_diff(before, now, "reviewed", "compiled", lineterm="", n=1))
    shown = "\n".join(line[:300] for line in changes[:40])
    assert not changes, f"{name}.tpuasm: read this; ./start programs writes the files anew\n{shown}"


def test_there_is_a_file_for_every_network_and_no_other() -> None:
    assert {path.stem for path in HERE.glob("*.tpuasm")} == set(LEVELS)
    assert len(LEVELS) == 10


def test_the_files_are_small_and_show_every_kind_of_work() -> None:
    found = set()
    for name in LEVELS:
        assert len(kept(name).encode()) <= MOST_BYTES, name
        found |= {
            " ".join(each)
            for each in re.findall(r"^(\w+?)\d? layer=.*?\b([A-Z]\w+)\(", kept(name), re.MULTILINE)
        }
    assert found >= WORKS, json.dumps(sorted(WORKS - found))


def test_texts_that_spell_normalize_the_old_way_are_read() -> None:
    now = compiled("attention").to_text()
    before = now.replace("normalize=", "normalise=")
    assert before != now
    assert tpuflow.Program.from_text(before).to_text() == now
