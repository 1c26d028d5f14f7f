"""Preparation of images inside the network: its input becomes the raw image, bytes.

    raw image -> centre crop -> resize -> pad -> centre crop -> channels, (x - mean) * scale -> the network

Each step is written as ordinary nodes in front of the float model, so that whatever comes after treats it
like any other layer: calibration sees it, quantisation stores the bytes as the codes they are, the program
counts what moving them costs. The input keeps its name; what the network took before is called
`NAME/preprocessed`.

Resizing is bilinear, pixels are points in the middle of their squares (`half_pixel`). Gray is the luma of
ITU-R BT.601, 0.299 r + 0.587 g + 0.114 b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.config import PreprocessConfig

__all__ = ["prepend"]

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1, "rgba": 4, "bgra": 4}
LUMA = {"r": 0.299, "g": 0.587, "b": 0.114}


def prepend(model: ir.Model, label: str, config: PreprocessConfig) -> None:
    """Writes the preparation in front of `model`, in place; its inputs have static shapes.

    Raises:
        ModelError: If no input takes such an image, or a number does not fit.
    """
    value = _image_input(model, label, config)
    where = f'{label}: preprocess of input "{value.name}"'
    shape = shape_of(value)
    assert shape is not None, "input shapes are fixed before"
    wanted = config.pixel_format or config.image_format
    first = _channels_first(shape, CHANNELS[wanted])
    if first is None:
        raise ModelError(
            f"{where}: shape {list(shape)} has no axis of {CHANNELS[wanted]} channels ({wanted})"
        )
    size = (shape[2], shape[3]) if first else (shape[1], shape[2])
    raw_size = config.image_size or config.resize_dims or size
    steps = _Steps(model.graph, f"{value.name}/preprocess")
    raw = [shape[0], *raw_size, CHANNELS[config.image_format]]
    if config.channel_format == "nchw":
        raw = [raw[0], raw[3], raw[1], raw[2]]
    image = ir.Value(name=value.name, shape=ir.Shape(raw), type=ir.TensorType(ir.DataType.UINT8))
    x = image if config.channel_format == "nchw" else steps("Transpose", image, perm=[0, 3, 1, 2])
    x = steps("Cast", x, to=int(ir.DataType.FLOAT))
    x = _resize_and_crop(steps, x, config, shape[0], (raw_size, size), where)
    x = _convert_channels(steps, x, config, (config.image_format, wanted), where)
    if not first:
        x = steps("Transpose", x, perm=[0, 2, 3, 1])
    if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
        x = steps("Cast", x, to=int(value.dtype))
    x.name, x.shape, x.type = f"{value.name}/preprocessed", value.shape, value.type
    value.replace_all_uses_with(x, replace_graph_outputs=True)
    place = list(model.graph.inputs).index(value)
    model.graph.inputs[place] = image
    model.graph.insert_before(model.graph[0], steps.nodes)


def _image_input(model: ir.Model, label: str, config: PreprocessConfig) -> ir.Value:
    images = {value.name or "": value for value in model.graph.inputs if len(shape_of(value) or ()) == 4}
    if config.input:
        if config.input not in images:
            names = ", ".join(f'"{name}"' for name in images) or "none"
            raise ModelError(
                f'{label}: preprocess: no image input is called "{config.input}", there is {names}'
            )
        return images[config.input]
    if len(images) != 1:
        raise ModelError(
            f"{label}: preprocess: the network has {len(images)} inputs with four axes: name one with `input`"
        )
    return next(iter(images.values()))


def _channels_first(shape: Sequence[int], channels: int) -> bool | None:
    """Whether an image of this shape is `[n, c, h, w]`; None if it has no such axis."""
    return True if shape[1] == channels else False if shape[3] == channels else None


class _Steps:
    """Writes nodes one behind the other."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self.nodes: list[ir.Node] = []
        self._graph, self._name = graph, name

    def __call__(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        name = f"{self._name}/{operator.lower()}{len(self.nodes)}"
        kind = ir.DataType.UINT8 if operator == "Transpose" and not self.nodes else ir.DataType.FLOAT
        made = ir.Value(name=name, type=ir.TensorType(kind))
        options = ir.convenience.convert_attributes(attributes)
        self.nodes.append(ir.Node("", operator, list(inputs), options, outputs=[made], name=name))
        return made

    def constant(self, label: str, array: npt.NDArray[Any]) -> ir.Value:
        name = f"{self._name}/{label}"
        value = ir.Value(
            name=name,
            const_value=ir.tensor(array, name=name),
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        )
        self._graph.register_initializer(value)
        return value

    def integers(self, label: str, values: Sequence[int]) -> ir.Value:
        return self.constant(label, np.array(values, np.int64))

    def cut(self, x: ir.Value, label: str, start: Sequence[int], size: Sequence[int]) -> ir.Value:
        """The part of an image that starts at (y, x)."""
        ends = [begin + length for begin, length in zip(start, size, strict=True)]
        bounds = (("from", start), ("to", ends), ("axes", [2, 3]))
        return self("Slice", x, *(self.integers(f"{label}_{name}", value) for name, value in bounds))


def _resize_and_crop(
    steps: _Steps,
    x: ir.Value,
    config: PreprocessConfig,
    batch: int,
    sizes: tuple[tuple[int, int], tuple[int, int]],
    where: str,
) -> ir.Value:
    """Crop, resize, pad, crop."""
    size, wanted = sizes
    if config.crop_ratio < 1:
        side = max(1, round(config.crop_ratio * min(size)))
        x = steps.cut(x, "square", [(length - side) // 2 for length in size], [side, side])
        size = (side, side)
    target = config.resize_dims or wanted
    inner = target
    if config.keep_aspect_ratio:
        factor = min(target[0] / size[0], target[1] / size[1])
        inner = (max(1, round(size[0] * factor)), max(1, round(size[1] * factor)))
    if inner != size:
        whole = steps.integers("sizes", [batch, CHANNELS[config.image_format], *inner])
        x = steps("Resize", x, None, None, whole, mode="linear")
    if inner != target:
        rest = [target[0] - inner[0], target[1] - inner[1]]
        before = [length // 2 if config.pad_type == "center" else 0 for length in rest]
        after = [length - part for length, part in zip(rest, before, strict=True)]
        pads = steps.integers("pads", [0, 0, *before, 0, 0, *after])
        x = steps("Pad", x, pads, steps.constant("pad_value", np.array(config.pad_value, np.float32)))
    if target != wanted:
        if target[0] < wanted[0] or target[1] < wanted[1]:
            raise ModelError(
                f"{where}: resize_dims {list(target)} are smaller than the network's {list(wanted)}"
            )
        start = [(have - need) // 2 for have, need in zip(target, wanted, strict=True)]
        x = steps.cut(x, "middle", start, wanted)
    return x


def _convert_channels(
    steps: _Steps, x: ir.Value, config: PreprocessConfig, formats: tuple[str, str], where: str
) -> ir.Value:
    """Channels, mean and scale: for each pixel one matrix and one vector, so that it is rounded once."""
    given, wanted = formats
    matrix, offset = _channel_matrix(given, wanted)
    channels = len(offset)
    for what, numbers in (("mean", config.mean), ("scale" if config.std is None else "std", config.factors)):
        if len(numbers) not in (1, channels):
            raise ModelError(f"{where}: {what} has {len(numbers)} numbers for {channels} channels")
    offset = (offset - np.array(config.mean)) * config.factors
    matrix = matrix * np.array(config.factors).reshape(-1, 1)
    if np.array_equal(matrix, np.eye(channels)) and not offset.any():
        return x
    kernel = steps.constant("matrix", matrix.astype(np.float32)[:, :, np.newaxis, np.newaxis])
    bias = steps.constant("offset", np.broadcast_to(offset, channels).astype(np.float32))
    return steps("Conv", x, kernel, bias, kernel_shape=[1, 1])


def _channel_matrix(given: str, wanted: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The conversion of the channels given into those wanted: `matrix x + offset`."""
    letters = {"gray": "y"}
    source, target = letters.get(given, given), letters.get(wanted, wanted)
    matrix, offset = np.zeros((len(target), len(source))), np.zeros(len(target))
    for row, letter in enumerate(target):
        if letter in source:
            matrix[row, source.index(letter)] = 1.0
        elif letter == "a":
            offset[row] = 255.0
        elif source == "y":
            matrix[row, 0] = 1.0
        else:  # gray of colours
            matrix[row] = [LUMA.get(each, 0.0) for each in source]
    return matrix, offset
