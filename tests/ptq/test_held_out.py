"""Choices evaluated by samples they were not made of, and the interval of what outputs are to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from models.builder import Builder
from tpuflow.config import Config
from tpuflow.execution.levels import FloatLevel, GraphLevel, run_samples
from tpuflow.frontend import load
from tpuflow.io.samples import Samples
from tpuflow.partitioning import device_networks
from tpuflow.ptq import CalibrationData, HeldOut, Recipe
from tpuflow.ptq.bias_correction import confirmed
from tpuflow.ptq.held_out import LEAST, interval

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.frontend import FloatModel


def network() -> FloatModel:
    """Two layers, of which the first has channels of very different reach."""
    b = Builder("uneven", seed=3)
    b.output(b.gemm(b.node("Relu", b.gemm(b.input("x", [1, 8]), 16)), 4))
    return load(b.model())


def samples(model: FloatModel, count: int, seed: int = 0) -> Samples:
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return Samples.of({"x": x}, model.inputs)


def rows(given: Samples) -> set[bytes]:
    return {row["x"].tobytes() for row in given.rows()}


def test_every_half_is_evaluated_by_the_other() -> None:
    model = network()
    given = samples(model, 20)
    first, second = HeldOut(model, given, Config()).folds
    assert rows(first.shown).isdisjoint(rows(second.shown))
    assert rows(first.shown) | rows(second.shown) == rows(given)


def test_a_change_that_fits_its_own_half_alone_is_not_kept() -> None:
    """Ranges that hold one half as finely as can be and clip the other: the second fold refuses them."""
    model = network()
    held_out = HeldOut(model, samples(model, 20), Config())
    before = held_out.folds
    tried = []

    def narrower(model: FloatModel, ranges: Ranges, _: Samples) -> tuple[FloatModel, Ranges]:
        tried.append(ranges)
        tensors = {name: type(r)(r.pairs[0][0] / 9, r.pairs[0][1] / 9) for name, r in ranges.tensors.items()}
        return model, type(ranges)(tensors)

    gained = held_out.gained_db(narrower, 0.0)
    assert gained is not None
    assert gained < 0
    assert held_out.folds is before
    assert held_out.gained_db(lambda model, ranges, _: (model, ranges), 0.0) is None


def test_too_few_samples_decide_nothing() -> None:
    model = network()
    few = samples(model, LEAST - 1)
    assert not HeldOut(model, few, Config()).folds
    state = Recipe().calibrate(model, CalibrationData(few))
    assert state.estimate is None
    assert state.ranges is not None
    assert not state.ranges.factors
    assert not state.ranges.errors


@pytest.mark.slow
def test_the_interval_holds_what_new_samples_give() -> None:
    """Of twelve draws of calibration samples at least ten, beside 400 samples nothing was made of."""
    model, held = network(), []
    fresh = samples(model, 400, seed=99)
    for draw in range(12):
        recipe = Recipe()
        state = recipe.calibrate(model, CalibrationData(samples(model, 16, seed=draw)))
        assert state.estimate is not None
        (stated,) = state.estimate.outputs.values()
        (graph,) = device_networks(recipe.graph(state))
        name = next(iter(state.estimate.outputs))
        made = run_samples(GraphLevel(graph), fresh)[name]
        exact = run_samples(FloatLevel(model), fresh)[name]
        found = 10 * np.log10(np.sum(exact**2) / np.sum((made - exact) ** 2))
        held.append(stated.low_db - 2 <= found)
    assert sum(held) >= 10


def test_an_interval_is_narrow_where_samples_are_alike_or_many() -> None:
    rng = np.random.default_rng(1)
    signal = np.ones(32)
    even, heavy = np.full(32, 1e-3), 1e-3 * rng.pareto(1.1, 32)
    alike = interval(even, signal, 8)
    assert alike.low_db == pytest.approx(30 - 32 / 8)  # eight samples are a draw themselves
    assert interval(even, signal, 32).low_db == pytest.approx(30)
    assert alike.high_db == pytest.approx(30)
    few, many = interval(heavy, signal, 8), interval(heavy, signal, 32)
    assert few.high_db - few.low_db > 4
    assert many.high_db - many.low_db == pytest.approx(4)
    middle = 10 * np.log10(signal.sum() / heavy.sum())
    assert middle - many.low_db == pytest.approx(3)
    assert interval(np.zeros(8), np.ones(8), 8).low_db == np.inf


def test_mean_errors_are_confirmed_by_the_other_half() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((16, 4))
    assert confirmed(noise + 3)
    alternating = np.where(np.arange(16)[:, np.newaxis] % 2, -1.0, 1.0) * (3 + 0.1 * noise)
    assert not confirmed(alternating)
    assert not confirmed((noise + 3)[: LEAST - 1])
