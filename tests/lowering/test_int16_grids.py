"""How far 16-bit grids reach: enough for later samples, and no further than functions and inputs do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tpuflow
from frontend.graphs import graph
from tpuflow.calibration import Range, Ranges
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

INT16 = Config.parse({"quantize": {"dtype": "int16"}})
FUNCTIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "Sin": np.sin, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Tanh": np.tanh,
    "Reciprocal": np.reciprocal,
}  # fmt: skip


def function(name: str, count: int = 256) -> tpuflow.FloatModel:
    return tpuflow.load(graph([(name, "x", "z")], {"x": [1, count]}, ["z"]))


def lowered(model: tpuflow.FloatModel, x: NDArray[np.float32]) -> GraphLevel:
    return GraphLevel(tpuflow.quantize(model, tpuflow.calibrate(model, {"x": x}, INT16), INT16))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("Sin", -3, 3), ("Sin", -30, 30), ("Sin", 0, 100), ("Sin", 0, 1000), ("Exp", -20, 20),
        ("Log", 1e-3, 1000), ("Reciprocal", 0.01, 100), ("Sqrt", 0, 100), ("Tanh", -30, 30),
    ],
)  # fmt: skip
def test_calibrated_functions_come_within_two_decibels_of_65535_even_steps(
    name: str, low: float, high: float
) -> None:
    """Of what rounding the operand to the finest grids of its range, 16 bits and zero leaves, on average."""
    x = np.random.default_rng(0).uniform(low, high, (8, 4096)).astype(np.float32)
    found = lowered(function(name, 4096), x).run({"x": x[:1]})["z"]
    exact = FUNCTIONS[name](x[:1].astype(np.float64))
    noise = []
    for width in np.linspace(1, 1.01, 16):  # a little more or less moves the few operands next to a pole
        step = width * (high - min(low, 0)) / 65535
        rounded = np.clip(np.rint(x[:1] / step) * step, low, high)
        noise.append(np.mean((FUNCTIONS[name](rounded) - exact) ** 2))
    assert 10 * math.log10(np.mean((found - exact) ** 2) / np.mean(noise)) < 2


def test_numbers_that_are_never_negative_spend_all_codes() -> None:
    x = np.random.default_rng(0).uniform(0, 5, (8, 256)).astype(np.float32)
    level = lowered(function("Sqrt"), x)
    ports = [level.graph.tensors[i] for i in (*level.graph.inputs, *level.graph.outputs)]
    assert [port.zero_point for port in ports] == [-32768, -32768]


def test_a_function_has_no_codes_for_what_it_never_gives() -> None:
    """Operands may reach twice as far as calibration saw; roots then 1.41 times, sines not at all."""
    for name, limit in (("Sqrt", math.sqrt(2 * 9)), ("Sin", 1.0)):
        ranges = Ranges({"x": Range(0, 9), "z": Range(-1 if name == "Sin" else 0, limit / math.sqrt(2))})
        quantized = tpuflow.quantize(function(name), ranges, INT16)
        (out,) = (quantized.tensors[i] for i in quantized.outputs)
        assert out.scale is not None
        assert out.scale[0] * (32767 - out.zero_point) == pytest.approx(limit, rel=0.01)


def test_inputs_that_reach_equally_far_need_no_margin_and_few_samples_a_wide_one() -> None:
    model, generator = function("Tanh"), np.random.default_rng(0)
    even = generator.uniform(-1, 1, (16, 256)).astype(np.float32)
    uneven = even * np.linspace(0.2, 1, 16, dtype=np.float32)[:, np.newaxis]
    margins = [
        tpuflow.calibrate(model, {"x": x}, INT16).tensors["x"].margin for x in (even, uneven, uneven[:4])
    ]
    assert margins[0] < 0.1
    assert margins[1:] == [1.0, 3.0]


@pytest.mark.parametrize("margin", [0.0, 1.0, 3.0])
def test_a_margin_is_so_many_times_that_of_the_configuration(margin: float) -> None:
    model = tpuflow.load(graph([("Add", "x x", "z")], {"x": [1, 4]}, ["z"]))
    quantized = tpuflow.quantize(model, Ranges({"x": Range(-1, 1, margin=margin), "z": Range(-2, 2)}), INT16)
    scale = quantized.tensors[quantized.inputs[0]].scale
    assert scale is not None
    assert scale[0] * 32767 == pytest.approx(1 + margin)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_one_less_a_mask_is_zero_where_the_mask_is_one(dtype: str) -> None:
    """Constants on codes of the other operand are exact, so that a product with -1e9 hides nothing else."""
    constants = {"one": np.array(1, np.float32)}
    model = tpuflow.load(graph([("Sub", "one m", "z")], {"m": [1, 64]}, ["z"], constants))
    config = Config.parse({"quantize": {"dtype": dtype, "output_dtype": "int16"}})
    samples = {"m": np.resize(np.array([0, 1], np.float32), (16, 64))}
    quantized = tpuflow.quantize(model, tpuflow.calibrate(model, samples, config), config)
    found = GraphLevel(quantized).run({"m": samples["m"][:1]})["z"]
    assert (found[samples["m"][:1] == 1] == 0).all()
    assert np.abs(found[samples["m"][:1] == 0] - 1).max() < 1e-4
