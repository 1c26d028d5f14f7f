"""The small jobs around files of tensors; each reads a file, or arrays, and returns arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.io.arrays import Header, array_headers, read_arrays
from tpuflow.io.files import file_stem, make_folder, replace_atomically

__all__ = [
    "bits_to_float", "dequantize", "difference", "extract", "headers", "insert", "merge", "permute", "read",
    "remove", "rename", "reshape", "to_bin", "unpack",
]  # fmt: skip

Array = NDArray[Any]
Arrays = dict[str, Array]


def read(path: Path) -> Arrays:
    """All arrays of an `.npz` (or the one of an `.npy`, under its file's name).

    Raises:
        SampleError: The file cannot be read, or is not complete.
    """
    arrays = read_arrays(path)
    return {name or path.stem: array for name, array in arrays.items()}


def headers(path: Path) -> dict[str, Header]:
    """Shapes and types of what `read` gives, without reading any elements.

    Raises:
        SampleError: As for `read`.
    """
    return {name or path.stem: header for name, header in array_headers(path).items()}


def pick(arrays: Mapping[str, Array], name: str) -> Array:
    """One array.

    Raises:
        SampleError: There is none of that name.
    """
    if name not in arrays:
        raise SampleError(f'array "{name}" is missing, there is {_list_names(arrays)}')
    return arrays[name]


def extract(arrays: Mapping[str, Array], names: Sequence[str]) -> Arrays:
    """Those of the given names, in their order."""
    return {name: pick(arrays, name) for name in names}


def remove(arrays: Mapping[str, Array], names: Sequence[str]) -> Arrays:
    """All but those of the given names."""
    for name in names:
        pick(arrays, name)
    return {name: array for name, array in arrays.items() if name not in names}


def rename(arrays: Mapping[str, Array], names: Mapping[str, str]) -> Arrays:
    """With other names, in the same order.

    Raises:
        SampleError: A name is missing, or two arrays would have the same.
    """
    for name in names:
        pick(arrays, name)
    renamed = [names.get(name, name) for name in arrays]
    twice = next((name for name in renamed if renamed.count(name) > 1), None)
    if twice is not None:
        raise SampleError(f'two arrays would be called "{twice}"')
    return dict(zip(renamed, arrays.values(), strict=True))


def merge(files: Sequence[Mapping[str, Array]]) -> Arrays:
    """All arrays of several files.

    Raises:
        SampleError: Two files have different arrays of one name.
    """
    found: Arrays = {}
    for arrays in files:
        for name, array in arrays.items():
            if name in found and not np.array_equal(found[name], array):
                raise SampleError(f'array "{name}" stands in two files, and differs')
            found[name] = array
    return found


def insert(arrays: Mapping[str, Array], name: str, array: Array) -> Arrays:
    """With one array more, or another of that name."""
    return {**arrays, name: array}


def permute(arrays: Mapping[str, Array], name: str, order: Sequence[int]) -> Arrays:
    """One array with its axes in another order.

    Raises:
        SampleError: The order does not fit.
    """
    array = pick(arrays, name)
    if sorted(order) != list(range(array.ndim)):
        raise SampleError(f'array "{name}": {list(order)} is not an order of {array.ndim} axes')
    return {**arrays, name: np.ascontiguousarray(array.transpose(order))}


def reshape(arrays: Mapping[str, Array], name: str, shape: Sequence[int]) -> Arrays:
    """One array in another shape.

    Raises:
        SampleError: The shape does not fit.
    """
    array = pick(arrays, name)
    try:
        return {**arrays, name: array.reshape(shape)}
    except ValueError:
        raise SampleError(
            f'array "{name}": shape {list(array.shape)} cannot be read as {list(shape)}'
        ) from None


def dequantize(arrays: Mapping[str, Array], name: str, scale: float, zero_point: int = 0) -> Arrays:
    """Codes of one array as what they stand for: `scale * (code - zero_point)`, float32.

    Raises:
        SampleError: It holds no integers.
    """
    array = pick(arrays, name)
    if array.dtype.kind not in "iu":
        raise SampleError(f'array "{name}" holds {array.dtype}, not integers')
    real = (array.astype(np.float64) - zero_point) * scale
    return {**arrays, name: real.astype(np.float32)}


def bits_to_float(arrays: Mapping[str, Array], name: str) -> Arrays:
    """An array of uint16 that are the bits of bfloat16, as float32.

    Raises:
        SampleError: It holds no uint16.
    """
    array = pick(arrays, name)
    if array.dtype != np.uint16:
        raise SampleError(f'array "{name}" holds {array.dtype}, not the bits of bfloat16 (uint16)')
    return {**arrays, name: (array.astype(np.uint32) << 16).view(np.float32)}


def to_bin(array: Array) -> bytes:
    """Elements as bytes, row-major and little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def difference(reference: Mapping[str, Array], other: Mapping[str, Array]) -> Arrays:
    """`|x - y|` of all arrays of one name and shape, float64; what cannot be compared is left out."""
    return {
        name: np.abs(array.astype(np.float64) - other[name].astype(np.float64))
        for name, array in reference.items()
        if name in other and array.shape == other[name].shape and array.dtype.kind in "biuf"
    }


def unpack(arrays: Mapping[str, Array], folder: Path) -> list[Path]:
    """One `.npy` per array; what a name has that files cannot is `_`.

    Raises:
        FileError: A file cannot be written.
    """
    make_folder(folder)
    written: list[Path] = []
    taken: set[str] = set()
    for name, array in arrays.items():
        path = folder / f"{file_stem(name, taken)}.npy"
        with replace_atomically(path) as beside, beside.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
        written.append(path)
    return written


def _list_names(arrays: Mapping[str, Array]) -> str:
    names = [f'"{name}"' for name in arrays]
    return ", ".join(names[:8] + ([f"and {len(names) - 8} more"] if len(names) > 8 else [])) or "none"
