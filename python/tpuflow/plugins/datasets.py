"""Datasets that need no plugin of one's own: arrays, images and lines of numbers.

Each is a class as plugins register them, `NAME(data_file, label_file)`; a plugin of the same name counts
before it. Labels are an array of one entry per sample, and stand behind the names of images in their list.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.io.arrays import read_arrays
from tpuflow.io.files import read_text
from tpuflow.plugins.registry import PluginError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DATASETS", "dataset_named"]

Row = tuple[list["NDArray[Any]"], Any]

NO_LABEL = float("-inf")
"""Label of a sample without one."""


class NumpyDataset:
    """Samples along the first axis of a `.npy` file, for networks of one input."""

    def __init__(self, data_file: str, label_file: str | None = None) -> None:
        self._inputs = self._read(Path(data_file))
        self._labels = None if label_file is None else _array(Path(label_file))
        counts = {len(array) for array in self._inputs}
        if self._labels is not None:
            counts.add(len(self._labels))
        if len(counts) != 1:
            files = data_file if label_file is None else f"{data_file} and {label_file}"
            raise PluginError(f"{files}: arrays differ in their number of samples")

    def _read(self, path: Path) -> list[NDArray[Any]]:
        return [_array(path)]

    def __len__(self) -> int:
        return len(self._inputs[0])

    def __getitem__(self, index: int) -> Row:
        label = NO_LABEL if self._labels is None else self._labels[index]
        return [array[index] for array in self._inputs], label


class NumpyMultiInputDataset(NumpyDataset):
    """Samples along the first axes of the arrays of a `.npz` file, one array per input, in their order."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        found = read_arrays(path)
        if "" in found:
            raise PluginError(f"{path}: not a .npz file of arrays by input")
        return list(found.values())


class NumpyWithoutBatchDimDataset(NumpyDataset):
    """A `.npy` file that is one sample, without an axis of samples."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        return [_array(path)[np.newaxis]]


class NumpyNHWC2NCHWDataset(NumpyDataset):
    """Images of a `.npy` file with channels last, for networks that take them first."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        return [_move_channels(_array(path), path, -1, 1)]


class NumpyNCHW2NHWCDataset(NumpyDataset):
    """Images of a `.npy` file with channels first, for networks that take them last."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        return [_move_channels(_array(path), path, 1, -1)]


class NumpyNHWCRGB2NCBGRHWDataset(NumpyDataset):
    """Images of a `.npy` file, channels last and RGB, for networks that take them first and BGR."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        return [_move_channels(_array(path)[..., ::-1], path, -1, 1)]


class TextDataset(NumpyDataset):
    """One sample a line: numbers, separated by spaces or commas."""

    def _read(self, path: Path) -> list[NDArray[Any]]:
        rows = [line.replace(",", " ").split() for line in read_text(path, PluginError).splitlines()]
        try:
            found = [[float(word) for word in row] for row in rows if row]
        except ValueError as error:
            raise PluginError(f"{path}: not lines of numbers: {str(error)[:120]}") from None
        if not found:
            raise PluginError(f"{path}: there are no samples in it, no line holds numbers")
        if len({len(row) for row in found}) != 1:
            raise PluginError(f"{path}: lines differ in how many numbers they hold")
        return [np.array(found)]


class ImageListDataset:
    """Images named in a text file, one a line, each with its label behind it if it has one.

    Names are relative to the list. Samples are RGB, 0 to 255, with channels last; `mean` and `scale` of a
    network belong to its preprocessing.
    """

    channels_last = True

    def __init__(self, data_file: str) -> None:
        self._list = Path(data_file)
        lines = read_text(self._list, PluginError).splitlines()
        numbered = [(at, line.split()) for at, line in enumerate(lines, 1) if line.strip()]
        self._lines = numbered
        if not numbered:
            raise PluginError(f"{data_file}: there are no samples in it, no line names an image")
        labeled = len(numbered[0][1]) > 1
        for at, words in numbered:
            if (len(words) > 1) != labeled:
                one, others = ("no", "one") if labeled else ("a", "none")
                missing = f"has {one} label, the first line has {others}"
                raise PluginError(f"{data_file}: line {at} {missing}: give all of them one, or none")
            if labeled and not words[1].lstrip("-").isdecimal():
                raise PluginError(
                    f"{data_file}: line {at}: the label is a whole number, not {words[1][:40]!r}"
                )

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        at, (name, *label) = self._lines[index]
        try:
            pixels = _pixels(self._list.parent / name)
        except (OSError, ValueError, SyntaxError) as error:
            # What pillow raises for files that are absent, no images, damaged, or too large.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "is no image"
            shown = name if len(name) <= 80 else f"{name[:77]}..."
            raise PluginError(f"{self._list}: line {at}: {shown}: {reason.lower()}") from None
        return [pixels if self.channels_last else pixels.transpose(2, 0, 1)], int(
            label[0]
        ) if label else NO_LABEL


class ImageListNCHWDataset(ImageListDataset):
    """As `ImageListDataset`, with channels first."""

    channels_last = False


DATASETS: dict[str, type] = {
    each.__name__: each
    for each in (
        NumpyDataset,
        NumpyMultiInputDataset,
        NumpyWithoutBatchDimDataset,
        NumpyNHWC2NCHWDataset,
        NumpyNCHW2NHWCDataset,
        NumpyNHWCRGB2NCBGRHWDataset,
        TextDataset,
        ImageListDataset,
        ImageListNCHWDataset,
    )
}
"""By name."""

SPELLINGS = {"numpynhwcrbg2ncbgrhwdataset": "NumpyNHWCRGB2NCBGRHWDataset"}
"""Other spellings that are in use, in small letters."""


def dataset_named(name: str) -> type | None:
    """The dataset of a name, in which case does not count; None if there is none."""
    small = name.lower()
    found = {each.lower(): made for each, made in DATASETS.items()}
    return found.get(SPELLINGS.get(small, small).lower())


def _array(path: Path) -> NDArray[Any]:
    found = read_arrays(path).get("")
    if found is None or not found.ndim:
        raise PluginError(f"{path}: not a .npy file of samples")
    return found


def _move_channels(images: NDArray[Any], path: Path, channels: int, to: int) -> NDArray[Any]:
    if images.ndim != 4:
        raise PluginError(f"{path}: images are needed, an array of 4 axes; this one has {images.ndim}")
    return np.moveaxis(images, channels, to)


def _pixels(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image  # noqa: PLC0415 - only images need it
    except ImportError:
        raise PluginError("images are decoded by pillow: pip install pillow") from None
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise OSError(errno.EFBIG, str(error)) from None
