"""One file that holds a network in segments: graphs (`.tpuq`) or programs (`.tpu`), and models of the host.

It is a safetensors file, as a graph's and a program's own files are. Each segment is a u8 tensor, which holds
the very bytes of the file the segment would be alone; everything else stands in the manifest, JSON text in
the header:

```text
 8 bytes        length of the header
 header         {"__metadata__": {"tpuflow.partitioned": "{version, sha256, manifest}"}, "device1": {...},
 ...} segments       one after another, the first from a multiple of 64 bytes
```

The manifest holds the SHA-256 of every segment, and its own stands beside it: a file that was cut, altered or
written by another version is refused. Equal networks give equal bytes. Graphs and programs are read by
their own readers; the bytes of a program are mapped, not kept in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np

from tpuflow.errors import FileError, Finding, TpuflowError
from tpuflow.frontend import Port
from tpuflow.io.files import replace_atomically, temporary_folder
from tpuflow.partitioning.network import DeviceSegment, HostSegment, Partitioned

__all__ = ["is_container", "load", "save"]

KEY = "tpuflow.partitioned"
VERSION = 1
ALIGNMENT = 64
LARGEST_HEADER = 100 << 20
CHUNK = 1 << 20

Json = dict[str, Any]
Network = TypeVar("Network")


class Savable(Protocol):
    """The content of a device segment: a graph or a program."""

    def save(self, path: Path) -> None:
        """Writes its own file."""


def save(network: Partitioned[Any], path: Path) -> None:
    """Writes a network whose device segments are graphs or programs.

    Raises:
        FileError: The file cannot be written.
    """
    with replace_atomically(path) as beside, temporary_folder() as folder:
        blobs = [_blob(part, Path(folder) / f"segment{path.suffix}") for part in network.segments]
        manifest = json.dumps(_manifest(network, blobs, path.suffix), separators=(",", ":"))
        sizes = {part.name: len(blob) for part, blob in zip(network.segments, blobs, strict=True)}
        with beside.open("wb") as stream:
            stream.write(_head(manifest, sizes))
            for blob in blobs:
                stream.write(blob)


def _head(manifest: str, sizes: Mapping[str, int]) -> bytes:
    """All bytes before the first segment; they follow from the arguments, so none can be changed alone."""
    content = {"version": VERSION, "sha256": _digest(manifest.encode()), "manifest": manifest}
    header: Json = {"__metadata__": {KEY: json.dumps(content, separators=(",", ":"))}}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _blob(part: DeviceSegment[Any] | HostSegment, scratch: Path) -> bytes:
    if isinstance(part, HostSegment):
        return part.model
    part.network.save(scratch)
    return scratch.read_bytes()


def _manifest(network: Partitioned[Any], blobs: list[bytes], suffix: str) -> Json:
    def port(port: Port) -> Json:
        return {"name": port.name, "shape": list(port.shape), "dtype": port.dtype.name, "static": port.static}

    segments = []
    for part, blob in zip(network.segments, blobs, strict=True):
        entry: Json = {
            "name": part.name,
            "side": "host" if isinstance(part, HostSegment) else "device",
            "sha256": _digest(blob),
            "inputs": list(part.inputs),
            "outputs": list(part.outputs),
        }
        if isinstance(part, HostSegment):
            entry["nodes"] = list(part.nodes)
            entry["findings"] = [
                [found.node, found.operator, found.attribute, found.reason] for found in part.findings
            ]
        segments.append(entry)
    return {
        "name": network.name,
        "holds": suffix,
        "inputs": [port(each) for each in network.inputs],
        "outputs": [port(each) for each in network.outputs],
        "segments": segments,
    }


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def is_container(path: Path) -> bool:
    """Whether a file begins as one that holds segments; what cannot be read does not."""
    try:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            return f'"{KEY}"' in stream.read(min(size, len(KEY) + 64)).decode("utf-8", "replace")
    except OSError:
        return False


def load(path: Path, reader: Callable[[Path], Network]) -> Partitioned[Network]:
    """Reads and checks a file.

    Names that stand in the file are never paths: segments are read from files with generated names.

    Args:
        path: The file.
        reader: Reads the file of a device segment.

    Raises:
        FileError: It cannot be read, was cut or altered, is of another version, or holds what another suffix
            stands for.
    """
    try:
        with path.open("rb") as stream:
            return _parse(path, stream, reader)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except TpuflowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise FileError(f"{path}: not a file of segments, or its header is damaged") from None


def _parse(path: Path, stream: BinaryIO, reader: Callable[[Path], Network]) -> Partitioned[Network]:
    length = os.fstat(stream.fileno()).st_size
    size = int.from_bytes(stream.read(8), "little")
    if size > min(LARGEST_HEADER, length - 8):
        raise FileError(f"{path}: cut short: its header is not all there")
    head = stream.read(size)
    header = json.loads(head)
    stated = json.loads(header["__metadata__"][KEY])
    if stated["version"] != VERSION:
        version = json.dumps(stated["version"])[:20]
        raise FileError(f"{path}: version {version} of the file of segments, this build reads {VERSION}")
    text = stated["manifest"]
    if _digest(text.encode()) != stated["sha256"]:
        raise FileError(f"{path}: the file was altered: its checksum does not match")
    manifest = json.loads(text)
    if manifest["holds"] != path.suffix:
        raise FileError(f"{path}: holds what belongs in a {manifest['holds']} file")
    sizes = {entry["name"]: int(header[entry["name"]]["shape"][0]) for entry in manifest["segments"]}
    if len(sizes) != len(manifest["segments"]) or min(sizes.values(), default=0) < 0:
        raise FileError(f"{path}: segments of one name, or of negative size")
    if size.to_bytes(8, "little") + head != _head(text, sizes):
        raise FileError(f"{path}: the file was altered: its header is not what it was written as")
    if length != 8 + size + sum(sizes.values()):
        raise FileError(f"{path}: cut short, or longer than it was written")
    segments: list[DeviceSegment[Network] | HostSegment] = []
    with temporary_folder() as folder:
        for number, entry in enumerate(manifest["segments"]):
            # What is mapped outlives the file's name.
            scratch = folder / f"{number}{path.suffix}"
            if _copy(stream, scratch, sizes[entry["name"]]) != entry["sha256"]:
                raise FileError(
                    f"{path}: the file was altered: segment {entry['name']} differs from its checksum"
                )
            segments.append(_segment(path, entry, scratch, reader))
    return Partitioned(
        _text(manifest["name"]),
        tuple(segments),
        tuple(_port(each) for each in manifest["inputs"]),
        tuple(_port(each) for each in manifest["outputs"]),
    )


def _copy(stream: BinaryIO, target: Path, size: int) -> str:
    """Copies the next bytes of a stream to a file, as many as there are; their SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as copy:
        while size > 0 and (part := stream.read(min(size, CHUNK))):
            digest.update(part)
            copy.write(part)
            size -= len(part)
    return digest.hexdigest()


def _segment(
    path: Path, entry: Json, scratch: Path, reader: Callable[[Path], Network]
) -> DeviceSegment[Network] | HostSegment:
    name, inputs, outputs = _text(entry["name"]), _texts(entry["inputs"]), _texts(entry["outputs"])
    if entry["side"] == "host":
        findings = tuple(Finding(*found) for found in entry["findings"])
        return HostSegment(name, scratch.read_bytes(), inputs, outputs, _texts(entry["nodes"]), findings)
    try:
        return DeviceSegment(name, reader(scratch), inputs, outputs)
    except FileError as error:
        reason = str(error).removeprefix(f"{scratch}: ")
        raise FileError(f"{path}: segment {name}: {reason}") from None


def _port(entry: Json) -> Port:
    dtype = np.dtype(entry["dtype"])
    if dtype.name != entry["dtype"]:
        raise ValueError(entry["dtype"])
    return Port(_text(entry["name"]), tuple(map(int, entry["shape"])), dtype, bool(entry["static"]))


def _texts(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise TypeError(found)
    return tuple(map(_text, found))


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(found)
    return found
