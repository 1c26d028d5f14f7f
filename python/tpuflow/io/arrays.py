"""NumPy's files, `.npz` and `.npy`, as files that strangers made: headers first, bounded memory, no pickle.

What a header claims is checked before memory is taken for it: against the bytes the file holds, and against
the memory limit (`tpuflow.io.memory`). So a header of 10^12 rows or an archive that unpacks to far more than
it takes is an error that names file and array, found without reading any data.
"""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from tpuflow.errors import SampleError
from tpuflow.io.memory import bytes_text, memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["UNREADABLE", "Header", "array_headers", "parse_arrays", "read_arrays"]

Array = "NDArray[Any]"
SUFFIX = ".npy"
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, tokenize.TokenError, SyntaxError,
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of NumPy, zipfile and decompressors for files that are damaged, encrypted or of another kind."""


@dataclass(frozen=True)
class Header:
    """The header of an array, as the file claims it.

    Attributes:
        shape: Sizes along its axes.
        dtype: Element type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an `.npz` by name; the one of an `.npy` under the empty name.

    Raises:
        SampleError: The file cannot be read, is not complete, or takes more memory than the limit.
    """
    with _open(path) as stream:
        return _Members(stream, str(path)).arrays()


def array_headers(path: Path) -> dict[str, Header]:
    """Shapes and element types of what `read_arrays` gives, without reading any elements.

    Raises:
        SampleError: As for `read_arrays`.
    """
    with _open(path) as stream:
        return _Members(stream, str(path)).headers()


def parse_arrays(content: bytes, source: str) -> dict[str, NDArray[Any]]:
    """As `read_arrays`, of a file in memory; `source` names it in errors.

    Raises:
        SampleError: As for `read_arrays`.
    """
    with _translate_errors(source):
        return _Members(BytesIO(content), source).arrays()


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    with _translate_errors(str(path)):
        try:
            stream = path.open("rb")
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise SampleError(f"{path}: cannot be read: {reason}") from None
        with stream:
            yield stream


@contextmanager
def _translate_errors(source: str) -> Iterator[None]:
    """Errors of libraries as errors about the file."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SampleError(f"{source}: cannot be read: {reason}") from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise SampleError(f"{source}: not a complete NumPy file: {reason}") from None
    except MemoryError:
        raise SampleError(f"{source}: there is not enough memory to read it") from None


class _Members:
    """The arrays of an open file: headers are read first, and together bounded."""

    def __init__(self, stream: IO[bytes], source: str) -> None:
        self._stream = stream
        self._source = source
        magic = stream.read(len(npy.MAGIC_PREFIX))
        stream.seek(0)
        if not magic:
            raise SampleError(f"{source}: not a complete NumPy file: it is empty")
        self._archive = zipfile.ZipFile(stream) if magic[:4] in (b"PK\x03\x04", b"PK\x05\x06") else None
        if self._archive is None and magic != npy.MAGIC_PREFIX:
            raise SampleError(f"{source}: not a complete NumPy file: it does not begin as .npz or .npy do")

    def headers(self) -> dict[str, Header]:
        """Every header, checked."""
        found: dict[str, Header] = {}
        for name, member, size in self._members():
            found[name] = self._header(member, name, size)
        total = sum(header.nbytes for header in found.values())
        if total > memory_limit():
            largest = max(found, key=lambda name: found[name].nbytes)
            limit = f"{bytes_text(memory_limit())} (TPUFLOW_MEMORY_LIMIT, in bytes)"
            raise SampleError(
                f"{self._source}: its arrays take {bytes_text(total)}, the largest "
                f"{_entry_text(largest, found[largest])}; the limit is {limit}"
            )
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array."""
        headers = self.headers()
        self._stream.seek(0)
        found = {}
        for name, member, size in self._members():
            self._header(member, name, size)
            found[name] = self._elements(member, name, headers[name])
        return found

    def _members(self) -> Iterator[tuple[str, IO[bytes], int]]:
        """Name, stream and size in bytes of every member."""
        if self._archive is None:
            size = self._stream.seek(0, 2)
            self._stream.seek(0)
            yield "", self._stream, size
            return
        names = set()
        for entry in self._archive.infolist():
            name = entry.filename.removesuffix(SUFFIX)
            if name in names:
                raise SampleError(f'{self._source}: array "{name}" occurs twice')
            names.add(name)
            with self._archive.open(entry) as member:
                yield name, member, entry.file_size

    def _header(self, member: IO[bytes], name: str, size: int) -> Header:
        what = f'{self._source}: member "{name}"' if name else self._source
        if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            raise SampleError(f"{what}: is not an array of NumPy")
        version = tuple(member.read(2))
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise SampleError(f"{what}: version {version} of the array format is not known")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Version 3 differs from 2 by UTF-8 alone, and only in names of fields.
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, self._fortran, dtype = read(member)
            header = Header(shape, dtype)
        except (*UNREADABLE, MemoryError) as error:
            reason = " ".join(str(error).split())[:120]
            raise SampleError(f"{what}: the header of the array is damaged: {reason}") from None
        if dtype.hasobject:
            raise SampleError(f"{what}: holds Python objects, which are not read")
        if any(extent < 0 for extent in shape):
            raise SampleError(f"{what}: its header claims the shape {list(shape)}")
        held = size - member.tell()
        if header.nbytes > held:
            raise SampleError(
                f"{what}: not a complete NumPy file: its header claims {_claim(header)}, "
                f"{bytes_text(header.nbytes)}, there are {bytes_text(max(0, held))}"
            )
        return header

    def _elements(self, member: IO[bytes], name: str, header: Header) -> NDArray[Any]:
        flat = np.empty(math.prod(header.shape), header.dtype)
        buffer = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        done = 0
        while done < len(buffer):
            part = member.read(min(len(buffer) - done, CHUNK))
            if not part:
                raise SampleError(f'{self._source}: array "{name}" ends after {done} of {flat.nbytes} bytes')
            buffer[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        if self._archive is not None:
            member.read(1)  # the end, where zipfile compares its checksum
        return flat.reshape(header.shape[::-1]).transpose() if self._fortran else flat.reshape(header.shape)


CHUNK = 1 << 20


def _claim(header: Header) -> str:
    return f"{header.dtype} {list(header.shape)}"


def _entry_text(name: str, header: Header) -> str:
    return f'"{name}" {_claim(header)}' if name else _claim(header)
