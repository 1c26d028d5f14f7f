"""Channels stored twice: what is computed in floats, how much closer integers come, what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import search
from tpuflow.ptq.channel_splitting import multiplications, split_channels
from tpuflow.ptq.layers import linear_layers


def convolutions() -> FloatModel:
    """A convolution, one by channel, one of 1 x 1; a pool; two that are concatenated and a last one."""
    b = Builder("separable")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 12, 12]), 8, pads=(1, 1, 1, 1)))
    x = b.relu6(b.conv(x, 8, group=8, pads=(1, 1, 1, 1)))
    x = b.node("MaxPool", b.node("Relu", b.conv(x, 8, (1, 1))), kernel_shape=[2, 2], strides=[2, 2])
    parts = [b.node("Relu", b.conv(x, 6, size)) for size in ((1, 1), (1, 1))]
    b.output(b.conv(b.node("Concat", *parts, axis=1), 5))
    return load(b.model())


def products() -> FloatModel:
    """Dense layers on rows."""
    b = Builder("dense", 1)
    x = b.node("Relu", b.linear(b.input("x", [1, 7, 10]), 24))
    b.output(b.linear(b.node("Relu", b.linear(x, 16)), 4))
    return load(b.model())


def samples(model: FloatModel, count: int = 24) -> Samples:
    shape = tuple(int(size) for size in model.inputs[0].shape[1:])
    x = np.random.default_rng(5).integers(-128, 128, (count, *shape)) / np.float32(64)  # stored exactly
    return Samples.of({"x": x.astype(np.float32)}, model.inputs)


def noise(made: FloatModel, model: FloatModel, given: Samples, config: Config) -> float:
    """Power of the error of a made model in integers beside the model in floats."""
    level, session = (
        GraphLevel(lower(made, calibrate(made, given, config), config)),
        FloatSession(model.model),
    )
    name = model.outputs[0].name
    return float(
        sum(
            np.sum((level.run(row)[name] - session.run(row)[name]) ** 2)
            for batch in given.batches()
            for row in [batch.arrays]
        )
    )


def found(model: FloatModel, growth: float, config: Config | None = None):  # type: ignore[no-untyped-def]
    config, given = config or Config(), samples(model)
    return split_channels(model, calibrate(model, given, config), given, config, growth)


WIDE_WEIGHTS = Config.parse({"quantize": {"weight_bits": 16}})
"""So that the noise is that of activations."""


@pytest.mark.parametrize("make", [convolutions, products])
@pytest.mark.feature("GCA-13")
def test_channels_stored_twice_halve_the_steps(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    given = samples(model)
    made = found(model, 8.0, WIDE_WEIGHTS)
    assert len(made.values) == (4 if make is convolutions else 2)
    plain, twice = (noise(each, model, given, WIDE_WEIGHTS) for each in (model, made.model))
    assert twice < plain / 2, (plain, twice)
    # Floats are the same but for where a clamp bends, by less than an eighth of a step.
    name = model.outputs[0].name
    for batch in given.batches():
        a, b = (FloatSession(each.model).run(batch.arrays)[name] for each in (model, made.model))
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(a).max())


@pytest.mark.feature("GCA-13")
def test_a_doubled_network_runs_on_the_machine() -> None:
    model = convolutions()
    config, given = Config(), samples(model)
    made = found(model, 8.0).model
    graph = lower(made, calibrate(made, given, config), config)
    levels = (GraphLevel(graph), ProgramLevel(compile_graph(graph)))
    row = next(iter(given.batches())).arrays
    first, second = (level.compute(row).codes for level in levels)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.feature("GCA-13")
def test_doubled_codes_are_those_of_quarter_steps_beside() -> None:
    model = products()
    config, given = Config(), samples(model)
    ranges = calibrate(model, given, config)
    made = split_channels(model, ranges, given, config, 8.0)
    order = [value.name for node in model.model.graph for value in node.outputs]
    name = min(made.values, key=order.index)  # whose layer reads nothing doubled
    step = max(high for _, high in ranges.tensors[name].pairs) / 255
    x = next(iter(given.batches())).arrays
    once = FloatSession(model.model, [name]).run(x)[name]
    twice = FloatSession(made.model.model, [f"{name}/split"]).run(x)[f"{name}/split"]
    assert twice.shape == (*once.shape[:-1], 2 * once.shape[-1])
    above: NDArray[np.bool_] = once > step
    for offset, part in ((step / 4, twice[..., 0::2]), (-step / 4, twice[..., 1::2])):
        np.testing.assert_allclose((part - once)[above], offset, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("growth", [1.0, 1.2, 1.6, 2.5])
@pytest.mark.feature("GCA-13")
def test_a_network_grows_no_further_than_it_may(growth: float) -> None:
    model = convolutions()
    made = found(model, growth)
    before, after = (
        sum(map(multiplications, linear_layers(each.model.graph))) for each in (model, made.model)
    )
    assert after <= growth * before
    assert made.growth == pytest.approx(after / before)
    assert (made.model is model) == (growth == 1.0)


@pytest.mark.feature("GCA-13")
def test_what_is_set_by_name_is_not_doubled() -> None:
    model = products()
    (name, other) = found(model, 8.0).values
    config = Config.parse({"layers": [{"names": [name], "strategy": "extrema"}]})
    assert found(model, 8.0, config).values == (other,)
    assert found(model, 8.0, Config.parse({"quantize": {"dtype": "int16"}})).values == ()


@pytest.mark.feature("GCA-13")
@pytest.mark.slow
def test_a_search_doubles_only_where_a_network_may_grow() -> None:
    model = products()
    names = [
        {entry.name for entry in search(model, samples(model), growth=growth).candidates}
        for growth in (1.0, 3.0)
    ]
    assert "channels split" not in names[0]
    assert "channels split" in names[1]


@pytest.mark.feature("GCA-13")
def test_pools_along_the_columns_of_a_product_keep_them_single() -> None:
    b = Builder("pooled product", 1)
    x = b.node("Relu", b.linear(b.input("x", [1, 2, 6, 10]), 24))
    b.output(b.linear(b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 4))
    assert not found(load(b.model()), 8.0).values


@pytest.mark.parametrize(("shape", "biases"), [((12,), 1), ((1, 12), 1), ((1,), 1), ((12, 1), 0)])
@pytest.mark.feature("GCA-13")
def test_a_bias_has_one_number_for_every_column(shape: tuple[int, ...], biases: int) -> None:
    b = Builder("bias", 1)
    product = b.node("MatMul", b.input("x", [1, 12, 7]), b.weight(7, 12, fan_in=7))
    b.output(b.node("Add", product, b.spread(*shape)))
    (layer,) = linear_layers(load(b.model()).model.graph)
    assert layer.has_bias == biases
