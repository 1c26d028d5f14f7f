"""Temporary files and folders that are removed even when their process is killed.

Their names are `.tpuflow-PID-RANDOM.part` with the suffix of what they become; they are created exclusively,
so no two writers share one, and locked (`flock`) as long as their writer lives. The kernel releases the lock
of a dead process, however it died: whatever is named so and can be locked was abandoned, and the next process
that writes into the same folder removes it. What a live writer holds is never touched, also in another
container that shares the folder, where process numbers mean nothing.

The writers of the extension (`crates/ir/src/file.rs`) follow the same convention.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Temporary", "is_temporary", "remove_abandoned", "temporary_folder"]

NAME = re.compile(r"\.tpuflow-\d+-[0-9a-f]{16}\.part(\..{1,32})?", re.DOTALL)
LONGEST_SUFFIX = 32

_cleaned: set[str] = set()


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary file or folder."""
    return NAME.fullmatch(path.name) is not None


class Temporary:
    """A new, empty, locked file in `folder`, to be renamed or removed.

    Attributes:
        path: Its path, to be opened by name.
    """

    def __init__(self, folder: Path, suffix: str = "") -> None:
        """Creates the file.

        Raises:
            OSError: It cannot be created.
        """
        remove_abandoned(folder)
        self.path, self._descriptor = _create_locked(folder, suffix, directory=False)

    def publish(self, target: Path) -> None:
        """Flushes the file to the disk and renames it to `target`, whose permissions it takes over.

        Raises:
            OSError: It cannot be flushed or renamed.
        """
        self._follow()
        with suppress(FileNotFoundError):
            os.fchmod(self._descriptor, stat.S_IMODE(target.stat().st_mode))
        os.fsync(self._descriptor)
        self.path.replace(target)
        self._close()
        _flush_folder(target.parent)

    def flush(self) -> None:
        """Flushes the file to the disk.

        Raises:
            OSError: It cannot be flushed.
        """
        self._follow()
        os.fsync(self._descriptor)

    def remove(self) -> None:
        """Removes the file unless it was published."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            self._close()

    def _follow(self) -> None:
        """Takes the lock of the file that has the name now: a library may have replaced the one created."""
        found = self.path.stat()
        held = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            self._close()
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            _lock(self._descriptor)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def temporary_folder(parent: str | Path | None = None) -> Iterator[Path]:
    """A new folder that no other user can read, in `parent` or where the system keeps temporary files.

    It is removed with all it holds when the block ends.

    Raises:
        OSError: It cannot be created.
    """
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    remove_abandoned(parent)
    path, descriptor = _create_locked(parent, "", directory=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Removes what dead processes left in `folder`: temporary files and folders that nobody holds locked.

    A folder is searched once in the life of a process. What cannot be removed is left.
    """
    key = os.path.abspath(folder)  # noqa: PTH100 - without a look at the disk
    if key in _cleaned:
        return
    _cleaned.add(key)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        held = os.fstat(descriptor)
        if held.st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = path.lstat()
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            return  # renamed to its target meanwhile, or removed by another
        if stat.S_ISDIR(held.st_mode):
            shutil.rmtree(path)
        elif stat.S_ISREG(held.st_mode):
            path.unlink()
    finally:
        os.close(descriptor)


def _create_locked(folder: Path, suffix: str, *, directory: bool) -> tuple[Path, int]:
    """Path and locked descriptor of a new file or folder."""
    suffix = suffix if len(os.fsencode(suffix)) <= LONGEST_SUFFIX else ""
    while True:
        path = folder / f".tpuflow-{os.getpid()}-{secrets.token_hex(8)}.part{suffix}"
        try:
            if directory:
                path.mkdir(mode=0o700)
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            else:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(path, flags, 0o666)
        except (FileExistsError, NotADirectoryError):
            if not folder.is_dir():
                raise
            continue
        except FileNotFoundError:
            if not folder.is_dir():
                raise
            continue  # another process took the new folder for an abandoned one, before it was locked
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # taken for an abandoned one, before it was locked


def _lock(descriptor: int) -> None:
    """Locks a file; where the file system knows no locks, nobody can find it abandoned either."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _flush_folder(folder: Path) -> None:
    """Flushes the entries of a folder to the disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
