"""The inputs and outputs of a program: enough to pack and unpack them without anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - makes bfloat16 known to NumPy
import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.execution.simulation import ProgramPort

if TYPE_CHECKING:
    from tpuflow.io.samples import Port

__all__ = ["TensorDescription", "descriptions", "of_ports", "ordered_arrays"]

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorDescription:
    """An input or output.

    Attributes:
        name: Name in the model.
        shape: Shape in the model.
        dtype: Element type in the model.
        stored_dtype: Element type on the device; None where the host takes the array as it is.
        scale: `x = scale * (code - zero_point)`; empty for indices and floats.
        zero_point: Code of real zero.
        cache_word_length: Bytes of a cache word; 0 where the host takes the array.
        words: Number of cache words.
        raw: Whether the array *is* words, as those of raw programs are.
        layout: Rows, pixels of a row, bytes from pixel to pixel, bytes of them in use.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored_dtype: np.dtype[Any] | None
    scale: tuple[float, ...]
    zero_point: int
    cache_word_length: int
    words: int
    raw: bool
    layout: tuple[int, int, int, int]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which bytes of the words hold elements, `[words, cache_word_length]`; all others are padding."""
        rows, width, pixel, payload = self.layout
        if not self.words:
            return np.zeros((0, 0), np.bool_)
        mask = np.zeros((rows, self.words * self.cache_word_length // rows), np.bool_)
        mask[:, : width * pixel].reshape(rows, width, pixel)[:, :, :payload] = True
        return mask.reshape(self.words, self.cache_word_length)

    @classmethod
    def parse(cls, port: Mapping[str, Any], word: int) -> TensorDescription:
        """The port a program's metadata describe."""
        view = port["view"]
        row = math.ceil(view["width"] * view["pixel_bytes"] / word) * word
        words = row * view["stored_rows"] // word
        plain = port["quant"] is None and port["source"] is None
        raw = plain and port["dtype"] == "int8" and list(port["shape"][1:]) == [word]
        stored = np.dtype(port["dtype"])
        layout = (
            view["rows"],
            view["width"],
            view["pixel_bytes"],
            view["channels"] * stored.itemsize,
        )
        if raw:
            shape = tuple(port["shape"])
            bytes_ = np.dtype(np.uint8)
            return cls(port["name"], shape, bytes_, bytes_, (), 0, word, words, raw, layout)
        known = ProgramPort.parse(port)
        return cls(
            known.name,
            known.shape,
            known.dtype,
            stored,
            known.scale,
            known.zero_point,
            word,
            words,
            raw,
            layout,
        )


def descriptions(metadata: str) -> tuple[tuple[TensorDescription, ...], tuple[TensorDescription, ...]]:
    """Inputs and outputs in a program's metadata, in the model's order."""
    content = json.loads(metadata)
    word = content["machine"]["cache"]["word_bytes"]
    inputs, outputs = (
        tuple(TensorDescription.parse(port, word) for port in content[way]) for way in ("inputs", "outputs")
    )
    return inputs, outputs


def of_ports(ports: Sequence[Port]) -> tuple[TensorDescription, ...]:
    """Inputs or outputs of a network in segments, as the host has them."""
    nothing = (0, 0, 0, 0)
    return tuple(
        TensorDescription(port.name, port.shape, port.dtype, None, (), 0, 0, 0, raw=False, layout=nothing)
        for port in ports
    )


def ordered_arrays(
    arrays: Mapping[str, Array], wanted: Sequence[TensorDescription], what: str
) -> list[Array]:
    """The arrays in order, each of the right name, type and shape.

    Args:
        arrays: By name.
        wanted: What they must be.
        what: `input` or `output`, for errors.

    Raises:
        SampleError: They are not.
    """
    names = [tensor.name for tensor in wanted]
    for name in arrays:
        if name not in names:
            raise SampleError(f'unknown {what} "{name}" ({what}s: {_list_names(names)})')
    found = []
    for tensor in wanted:
        if tensor.name not in arrays:
            raise SampleError(f'{what} "{tensor.name}" is missing, there is {_list_names(arrays)}')
        array = np.asarray(arrays[tensor.name])
        if array.dtype != tensor.dtype:
            advice = "pack it with the codec of convert_to_raw" if tensor.raw else "convert with .astype"
            kind = "the program is raw and takes words of" if tensor.raw else "the program takes"
            raise SampleError(
                f'{what} "{tensor.name}": dtype {array.dtype}, {kind} {tensor.dtype} ({advice})'
            )
        if array.shape != tensor.shape:
            raise SampleError(
                f'{what} "{tensor.name}": shape {list(array.shape)}, the program takes {list(tensor.shape)}'
            )
        found.append(array)
    return found


def _list_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"
