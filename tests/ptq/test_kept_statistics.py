"""Statistics that serve several strategies: no model runs twice over the same samples, with equal ranges."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.config import Config
from tpuflow.frontend import load
from tpuflow.io.samples import Samples
from tpuflow.lowering.scheme import Quant
from tpuflow.ptq import CalibrationData, Recipe
from tpuflow.ptq.kept_statistics import KeptStatistics
from tpuflow.ptq.operands import fake_quantize

if TYPE_CHECKING:
    from tpuflow.frontend import FloatModel


def network() -> FloatModel:
    b = Builder("two", seed=3)
    b.output(b.gemm(b.node("Relu", b.gemm(b.input("x", [1, 8]), 16)), 4))
    return load(b.model())


def samples(model: FloatModel, count: int, seed: int = 0) -> Samples:
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return Samples.of({"x": x}, model.inputs)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Model and samples of every pass of calibration; models are kept so that no two share a number."""
    passes: list[tuple[int, str]] = []
    models: list[object] = []
    collecting = sys.modules["tpuflow.calibration.collect"]  # the package names a function so
    collect = collecting.collect

    def noting(model: FloatModel, given: Samples, *details: Any, **settings: Any) -> object:
        models.append(model)
        digest = hashlib.sha256(b"".join(row["x"].tobytes() for row in given.rows()))
        passes.append((id(model), digest.hexdigest()))
        return collect(model, given, *details, **settings)

    monkeypatch.setattr(collecting, "collect", noting)
    return passes


def by(strategy: str) -> Config:
    return Config.parse({"calibrate": {"strategy": strategy}})


@pytest.mark.parametrize("first", ["mse", "extrema", "kld"])
def test_one_pass_serves_all_strategies_with_the_ranges_of_passes_of_their_own(
    collected: list[tuple[int, str]], first: str
) -> None:
    model = network()
    given, kept = samples(model, 20), KeptStatistics()
    found = {
        strategy: kept.ranges(model, given, by(strategy)) for strategy in (first, "kld", "extrema", "mse")
    }
    assert len(collected) == 1
    for strategy, ranges in found.items():
        assert ranges == calibrate(model, given, by(strategy))


def test_other_samples_models_and_settings_are_counted_by_themselves(
    collected: list[tuple[int, str]],
) -> None:
    model, kept = network(), KeptStatistics()
    given = samples(model, 20)
    fewer_bins = Config.parse({"calibrate": {"strategy": "kld", "bins": 512}})
    for pair in ((model, given), (model, samples(model, 20, seed=1)), (network(), given)):
        kept.ranges(*pair, by("kld"))
    assert len(collected) == 3
    assert kept.ranges(model, given, fewer_bins) == calibrate(model, given, fewer_bins)
    assert len(collected) == 5


def test_the_recipe_never_runs_a_model_twice_over_the_same_samples(collected: list[tuple[int, str]]) -> None:
    model = network()
    state = Recipe().calibrate(model, CalibrationData(samples(model, 80)))
    assert state.ranges is not None
    assert len(collected) == len(set(collected)) >= 3


def test_numbers_come_back_from_their_codes_and_stay_themselves() -> None:
    grid = Quant("int8", 0.25, -3, -128, 127)
    values = np.array([-1e9, -31.3, -0.125, 0.0, 0.125, 0.375, 31.2, 1e9], np.float32)
    before = values.copy()
    found = fake_quantize(values, grid)
    np.testing.assert_array_equal(found, [-31.25, -31.25, 0.0, 0.0, 0.0, 0.5, 31.25, 32.5])
    np.testing.assert_array_equal(values, before)
    assert found.dtype == np.float32
    assert fake_quantize(values, None) is values
