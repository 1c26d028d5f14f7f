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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1000.0, -1e6])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Relu", "Reshape"])
def test_what_is_never_chosen_reaches_no_further_than_sums_of_it(
    operator: str, value: float, dtype: str
) -> None:
    """The sum saturates at what it reached, whatever is chosen."""
    summed = (
        [("Reshape", "w s", "v"), ("Add", "x v", "z")] if operator == "Reshape" else [("Add", "x w", "z")]
    )
    if operator == "Relu":
        summed = [("Add", "x w", "v"), ("Relu", "v", "z")]
    if operator == "Sub":
        summed = [("Sub", "x w", "z")]
    constants = {"v0": np.float32(value), "h": np.float32(0.5), "s": integers(1, 64)}
    nodes = [("Greater", "m h", "c"), ("Where", "c y v0", "w"), *summed]
    model = tpuflow.load(graph(nodes, {name: [1, 64] for name in "xym"}, ["z"], constants))
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((8, 64)).astype(np.float32) for _ in range(2))
    expected = {"Sub": x - y, "Relu": np.maximum(x + y, 0)}.get(operator, x + y)[:1]
    found = ran(model, {"x": x, "y": y, "m": np.ones_like(x)}, dtype)
    assert decibels(expected, found) > (35 if dtype == "int8" else 75)


@pytest.mark.parametrize("size", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_difference_from_the_only_value_of_calibration_is_zero(dtype: str, size: float) -> None:
    """exp(m) - 1 with m zero throughout: 1 is a code of what exp makes."""
    nodes = [("Exp", "m", "e"), ("Sub", "e one", "f"), ("Add", "x f", "z")]
    model = tpuflow.load(graph(nodes, {"x": [1, 64], "m": [1, 64]}, ["z"], {"one": np.float32(1)}))
    x = (np.random.default_rng(0).standard_normal((8, 64)) * size).astype(np.float32)
    found = ran(model, {"x": x, "m": np.zeros_like(x)}, dtype)
    assert decibels(x[:1], found) > (35 if dtype == "int8" else 75)


@pytest.mark.parametrize("far", [10.0, 300.0, 1e4])
def test_a_number_beside_16_bits_costs_them_none(far: float) -> None:
    """The step of one number in 8 bits is coarser than those of a sum in 16."""
    model = tpuflow.load(graph([("Add", "x c", "z")], {"x": [1, 256]}, ["z"], {"c": np.float32(far)}))
    x = np.random.default_rng(0).uniform(-1, 1, (16, 256)).astype(np.float32)
    found = ran(model, {"x": x}, "int16")
    np.testing.assert_allclose(found, x[:1] + far, atol=1.5 * (2 * far + 4) / 65535)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [0, 1])
def test_equal_to_a_number_that_occurs(dtype: str, kept: int) -> None:
    """Of computed values as well, whose grids reach further than they do."""
    nodes = [
        ("Relu", "k", "r"),
        ("Clip", "r zero one", "m"),
        ("Equal", "m wanted", "c"),
        ("Where", "c x y", "z"),
    ]
    constants = {name: np.float32(number) for name, number in (("zero", 0), ("one", 1), ("wanted", kept))}
    model = tpuflow.load(graph(nodes, {name: [1, 64] for name in "xyk"}, ["z"], constants))
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((8, 64)).astype(np.float32) for _ in range(2))
    k = generator.integers(0, 2, (8, 64)).astype(np.float32)
    assert decibels(np.where(k == kept, x, y)[:1], ran(model, {"x": x, "y": y, "k": k}, dtype)) > 35


@pytest.mark.parametrize("also", ["", "y", "t"])
@pytest.mark.parametrize(("operator", "factor"), [("Mul", 1.0), ("Mul", 0.35), ("Where", 1.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_mask_of_zeros_takes_away_has_no_part_in_the_grid(
    dtype: str, operator: str, factor: float, also: str
) -> None:
    """As blocks of a matrix that belong to one head: the others may be larger, and are not read."""
    rng = np.random.default_rng(0)
    kept = np.arange(64) < 32
    mask = kept if operator == "Where" else kept.astype(np.float32) * np.float32(factor)
    masking = ("Where", "m y zero", "t") if operator == "Where" else ("Mul", "y m", "t")
    nodes = [("MatMul", "x v", "y"), masking, ("Sin", "t", "z")]
    constants = {"m": mask, "zero": np.array(0.0, np.float32)}
    outputs = ["z", also] if also else ["z"]
    model = tpuflow.load(graph(nodes, {"x": [1, 4, 8], "v": [1, 8, 64]}, outputs, constants))
    v = rng.standard_normal((8, 8, 64)).astype(np.float32) * np.where(kept, 1, 3).astype(np.float32)
    samples = {"x": rng.standard_normal((8, 4, 8)).astype(np.float32), "v": v}
    config = Config.model_validate({"quantize": {"dtype": dtype}})
    quantized = tpuflow.quantize(model, tpuflow.calibrate(model, samples, config), config)
    scales = {t.name: t.scale for t in quantized.tensors}
    assert scales["y"] is not None
    assert scales["t"] is not None
    left = scales["t"][0] / factor
    assert (scales["y"][0] < 1.01 * left) == (also != "y"), "a second reader needs all of it"
