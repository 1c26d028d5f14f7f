"""Small float models through lowering and the integer interpreter, beside their float results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from models.builder import Builder
from tpuflow import _core, reference
from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config
from tpuflow.evaluation.similarity import Similarity, similarity
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.lowering import Graph, lower

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]


def extrema(model: FloatModel, feeds: Sequence[Feed]) -> Ranges:
    """The range of every value over some feeds."""
    session = FloatSession(model.model, "all", threads=1)
    found: dict[str, tuple[float, float]] = {}
    for feed in feeds:
        for name, array in {**session.run(feed), **feed}.items():
            low, high = found.get(name, (0.0, 0.0))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return Ranges({name: Range(*bounds) for name, bounds in found.items()})


def source_of(tensor: _core.Tensor) -> dict[str, Any]:
    """The model's tensor a tensor stands for."""
    assert tensor.source_json is not None
    found: dict[str, Any] = json.loads(tensor.source_json)
    return found


def codes(tensor: _core.Tensor, array: Array) -> Array:
    """What a network input becomes: transposed, reshaped, quantised as the graph says."""
    source = source_of(tensor)
    placed = array.transpose(source["permutation"]).reshape(tensor.shape)
    if tensor.scale is None:
        return placed.astype(np.dtype(tensor.dtype))
    bounds = np.iinfo(tensor.dtype)
    rounded = np.rint(placed.astype(np.float64) / tensor.scale[0]) + tensor.zero_point
    return np.asarray(np.clip(rounded, bounds.min, bounds.max).astype(tensor.dtype))


def values(tensor: _core.Tensor, stored: Array) -> Array:
    """The model's value a tensor stands for."""
    source = source_of(tensor)
    order = source["permutation"]
    if tensor.scale is None:
        stored = stored.astype(np.int64 if stored.dtype.kind == "i" else np.float64)
    real = (
        stored if tensor.scale is None else (stored.astype(np.float64) - tensor.zero_point) * tensor.scale[0]
    )
    return np.asarray(real.reshape([source["shape"][axis] for axis in order]).transpose(np.argsort(order)))


@dataclass(frozen=True)
class Quantized:
    """A float model and its graph."""

    model: FloatModel
    graph: Graph

    def inputs(self, feed: Feed) -> dict[str, Array]:
        """The graph's inputs for a feed of the model."""
        tensors = [self.graph.tensors[i] for i in self.graph.inputs]
        return {t.name: codes(t, feed[source_of(t)["name"]]) for t in tensors}

    def run(self, feed: Feed, *, all_tensors: bool = False) -> dict[str, Array]:
        """Every value of the model that the graph holds, by the model's names."""
        stored = self.graph.run(self.inputs(feed), all_tensors=all_tensors)
        tensors = [t for t in self.graph.tensors if t.source_json is not None and t.name in stored]
        return {source_of(t)["name"]: values(t, stored[t.name]) for t in tensors}

    def compare(self, feed: Feed) -> dict[str, Similarity]:
        """Every output against the float model."""
        exact, found = FloatSession(self.model.model, threads=1).run(feed), self.run(feed)
        assert set(exact) <= set(found)
        return {name: similarity(array, found[name]) for name, array in exact.items()}

    def equals_reference(self, feed: Feed) -> None:
        """Every tensor has the integers that the NumPy twin of the arithmetic computes."""
        given = self.inputs(feed)
        stored = self.graph.run(given, all_tensors=True)
        expected = reference.run(self.graph, given)
        assert set(stored) <= set(expected)
        for name, array in stored.items():
            assert np.array_equal(array, expected[name]), name

    def equals_program(self, program: _core.Program, feed: Feed) -> None:
        """A program of the graph gives its codes at every output, and does its multiply-accumulates."""
        expected, found = (
            each.compute(feed).codes for each in (graph_level(self.graph), program_level(program))
        )
        assert {*found} == {*expected}
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name
        assert simulate(program, values=False).report["macs"] == self.graph.macs

    @property
    def operators(self) -> list[str]:
        """Operator names in order."""
        return [layer.op for layer in self.graph.layers]


def lowered(
    proto: onnx.ModelProto, feeds: Sequence[Feed], config: Mapping[str, Any] | None = None
) -> Quantized:
    """Loads, calibrates on the feeds and quantises."""
    model = load(proto)
    return Quantized(model, lower(model.model, extrema(model, feeds), Config.parse(config or {})))


def normal(
    builder_or_model: Builder | onnx.ModelProto, count: int = 4, seed: int = 0
) -> list[dict[str, Array]]:
    """Feeds of normal numbers (and small indices) in the model's own shapes, batch 1."""
    proto = builder_or_model.model() if isinstance(builder_or_model, Builder) else builder_or_model
    rng = np.random.default_rng(seed)
    feeds = []
    for _ in range(count):
        feed: dict[str, Array] = {}
        for value in proto.graph.input:
            kind = value.type.tensor_type
            shape = [size.dim_value or 1 for size in kind.shape.dim]
            if kind.elem_type == onnx.TensorProto.FLOAT:
                feed[value.name] = rng.standard_normal(shape).astype(np.float32)
            else:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
                feed[value.name] = rng.integers(0, 20, shape).astype(dtype)
        feeds.append(feed)
    return feeds
