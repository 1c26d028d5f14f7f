"""The journal of a long command: one SQLite file with a row for every finished trial.

    with Journal.open(path, "search", {"model": digest, "samples": digest}, anew=say) as journal:
        for trial in trials:
            found = journal.find(trial.key)
            if found is None:
                found = run(trial)
                journal.note(trial.key, found)
        publish(...)
        journal.remove()

A row is committed, and on the disk, before `note` returns; whatever is killed loses the trials under way and
nothing else. Where trials end faster than a disk commits, several are committed together (`commit_seconds`):
a kill then also loses those that ended in that time. A journal belongs to one command, to its inputs (known by hashes of what is in them) and to one
build of this package: results of another are not taken for its own. A live command holds its journal locked;
the kernel releases the lock of a dead one.

| table | columns |
|---|---|
| `head` | `key`, `value`: `command`, `package` (what `package_digest` says), and `input NAME` for every input |
| `trials` | `number`, `key` (what identifies the trial), `seed`, `package`, `inputs` (one hash of them all), `seconds`, `content` (JSON) |
"""  # noqa: E501 - the row of a table

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tpuflow.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Journal", "Row", "content_digest", "journal_beside", "package_digest"]

SCHEMA = 1
"""Version of the tables; to be raised with every change of them."""

APPLICATION = 0x7470666A
"""Application id in the SQLite header of a journal: `tpfj`."""

TABLES = (
    "CREATE TABLE head (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE trials (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, seed INTEGER NOT NULL,
    package TEXT NOT NULL, inputs TEXT NOT NULL, seconds REAL NOT NULL, content TEXT NOT NULL)""",
)


@dataclass(frozen=True)
class Row:
    """A finished trial.

    Attributes:
        number: Its place among the trials.
        key: What identifies it.
        seed: What its random choices began with.
        seconds: How long it took.
        content: What came out, as JSON holds it.
    """

    number: int
    key: str
    seed: int
    seconds: float
    content: Any


class Journal:
    """An open journal; `Journal.open` makes one.

    Attributes:
        path: Its file.
        resumed: How many trials it held when it was opened.
    """

    def __init__(
        self, path: Path, lock: int, connection: sqlite3.Connection, commit_seconds: float = 0.0
    ) -> None:
        self.path = path
        self.resumed = 0
        self._lock, self._connection = lock, connection
        self._commit_seconds = commit_seconds
        self._committed = -commit_seconds
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None
        self._failure: FileError | None = None
        self._package = self._inputs = ""

    @classmethod
    def open(
        cls,
        path: str | Path,
        command: str,
        inputs: Mapping[str, str],
        *,
        anew: Callable[[str], None] | None = None,
        commit_seconds: float = 0.0,
    ) -> Self:
        """Opens a journal, or makes it.

        Args:
            path: Its file.
            command: Whose trials it holds.
            inputs: A hash, or a short text, of everything results depend on, by name.
            anew: Told in one line why a journal that belongs to something else is begun anew; without it that
                is an error.
            commit_seconds: How long a row may wait to be committed with others; 0: each at once.

        Raises:
            FileError: The file is no journal, another run has it open, it cannot be read or written; or it
                belongs to something else.
        """
        path = Path(path)
        lock = _open_locked(path)
        try:
            with _translate_errors(path):
                connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
                connection.execute("PRAGMA synchronous = FULL")
                found = cls(path, lock, connection, commit_seconds)
                try:
                    found._begin(command, inputs, anew)
                except BaseException:
                    connection.close()
                    raise
                return found
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def existing(cls, path: str | Path, command: str) -> Self:
        """Opens a journal to read it, whatever its inputs were and whichever build made it.

        Raises:
            FileError: There is none, it is of another command or version, or another run has it open.
        """
        path = Path(path)
        if not path.is_file():
            raise FileError(f"{path}: no such file")
        lock = _open_locked(path)
        try:
            with _translate_errors(path):
                found = cls(path, lock, sqlite3.connect(path, timeout=0, isolation_level=None))
                if found._number("application_id") != APPLICATION:
                    raise FileError(f"{path}: not a journal of tpuflow")
                if (version := found._number("user_version")) != SCHEMA:
                    reads = f"this tpuflow reads version {SCHEMA}"
                    raise FileError(f"{path}: is a journal of version {version}, {reads}")
                stated = dict(found._connection.execute("SELECT key, value FROM head").fetchall())
                if stated.get("command") != command:
                    raise FileError(f'{path}: belongs to "{stated.get("command")}", not to "{command}"')
                found.resumed = found._count()
                return found
        except BaseException:
            os.close(lock)
            raise

    def _begin(self, command: str, inputs: Mapping[str, str], anew: Callable[[str], None] | None) -> None:
        head = {"command": command, "package": package_digest()}
        head |= {f"input {name}": value for name, value in inputs.items()}
        self._package, self._inputs = head["package"], _digest(json.dumps(dict(inputs), sort_keys=True))
        if self._number("application_id") == 0 and not self._names():
            self._create(head)
            return
        if self._number("application_id") != APPLICATION:
            raise FileError(f"{self.path}: not a journal of tpuflow: move it away")
        reason = self._differs(head)
        if reason:
            if anew is None:
                raise FileError(f"{self.path}: {reason}: give another file, or delete this one")
            anew(f"{self.path}: {reason}: begun anew")
            self._create(head)
        self.resumed = self._count()

    def _count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM trials").fetchone()[0])

    @property
    def holds_trials(self) -> bool:
        """Whether any trial is finished."""
        return self._count() > 0

    def _number(self, pragma: str) -> int:
        return int(self._connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    def _names(self) -> list[str]:
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return [str(name) for (name,) in rows]

    def _differs(self, head: Mapping[str, str]) -> str:
        """Why this journal is not to be gone on with, in words; empty if it is."""
        if (version := self._number("user_version")) != SCHEMA:
            return f"is a journal of version {version}, this tpuflow has version {SCHEMA}"
        stated = dict(self._connection.execute("SELECT key, value FROM head").fetchall())
        if stated.get("command") != head["command"]:
            return f'belongs to "{stated.get("command")}", not to "{head["command"]}"'
        if stated.get("package") != head["package"]:
            return "was made by another version of tpuflow"
        others = sorted(key for key in stated.keys() | head.keys() if stated.get(key) != head.get(key))
        return f"is of another {', '.join(key.removeprefix('input ') for key in others)}" if others else ""

    def _create(self, head: Mapping[str, str]) -> None:
        """Makes empty tables in one step: a process that is killed leaves all of it, or nothing."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        for name in self._names():
            run(f'DROP TABLE "{name}"')
        for table in TABLES:
            run(table)
        self._connection.executemany("INSERT INTO head VALUES (?, ?)", head.items())
        run(f"PRAGMA application_id = {APPLICATION}")
        run(f"PRAGMA user_version = {SCHEMA}")
        run("COMMIT")

    def find(self, key: str) -> Any | None:
        """The result of a trial; None if it has not been finished."""
        with _translate_errors(self.path):
            row = self._connection.execute("SELECT content FROM trials WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def note(
        self, key: str, content: Any, *, number: int | None = None, seed: int = 0, seconds: float = 0.0
    ) -> None:
        """Adds a finished trial; it is on the disk when this returns, or `commit_seconds` later.

        Args:
            key: What identifies it.
            content: What came out; JSON must have it.
            number: Its place among the trials, the next one by default.
            seed: What its random choices began with.
            seconds: How long it took.

        Raises:
            FileError: The file cannot be written.
        """
        values = (number, key, seed, self._package, self._inputs, seconds, json.dumps(content))
        with self._guard, _translate_errors(self.path):
            if self._failure is not None:
                raise self._failure
            now = time.monotonic()
            if self._timer is None and now - self._committed < self._commit_seconds:
                self._connection.execute("BEGIN IMMEDIATE")
                self._timer = threading.Timer(self._commit_seconds, self._commit_late)
                self._timer.daemon = True
                self._timer.start()
            self._connection.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._committed = self._committed if self._timer is not None else now

    def _commit_late(self) -> None:
        try:
            self._commit()
        except FileError as error:  # in a thread of its own: told with the next row
            self._failure = error

    def _commit(self) -> None:
        """Commits the rows that wait for it."""
        with self._guard, _translate_errors(self.path):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._connection.execute("COMMIT")
                self._committed = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """All finished trials by number."""
        with _translate_errors(self.path):
            query = "SELECT number, key, seed, seconds, content FROM trials ORDER BY number"
            for number, key, seed, seconds, content in self._connection.execute(query).fetchall():
                yield Row(number, key, seed, seconds, json.loads(content))

    def remove(self) -> None:
        """Closes and deletes the journal: what it was kept for is done."""
        with self._guard:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._connection.close()
        for path in (self.path, Path(f"{self.path}-journal")):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._close()

    def close(self) -> None:
        """Closes the journal and keeps it."""
        try:
            self._commit()
        finally:
            self._close()

    def _close(self) -> None:
        self._connection.close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def journal_beside(output: str | Path) -> Path | None:
    """Where the journal of a command lies while it works at a file; None beside a device or a pipe."""
    path = Path(output)
    if path.exists() and not path.is_file():
        return None
    return path.with_name(f"{path.name}.journal")


def _open_locked(path: Path) -> int:
    """The descriptor of a locked file, made if there is none."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise FileError(f"{path}: cannot be opened: {(error.strerror or str(error)).lower()}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FileError(f"{path}: in use by another run of tpuflow") from None
        except OSError:
            return descriptor  # a file system without locks
        with suppress(FileNotFoundError):
            found, held = path.stat(), os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                return descriptor
        os.close(descriptor)  # of a run that ended meanwhile and removed it


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Errors of SQLite as errors that name the file."""
    try:
        yield
    except sqlite3.NotSupportedError as error:
        raise FileError(f"{path}: cannot be read: {error}") from None
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error) or "malformed" in str(error):
            raise FileError(f"{path}: not a journal of tpuflow, or a damaged one: move it away") from None
        raise FileError(f"{path}: cannot be used as a journal: {error}") from None


def content_digest(path: str | Path) -> str:
    """A hash of what a file holds, or of all files in a folder with their names.

    Raises:
        FileError: A file cannot be read.
    """
    path = Path(path)
    digest = hashlib.sha256()
    try:
        if not path.is_dir():
            with path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        for each in sorted(path.rglob("*")):
            if each.is_file():
                digest.update(f"{each.relative_to(path).as_posix()}\0{content_digest(each)}\n".encode())
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    return digest.hexdigest()


@cache
def package_digest() -> str:
    """This build of the package by what is in it: sources, data and extension."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".py", ".so", ".toml", ".pyd"}:
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
