"""Averages behind last layers: the same numbers in floats, no rounding of the average in integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.config import Config, resolve_layers
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import search
from tpuflow.ptq.channel_splitting import multiplications
from tpuflow.ptq.layers import linear_layers
from tpuflow.ptq.plans import Plan, PlanModels
from tpuflow.ptq.pooling_commutation import commute_pooling


def network(kind: str) -> FloatModel:
    """A convolution or dense layer, a mean over places, a last layer."""
    b = Builder(kind)
    if kind == "tokens":
        x = b.node("Relu", b.linear(b.input("x", [1, 9, 12]), 16))
        b.output(b.linear(b.node("ReduceMean", x, axes=[1], keepdims=0), 5))
        return load(b.model())
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 16))
    if kind == "whole window":
        pooled = b.node("AveragePool", x, kernel_shape=[4, 4])
    elif kind == "half a window":
        pooled = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    else:
        pooled = b.node("GlobalAveragePool", x)
    if kind == "convolution":
        b.output(b.conv(pooled, 5, (1, 1)))
    elif kind == "softmax":
        b.output(b.node("Softmax", b.gemm(pooled, 5), axis=-1))
    elif kind == "read twice":
        b.output(b.gemm(pooled, 5), b.gemm(pooled, 3))
    else:
        b.output(b.gemm(pooled, 5))
    return load(b.model())


def samples(model: FloatModel) -> Samples:
    shape = tuple(int(size) for size in model.inputs[0].shape[1:])
    x = np.random.default_rng(2).standard_normal((24, *shape)).astype(np.float32)
    return Samples.of({"x": x}, model.inputs)


@pytest.mark.parametrize("kind", ["tokens", "pool", "whole window", "convolution", "softmax"])
@pytest.mark.feature("GCA-13")
def test_averages_behind_last_layers_give_the_same(kind: str) -> None:
    model = network(kind)
    made = commute_pooling(model)
    assert made is not None
    order = [node.op_type for node in made.model.graph]
    averages = [at for at, name in enumerate(order) if name in {"ReduceMean", "GlobalAveragePool"}]
    linear = [at for at, name in enumerate(order) if name in {"Conv", "MatMul"}]
    assert len(averages) == 1
    assert averages[0] > max(linear)
    config, given = Config.parse({"quantize": {"weight_bits": 16}}), samples(model)
    names = [port.name for port in model.outputs]
    assert [port.name for port in made.outputs] == names
    sessions = [FloatSession(each.model) for each in (model, made)]
    levels = [GraphLevel(lower(each, calibrate(each, given, config), config)) for each in (model, made)]
    assert all(tensor.dtype == "int16" for tensor in _read_by_averages(levels[1]))
    off = np.zeros(2)
    for batch in given.batches():
        floats = [session.run(batch.arrays) for session in sessions]
        for name in names:
            np.testing.assert_allclose(floats[0][name], floats[1][name], rtol=1e-4, atol=1e-5)
            off += [np.sum((level.run(batch.arrays)[name] - floats[0][name]) ** 2) for level in levels]
    assert off[1] < off[0]


def _read_by_averages(level: GraphLevel) -> list:  # type: ignore[type-arg]
    graph = level.graph
    layers = [layer for layer in graph.layers if layer.op in {"average_pool", "reduce"}]
    assert layers
    return [graph.tensors[index] for layer in layers for index in layer.operands[:1]]


@pytest.mark.parametrize("kind", ["half a window", "read twice"])
@pytest.mark.feature("GCA-13")
def test_other_averages_stay_where_they_are(kind: str) -> None:
    assert commute_pooling(network(kind)) is None


def _other(kind: str) -> FloatModel:
    """A network with a layer behind an average that computes something else in front of it."""
    b = Builder(kind)
    if kind == "bias by row":
        mean = b.node("ReduceMean", b.input("x", [1, 9, 12]), axes=[1], keepdims=0)
        b.output(b.node("Add", b.node("MatMul", mean, b.weight(12, 5, fan_in=12)), b.spread(5, 1)))
        return load(b.model())
    pooled = b.node("GlobalAveragePool", b.input("x", [1, 16, 6, 6]))
    if kind == "pads":
        b.output(b.conv(pooled, 5, (1, 1), pads=(1, 1, 1, 1)))
    elif kind == "pads and strides":
        b.output(b.conv(pooled, 5, (1, 1), pads=(1, 1, 1, 1), strides=[3, 3]))
    elif kind == "bias of more axes":
        product = b.node("MatMul", b.node("Flatten", pooled), b.weight(16, 5, fan_in=16))
        b.output(b.node("Add", product, b.spread(1, 1, 1, 5)))
    else:
        b.output(b.node("MatMul", pooled, b.weight(1, 5, fan_in=1)))
    return load(b.model())


@pytest.mark.parametrize(
    "kind", ["pads", "pads and strides", "bias of more axes", "bias by row", "product of places"]
)
@pytest.mark.feature("GCA-13")
def test_averages_stay_where_that_computes_something_else(kind: str) -> None:
    assert commute_pooling(_other(kind)) is None


@pytest.mark.parametrize(
    "where",
    [
        {"operators": ["GlobalAveragePool"]},
        {"operators": ["MatMul"]},
        {"ids": [[3, 3]]},
        {"match": "/globalaveragepool_*"},
    ],
)
@pytest.mark.feature("GCA-13")
def test_a_search_leaves_averages_that_settings_are_for(where: dict[str, object]) -> None:
    model = network("pool")
    config = Config.parse({"layers": [{**where, "dtype": "int16"}]})
    named = resolve_layers(config, model.model)
    assert not PlanModels(model, samples(model), 8, 8.0, named).averages
    if "ids" in where:
        found = search(model, samples(model), config, growth=8.0)
        assert not any(entry.plan.commute_pooling for entry in found.candidates)


@pytest.mark.feature("GCA-13")
def test_a_search_with_a_file_of_statistics_keeps_values_and_names(tmp_path: Path) -> None:
    model = network("pool")
    file = tmp_path / "statistics.json"
    calibrate(model, samples(model), Config.parse({"calibrate": {"save_statistic_info": str(file)}}))
    found = search(model, samples(model), Config.parse({"calibrate": {"statistic_file": str(file)}}))
    assert not any(e.plan.commute_pooling or e.plan.split_channels or e.plan.scaled for e in found.candidates)


@pytest.mark.parametrize("growth", [1.0, 1.1, 2.0])
@pytest.mark.feature("GCA-13")
def test_a_search_obeys_one_bound_of_multiplications(growth: float) -> None:
    model = network("pool")
    sources = PlanModels(model, samples(model), 8, growth, Config())
    most = growth * _total(model)
    for averaged in (False, True):
        plan = Plan(Config(), commute_pooling=averaged, split_channels=True)
        assert _total(sources.of(plan)) <= most * (1 + 1e-9)


def _total(model: FloatModel) -> int:
    return sum(map(multiplications, linear_layers(model.model.graph)))


@pytest.mark.feature("GCA-13")
def test_averages_behind_layers_are_kept_if_they_are_better() -> None:
    assert Plan(Config(), commute_pooling=True).steps == Plan(Config()).steps


@pytest.mark.feature("GCA-13")
@pytest.mark.slow
def test_a_search_tries_averages_behind_last_layers() -> None:
    model = network("pool")
    found = search(model, samples(model))
    tried = {entry.name: entry.plan.commute_pooling for entry in found.candidates}
    assert tried["averages behind last layers"]
    model = network("half a window")
    assert "averages behind last layers" not in {
        entry.name for entry in search(model, samples(model)).candidates
    }
