"""Files with equal stretches, such as programs with the same weights: every stretch stored once.

Files are cut where their content says so, not at fixed places, so that a stretch is found again wherever it
stands (content-defined chunking): in units of eight bytes from the end of the header on, where a hash of the
unit is small. Tensors of a safetensors file begin at such units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise

import numpy as np

__all__ = ["assemble", "shared_blocks"]

UNIT = 8
BITS = 12
"""A unit is a cut once in so many bits: blocks of 32 KiB."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
MASK = np.uint64(0xA5A5A5A5A5A5A5A5)

Range = tuple[int, int]


def _cuts(content: bytes) -> list[int]:
    """Where blocks of a file begin, and its end."""
    header = 8 + int.from_bytes(content[:8], "little")
    begin = header if header <= len(content) else 0
    count = (len(content) - begin) // UNIT
    units = np.frombuffer(content[begin : begin + count * UNIT], np.uint64)
    small = ((units ^ MASK) * FACTOR) >> np.uint64(64 - BITS) == 0
    small[1:] &= ~small[:-1]  # of equal units one is enough
    inner = begin + UNIT * np.flatnonzero(small)
    return sorted({0, begin, *inner.tolist(), len(content)})


def shared_blocks(files: Mapping[str, bytes]) -> tuple[bytes, dict[str, list[Range]]]:
    """All blocks, each once, and of which stretches (start, length) of them every file consists."""
    known: dict[bytes, int] = {}
    parts: list[bytes] = []
    size = 0
    ranges: dict[str, list[Range]] = {}
    for name, content in files.items():
        own: list[Range] = []
        cuts = _cuts(content)
        for start, end in pairwise(cuts):
            block = content[start:end]
            key = sha256(block).digest()
            if key not in known:
                known[key] = size
                parts.append(block)
                size += len(block)
            place = known[key]
            if own and sum(own[-1]) == place:
                own[-1] = (own[-1][0], own[-1][1] + len(block))
            else:
                own.append((place, len(block)))
        ranges[name] = own
    return b"".join(parts), ranges


def assemble(blocks: bytes, ranges: Sequence[Range]) -> bytes:
    """A file from its stretches.

    Raises:
        ValueError: A stretch lies outside of the blocks.
    """
    if any(start < 0 or length < 0 or start + length > len(blocks) for start, length in ranges):
        raise ValueError("a stretch outside of the blocks")
    return b"".join(blocks[start : start + length] for start, length in ranges)
