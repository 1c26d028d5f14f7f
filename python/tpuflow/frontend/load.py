"""From a model file to a float model ready to be calibrated and quantised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from tpuflow.errors import Finding, ModelError, UnsupportedModelError
from tpuflow.frontend import hosted, supported
from tpuflow.frontend.batch import change_batch, sizes_of_batch
from tpuflow.frontend.branches import branch_by_sample
from tpuflow.frontend.cut import cut, known_values
from tpuflow.frontend.interface import fix_input_shapes
from tpuflow.frontend.normalize import normalize
from tpuflow.frontend.optional import BRANCHES, apply_optional
from tpuflow.frontend.outside import mark
from tpuflow.frontend.preprocess import prepend
from tpuflow.frontend.presets import resolve
from tpuflow.frontend.source import Source, read
from tpuflow.frontend.transport import pack, unpack
from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuflow.config import PreprocessConfig

__all__ = ["FloatModel", "Port", "check_model", "load"]


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: Its name in the user's model.
        shape: Its shape, in the user's axis order. Of an output of the host a size known only at run time is
            -1, and all of it is () where not even the number of axes is known.
        dtype: Its element type; object for text.
        static: Whether all of the shape is known; that of inputs is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    static: bool = True

    @property
    def finite(self) -> bool:
        """That samples of it, which calibration may count, must be finite."""
        return True


@dataclass(frozen=True)
class FloatModel:
    """A float model in its two forms, original and normalised; they compute the same.

    Attributes:
        model: Normalised: static shapes and the operators of `tpuflow.frontend.supported.OPERATORS`.
        origin: As the user's model, after shapes were fixed and it was cut.
        source: The file it comes from; None for a model in memory.
        inputs: What it takes, in the order of the model's header.
        outputs: What it gives, in the order of the model's header.
        findings: Nodes that cannot be compiled, and why; `tpuflow.partition` gives them to the host. Empty
            unless the model was loaded with `host=True`.
        rewrites: What was applied by choice, see `tpuflow.frontend.optional`.
    """

    model: ir.Model
    origin: ir.Model
    source: Path | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    findings: tuple[Finding, ...] = ()
    rewrites: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"model": pack(self.model), "origin": pack(self.origin)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"model": unpack(state["model"]), "origin": unpack(state["origin"])})

    @property
    def label(self) -> str:
        """Its name in messages."""
        return "model" if self.source is None else str(self.source)

    @property
    def original(self) -> onnx.ModelProto:
        """`origin` as a protocol buffer, made at each call."""
        return ir.serde.serialize_model(self.origin)

    def save(self, path: str | Path) -> None:
        """Writes the normalised model as an ONNX file."""
        ir.save(self.model, str(path))

    def with_batch(self, batch: int) -> FloatModel:
        """The same model for another batch; ranges of one hold for the other, tensors keep their names.

        Raises:
            ModelError: If the samples of a batch cannot be followed through the model, or meet in it.
        """
        made = load(self.origin, batch=batch, host=bool(self.findings), rewrites=self.rewrites)
        return replace(made, source=self.source)


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    cut_inputs: Sequence[str] = (),
    cut_outputs: Sequence[str] = (),
    cut_preset: str | None = None,
    preprocess: PreprocessConfig | None = None,
    rewrites: Sequence[str] = (),
    host: bool = False,
) -> FloatModel:
    """Loads a model, normalises it and makes sure that all of it can be compiled.

    With `host` nodes that cannot be compiled stay in the normalised model, listed in `findings`, as long as
    onnxruntime can run them: `tpuflow.partition` divides such a model between machine and host.

    Args:
        source: An ONNX file of opset 6 to 28, or a model in memory, which is not changed.
        input_shapes: Shapes for inputs whose shape the model leaves open.
        batch: Size of the first axis of the inputs: 1 by default where the model leaves it open. A model that
            fixes another size is made for this one, see `tpuflow.frontend.batch`.
        cut_inputs: Tensors that become the inputs; what only leads to them is dropped.
        cut_outputs: Tensors that become the outputs; what only follows them is dropped.
        cut_preset: Name of a known cut instead, see `tpuflow.frontend.presets`.
        preprocess: Preparation of images to be put in front, see `tpuflow.frontend.preprocess`.
        rewrites: Names of rewrites that are applied by choice, see `tpuflow.frontend.optional`.
        host: Let the host compute what the machine cannot.

    Returns:
        The model in its original and its normalised form.

    Raises:
        ModelError: If the model cannot be read, or contradicts itself or the options.
        UnsupportedModelError: If it has operators that cannot be compiled; it lists all of them. With `host`,
            those that onnxruntime cannot run either.
    """
    wish = _RequestedInterface(
        input_shapes or {}, batch, cut_inputs, cut_outputs, cut_preset, preprocess, rewrites
    )
    origin, model, label, found = _import(source, wish)
    if found and not host:
        raise UnsupportedModelError(label, found, supported.cut_points(model, found))
    if host and hosted.make_constant_outputs(model.graph):
        found = supported.findings(model)
    while found and hosted.complete(model, label, found):
        found = supported.findings(normalize(model))
    if not model.graph.inputs:
        raise ModelError(f"{label}: the graph has no inputs: every output is a constant")
    return FloatModel(
        model=model,
        origin=origin,
        source=Path(source) if isinstance(source, (str, Path)) else None,
        inputs=tuple(_port(value, label) for value in model.graph.inputs),
        outputs=tuple(_port(value, label) for value in model.graph.outputs),
        findings=tuple(found),
        rewrites=tuple(rewrites),
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
    return _import(
        source, _RequestedInterface(input_shapes or {}, batch, cut_inputs, cut_outputs, cut_preset)
    )[3]


@dataclass(frozen=True)
class _RequestedInterface:
    """The interface a model is to have, as the arguments of `load` say."""

    shapes: Mapping[str, Sequence[int]]
    batch: int | None
    inputs: Sequence[str]
    outputs: Sequence[str]
    preset: str | None
    preprocess: PreprocessConfig | None = None
    rewrites: Sequence[str] = ()


def _import(source: Source, wish: _RequestedInterface) -> tuple[ir.Model, ir.Model, str, list[Finding]]:
    """Original and normalised model, what to call it, and what is wrong with it."""
    origin, label = read(source)
    mark(origin)
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
    if wish.preprocess is not None:
        prepend(origin, label, wish.preprocess)
    if wish.batch is not None and wish.batch not in sizes_of_batch(origin):
        origin = change_batch(origin, label, wish.batch)
    made = [(at, value) for at, value in enumerate(origin.graph.outputs) if not value.is_graph_input()]
    for _, value in made:  # the shapes the exporter noted may be those of another batch
        value.shape = None
    sizes = sizes_of_batch(origin)
    if BRANCHES in wish.rewrites and sizes != {1}:
        single = apply_optional(normalize(change_batch(origin, label, 1)), label, wish.rewrites)
        model = branch_by_sample(single, sizes.pop())
    else:
        model = apply_optional(normalize(origin.clone()), label, wish.rewrites)
    for at, value in made:
        known = model.graph.outputs[at]
        value.shape = known.shape if shape_of(known) is not None else None
    return origin, model, label, supported.findings(model)


def _port(value: ir.Value, label: str) -> Port:
    shape = shape_of(value)
    if (
        value.name is None
        or value.dtype in {None, ir.DataType.UNDEFINED}
        or not isinstance(value.type, ir.TensorType)
    ):
        raise ModelError(f'{label}: "{value.name}" is not a tensor of a known type')
    kind = np.dtype(value.type.dtype.numpy())
    if shape is not None:
        return Port(value.name, shape, kind)
    sizes = () if value.shape is None else value.shape.dims
    return Port(
        value.name, tuple(size if isinstance(size, int) else -1 for size in sizes), kind, static=False
    )
