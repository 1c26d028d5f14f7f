"""Memories as hexadecimal text for `$readmemh` and as binary.

A line is a word as one number: the byte at the lowest address is its last two digits. Bytes that nobody
wrote are `xx`; words of which nobody wrote any are left out, and `@` says where the next one stands. The
binary form holds the same words one after another, lowest address first, with 0 for bytes that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Image", "element_lines", "hex_lines"]

Array = NDArray[Any]
DIGITS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
UNKNOWN = ord("x")


@dataclass(frozen=True, eq=False)
class Image:
    """A memory at some cycle.

    Attributes:
        name: Of the memory, as the debugger has it.
        word_bytes: Bytes of a word.
        content: All its bytes.
        known: Which of them have been written.
    """

    name: str
    word_bytes: int
    content: NDArray[np.uint8]
    known: NDArray[np.bool_]

    @staticmethod
    def of(name: str, word_bytes: int, content: NDArray[np.uint8], known: NDArray[np.bool_]) -> Image:
        """A memory of whole words; what follows the last byte of the memory was never written."""
        rest = -len(content) % word_bytes
        return Image(name, word_bytes, np.pad(content * known, (0, rest)), np.pad(known, (0, rest)))

    @property
    def words(self) -> int:
        """Words of the memory."""
        return len(self.content) // self.word_bytes

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Words of which something was written: first word and how many, for each stretch."""
        some = self.known.reshape(-1, self.word_bytes).any(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], some, [False]]).astype(np.int8)))
        return tuple((int(first), int(end - first)) for first, end in edges.reshape(-1, 2))

    @property
    def written_words(self) -> int:
        """Words of which something was written."""
        return sum(words for _, words in self.runs)

    def same_as(self, other: Image) -> bool:
        """Whether two memories hold the same."""
        return np.array_equal(self.known, other.known) and np.array_equal(self.content, other.content)

    def hexadecimal(self) -> Iterator[bytes]:
        """The text for `$readmemh`, a stretch of words at a time."""
        for first, words in self.runs:
            part = slice(first * self.word_bytes, (first + words) * self.word_bytes)
            yield b"@%x\n" % first
            yield hex_lines(self.content[part], self.known[part], self.word_bytes)

    def binary(self) -> Iterator[bytes]:
        """The written words."""
        for first, words in self.runs:
            yield self.content[first * self.word_bytes : (first + words) * self.word_bytes].tobytes()


def hex_lines(content: NDArray[np.uint8], known: NDArray[np.bool_], word_bytes: int) -> bytes:
    """Words as lines of digits."""
    words = content.reshape(-1, word_bytes)[:, ::-1]
    digits = DIGITS[words]
    digits[~known.reshape(-1, word_bytes)[:, ::-1]] = UNKNOWN
    lines = np.full((len(words), 2 * word_bytes + 1), ord("\n"), np.uint8)
    lines[:, :-1] = digits.reshape(len(words), -1)
    return lines.tobytes()


def element_lines(codes: Array) -> bytes:
    """Elements as lines of digits."""
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint8)
    return hex_lines(flat, np.ones(len(flat), np.bool_), codes.dtype.itemsize)
