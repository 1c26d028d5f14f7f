"""Mean errors of outputs: those of an obvious twin, taken back, kept in a file, left where unsure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.builder import Builder
from ptq.test_gptq import images, network
from tpuflow.calibration import Ranges, calibrate
from tpuflow.config import Config, fingerprint
from tpuflow.errors import RangesError
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import CalibratedModel, CalibrationData, Listener, Recipe, correct_output_bias
from tpuflow.ptq.bias_correction import last_layers, sure_share


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


def written(model: FloatModel, ranges: Ranges, config: Config) -> bytes:
    """The graph as it is saved, with all its constants."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.tpuq"
        lower(model, ranges, config).save(path)
        return path.read_bytes()


def errors_by_sample(model: FloatModel, ranges: Ranges, x: np.ndarray, config: Config) -> np.ndarray:
    """What the graph adds to the first output, `[samples, ...]`, one sample after the other."""
    level, session = GraphLevel(lower(model, ranges, config)), FloatSession(model.original)
    name = session.outputs[0]
    return np.concatenate(
        [level.run({"x": row[np.newaxis]})[name] - session.run({"x": row[np.newaxis]})[name] for row in x]
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.feature("QMO-30")
def test_mean_errors_of_outputs_are_measured_and_taken_back(groups: int) -> None:
    model, x = network(groups=groups), images(48)
    config = Config.parse({"quantize": {"weight_bits": 4}})
    samples = Samples.of({"x": x}, model.inputs)
    plain = replace(calibrate(model, samples, config), means={})  # layer by layer nothing is taken back
    found = correct_output_bias(model, plain, samples, config)
    before = errors_by_sample(model, plain, x, config).astype(np.float64)
    assert list(found.errors) == ["y"]
    np.testing.assert_allclose(found.errors["y"].values, sure_share(before) * before.mean(0), rtol=1e-6)
    after = errors_by_sample(model, found, x, config).astype(np.float64)
    # All but what may be chance has gone, and with it its power.
    assert (after.mean(0) ** 2).sum() < (before.mean(0) ** 2).sum() / 3
    assert (after**2).sum() < (before**2).sum()
    assert correct_output_bias(model, found, samples, config) == found  # measured anew, not added up


@pytest.mark.feature("QMO-30")
def test_errors_are_kept_with_ranges(tmp_path: Path) -> None:
    model, samples = network(), Samples.of({"x": images(48)}, network().inputs)
    narrow = Config.parse({"quantize": {"weight_bits": 4}})
    found = correct_output_bias(model, replace(calibrate(model, samples), means={}), samples, narrow)
    found.save(tmp_path / "ranges.json")
    assert Ranges.load(tmp_path / "ranges.json") == found
    assert found.errors
    assert found.errors_of is not None
    without = Config.parse({"quantize": {"bias_correction": False}})
    assert not correct_output_bias(model, found, samples, without).errors
    plain = written(model, calibrate(model, samples), without)
    assert written(model, found, without) == plain


@pytest.mark.feature("QMO-30")
def test_a_build_measures_errors_with_samples_and_takes_saved_ones_as_they_are(tmp_path: Path) -> None:
    model, x = network(), images(24)
    config = Config.parse({"quantize": {"weight_bits": 4}})
    samples = Samples.of({"x": x}, model.inputs)
    plain = replace(calibrate(model, samples, config), means={})
    recipe = Recipe(config, stages=("correct",))
    told: list[str] = []
    state = CalibratedModel(model, plain)
    found = recipe.calibrate(state, CalibrationData(samples), Listener(remark=told.append)).ranges
    assert found == correct_output_bias(model, plain, samples, config)
    assert told[0] == "bias correction: 1 output layer"
    found.save(tmp_path / "ranges.json")
    saved = CalibrationData(ranges=Ranges.load(tmp_path / "ranges.json"))
    assert Recipe(config).calibrate(model, saved).ranges == found


def mean_errors(model: FloatModel, ranges: Ranges, x: np.ndarray, config: Config) -> list[np.ndarray]:
    """What the graph adds to each output on average over samples, outputs by outputs of the network."""
    level, session = GraphLevel(lower(model, ranges, config)), FloatSession(model.original)
    rows = [{"x": row[np.newaxis]} for row in x]
    found, exact = [level.run(row) for row in rows], [session.run(row) for row in rows]
    return [
        np.mean([a[name].astype(np.float64) - b[name] for a, b in zip(found, exact, strict=True)], axis=0)
        for name in session.outputs
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"quantize": {"dtype": "int16"}},
        {"quantize": {"weight_bits": 8}},
        {"quantize": {"weight_bits": 4, "int16_normalization": False}},
        {"quantize": {"weight_bits": 4}, "layers": [{"match": "*", "weight_bits": 8}]},
    ],
)
@pytest.mark.feature("QMO-30")
def test_errors_of_another_network_are_not_taken_back(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model, samples = network(), Samples.of({"x": images(48)}, network().inputs)
    narrow = Config.parse({"quantize": {"weight_bits": 4}})
    plain = replace(calibrate(model, samples), means={})
    found = correct_output_bias(model, plain, samples, narrow)
    assert found.errors
    config = Config.parse(other)
    assert written(model, found, config) == written(model, plain, config)
    assert "errors kept with the ranges are those of another network" in caplog.text
    caplog.clear()
    # What decides on no code is no other network: how ranges are chosen, or an entry said twice.
    entry = {"match": "*", "strategy": "extrema"}
    same = Config.parse({"quantize": {"weight_bits": 4, "lenient": True}, "layers": [entry]})
    assert written(model, found, same) == written(model, found, narrow)
    assert written(model, found, narrow) != written(model, plain, narrow)
    assert not [each for each in caplog.records if "another network" in each.message]
    unknown = replace(found, errors_of=None)
    assert written(model, unknown, narrow) == written(model, plain, narrow)


@pytest.mark.feature("QMO-30")
def test_entries_said_twice_make_the_same_network() -> None:
    entries = [{"match": "a*", "weight_bits": 4}, {"names": ["b"], "dtype": "int16"}]
    once, twice, turned = (
        fingerprint(Config.parse({"layers": each})) for each in (entries, entries + entries, entries[::-1])
    )
    assert once == twice
    assert once != turned


@pytest.mark.feature("QMO-30")
def test_a_build_of_another_type_leaves_saved_errors_alone(tmp_path: Path) -> None:
    model, samples = network(), Samples.of({"x": images(48)}, network().inputs)
    narrow = Config.parse({"quantize": {"weight_bits": 4}})
    found = correct_output_bias(model, replace(calibrate(model, samples), means={}), samples, narrow)
    found.save(tmp_path / "ranges.json")
    told: list[str] = []
    listener, saved = (
        Listener(remark=told.append),
        CalibrationData(ranges=Ranges.load(tmp_path / "ranges.json")),
    )
    assert Recipe(narrow).calibrate(model, saved, listener).ranges == found
    assert not told
    wide = Recipe(Config.parse({"quantize": {"dtype": "int16"}})).calibrate(model, saved, listener)
    assert wide.ranges is not None
    assert not wide.ranges.errors
    assert "int8, 4-bit weights" in told[0]
    assert "int16, 16-bit weights" in told[0]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.feature("QMO-30")
def test_errors_of_a_wrong_length_are_an_error(count: int) -> None:
    model, samples = network(), Samples.of({"x": images(48)}, network().inputs)
    narrow = Config.parse({"quantize": {"weight_bits": 4}})
    found = correct_output_bias(model, replace(calibrate(model, samples), means={}), samples, narrow)
    (errors,) = found.errors.values()
    assert len(errors.values) not in {1, 4}
    wrong = replace(found, errors={"y": replace(errors, values=(0.5,) * count)})
    with pytest.raises(RangesError, match=f'errors of "y": {count} numbers along axis 1, where') as caught:
        lower(model, wrong, narrow)
    assert "\n" not in str(caught.value)


def test_last_layers_are_found_through_views_and_a_softmax() -> None:
    model = heads()
    found = last_layers(model.model.graph)
    assert len(found) == 3
    assert len(list(model.model.graph)) > len(found) + 1
    x = np.random.default_rng(1).uniform(0, 1, (12, 4, 6, 6)).astype(np.float32)
    samples = Samples.of({"x": x}, model.inputs)
    config = Config.parse({"quantize": {"weight_bits": 4}})
    plain = replace(calibrate(model, samples, config), means={})
    ranges = correct_output_bias(model, plain, samples, config)
    assert ranges.errors
    assert set(ranges.errors) <= {layer.summed for layer in found}
    assert all(len(each.values) in {4, 5} and each.axis == 1 for each in ranges.errors.values())
    before, after = (mean_errors(model, each, x, config) for each in (plain, ranges))
    assert sum((each**2).sum() for each in after) < sum((each**2).sum() for each in before)


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
