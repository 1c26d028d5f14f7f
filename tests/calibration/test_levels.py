"""Inputs that lie on a grid of 8 bits are stored on that grid, without any rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tpuflow.calibration import CalibrationConfig, calibrate, collect, fit, load_statistics, save_statistics
from tpuflow.calibration.levels import Levels
from tpuflow.config import Config
from tpuflow.errors import RangesError
from tpuflow.execution.levels import graph_level
from tpuflow.frontend import FloatModel, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.strategies.fitting import grid_range

CODES = st.lists(st.integers(0, 255), min_size=16, max_size=256, unique=True).filter(
    lambda codes: any(b - a == 1 for a, b in zip(sorted(codes), sorted(codes)[1:], strict=False))
)
"""Codes of 8 bits, two of them neighbours: the least difference is the step."""


def network() -> FloatModel:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def observed(values: NDArray[np.float32]) -> Levels:
    levels = Levels()
    levels.observe(values)
    return levels


@given(CODES, st.integers(0, 255), st.floats(1e-4, 1e4))
def test_the_step_of_codes_is_found_and_its_range_holds_them(
    codes: list[int], zero: int, scale: float
) -> None:
    values = ((np.array(codes) - zero) * scale).astype(np.float32)
    step = observed(values).step()
    assert step == pytest.approx(scale, rel=1e-5)
    assert step is not None
    found = grid_range(float(values.min()), float(values.max()), step, 255)
    if found is None:  # zero and the codes span more than 8 bits
        assert max(0, *(code - zero for code in codes)) - min(0, *(code - zero for code in codes)) > 255
        return
    low, high = found
    assert low <= 0 <= high
    assert (high - low) / step == pytest.approx(255)
    assert low - step / 2 < values.min()
    assert values.max() < high + step / 2
    assert low / step == pytest.approx(round(low / step))


@given(CODES, st.integers(0, 256))
@pytest.mark.feature("CAL-29")
def test_levels_do_not_depend_on_shards(codes: list[int], cut: int) -> None:
    values = (np.array(codes) / 255).astype(np.float32)
    whole, first, second = observed(values), observed(values[:cut]), observed(values[cut:])
    first.merge(second)
    assert whole.values is not None
    assert first.values is not None
    np.testing.assert_array_equal(whole.values, first.values)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=4096),
        np.arange(1000.0),  # more than 8 bits
        np.array([0.0, 1.0]),  # too few to tell
        np.append(np.arange(100.0), 0.5 * np.pi),
        np.array([]),
    ],
)
def test_what_lies_on_no_grid_has_no_step(values: NDArray[np.float64]) -> None:
    assert observed(values.astype(np.float32)).step() is None


@pytest.mark.feature("NUM-03")
def test_inputs_of_8_bits_are_stored_without_rounding(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = ((rng.integers(10, 240, (6, 64)) - 83) * 0.5847).astype(np.float32)
    model = network()
    samples = Samples.of({"x": x}, model.inputs)
    graph = lower(model, calibrate(model, samples, Config()), Config())
    port = graph.tensors[graph.inputs[0]]
    assert port.scale is not None
    back = np.rint(x / port.scale) * port.scale
    np.testing.assert_allclose(back, x, atol=1e-4)
    # What lies in between, or is calibrated by its extrema, keeps its range.
    own = Config.parse({"calibrate": {"strategy": "extrema"}})
    assert calibrate(model, samples, own).tensors["x"].pairs == ((float(x.min()), float(x.max())),)

    statistics = collect(model, samples, CalibrationConfig())
    save_statistics(statistics, tmp_path / "statistics.json")
    again = load_statistics(tmp_path / "statistics.json")
    assert fit(again, CalibrationConfig()) == fit(statistics, CalibrationConfig())
    text = (tmp_path / "statistics.json").read_text(encoding="utf-8")
    (tmp_path / "wrong.json").write_text(text.replace('"step": 0.', '"step": -0.'), encoding="utf-8")
    with pytest.raises(RangesError, match='"step" must be positive'):
        load_statistics(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("dtype", "layer", "narrow"), [("int8", "x", "float32"), ("float32", "relu", "int8")]
)
def test_floats_are_calibrated_for_the_codes_they_are_cast_to(dtype: str, layer: str, narrow: str) -> None:
    """An image in floats that is read in 8 bits is cast without error, whichever is the exception."""
    model = network()
    config = Config.parse({"quantize": {"dtype": dtype}, "layers": [{"names": [layer], "dtype": narrow}]})
    image = (np.random.default_rng(0).integers(0, 256, (8, 64)) / 255).astype(np.float32)
    ranges = calibrate(model, Samples.of({"x": image}, model.inputs), config)
    graph = lower(model, ranges, config)
    found = graph_level(graph).run({"x": image[:1]})["y"]
    np.testing.assert_allclose(found, image[:1], atol=0.5 / 255 + 1e-6)
