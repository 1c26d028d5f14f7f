"""Grids of what calibration says nothing of: operands that were zero throughout, and constants of pads."""

from __future__ import annotations

import numpy as np
import pytest

import tpuflow
from frontend.graphs import graph, integers
from tpuflow.config import Config

DTYPES = ("int8", "int16")


def ran(model: tpuflow.FloatModel, samples: dict[str, np.ndarray], dtype: str) -> np.ndarray:
    """The output of the program for the first sample."""
    config = Config.model_validate({"quantize": {"dtype": dtype}})
    quantized = tpuflow.quantize(model, tpuflow.calibrate(model, samples, config), config)
    run = tpuflow.simulate(tpuflow.compile(quantized), {name: array[:1] for name, array in samples.items()})
    return np.asarray(run.outputs["z"], np.float64)


def decibels(expected: np.ndarray, found: np.ndarray) -> float:
    return float(20 * np.log10(np.linalg.norm(expected) / np.linalg.norm(expected - found)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [10.0, 0.3, 1e-3])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Max", "Min"])
def test_an_operand_of_zero_range_takes_the_step_of_the_other(operator: str, size: float, dtype: str) -> None:
    model = tpuflow.load(graph([(operator, "x m", "z")], {"x": [1, 64], "m": [1, 64]}, ["z"]))
    x = (np.random.default_rng(0).standard_normal((8, 64)) * size).astype(np.float32)
    samples = {"x": x, "m": np.zeros_like(x)}
    expected = {"Add": x, "Sub": x, "Max": np.maximum(x, 0), "Min": np.minimum(x, 0)}[operator][:1]
    assert decibels(expected, ran(model, samples, dtype)) > 35


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operand_of_zero_range_behind_a_view(dtype: str) -> None:
    nodes = [("Reshape", "m s", "r"), ("Add", "x r", "z")]
    model = tpuflow.load(graph(nodes, {"x": [1, 8, 8], "m": [1, 64]}, ["z"], {"s": integers(1, 8, 8)}))
    x = (np.random.default_rng(0).standard_normal((8, 8, 8)) * 0.01).astype(np.float32)
    assert decibels(x[:1], ran(model, {"x": x, "m": np.zeros((8, 64), np.float32)}, dtype)) > 35


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1e-3, 50.0, -700.0])
@pytest.mark.parametrize("operator", ["Add", "Sub"])
def test_an_operand_of_zero_range_that_is_multiplied(operator: str, factor: float, dtype: str) -> None:
    nodes = [("Sub", "one m", "s"), ("Mul", "s c", "t"), (operator, "x t", "z")]
    constants = {"one": np.float32(1), "c": np.float32(factor)}
    model = tpuflow.load(graph(nodes, {"x": [1, 64], "m": [1, 64]}, ["z"], constants))
    x = (np.random.default_rng(0).standard_normal((8, 64)) * 0.1).astype(np.float32)
    assert decibels(x[:1], ran(model, {"x": x, "m": np.ones_like(x)}, dtype)) > 35


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, -3.0])
def test_what_is_padded_with_belongs_to_the_grid(value: float, dtype: str) -> None:
    constants = {"p": integers(0, 0, 0, 0, 0, 0, 0, 1), "v": np.float32(value)}
    nodes = [
        ("Relu", "x", "r"),
        ("Pad", "r p v", "y"),
        ("Add", "r r", "w"),
        ("Pad", "w p", "u"),
        ("Add", "y u", "z"),
    ]
    model = tpuflow.load(graph(nodes, {"x": [1, 4, 8, 8]}, ["z"], constants))
    x = np.random.default_rng(0).uniform(-0.05, 0.05, (8, 4, 8, 8)).astype(np.float32)
    found = ran(model, {"x": x}, dtype)
    step = abs(value) / (100 if dtype == "int8" else 15000)
    np.testing.assert_allclose(found[..., -1], value, atol=2 * step)
    np.testing.assert_allclose(found[..., :-1], 3 * np.maximum(x[:1], 0), atol=2 * step)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, -3.0])
@pytest.mark.parametrize("order", ["c x v", "c v x"])
def test_what_may_be_chosen_belongs_to_the_grid(value: float, order: str, dtype: str) -> None:
    """Though no sample chooses it."""
    nodes = [("Greater", "k h", "c"), ("Where", order, "z")]
    constants = {"v": np.float32(value), "h": np.float32(0.5)}
    model = tpuflow.load(graph(nodes, {"x": [1, 64], "k": [1, 64]}, ["z"], constants))
    x = np.random.default_rng(0).uniform(-0.05, 0.05, (8, 64)).astype(np.float32)
    never = np.full_like(x, order == "c x v")
    config = Config.model_validate({"quantize": {"dtype": dtype}})
    ranges = tpuflow.calibrate(model, {"x": x, "k": never}, config)
    chosen = np.arange(64) % 2 == 0
    k = np.where(chosen, 1 - never[:1], never[:1])
    program = tpuflow.compile(tpuflow.quantize(model, ranges, config))
    found = tpuflow.simulate(program, {"x": x[:1], "k": k}).outputs["z"]
    np.testing.assert_allclose(found[:, chosen], value, rtol=0.02)
    np.testing.assert_allclose(found[:, ~chosen], x[:1, ~chosen], atol=abs(value) / 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("extent", "picked"), [(1, (0, 0)), (1, (-1, 0, 0)), (4, (2, 2, 2))])
def test_an_index_that_repeats(extent: int, picked: tuple[int, ...], dtype: str) -> None:
    nodes = [("Relu", "x", "r"), ("Gather", "r i", "z", {"axis": 3})]
    model = tpuflow.load(graph(nodes, {"x": [1, 3, 5, extent]}, ["z"], {"i": integers(*picked)}))
    x = np.random.default_rng(0).standard_normal((4, 3, 5, extent)).astype(np.float32)
    expected = np.maximum(x[:1], 0)[..., list(picked)]
    found = ran(model, {"x": x}, dtype)
    assert found.shape == expected.shape
    assert decibels(expected, found) > 35
