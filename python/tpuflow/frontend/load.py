"""From a model file to a float model ready to be calibrated and quantised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from tpuflow.errors import Finding, ModelError, UnsupportedModelError
from tpuflow.frontend import supported
from tpuflow.frontend.batch import rebatched, sizes_of_batch
from tpuflow.frontend.cut import cut, known_values
from tpuflow.frontend.interface import fix_input_shapes
from tpuflow.frontend.normalise import normalise
from tpuflow.frontend.presets import resolve
from tpuflow.frontend.source import Source, read
from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FloatModel", "Port", "check_model", "load"]


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: Its name in the user's model.
        shape: Its static shape, in the user's axis order.
        dtype: Its element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class FloatModel:
    """A float model in its two forms, original and normalised; they compute the same.

    Attributes:
        model: Normalised: static shapes and the operators of `tpuflow.frontend.supported.OPERATORS`.
        origin: As the user's model, after shapes were fixed and it was cut.
        source: The file it comes from; None for a model in memory.
        inputs: What it takes, in the order of the model's header.
        outputs: What it gives, in the order of the model's header.
    """

    model: ir.Model
    origin: ir.Model
    source: Path | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def original(self) -> onnx.ModelProto:
        """`origin` as a protocol buffer, made at each call."""
        return ir.to_proto(self.origin)

    def save(self, path: str | Path) -> None:
        """Writes the normalised model as an ONNX file."""
        ir.save(self.model, str(path))

    def with_batch(self, batch: int) -> FloatModel:
        """The same model for another batch; ranges of one hold for the other, tensors keep their names.

        Raises:
            ModelError: If the samples of a batch cannot be followed through the model, or meet in it.
        """
        return replace(load(self.origin, batch=batch), source=self.source)


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    cut_inputs: Sequence[str] = (),
    cut_outputs: Sequence[str] = (),
    cut_preset: str | None = None,
) -> FloatModel:
    """Loads a model, normalises it and makes sure that all of it can be compiled.

    Args:
        source: An ONNX file of opset 7 to 22, or a model in memory, which is not changed.
        input_shapes: Shapes for inputs whose shape the model leaves open.
        batch: Size of the first axis of the inputs: 1 by default where the model leaves it open. A model that
            fixes another size is made for this one, see `tpuflow.frontend.batch`.
        cut_inputs: Tensors that become the inputs; what only leads to them is dropped.
        cut_outputs: Tensors that become the outputs; what only follows them is dropped.
        cut_preset: Name of a known cut instead, see `tpuflow.frontend.presets`.

    Returns:
        The model in its original and its normalised form.

    Raises:
        ModelError: If the model cannot be read, or contradicts itself or the options.
        UnsupportedModelError: If it has operators that cannot be compiled; it lists all of them.
    """
    wish = _Wish(input_shapes or {}, batch, cut_inputs, cut_outputs, cut_preset)
    origin, model, label, found = _imported(source, wish)
    if found:
        raise UnsupportedModelError(label, found, supported.cut_points(model, found))
    return FloatModel(
        model=model,
        origin=origin,
        source=Path(source) if isinstance(source, (str, Path)) else None,
        inputs=tuple(_port(value, label) for value in model.graph.inputs),
        outputs=tuple(_port(value, label) for value in model.graph.outputs),
    )


def check_model(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    cut_inputs: Sequence[str] = (),
    cut_outputs: Sequence[str] = (),
    cut_preset: str | None = None,
) -> list[Finding]:
    """Lists every node of a model that cannot be compiled; the arguments are those of `load`.

    Raises:
        ModelError: If the model cannot be read, or contradicts itself or the options.
    """
    return _imported(source, _Wish(input_shapes or {}, batch, cut_inputs, cut_outputs, cut_preset))[3]


@dataclass(frozen=True)
class _Wish:
    """What a model is to take and give, as the arguments of `load` say."""

    shapes: Mapping[str, Sequence[int]]
    batch: int | None
    inputs: Sequence[str]
    outputs: Sequence[str]
    preset: str | None


def _imported(source: Source, wish: _Wish) -> tuple[ir.Model, ir.Model, str, list[Finding]]:
    """Original and normalised model, what to call it, and what is wrong with it."""
    origin, label = read(source)
    inputs, outputs = wish.inputs, wish.outputs
    if wish.preset is not None:
        if inputs or outputs:
            raise ModelError(f"{label}: a cut preset and tensors to cut at are given: give one of them")
        inputs, outputs = resolve(wish.preset, origin, label)
    if inputs or outputs:
        shaped = origin.clone()
        fix_input_shapes(shaped, label, wish.shapes, wish.batch, partial=True)
        origin = cut(origin, label, inputs, outputs, known_values(shaped))
    fix_input_shapes(origin, label, wish.shapes, wish.batch)
    if wish.batch is not None and wish.batch not in sizes_of_batch(origin):
        origin = rebatched(origin, label, wish.batch)
    for value in origin.graph.outputs:  # the shapes the exporter noted may be those of another batch
        value.shape = None
    model = normalise(origin.clone())
    for value, known in zip(origin.graph.outputs, model.graph.outputs, strict=True):
        value.shape = known.shape
    return origin, model, label, supported.findings(model)


def _port(value: ir.Value, label: str) -> Port:
    shape = shape_of(value)
    if shape is None or value.dtype is None or value.name is None:
        raise ModelError(f'{label}: the shape of "{value.name}" is not known')
    return Port(value.name, shape, np.dtype(value.dtype.numpy()))
