"""Tensors that lie outside their model's file: found in its folder or below, measured before they are read.

Also how many bytes the elements of a tensor take, which libraries that unpack small types do not compare.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
import onnx.external_data_helper
import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.io.memory import bytes_text, memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "all_tensors",
    "array_of_file",
    "byte_size",
    "load_external_data",
    "outside_files",
    "reject_external_data",
]

BYTE = 8
DIGITS = 19
"""Of the largest place in a file."""

MAPPED_BYTES = 1 << 20
"""Tensors from this size on are not read but mapped into memory."""

_mappings: WeakValueDictionary[tuple[str, int, int, int], mmap.mmap] = WeakValueDictionary()
"""Files in memory, by path and version: models read again share them."""


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in a model."""
    yield from onnx.external_data_helper._get_all_tensors(proto)  # noqa: SLF001 - there is no public way


def reject_external_data(proto: onnx.ModelProto) -> None:
    """Refuses a model in memory whose tensors lie in files.

    Raises:
        ModelError: It is one.
    """
    for tensor in _outside(proto):
        raise ModelError(
            f'model: initialiser "{tensor.name}" is stored outside it; load the model from its file'
        )


def outside_files(proto: onnx.ModelProto, path: Path) -> list[Path]:
    """The files with tensors of a model, sorted; what may not be read, or is not there, is left out."""
    found = set()
    for tensor in _outside(proto):
        try:
            found.add(_part(tensor, path).file)
        except ModelError:  # whoever reads the model says so
            continue
    return sorted(found)


def load_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Loads tensors stored beside the model, from regular files in its folder (or below) only.

    Large ones stay where they are, under the whole path of their file; `array_of_file` maps them into memory.

    Raises:
        ModelError: One lies elsewhere, is not whole, or all of them take more memory than the limit.
    """
    parts = [(tensor, _part(tensor, path)) for tensor in _outside(proto)]
    total = sum(part.size for _, part in parts)
    if parts and total > memory_limit():
        limit = f"{bytes_text(memory_limit())} (TPUFLOW_MEMORY_LIMIT, in bytes)"
        raise ModelError(f"{path}: its external data takes {bytes_text(total)}; the limit is {limit}")
    for tensor, part in parts:
        mapped = part.size >= MAPPED_BYTES
        try:
            with part.file.open("rb") as stream:
                stream.seek(part.offset)
                if not mapped:
                    tensor.raw_data = stream.read(part.size)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ModelError(f"{_error_prefix(tensor, path)} cannot be read: {reason}") from None
        del tensor.external_data[:]
        if mapped:
            place = {"location": str(part.file), "offset": str(part.offset), "length": str(part.size)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
        else:
            tensor.data_location = onnx.TensorProto.DEFAULT


def array_of_file(tensor: ir.ExternalTensor) -> NDArray[Any]:
    """The elements of a tensor that `load_external_data` left in its file, read-only and not copied.

    The file must keep its length while they are used.

    Raises:
        OSError: The file cannot be read.
    """
    if tensor.dtype.bitwidth < BYTE or tensor.dtype == ir.DataType.STRING:
        return tensor.numpy()
    dtype, shape = tensor.dtype.numpy(), tensor.shape.numpy()
    with Path(tensor.location).open("rb") as stream:
        held = os.fstat(stream.fileno())
        key = (str(tensor.location), held.st_ino, held.st_mtime_ns, held.st_size)
        mapping = _mappings.get(key)
        if mapping is None:
            mapping = _mappings[key] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapping, dtype.newbyteorder("<"), math.prod(shape), tensor.offset or 0)
    return np.require(array.reshape(shape), dtype, "A")


def byte_size(tensor: onnx.TensorProto) -> int | None:
    """Bytes of the elements of a tensor, packed as `raw_data` holds them; None of texts and unknown types."""
    try:
        bits = int(ir.DataType(tensor.data_type).bitwidth)
    except (ValueError, TypeError):
        return None
    return int(-(-math.prod(tensor.dims) * bits // 8))


@dataclass(frozen=True)
class _Part:
    """Bytes of a file."""

    file: Path
    offset: int
    size: int


def _outside(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    return (each for each in all_tensors(proto) if each.data_location == onnx.TensorProto.EXTERNAL)


def _error_prefix(tensor: onnx.TensorProto, path: Path) -> str:
    return f'{path}: external data of initialiser "{tensor.name}"'


def _part(tensor: onnx.TensorProto, path: Path) -> _Part:
    """Where a tensor lies: as many bytes as its shape needs, within a file that may be read."""
    what = _error_prefix(tensor, path)
    info = {entry.key: entry.value for entry in tensor.external_data}
    location = info.get("location", "")
    folder = path.resolve().parent
    file, held = folder, 0
    try:
        file = (folder / location).resolve()
        if Path(location).is_absolute() or not file.is_relative_to(folder):
            raise ModelError(f'{what} lies outside the folder of the model: "{location}"')
        there = file.is_file()
        held = file.stat().st_size if there else 0
    except (OSError, RuntimeError, ValueError):  # of a name that none can have, or links in a circle
        there = False
    if not there:
        raise ModelError(f'{what} is missing: "{location[:200]}"')
    needed = None if min(tensor.dims, default=0) < 0 else byte_size(tensor)
    if needed is None:
        raise ModelError(f"{what} is of no type and shape that lie in files")
    offset, length = (_number(info, key) for key in ("offset", "length"))
    if offset is None or (length is None and "length" in info):
        raise ModelError(f"{what} has no valid place in it")
    end = offset + (needed if length is None else length)
    if held < end:
        raise ModelError(f'{what} is truncated: "{location}" has {held} bytes, {end} are needed')
    if length not in {None, needed}:
        raise ModelError(f"{what} has {length} bytes, its shape {list(tensor.dims)} needs {needed}")
    return _Part(file, offset, needed)


def _number(info: dict[str, str], key: str) -> int | None:
    """A place or size that is stated; None where it is none."""
    text = info.get(key, "0" if key == "offset" else "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
