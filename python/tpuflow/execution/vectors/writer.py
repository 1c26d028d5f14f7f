"""Golden vectors in a folder, complete or absent: a manifest names every file with its SHA-256.

docs/golden-vectors.md describes the files and the manifest's fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tpuflow.execution.vectors.images import Image, element_lines
from tpuflow.execution.vectors.waveform import (
    channel_rows,
    instruction_rows,
    port_rows,
    state_rows,
    value_changes,
)
from tpuflow.execution.vectors.window import LayerVectors, Tensor
from tpuflow.io.files import file_stem, new_folder, write_json

__all__ = ["FORMAT", "estimated_bytes", "write_vectors"]

FORMAT = 1
OF_AN_EVENT = 220
"""Bytes of an event in the tables and the dump, without the word that moves; of a request the most of all."""
OF_ANYTHING_ELSE = 1 << 16
"""Bytes of the manifest and of the dump's definitions, at most as a rule."""


def estimated_bytes(vectors: LayerVectors) -> int:
    """Bytes of all files, rather too many than too few."""
    held = [*vectors.before, *_changed_images(vectors)]
    images = sum(each.written_words * (3 * each.word_bytes + 1) + 40 * len(each.runs) for each in held)
    codes = sum(each.codes.size + 3 * each.codes.nbytes for each in vectors.tensors)
    trace, word = vectors.trace, vectors.before[0].word_bytes
    events = len(trace.requests) * (OF_AN_EVENT + 10 * word) + len(trace.states) * OF_AN_EVENT
    events += len(trace.channels) * OF_AN_EVENT
    text = sum(len(each.text) + 100 for each in (*vectors.instructions, *vectors.others))
    places = 80 * (len(vectors.places) + sum(len(each.runs) for each in held))
    return images + codes + events + 2 * text + places + 60 * len(vectors.replay.order) + OF_ANYTHING_ELSE


def write_vectors(vectors: LayerVectors, folder: Path, origin: dict[str, Any]) -> dict[str, Any]:
    """Writes all files.

    Args:
        vectors: What to write.
        folder: New, or empty.
        origin: What the manifest says of the request, such as the program's name and hash.

    Returns:
        The manifest.

    Raises:
        FileError: The folder holds something, or cannot be written.
    """
    with new_folder(folder) as made:
        files = _Files(made)
        manifest = {
            "format": FORMAT,
            **origin,
            "layer": _layer(vectors),
            "memories": _memories(vectors, files),
            "tensors": [_tensor(each, vectors, files) for each in vectors.tensors],
            "instructions": _instructions(vectors, files),
            "trace": _trace(vectors, files),
            "files": files.hashes,
        }
        write_json(made / "manifest.json", manifest)
    return manifest


class _Files:
    """Files of a folder, with their hashes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hashes: dict[str, dict[str, Any]] = {}

    def write(self, name: str, parts: Iterable[bytes]) -> str:
        """Writes a file part by part; its name."""
        digest, size = hashlib.sha256(), 0
        with (self._folder / name).open("wb") as stream:
            for part in parts:
                stream.write(part)
                digest.update(part)
                size += len(part)
        self.hashes[name] = {"bytes": size, "sha256": digest.hexdigest()}
        return name

    def lines(self, name: str, lines: Iterable[str]) -> str:
        """Writes lines of text; the file's name."""
        return self.write(name, (line.encode() + b"\n" for line in lines))


def _changed_images(vectors: LayerVectors) -> list[Image]:
    pairs = zip(vectors.before, vectors.after, strict=True)
    return [after for before, after in pairs if not after.same_as(before)]


def _layer(vectors: LayerVectors) -> dict[str, Any]:
    content = vectors.replay.content["layers"][vectors.layer]
    begin, end = vectors.cycles
    names = ("name", "op", "dtype", "unit", "nodes")
    return {"number": vectors.layer, **{name: content[name] for name in names}, "begin": begin, "end": end}


def _memories(vectors: LayerVectors, files: _Files) -> list[dict[str, Any]]:
    found = []
    for before, after in zip(vectors.before, vectors.after, strict=True):
        first = _image("before", before, files)
        same = after.same_as(before)
        found.append(
            {
                "name": before.name,
                "word_bytes": before.word_bytes,
                "words": before.words,
                "before": first,
                "after": first if same else _image("after", after, files),
                "changed": not same,
            }
        )
    return found


def _image(when: str, image: Image, files: _Files) -> dict[str, Any]:
    stem = f"{when}.{image.name}"
    return {
        "hex": files.write(f"{stem}.hex", image.hexadecimal()),
        "binary": files.write(f"{stem}.bin", image.binary()),
        "runs": [list(run) for run in image.runs],
    }


def _tensor(tensor: Tensor, vectors: LayerVectors, files: _Files) -> dict[str, Any]:
    taken = {name.partition(".")[2].rpartition(".")[0].casefold() for name in files.hashes}
    stem = f"{tensor.role}.{file_stem(tensor.name, taken)}"
    flat = np.ascontiguousarray(tensor.codes).reshape(-1)
    described: dict[str, Any] = {
        "name": tensor.name,
        "role": tensor.role,
        "dtype": str(tensor.codes.dtype),
        "shape": list(tensor.codes.shape),
        "scale": list(tensor.scale),
        "zero_point": tensor.zero_point,
        "hex": files.write(f"{stem}.hex", [element_lines(tensor.codes)]),
        "binary": files.write(f"{stem}.bin", [flat.view(np.uint8).tobytes()]),
    }
    if tensor.role == "output":
        described["held"] = sum(count for _, _, count in vectors.places)
        described["places"] = [list(place) for place in vectors.places]
    return described


def _instructions(vectors: LayerVectors, files: _Files) -> dict[str, Any]:
    begun = [each for each in (*vectors.instructions, *vectors.others) if each.begin >= vectors.cycles[0]]
    return {
        "own": files.lines("instructions.tpuasm", (each.text for each in vectors.instructions)),
        "others": files.lines("others.tpuasm", (each.text for each in vectors.others)),
        "order": [each.number for each in sorted(begun, key=lambda each: (each.begin, each.number))],
    }


def _trace(vectors: LayerVectors, files: _Files) -> dict[str, Any]:
    trace = vectors.trace
    channels = vectors.replay.content["machine"]["ddr"]["channels"]
    dump = value_changes(trace, channels, vectors.before[0].word_bytes)
    return {
        "begin": trace.begin,
        "end": trace.end,
        "vcd": files.lines("trace.vcd", dump),
        "units": files.lines("units.csv", state_rows(trace.states)),
        "ports": files.lines("ports.csv", port_rows(trace.requests)),
        "channels": files.lines("channels.csv", channel_rows(trace.channels)),
        "instructions": files.lines(
            "instructions.csv", instruction_rows(vectors.replay, trace.begin, trace.end)
        ),
    }
