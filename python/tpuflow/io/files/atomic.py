"""Files that are complete or absent, alone or in groups.

What a path names decides how it is written:

| the path names | what happens |
|---|---|
| nothing, or a regular file | a temporary file in the same folder is written, flushed and renamed to it |
| a link | the file it leads to is replaced so, where that file lies; the link stays |
| a device, pipe or socket, or a descriptor as `/dev/stdout` | written into |
| a folder | an error |

`publication` does this for the files of one command: nothing is renamed before all are complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.errors import FileError
from tpuflow.io.files.temporary import Temporary, is_temporary, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Publication",
    "file_stem",
    "make_folder",
    "new_folder",
    "publication",
    "replace_atomically",
    "require_unused",
]

DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/(?:self|thread-self|\d+)/fd/(\d+)")
STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
MOST_LINKS = 40
LONGEST_STEM = 200


@contextmanager
def replace_atomically(path: str | Path) -> Iterator[Path]:
    """A path to write to; what is written there takes the place of `path` when the block ends without error.

    The path given keeps the suffix, because some writers choose the format by it. A file that is itself
    temporary is written in place: who made it publishes it.

    Raises:
        FileError: The file or its folder cannot be written.
    """
    path = Path(path)
    if is_temporary(path):
        with _translate_errors(path):
            yield path
        return
    with _translate_errors(path):
        stream = _stream(path)
        if stream is not None:
            sent = _DirectOutput(stream, path.suffix)
            try:
                yield sent.path
                sent.publish(path)
            finally:
                sent.remove()
            return
        target = _target(path)
        temporary = Temporary(target.parent, target.suffix)
        try:
            yield temporary.path
            temporary.publish(target)
        finally:
            temporary.remove()


class _DirectOutput:
    """Output that a device or pipe gets when the publication ends."""

    def __init__(self, stream: int | Path, suffix: str) -> None:
        self._stream = stream
        self._folder = ExitStack()
        self.path = self._folder.enter_context(temporary_folder()) / f"output{suffix}"

    def flush(self) -> None:
        """Nothing: it is no file."""

    def publish(self, _: Path) -> None:
        """Writes into the device."""
        _copy(self.path, self._stream)

    def remove(self) -> None:
        """Removes the temporary file."""
        self._folder.close()


@dataclass
class Publication:
    """Files of one command, complete in temporary files before the first is renamed."""

    _staged: list[tuple[Path, Path, Temporary | _DirectOutput]] = field(default_factory=list)

    def stage(self, path: str | Path) -> Path:
        """A temporary file beside `path` to write to, which is renamed when the publication ends.

        Raises:
            FileError: The file or its folder cannot be written.
        """
        path = Path(path)
        with _translate_errors(path):
            stream = _stream(path)
            if stream is None:
                target = _target(path)
                staged: Temporary | _DirectOutput = Temporary(target.parent, target.suffix)
            else:
                target, staged = path, _DirectOutput(stream, path.suffix)
        self._staged.append((path, target, staged))
        return staged.path

    def digests(self) -> dict[str, str]:
        """SHA-256 of the staged files by name, in the order they were staged."""
        found = {}
        for path, _, temporary in self._staged:
            with temporary.path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
        return found

    def publish(self) -> None:
        """Flushes all files, then renames one after another, the last staged first.

        Raises:
            FileError: A file cannot be flushed or renamed.
        """
        for path, _, temporary in self._staged:
            with _translate_errors(path):
                temporary.flush()
        for path, target, temporary in reversed(self._staged):
            with _translate_errors(path):
                temporary.publish(target)

    def discard(self) -> None:
        """Removes what was not published."""
        for _, _, temporary in self._staged:
            temporary.remove()


@contextmanager
def publication() -> Iterator[Publication]:
    """A group of files that are renamed together when the block ends without an error.

    Raises:
        FileError: A file cannot be written.
    """
    group = Publication()
    try:
        yield group
        group.publish()
    finally:
        group.discard()


def make_folder(path: str | Path) -> None:
    """Makes a folder, and those it is in, where they are missing.

    Raises:
        FileError: It cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be made: {_reason(error)}") from None


def require_unused(path: Path) -> None:
    """Makes sure that a new folder may take a path: nothing is there, or an empty folder.

    Raises:
        FileError: Something is.
    """
    with _translate_errors(path):
        if path.is_dir() and any(path.iterdir()):
            raise FileError(f"{path}: is a folder that is not empty: remove it, or name another")
        if not path.is_dir() and (path.exists() or path.is_symlink()):
            raise FileError(f"{path}: is a file: name a folder")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` with all it holds when the block ends without an error.

    Raises:
        FileError: The path names a file or a folder that holds something, or the folder cannot be made.
    """
    path = Path(path)
    require_unused(path)
    with _translate_errors(path):
        target = _target(path)
        make_folder(target.parent)
        with temporary_folder(target.parent) as made:
            inside = made / "folder"
            inside.mkdir()  # with the permissions of new folders; the temporary one has its owner's alone
            yield inside
            inside.replace(target)


def file_stem(name: str, taken: set[str]) -> str:
    """A file name, without suffix, for a thing called `name`, unlike those taken, to which it is added.

    Letters, digits and `-_.:` stay, all else becomes `_`, as do dots in front; long names are cut.
    """
    plain = "".join(letter if letter.isalnum() or letter in "-_.:" else "_" for letter in name)
    plain = os.fsencode(plain.lstrip(".") or "_")[:LONGEST_STEM].decode("utf-8", "ignore")
    stem, number = plain, 1
    # Where letters of either case are the same to the file system, names must differ by more.
    while stem.casefold() in taken:
        number += 1
        stem = f"{plain}.{number}"
    taken.add(stem.casefold())
    return stem


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Errors of the system as errors about `path`."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()


def _descriptor(path: Path) -> int | None:
    """The open descriptor a path names, directly or through links; `/proc/self/fd/1` is one."""
    text = os.path.abspath(path)  # noqa: PTH100 - links are followed one by one
    for _ in range(MOST_LINKS):
        found = DESCRIPTOR.fullmatch(text)
        if found:
            own = text.startswith(("/dev/fd/", "/proc/self/", "/proc/thread-self/", f"/proc/{os.getpid()}/"))
            return int(found[1] or found[2]) if own else None
        if text in STANDARD:
            return STANDARD[text]
        try:
            text = os.path.normpath(Path(text).parent / os.readlink(text))  # noqa: PTH115
        except (OSError, ValueError):
            return None
    return None


def _stream(path: Path) -> int | Path | None:
    """The stream to write into: an open descriptor, or the path of a device or pipe; None for files."""
    descriptor = _descriptor(path)
    if descriptor is not None:
        return descriptor
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return None if stat.S_ISREG(mode) else path


def _target(path: Path) -> Path:
    """Where the file lies, or will lie, that a path leads to."""
    return Path(os.path.realpath(path))


def _copy(made: Path, stream: int | Path) -> None:
    """Writes a finished file into a descriptor or device."""
    if isinstance(stream, int):
        # What was printed before comes first.
        for printed in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):
                printed.flush()
        opened = os.dup(stream)
    else:
        opened = os.open(stream, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    with made.open("rb") as source, os.fdopen(opened, "wb") as sink:
        shutil.copyfileobj(source, sink)
