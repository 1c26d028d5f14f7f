"""Mean errors of outputs: those of an obvious twin, taken back, kept in a file, left where unsure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.builder import Builder
from refine.test_gptq import images, network
from tpuflow.build import Listener, Request, with_errors
from tpuflow.calibrate import Ranges, calibrate
from tpuflow.config import Config
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.quantize import quantize
from tpuflow.refine import centred
from tpuflow.refine.outputs import last_layers, sure_share
from tpuflow.run import GraphLevel
from tpuflow.samples import Samples


def heads() -> FloatModel:
    """Scores of places and boxes beside them, joined of two sizes, behind a body of their own."""
    b = Builder("heads")
    body = b.node("Relu", b.conv(b.input("x", [1, 4, 6, 6]), 8, (1, 1)))
    small = b.node("MaxPool", body, kernel_shape=[2, 2], strides=[2, 2])
    parts = []
    for value, places in ((body, 36), (small, 9)):
        moved = b.node("Transpose", b.conv(value, 4, (1, 1)), perm=[0, 2, 3, 1])
        parts.append(b.node("Reshape", moved, b.integers(1, places, 4)))
    b.output(b.node("Softmax", b.node("Concat", *parts, axis=1), axis=-1), b.conv(body, 5, (1, 1)))
    return load(b.model())


def errors_by_sample(model: FloatModel, ranges: Ranges, x: np.ndarray, config: Config) -> np.ndarray:
    """What the graph adds to the first output, `[samples, ...]`, one sample after the other."""
    level, session = GraphLevel(quantize(model, ranges, config)), FloatSession(model.original)
    name = session.outputs[0]
    return np.concatenate(
        [level.run({"x": row[np.newaxis]})[name] - session.run({"x": row[np.newaxis]})[name] for row in x]
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_qmo_30_mean_errors_of_outputs_are_measured_and_taken_back(groups: int) -> None:
    model, x = network(groups=groups), images(48)
    config = Config.parse({"quantize": {"weight_bits": 4}})
    samples = Samples.of({"x": x}, model.inputs)
    plain = replace(calibrate(model, samples, config), means={})  # layer by layer nothing is taken back
    found = centred(model, plain, samples, config)
    before = errors_by_sample(model, plain, x, config).astype(np.float64)
    assert list(found.errors) == ["y"]
    np.testing.assert_allclose(found.errors["y"].values, sure_share(before) * before.mean(0), rtol=1e-6)
    after = errors_by_sample(model, found, x, config).astype(np.float64)
    # All but what may be chance has gone, and with it its power.
    assert (after.mean(0) ** 2).sum() < (before.mean(0) ** 2).sum() / 3
    assert (after**2).sum() < (before**2).sum()
    assert centred(model, found, samples, config) == found  # measured anew, not added up


def test_qmo_30_errors_are_kept_with_ranges(tmp_path: Path) -> None:
    model, samples = network(), Samples.of({"x": images(16)}, network().inputs)
    narrow = Config.parse({"quantize": {"weight_bits": 4}})
    found = centred(model, replace(calibrate(model, samples), means={}), samples, narrow)
    found.save(tmp_path / "ranges.json")
    assert Ranges.load(tmp_path / "ranges.json") == found
    assert found.errors
    without = Config.parse({"quantize": {"bias_correction": False}})
    assert not centred(model, found, samples, without).errors
    plain = quantize(model, calibrate(model, samples), without).to_json()
    assert quantize(model, found, without).to_json() == plain


def test_qmo_30_a_build_measures_errors_with_samples_and_takes_saved_ones_as_they_are(tmp_path: Path) -> None:
    model, x = network(), images(24)
    np.savez(tmp_path / "calib.npz", x=x)
    config = Config.parse({"quantize": {"weight_bits": 4}})
    samples = Samples.of({"x": x}, model.inputs)
    plain = replace(calibrate(model, samples, config), means={})
    shown = Request(tmp_path / "model.onnx", calibration=tmp_path / "calib.npz", config=config)
    told: list[str] = []
    found = with_errors(model, plain, shown, Listener(remark=told.append))
    assert found == centred(model, plain, samples, config)
    assert "1 last layers" in told[0]
    found.save(tmp_path / "ranges.json")
    saved = replace(shown, calibration=None, ranges=tmp_path / "ranges.json")
    assert with_errors(model, Ranges.load(tmp_path / "ranges.json"), saved, Listener()) == found


def test_last_layers_are_found_through_views_and_a_softmax() -> None:
    model = heads()
    found = last_layers(model.model.graph)
    assert len(found) == 3
    assert len(list(model.model.graph)) > len(found) + 1
    x = np.random.default_rng(1).uniform(0, 1, (12, 4, 6, 6)).astype(np.float32)
    samples = Samples.of({"x": x}, model.inputs)
    ranges = centred(model, calibrate(model, samples), samples, Config())
    assert set(ranges.errors) <= {layer.summed for layer in found}
    assert all(len(each.values) in {4, 5} and each.axis == 1 for each in ranges.errors.values())


@given(st.integers(2, 40), st.floats(0, 3), st.integers(0, 1000))
def test_the_sure_share_of_a_mean(count: int, mean: float, seed: int) -> None:
    errors = mean + np.random.default_rng(seed).standard_normal((count, 3))
    share = sure_share(errors)
    assert 0 <= share <= 1
    assert share <= sure_share(errors + np.sign(errors.mean(0)))  # the farther from zero, the surer
    assert sure_share(np.full((count, 3), mean + 1)) == 1.0
    assert sure_share(errors[:1]) == 0.0


def test_what_is_chance_is_mostly_left() -> None:
    rng = np.random.default_rng(0)
    shares = [sure_share(rng.standard_normal((20, 10))) for _ in range(200)]
    assert np.mean(shares) < 0.25
