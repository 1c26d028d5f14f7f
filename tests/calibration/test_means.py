"""Means by channel: exact whatever the order, kept in the file of ranges, and what biases make of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from tpuflow import _core
from tpuflow.calibration import CalibrationConfig, Means, Range, Ranges, Statistics, calibrate, collect
from tpuflow.calibration.means import ChannelSums
from tpuflow.config import Config
from tpuflow.errors import RangesError
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower

if TYPE_CHECKING:
    from numpy.typing import NDArray

VALUES = st.floats(-1e6, 1e6, width=32)
BATCHES = st.lists(hnp.arrays(np.float32, (2, 3, 1, 1), elements=VALUES), min_size=1, max_size=8)


def network(weights: NDArray[np.float32]) -> FloatModel:
    """A convolution without bias over 4x4 images of three channels."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weights.shape[0], 4, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return load(model)


def shard(batches: list[NDArray[np.float32]]) -> Statistics:
    statistics = Statistics(None, sums={"x": ChannelSums(1)})
    for batch in batches:
        statistics.observe({"x": batch})
    return statistics


@given(BATCHES, st.integers(0, 8))
@pytest.mark.feature("CAL-29")
def test_means_do_not_depend_on_shards(batches: list[NDArray[np.float32]], cut: int) -> None:
    whole, first, second = (shard(part) for part in (batches, batches[:cut], batches[cut:]))
    first.merge(second)
    expected = [math.fsum(float(v) for b in batches for v in b[:, c].ravel()) for c in range(3)]
    found = tuple(float(np.float32(total / (2 * len(batches)))) for total in expected)
    means = whole.sums["x"].means()
    assert means == first.sums["x"].means() == pytest.approx(found, rel=1e-7, abs=1e-38)


def pairwise(values: NDArray[np.float32]) -> np.float32:
    """A sum in float32, in halves down to 128 values, of which every eighth is summed apart."""
    if len(values) > 128:
        half = len(values) // 2 // 8 * 8
        return pairwise(values[:half]) + pairwise(values[half:])
    whole = len(values) // 8 * 8
    lanes = [np.float32(0)] * 8
    for at, value in enumerate(values[:whole]):
        lanes[at % 8] += value
    while len(lanes) > 1:
        lanes = [a + b for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
    (total,) = lanes
    for value in values[whole:]:
        total += value
    return total


@pytest.mark.parametrize("shape", [(2, 3, 1), (1, 3, 49), (2, 2, 7), (3, 2, 12, 25), (1, 2, 1000)])
@pytest.mark.feature("CAL-29")
def test_planes_are_summed_pairwise(shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(4).standard_normal(shape) * 100).astype(np.float32)
    planes = values.reshape(*shape[:2], -1)
    expected = [sum(float(pairwise(planes[n, c])) for n in range(shape[0])) for c in range(shape[1])]
    ((_, _, _, sums),) = _core.observe([values], [], [1])
    assert sums.tolist() == expected


@pytest.mark.feature("CAL-29")
def test_rows_are_summed_in_order() -> None:
    rows = (np.random.default_rng(5).standard_normal((40, 3)) * 100).astype(np.float32)
    ((_, _, _, sums),) = _core.observe([rows], [], [1])
    assert sums.tolist() == [sum(float(value) for value in column) for column in rows.T]


def test_column_major_arrays_are_refused() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for axis in (None, 1):
        with pytest.raises(ValueError, match="row-major"):
            _core.observe([np.asfortranarray(values)], [], [axis])
    ((_, _, _, sums),) = _core.observe([np.ascontiguousarray(np.asfortranarray(values))], [], [1])
    assert sums.tolist() == [60.0, 92.0, 124.0]


def test_means_are_kept_in_the_file() -> None:
    ranges = Ranges({"x": Range(-1.0, 1.0)}, 4, "mse", {"x": Means(1, (0.25, -0.5))})
    assert Ranges.from_json(ranges.to_json()) == ranges


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"axis": -1, "mean": [1]}, "axis"),
        ({"axis": 1, "mean": []}, "mean"),
        ({"axis": 1, "mean": ["a"]}, r"mean\[0\]"),
        ({"axis": 1}, "mean"),
    ],
)
def test_means_that_are_none(entry: dict[str, Any], wrong: str) -> None:
    import json  # noqa: PLC0415 - only here

    text = json.dumps({"format": 1, "tensors": {}, "means": {"x": entry}})
    with pytest.raises(RangesError, match=wrong):
        Ranges.from_json(text)


@pytest.mark.feature("QMO-30")
def test_bias_correction_takes_the_mean_error_back() -> None:
    rng = np.random.default_rng(0)
    model = network(rng.standard_normal((8, 3, 1, 1)).astype(np.float32))
    images = rng.uniform(0, 1, (16, 3, 4, 4)).astype(np.float32)
    ranges = calibrate(model, {"x": images}, Config.parse({"quantize": {"weight_bits": 4}}))
    found = {}
    for corrected in (False, True):
        config = Config.parse({"quantize": {"weight_bits": 4, "bias_correction": corrected}})
        level = GraphLevel(lower(model, ranges, config))
        session = FloatSession(model.original)
        errors = [level.run({"x": x[None]})["y"] - session.run({"x": x[None]})["y"] for x in images]
        found[corrected] = np.abs(np.mean(errors, axis=(0, 1, 3, 4))).max()
    assert found[False] > 0.01
    assert found[True] < found[False] / 10


def test_statistics_of_shards_keep_their_sums() -> None:
    model = network(np.ones((1, 3, 1, 1), np.float32))
    images = np.random.default_rng(1).standard_normal((6, 3, 4, 4)).astype(np.float32)
    parts = [
        collect(model, Samples.of({"x": images[part]}, model.inputs), CalibrationConfig())
        for part in (slice(0, 6), slice(0, 2), slice(2, 6))
    ]
    parts[1].merge(parts[2])
    assert parts[0].sums["x"].means() == parts[1].sums["x"].means()
