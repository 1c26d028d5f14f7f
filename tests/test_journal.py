"""The journal of long commands: nothing finished is lost, nothing of others is taken for one's own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpuflow.errors import FileError
from tpuflow.io import journal as journals
from tpuflow.io.journal import Journal, content_digest, journal_beside

INPUTS = {"model": "abc", "samples": "def"}
WRITER = """
import sys
from tpuflow.io.journal import Journal
journal = Journal.open(sys.argv[1], "search", {"model": "abc", "samples": "def"})
for number in range(journal.resumed, 10**6):
    journal.note(f"trial {number}", {"number": number})
    print(number, flush=True)
"""


def test_trials_are_found_again_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    with Journal.open(path, "search", INPUTS) as journal:
        assert journal.resumed == 0
        assert journal.find("one") is None
        journal.note("two", {"db": 0.1 + 0.2, "far": float("inf")}, number=2, seed=7, seconds=1.5)
        journal.note("one", [1, "a"], number=1)
    with Journal.open(path, "search", INPUTS) as journal:
        assert journal.resumed == 2
        assert journal.find("one") == [1, "a"]
        rows = list(journal.rows())
    assert [row.key for row in rows] == ["one", "two"]
    assert (rows[1].seed, rows[1].seconds) == (7, 1.5)
    assert rows[1].content == {"db": 0.1 + 0.2, "far": float("inf")}
    assert [each.name for each in tmp_path.iterdir()] == ["m.journal"]


def test_a_journal_of_something_else_is_an_error_or_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.journal"

    def made() -> None:
        path.unlink(missing_ok=True)
        with Journal.open(path, "search", INPUTS) as journal:
            journal.note("one", 1)

    def refused(match: str, command: str = "search", inputs: dict[str, str] = INPUTS) -> None:
        with pytest.raises(FileError, match=match) as error:
            Journal.open(path, command, inputs)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        told: list[str] = []
        with Journal.open(path, command, inputs, anew=told.append) as journal:
            assert journal.resumed == 0
            assert list(journal.rows()) == []
        assert len(told) == 1
        assert told[0].endswith(": begun anew")

    made()
    refused("is of another samples: give another file", inputs={"model": "abc", "samples": "x"})
    made()
    refused("is of another config, model", inputs={"model": "x", "samples": "def", "config": "y"})
    made()
    refused('belongs to "search", not to "mixed"', command="mixed")
    made()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    refused("is a journal of version 99, this tpuflow has version 1")
    made()
    monkeypatch.setattr(journals, "package_digest", lambda: "another")
    refused("was made by another version of tpuflow")


@pytest.mark.parametrize("kind", ["text", "database", "folder"])
def test_what_is_no_journal_is_never_touched(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    if kind == "text":
        path.write_text("my own notes, longer than the header of a database " * 20, encoding="utf-8")
    elif kind == "database":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (x)")
        connection.close()
    else:
        path.mkdir()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(FileError, match=r"m\.journal: (not a journal|cannot be opened: is a directory)"):
        Journal.open(path, "search", INPUTS, anew=lambda _: None)
    assert not path.is_file() or path.read_bytes() == before


def test_one_process_at_a_time_has_a_journal_and_a_finished_one_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    with Journal.open(path, "search", INPUTS) as journal:
        with pytest.raises(FileError, match="in use by another run of tpuflow"):
            Journal.open(path, "search", INPUTS)
        journal.remove()
        assert not list(tmp_path.iterdir())
    assert journal_beside(tmp_path / "m.tpuq") == tmp_path / "m.tpuq.journal"
    assert journal_beside("/dev/null") is None


def test_a_killed_writer_loses_nothing_it_said_it_had_noted(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    noted = -1
    for lines in (1, 5, 40):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(lines):
            noted = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Journal.open(path, "search", INPUTS) as journal:
        rows = list(journal.rows())
    assert [row.content["number"] for row in rows] == list(range(len(rows)))
    assert len(rows) > noted


def test_rows_that_come_fast_are_committed_together(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    with Journal.open(path, "search", INPUTS, commit_seconds=0.2) as journal:
        for number in range(50):
            journal.note(f"{number}", number)
        assert journal.find("49") == 49
        with sqlite3.connect(path) as reader:
            (seen,) = reader.execute("SELECT count(*) FROM trials").fetchone()
        assert seen < 50  # the first was committed at once
        until = time.monotonic() + 20
        while seen < 50 and time.monotonic() < until:
            time.sleep(0.05)
            with sqlite3.connect(path) as reader:
                (seen,) = reader.execute("SELECT count(*) FROM trials").fetchone()
        assert seen == 50
        journal.note("last", 1)
    with Journal.open(path, "search", INPUTS) as journal:
        assert journal.resumed == 51
    with Journal.open(path, "search", INPUTS, commit_seconds=10) as journal:
        journal.note("more", 1)
        journal.note("and more", 1)
        journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_fails_is_told_with_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "m.journal"
    with Journal.open(path, "search", INPUTS, commit_seconds=0.05) as journal:
        journal.note("one", 1)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM trials").fetchall()  # which nobody can commit beside
        journal.note("two", 2)
        time.sleep(0.3)
        with pytest.raises(FileError, match="locked"):
            journal.note("three", 3)
        reader.close()


def test_hashes_of_files_and_folders_tell_contents_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    before = content_digest(folder), content_digest(folder / "a")
    (folder / "a").rename(folder / "b")
    assert content_digest(folder) != before[0]
    assert content_digest(folder / "b") == before[1]
    with pytest.raises(FileError, match="cannot be read"):
        content_digest(tmp_path / "none")
