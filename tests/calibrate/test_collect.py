"""Calibration of small networks: every float value is seen, in segments as in one piece."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from tpuflow.calibrate import STRATEGIES, CalibrationConfig, Range, calibrate, collect, fit
from tpuflow.calibrate.activations import ActivationSession
from tpuflow.errors import SampleError
from tpuflow.samples import Samples, generated_samples, input_specs

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


def samples(count: int = 5) -> Samples:
    generator = np.random.default_rng(1)
    return Samples.of(
        {
            "image": generator.standard_normal((count, 3, 8, 8), np.float32),
            "pick": generator.integers(0, 8, (count, 2)),
        },
        input_specs(network()),
    )


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
        network(),
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shards_in_order_give_the_same_ranges(strategy: str) -> None:
    config = CalibrationConfig(strategy=strategy)
    specs = input_specs(network())
    rows = list(samples().rows())
    shards = [
        Samples.of({name: np.stack([row[name] for row in part]) for name in part[0]}, specs)
        for part in (rows[:2], rows[2:])
    ]
    first, second = (collect(network(), shard, config) for shard in shards)
    first.merge(second)
    assert fit(first, config).to_json() == calibrate(network(), samples(), config).to_json()


def test_the_number_of_threads_does_not_show() -> None:
    script = (
        "import numpy as np\n"
        "from tpuflow.calibrate import *\n"
        "x = np.random.default_rng(0).standard_normal(500_000, np.float32)\n"
        "statistics = Statistics(2048)\n"
        "statistics.observe({'x': x, 'y': x[:1000] ** 2})\n"
        "statistics.samples = 1\n"
        "print([fit(statistics, CalibrationConfig(strategy=name)).to_json() for name in STRATEGIES])\n"
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


def test_a_value_that_overflows_is_named() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1,2] x) => (float[1,2] y) { y = Exp(x) }'
    )
    specs = input_specs(model)
    data = Samples.of({"x": np.array([[1, 2], [3, 400]], np.float32)}, specs)
    with pytest.raises(SampleError, match=r'tensor "y": 1 of 2 values are NaN or infinite at sample 1'):
        calibrate(model, data)


def test_default_configuration_and_generated_samples() -> None:
    model = network()
    data = generated_samples(input_specs(model), count=3, seed=7)
    ranges = calibrate(model, data)
    assert (ranges.samples, ranges.strategy) == (3, CalibrationConfig().strategy)
    assert (
        ranges.to_json() == calibrate(model, generated_samples(input_specs(model), count=3, seed=7)).to_json()
    )
