"""Weights rounded together: never worse than alone, near the best there is, kept to the bit by `quantize`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tpuflow.calibration import calibrate
from tpuflow.config import Config, ConfigError
from tpuflow.config.chain import parsed_chain
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.frontend.values import array_of, steps_of
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import refine_weights, search
from tpuflow.ptq.adaround import Learning, adaround
from tpuflow.ptq.gptq import better, coordinate_descent, cost, gptq, nearest, steps_by_cost
from tpuflow.ptq.layers import linear_layers
from tpuflow.ptq.search import DEFAULT, MARGIN_DB

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray


def correlated(seed: int, size: int) -> NDArray[np.float64]:
    """A covariance whose variables hang together."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((size, size)) * rng.uniform(0.1, 2, size)
    return mixed @ mixed.T / size + 0.01 * np.eye(size)


def network(seed: int = 0, groups: int = 1) -> FloatModel:
    """Two convolutions with a Relu between them and a product behind."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.standard_normal((8, 4 // groups, 3, 3)) / 5,
        "b1": rng.standard_normal(8) / 5,
        "w2": rng.standard_normal((6, 8, 1, 1)) / 3,
        "w3": rng.standard_normal((6, 5)) / 3,
        "b3": rng.standard_normal(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return load(model)


def elements(value: ir.Value | None) -> NDArray[np.float32]:
    found = array_of(value)
    assert found is not None
    return found


def images(count: int, seed: int = 7) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, 4, 8, 8)) + rng.standard_normal((count, 4, 1, 1))).astype(np.float32)


def noise(model: FloatModel, source: FloatModel, config: Config, samples: NDArray[np.float32]) -> float:
    ranges = calibrate(source, {"x": images(16)}, config)
    level = GraphLevel(lower(model, ranges, config))
    session = FloatSession(source.original)
    return float(
        sum(((level.run({"x": x[None]})["y"] - session.run({"x": x[None]})["y"]) ** 2).sum() for x in samples)
    )


@given(st.integers(0, 10_000), st.integers(1, 24), st.sampled_from([7, 127]))
@pytest.mark.feature("GCA-10")
def test_gptq_is_never_worse_than_rounding_alone(seed: int, size: int, largest: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((3, size))
    covariance = correlated(seed, size)
    steps = steps_by_cost(weights, covariance, largest)
    alone = nearest(weights, steps, largest) * steps[:, np.newaxis]
    found = gptq(weights, covariance, largest)
    assert np.array_equal(found.steps, steps)
    assert np.all(np.abs(found.codes) <= largest)
    assert np.array_equal(found.codes, np.rint(found.codes))
    assert np.all(cost(weights - found.values, covariance) <= cost(weights - alone, covariance) * (1 + 1e-9))


@given(st.integers(0, 10_000), st.integers(1, 24))
@pytest.mark.feature("GCA-04")
def test_adaround_is_never_worse_than_rounding_alone(seed: int, size: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((3, size))
    covariance = correlated(seed, size)
    found = adaround(weights, covariance, 7, Learning(iterations=60))
    alone = nearest(weights, found.steps, 7) * found.steps[:, np.newaxis]
    assert np.all(np.abs(found.codes) <= 7)
    assert np.all(cost(weights - found.values, covariance) <= cost(weights - alone, covariance) * (1 + 1e-9))


@given(st.integers(0, 10_000), st.integers(1, 24))
@pytest.mark.feature("GCA-04")
def test_the_better_rounding_is_chosen_by_row(seed: int, size: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((5, size))
    covariance = correlated(seed, size)
    learned, rounded = adaround(weights, covariance, 7, Learning(iterations=20)), gptq(weights, covariance, 7)
    both = [cost(weights - each.values, covariance) for each in (learned, rounded)]
    found = better(weights, covariance, learned, rounded)
    assert np.array_equal(cost(weights - found.values, covariance), np.minimum(*both))


@pytest.mark.feature("GCA-04")
def test_adaround_learns_to_round_up_or_down() -> None:
    weights = np.random.default_rng(2).standard_normal((8, 64))
    covariance = correlated(2, 64)
    found = adaround(weights, covariance, 7, Learning(sweeps=0))
    scaled = weights / found.steps[:, np.newaxis]
    inside = np.abs(scaled) <= 7
    assert np.all(np.abs(found.codes - scaled)[inside] < 1)
    alone = nearest(weights, found.steps, 7) * found.steps[:, np.newaxis]
    assert cost(weights - found.values, covariance).sum() < 0.6 * cost(weights - alone, covariance).sum()


@pytest.mark.feature("GCA-10")
def test_gptq_halves_the_error_of_four_bits() -> None:
    weights = np.random.default_rng(1).standard_normal((16, 64))
    covariance = correlated(1, 64)
    found = gptq(weights, covariance, 7)
    whole = np.abs(weights).max(axis=1) / 7
    alone = nearest(weights, whole, 7) * whole[:, np.newaxis]
    assert cost(weights - found.values, covariance).sum() < 0.5 * cost(weights - alone, covariance).sum()


@given(st.integers(0, 10_000))
def test_codes_of_few_weights_are_near_the_best_of_all(seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((1, 4))
    covariance = correlated(seed, 4)
    found = gptq(weights, covariance, 2)
    every = np.array(list(itertools.product(range(-2, 3), repeat=4)), np.float64)
    best = cost(weights - every * found.steps[0], covariance).min()
    alone = cost(weights - nearest(weights, found.steps, 2) * found.steps[0], covariance)[0]
    assert best <= cost(weights - found.values, covariance)[0] * (1 + 1e-9) <= alone * (1 + 2e-9)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_descent_never_raises_the_cost(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    weights, covariance = rng.standard_normal((2, size)), correlated(seed, size)
    steps = np.full(2, 0.25)
    start = rng.integers(-7, 8, (2, size)).astype(np.float64)
    costs = [
        cost(weights - coordinate_descent(weights, covariance, start, steps, 7, sweeps) * 0.25, covariance)
        for sweeps in range(4)
    ]
    for before, after in itertools.pairwise(costs):
        assert np.all(after <= before * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_columns_are_what_weights_meet(groups: int) -> None:
    model = network(groups=groups)
    layer = next(iter(linear_layers(model.model.graph)))
    x = images(2)
    columns = layer.columns(x, 10_000)
    bias = np.asarray(model.model.graph.initializers["b1"].const_value)
    sums = np.einsum("grk,gck->cgr", layer.weights, columns).reshape(2, 8, 8, 8).transpose(0, 3, 1, 2)
    session = FloatSession(model.model, ["c1"])
    expected = np.concatenate([session.run({"x": x[i : i + 1]})["c1"] for i in range(2)])
    assert sums + bias.reshape(1, -1, 1, 1) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.feature("QMO-09", "GCA-16")
def test_refined_weights_are_kept_and_closer(bits: int) -> None:
    model = network()
    config = Config.parse({"quantize": {"weight_bits": bits}})
    refined, report = refine_weights(model, Samples.of({"x": images(32)}, model.inputs), config)
    assert [layer.name for layer in report] == ["conv1", "conv2", "product"]
    assert all(layer.kept == (layer.after < layer.before) for layer in report)
    layers = {layer.name: layer for layer in linear_layers(refined.model.graph)}
    ranges = calibrate(model, {"x": images(16)}, config)
    graph = lower(refined, ranges, config)
    stored = [tensor for tensor in graph.tensors if tensor.is_constant and tensor.dtype == "int8"]
    assert len(stored) >= 3
    for layer in report:
        value = layers[layer.name].node.inputs[1]
        steps = steps_of(value)
        assert (steps is not None) == layer.kept
        if steps is not None:
            codes = elements(value) / steps
            assert np.abs(codes).max() <= (1 << (bits - 1)) - 1 + 1e-4
    scored = images(24, seed=9)
    # With 8 bits the rounding of activations is the larger part of what is left.
    share = 0.5 if bits == 4 else 1.5
    assert noise(refined, model, config, scored) < share * noise(model, model, config, scored)


@pytest.mark.feature("GCA-02")
def test_scopes_leave_other_layers_alone() -> None:
    model = network()
    config = Config.parse({"quantize": {"weight_bits": 4}})
    samples = Samples.of({"x": images(8)}, model.inputs)
    (method,) = parsed_chain("gptq[MatMul]")
    refined, report = refine_weights(model, samples, config, method=method)
    assert [layer.name for layer in report] == ["product"]
    (method,) = parsed_chain("gptq{conv[12]}")
    _, report = refine_weights(model, samples, config, method=method)
    assert [layer.name for layer in report] == ["conv1", "conv2"]
    for name in ("w1", "w2"):
        assert np.array_equal(
            elements(refined.model.graph.initializers[name]),
            elements(model.model.graph.initializers[name]),
        )


@pytest.mark.parametrize("chain", ["fine", "gptq & gptq", "gptq & none", "gptq{(}"])
@pytest.mark.feature("GCA-01")
def test_chains_that_are_none(chain: str) -> None:
    with pytest.raises(ConfigError, match="global_calibration"):
        Config.parse({"calibrate": {"global_calibration": chain}})


@pytest.mark.feature("GCA-13", "GCA-17")
@pytest.mark.slow
def test_a_search_keeps_the_best_it_tried() -> None:
    model = network()
    config = Config.parse({"quantize": {"weight_bits": 4}})
    told: list[str] = []
    found = search(model, Samples.of({"x": images(24)}, model.inputs), config, told.append)
    assert len(told) == len(found.candidates) + 1 >= 7  # and what samples kept apart say of the best
    kept = [entry for entry in found.candidates if entry.kept]
    scored = [entry for entry in found.candidates if len(entry.parts) == len(kept[0].parts)]
    assert kept[-1].fidelity.score >= max(entry.fidelity.score for entry in scored) - 2 * MARGIN_DB
    for before, after in itertools.pairwise(kept):
        gain = after.fidelity.score - before.fidelity.score
        assert gain > (-MARGIN_DB if after.plan.steps > before.plan.steps else MARGIN_DB)
    assert found.validation is not None
    chosen = next(entry for entry in reversed(found.candidates) if entry.kept)
    assert (found.name, found.config) == (
        (chosen.name, chosen.config) if found.validation.holds else (DEFAULT, config)
    )
