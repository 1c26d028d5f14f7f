"""Generated samples for models without data at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import SampleError
from tpuflow.frontend.values import array_of, produced_by, shape_of
from tpuflow.io.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.load import FloatModel

__all__ = ["drawn_feeds", "generate_samples", "generated"]

Feeds = dict[str, npt.NDArray[Any]]


def generate_samples(float_model: FloatModel, count: int = 8, seed: int = 0) -> list[Feeds]:
    """Makes `count` samples, the same ones for the same seed.

    Float inputs are normal(0, 1). Integer inputs that pick rows of an embedding are uniform over its rows,
    8-bit ones over their range, others are 0 or 1.

    Returns:
        One dictionary per sample: input name to array of the input's whole shape (its batch included).
    """
    return drawn_feeds(float_model.model.graph.inputs, count, seed)


def generated(float_model: FloatModel, count: int = 8, seed: int = 0) -> Samples:
    """Makes samples as `generate_samples` does, ready to calibrate or to run with."""
    return Samples.of_feeds(generate_samples(float_model, count, seed), float_model.inputs)


def drawn_feeds(inputs: Sequence[ir.Value], count: int, seed: int) -> list[Feeds]:
    """Samples of graph inputs of static shape, as `generate_samples` makes them."""
    generator = np.random.default_rng(seed)
    return [{value.name or "": _draw(value, generator) for value in inputs} for _ in range(count)]


def _draw(value: ir.Value, generator: np.random.Generator) -> npt.NDArray[Any]:
    shape, kind = shape_of(value), np.dtype((value.dtype or ir.DataType.FLOAT).numpy())
    assert shape is not None, "inputs of an imported model have static shapes"
    if np.issubdtype(kind, np.floating):
        return generator.standard_normal(shape).astype(kind)
    if kind.kind == "O":
        raise SampleError(f'input "{value.name}" takes text, which cannot be made up: give samples')
    rows = _rows(value)
    low, high = 0, rows or 2
    if rows is None and kind in (np.int8, np.uint8):
        low, high = (-128, 128) if kind == np.int8 else (0, 256)
    return generator.integers(low, high, shape).astype(kind)


def _rows(value: ir.Value) -> int | None:
    """Rows of the smallest table that `value`, perhaps reshaped, picks from."""
    rows = []
    for use in value.uses():
        if use.node.op_type == "Gather" and use.idx == 1:
            shape = shape_of(use.node.inputs[0]) if array_of(use.node.inputs[0]) is not None else None
            rows.append(None if shape is None else shape[0])
        elif produced_by(use.node.outputs[0], "Reshape", "Transpose", "Slice", "Cast") is not None:
            rows.append(_rows(use.node.outputs[0]))
    return min((count for count in rows if count is not None), default=None)
