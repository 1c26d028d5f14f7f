"""Calibration of small networks: every float value is seen, in segments as in one piece."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from tpuflow.calibration import STRATEGIES, CalibrationConfig, Range, Statistics, calibrate, collect, fit
from tpuflow.calibration.statistics_file import load_statistics, save_statistics
from tpuflow.config import Config
from tpuflow.errors import RangesError, SampleError
from tpuflow.frontend import FloatModel, Port, generate_samples, load
from tpuflow.frontend.activations import CLAMPED, ActivationSession
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower, plan

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COUNTING = [name for name in STRATEGIES if name != "in_ir"]
"""Strategies that choose a range by what was counted."""


BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,8,8] image, int64[2] pick) => (float[1,4,4,4] pooled, float[1,3,8,2] picked)
<float[4,3,3,3] w = {WEIGHTS}, float[1] half = {0.5}>
{
    conv = Conv <pads = [1,1,1,1]> (image, w)
    relu = Relu(conv)
    scaled = Mul(relu, half)
    joined = Add(scaled, conv)
    pooled = MaxPool <kernel_shape = [2,2], strides = [2,2]> (joined)
    picked = Gather <axis = 3> (image, pick)
}
"""


def network() -> ir.Model:
    weights = ", ".join(str(round(np.sin(k), 3)) for k in range(108))
    model = ir.from_onnx_text(BRANCHES.replace("WEIGHTS", weights))
    with_shapes = ShapeInferencePass()(model).model
    assert all(value.shape is not None for node in with_shapes.graph for value in node.outputs)
    return with_shapes


PORTS = (
    Port("image", (1, 3, 8, 8), np.dtype(np.float32)),
    Port("pick", (2,), np.dtype(np.int64)),
)


def float_model() -> FloatModel:
    return FloatModel(network(), network(), None, PORTS, ())


def arrays(count: int = 5) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(1)
    return {
        "image": generator.standard_normal((count, 3, 8, 8), np.float32),
        "pick": generator.integers(0, 8, (count, 2)),
    }


def samples() -> Samples:
    return Samples.of(arrays(), PORTS)


FLOAT_VALUES = ["image", "conv", "relu", "scaled", "joined", "pooled", "picked"]


def reference_extrema() -> dict[str, Range]:
    """Every value in one onnxruntime session without optimisation, all samples at once."""
    model = network()
    model.graph.outputs.extend(
        value for node in model.graph for value in node.outputs if value not in model.graph.outputs
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    seen: dict[str, list[float]] = {name: [0.0] for name in FLOAT_VALUES}
    for batch in samples().batches():
        computed = dict(zip(names, session.run(None, batch.arrays), strict=True)) | batch.arrays
        for name in FLOAT_VALUES:
            seen[name] += [float(computed[name].min()), float(computed[name].max())]
    return {name: Range(min(values), max(values)) for name, values in seen.items()}


def test_every_float_value_is_calibrated() -> None:
    told: list[tuple[int, int]] = []
    ranges = calibrate(
        float_model(),
        samples(),
        CalibrationConfig(strategy="extrema"),
        lambda done, count: told.append((done, count)),
    )
    expected = reference_extrema()
    assert set(ranges.tensors) == set(expected)
    for name, found in ranges.tensors.items():
        assert found.pairs[0] == pytest.approx(expected[name].pairs[0], rel=1e-6)
    assert (ranges.samples, ranges.strategy) == (5, "extrema")
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


@pytest.mark.feature("CAL-30", "MSC-18")
def test_segments_compute_the_same_and_forget_early() -> None:
    model = network()
    batch = next(samples().batches())
    whole = ActivationSession(model, memory_bytes=1 << 20)
    single = ActivationSession(model, memory_bytes=1)
    assert (whole.segments, single.segments) == (1, 6)
    (expected,) = whole.run(batch.arrays)
    found = list(single.run(batch.arrays))
    assert [len(part) for part in found] == [2, 1, 1, 1, 1, 1]
    merged = {name: array for part in found for name, array in part.items()}
    assert set(merged) == set(expected) == set(FLOAT_VALUES)
    for name, array in merged.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6)
    # `image` is read last by `picked`, `conv` by `joined`.
    reads = [segment.last_read for segment in single._segments]
    assert [sorted(names) for names in reads] == [
        [],
        [],
        ["relu"],
        ["conv", "scaled"],
        ["joined", "pooled"],
        ["image", "pick", "picked"],
    ]


@pytest.mark.parametrize("strategy", COUNTING)
@pytest.mark.feature("CAL-29")
def test_shards_in_order_give_the_same_ranges(strategy: str) -> None:
    config = CalibrationConfig(strategy=strategy)
    shards = [
        Samples.of({name: array[part] for name, array in arrays().items()}, PORTS)
        for part in (slice(0, 2), slice(2, 5))
    ]
    first, second = (collect(float_model(), shard, config) for shard in shards)
    first.merge(second)
    assert fit(first, config).to_json() == calibrate(float_model(), samples(), config).to_json()


@pytest.mark.feature("CAL-29")
@pytest.mark.slow
def test_the_number_of_threads_does_not_show() -> None:
    script = (
        "import numpy as np\n"
        "from tpuflow.calibration import *\n"
        "x = np.random.default_rng(0).standard_normal(500_000, np.float32)\n"
        "statistics = Statistics(2048)\n"
        "statistics.observe({'x': x, 'y': x[:1000] ** 2})\n"
        "statistics.samples = 1\n"
        "ways = [CalibrationConfig(strategy=name) for name in STRATEGIES if name != 'in_ir']\n"
        "print([fit(statistics, way).to_json() for way in ways])\n"
        "statistics.whole = False\n"
        "statistics.observe({'z': x ** 3})\n"
        "print([fit(statistics, way).to_json() for way in ways if way.strategy != 'pct'])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={"RAYON_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for threads in ("1", "3")
    }
    assert len(outputs) == 1
    assert "strategy" in outputs.pop()


LARGE = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,150,160] x) => (float[1,3,150,160] y, float[1,3,10,10] small)
<int64[2] start = {0,0}, int64[2] end = {10,10}, int64[2] axes = {2,3}>
{
    y = Tanh(x)
    small = Slice(y, start, end, axes)
}
"""
"""72000 values a sample, more than are all counted."""


def large() -> tuple[FloatModel, dict[str, NDArray[np.float32]]]:
    data = np.random.default_rng(11).standard_normal((6, 3, 150, 160), np.float32)
    data[4, 1, 77, 3] = 40.0
    return load(onnx.parser.parse_model(LARGE)), {"x": data}


def test_of_large_tensors_a_part_stands_for_all_values() -> None:
    model, data = large()
    part, whole = (
        collect(model, Samples.of(data, model.inputs), CalibrationConfig(count_all=each))
        for each in (False, True)
    )
    for name, ours in part.tensors.items():
        assert ours.batches == whole.tensors[name].batches
        assert ours.counts.extrema == whole.tensors[name].counts.extrema
    assert (whole.tensors["x"].counts.count, whole.tensors["small"].counts.count) == (6 * 72_000, 6 * 300)
    assert abs(part.tensors["x"].counts.count - 6 * 72_000) < 6 * 720
    assert list(part.tensors["x"].counts.positive) != list(whole.tensors["x"].counts.positive)
    assert list(part.tensors["small"].counts.positive) == list(whole.tensors["small"].counts.positive)
    # The few largest values, which clipping rests on, are counted one by one.
    far = int(20 / whole.tensors["x"].counts.width)
    assert list(part.tensors["x"].counts.positive[far:]) == list(whole.tensors["x"].counts.positive[far:])


def test_percentiles_count_all_values() -> None:
    model, data = large()
    for strategy, expected in (("pct[99.9]", True), ("mse", False), ("kld", False)):
        found = collect(model, Samples.of(data, model.inputs), CalibrationConfig(strategy=strategy))
        assert (found.tensors["x"].counts.count == 6 * 72_000) is expected


def test_percentiles_of_a_part_are_refused_also_from_a_file(tmp_path: Path) -> None:
    model, data = large()
    for count_all in (False, True):
        found = collect(model, Samples.of(data, model.inputs), CalibrationConfig(count_all=count_all))
        save_statistics(found, tmp_path / "counted.json")
        kept = load_statistics(tmp_path / "counted.json")
        for each in (found, kept):
            assert [tensor.part for tensor in each.tensors.values()] == [not count_all, not count_all, False]
            if count_all:
                fit(each, CalibrationConfig(strategy="pct[99.9]"))
            else:
                with pytest.raises(RangesError, match=r'^tensor "x": a part of its values was counted'):
                    fit(each, CalibrationConfig(strategy="pct[99.9]"))


@pytest.mark.parametrize("strategy", ["mse", "kld", "std"])
@pytest.mark.feature("CAL-29")
def test_shards_of_large_tensors_give_the_same_ranges(strategy: str) -> None:
    model, data = large()
    config = CalibrationConfig(strategy=strategy)
    first, second = (
        collect(model, Samples.of({"x": data["x"][cut]}, model.inputs), config)
        for cut in (slice(0, 2), slice(2, 6))
    )
    first.merge(second)
    assert fit(first, config).to_json() == calibrate(model, data, config).to_json()


CLAMPS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x) => (float[1,4] y, float[1,4] b)
<float[4,4] w = {1,0,2,0, 0,-1,0,3, 1,1,0,0, 0,0,-2,1},
 float[4] c = {1,-1,2,-2}, float six = {6}, float zero = {0}>
{
    a = MatMul(x, w)
    a_clamped = Clip(a, zero, six)
    b = MatMul(a_clamped, w)
    b_relu = Relu(b)
    d = Add(b_relu, c)
    d_relu = Relu(d)
    e = MatMul(d_relu, w)
    e_sigmoid = Sigmoid(e)
    f = Mul(e_sigmoid, e)
    g = Sigmoid(f)
    y = Relu(g)
}
"""


def test_what_only_a_clamp_reads_is_not_observed_and_not_needed() -> None:
    model = load(onnx.parser.parse_model(CLAMPS))
    data = {"x": np.random.default_rng(3).standard_normal((4, 4), np.float32)}
    ranges = calibrate(model, data)
    computed = {value.name for node in model.model.graph for value in node.outputs}
    # `b` is returned, `e` read twice, and a table for `g` is no sum.
    assert {"a", "d"} & set(ranges.tensors) == set()
    assert computed - set(ranges.tensors) == {"a", "d"} & computed
    assert {"a", "d"} <= computed
    lower(model, ranges)


def test_the_quantizer_clamps_what_is_not_observed() -> None:
    assert plan.LINEAR | plan.CLAMPING >= CLAMPED


def test_memory_is_reused_from_run_to_run_without_a_trace() -> None:
    session = ActivationSession(network(), memory_bytes=1 << 20)
    batches = [batch.arrays for batch in samples().batches()]
    for feeds in batches:
        (expected,) = ActivationSession(network(), memory_bytes=1 << 20).run(feeds)
        (found,) = session.run(feeds)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    (first,), (second,) = session.run(batches[0]), session.run(batches[1])
    assert first["pooled"] is second["pooled"]


EXPONENTIAL = '<ir_version: 8, opset_import: ["" : 17]> net (float[1,2] x) => (float[1,2] y) { y = Exp(x) }'


def test_a_value_that_overflows_is_named() -> None:
    model = load(onnx.parser.parse_model(EXPONENTIAL))
    data = {"x": np.array([[1, 2], [3, 400]], np.float32)}
    with pytest.raises(SampleError, match=r'tensor "y": 1 of 2 values are NaN or infinite at sample 1'):
        calibrate(model, data)
    with pytest.raises(SampleError, match='samples: input "x" is missing, there is none'):
        calibrate(model, {})


@pytest.mark.feature("QMO-16")
def test_generated_samples_and_the_default_configuration() -> None:
    model = load(onnx.parser.parse_model(EXPONENTIAL))
    ranges = calibrate(model, Samples.of_feeds(generate_samples(model, 3), model.inputs))
    assert (ranges.samples, ranges.strategy) == (3, CalibrationConfig().strategy)
    assert set(ranges.tensors) == {"x", "y"}
    stacked = {"x": np.concatenate([feed["x"] for feed in generate_samples(model, 3)])}
    assert calibrate(model, stacked).to_json() == ranges.to_json()


def test_a_whole_configuration_calibrates_every_tensor_for_its_grid() -> None:
    model = float_model()
    data = arrays(2)
    data["image"][0, 0, 0, 0] = 500  # what 8 bits are better off without, and 16 bits keep

    def pairs(config: Config | CalibrationConfig) -> dict[str, Range]:
        return dict(calibrate(model, data, config).tensors)

    eight, sixteen = pairs(CalibrationConfig()), pairs(CalibrationConfig(bits=16, symmetric=True))
    symmetric = pairs(CalibrationConfig(symmetric=True))
    assert eight["conv"] != sixteen["conv"] != symmetric["conv"] != eight["conv"]
    assert pairs(Config()) == eight
    assert pairs(Config.parse({"quantize": {"dtype": "int16"}})) == sixteen
    assert pairs(Config.parse({"quantize": {"activation_mode": "symmetric_full"}})) == symmetric
    mixed = Config.parse({"layers": [{"match": "conv", "dtype": "int16"}]})
    assert pairs(mixed) == eight | {"conv": sixteen["conv"]}
    # What the section says itself wins.
    stated = Config.parse({"quantize": {"dtype": "int16"}, "calibrate": {"bits": 8, "symmetric": False}})
    assert pairs(stated) == eight


MASKED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4,4] x, float[1,4,4] mask) => (float[1,4,4] y)
{
    scores = Add(x, mask)
    y = Softmax <axis = -1> (scores)
}
"""


@pytest.mark.parametrize("mask", [-np.inf, np.finfo(np.float32).min, -1e31])
@pytest.mark.parametrize("strategy", COUNTING)
def test_masks_do_not_count_and_are_reported_once(
    mask: float, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ir.from_onnx_text(MASKED)
    masks = model.graph.inputs.pop()
    masks.const_value = ir.tensor(np.triu(np.full((1, 4, 4), mask, np.float32), 1), name="mask")
    model.graph.initializers["mask"] = masks
    ports = (Port("x", (1, 4, 4), np.dtype(np.float32)),)
    data = {"x": np.random.default_rng(0).standard_normal((3, 4, 4), np.float32)}
    config = CalibrationConfig(strategy=strategy)
    found = calibrate(FloatModel(model, model, None, ports, ()), data, config).tensors
    seen = np.where(np.tri(4, dtype=bool), data["x"], np.float32(0))
    ((low, high),) = found["scores"].pairs
    reach = float(np.abs(seen).max())  # grids of equal sides may reach beyond one of them
    assert -reach <= low < 0 < high <= reach
    told = [record.getMessage() for record in caplog.records if "masks" in record.getMessage()]
    assert told == [
        '18 values beyond 1e30 in magnitude were taken for masks and left out of the ranges of "scores"'
    ]


def test_a_tensor_of_masks_alone_has_an_empty_range() -> None:
    statistics = Statistics(64)
    statistics.observe({"x": np.full(3, -np.inf, np.float32)})
    for strategy in COUNTING:
        assert fit(statistics, CalibrationConfig(strategy=strategy)).tensors["x"] == Range(0.0, 0.0)
