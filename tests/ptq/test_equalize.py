"""Factors by channel: floats stay as they are, codes fit better, whoever shows codes multiplies again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tpuflow.calibration import calibrate
from tpuflow.config import Config
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.execution.levels import GraphLevel
from tpuflow.export import quantized_onnx
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import Graph, lower
from tpuflow.ptq import better_equalized, noted_factors
from tpuflow.ptq.channels import Channels
from tpuflow.ptq.confirmation import calibrated_graph
from tpuflow.ptq.equalization import equalize_channels, scale_channels, smooth_channels
from tpuflow.ptq.seen_channels import SeenChannels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def load_nodes(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, NDArray[np.float64]],
    shape: list[int],
    out: list[int],
) -> FloatModel:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return load(model)


def uneven(seed: int, spread: float = 3.0) -> FloatModel:
    """Convolutions, plain, depthwise and in a residual block, with a concatenation; channels differ much."""
    rng = np.random.default_rng(seed)

    def conv(out: int, inner: int, kernel: int) -> NDArray[np.float64]:
        rows = np.exp2(rng.uniform(-spread, spread, (out, 1, 1, 1)))
        weights: NDArray[np.float64] = rng.standard_normal((out, inner, kernel, kernel)) * rows
        return weights / math.sqrt(inner * kernel**2)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="depth", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], name="point"),
        helper.make_node("Add", ["c3", "r1"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["m", "m"], ["cat"], axis=1),
        helper.make_node("Conv", ["cat", "w4"], ["c4"], name="last"),
        helper.make_node("GlobalAveragePool", ["c4"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w5", "b5"], ["y"], name="dense"),
    ]
    weights = {
        "w1": conv(8, 3, 3), "b1": rng.standard_normal(8), "w2": conv(8, 1, 3), "w3": conv(8, 8, 1),
        "w4": conv(6, 16, 1), "w5": rng.standard_normal((6, 4)), "b5": rng.standard_normal(4),
    }  # fmt: skip
    return load_nodes(nodes, weights, [1, 3, 6, 6], [1, 4])


def images(count: int, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 3, 6, 6)).astype(np.float32)


def samples_of(model: FloatModel, count: int = 16) -> Samples:
    return Samples.of({"x": images(count)}, model.inputs)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
@pytest.mark.feature("GCA-08")
def test_any_factors_leave_floats_as_they_are(seed: int) -> None:
    model = uneven(seed)
    channels = Channels.of(model.model.graph)
    factors = np.exp2(np.random.default_rng(seed).integers(-6, 7, channels.count).astype(np.float64))
    factors[0] = 1.0
    made = scale_channels(model, channels, factors)
    feed = {"x": images(1, seed)}
    plain = FloatSession(model.model, "all").run(feed)
    divided = FloatSession(made.model, "all").run(feed)
    np.testing.assert_array_equal(divided["y"], plain["y"])  # powers of two: to the bit
    ids = {value.name: numbers for value, numbers in channels.ids.items()}
    for name in ("r1", "r2", "s", "cat", "f"):
        np.testing.assert_array_equal(divided[name] * factors[ids[name]], plain[name])
    assert any(np.any(divided[name] != plain[name]) for name in ("r1", "r2", "f"))


def test_channels_that_meet_share_their_factors() -> None:
    model = uneven(0)
    ids = {value.name: numbers for value, numbers in Channels.of(model.model.graph).ids.items()}
    assert np.array_equal(ids["c3"], ids["r1"])  # of a sum
    assert np.array_equal(ids["cat"].ravel(), np.tile(ids["m"].ravel(), 2))
    assert not set(ids["r1"].ravel()) & set(ids["r2"].ravel())  # a convolution lies between
    assert not ids["x"].any()
    assert not ids["y"].any()


@pytest.mark.feature("QMO-29")
def test_equalized_networks_are_closer_and_shown_as_they_were() -> None:
    model = uneven(6)
    samples = samples_of(model)
    found = equalize_channels(SeenChannels.of(model, samples))
    assert found.sets >= 3
    assert found.predicted_db > 3
    evaluator = Evaluator(model, Samples.of({"x": images(64, 77)}, model.inputs))
    graphs = [calibrated_graph(each, samples, Config())[0] for each in (model, found.model)]
    before, after = (evaluator.sqnr_db(graph) for graph in graphs)
    assert after > before + 2
    feed = {"x": images(1, 9)}
    plain = FloatSession(model.model, "all").run(feed)
    for graph, least in zip(graphs, (10, 25), strict=True):
        assert isinstance(graph, Graph)
        shown = GraphLevel(graph).run(feed, all_tensors=True)
        assert {"r1", "r2", "s", "y"} <= shown.keys()
        for name in ("r1", "r2", "s", "y"):
            noise = np.linalg.norm(shown[name] - plain[name]) / np.linalg.norm(plain[name])
            assert -20 * np.log10(noise) > least, name


@pytest.mark.feature("QMO-29")
def test_a_sample_that_stands_out_moves_mild_factors_less() -> None:
    model = uneven(6)
    usual, odd = images(16), images(16)
    odd[0] *= 10

    def change(mild: float) -> float:
        """By how much an outlier moves factors, the mean magnitude of logarithms."""
        plain, moved = (
            noted_factors(equalize_channels(seen, mild=mild).model)
            for seen in (SeenChannels.of(model, Samples.of({"x": x}, model.inputs)) for x in (usual, odd))
        )
        assert plain.keys() == moved.keys()
        ratios = [np.divide(moved[name].values, plain[name].values) for name in plain]
        return float(np.mean([np.abs(np.log2(ratio)).mean() for ratio in ratios]))

    assert 0 < change(1.0) < 0.75 * change(0.0)


@pytest.mark.feature("GCA-17")
def test_factors_that_do_not_help_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = uneven(5)
    told: list[str] = []
    assert better_equalized(model, samples_of(model), Config(), remark=told.append) is not model
    assert not told[0].endswith("not applied")
    monkeypatch.setattr("tpuflow.ptq.equalization.MARGIN_DB", 100.0)
    assert better_equalized(model, samples_of(model), Config(), remark=told.append) is model
    assert told[1].endswith("not applied")


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_equalized_graphs_are_exported_as_they_compute(seed: int) -> None:
    model = uneven(seed)
    samples = samples_of(model)
    equalized = equalize_channels(SeenChannels.of(model, samples)).model
    graph = lower(equalized, calibrate(equalized, samples))
    session = onnxruntime.InferenceSession(
        quantized_onnx(model, graph).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    level = GraphLevel(graph)
    step = graph.tensors[graph.outputs[0]].scale
    assert step is not None
    for image in images(8, 11):
        ours = level.run({"x": image[None]})["y"]
        theirs = session.run(None, {"x": image[None]})[0]
        assert np.abs(ours - theirs).max() <= 2.0 * 256 * step[0]
        assert np.median(np.abs(ours - theirs)) <= step[0]


@pytest.mark.feature("GCA-08")
def test_smooth_quant_moves_reach_from_norms_into_products() -> None:
    rng = np.random.default_rng(0)
    gain = np.exp2(rng.uniform(-4, 4, 16))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1, name="norm"),
        helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 8])],
        [
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in (("g", gain), ("b", gain / 9), ("w", rng.standard_normal((16, 8))))
        ],
    )
    model = load(helper.make_model(graph, opset_imports=opset, ir_version=8))
    x = {"x": rng.standard_normal((12, 5, 16)).astype(np.float32)}
    found = smooth_channels(model, Samples.of(x, model.inputs), 0.5)
    assert found.sets == 1
    feed = {"x": x["x"][:1]}
    plain, made = (FloatSession(each.model, "all").run(feed) for each in (model, found.model))
    np.testing.assert_allclose(made["y"], plain["y"], rtol=1e-4, atol=1e-4)
    reach = [np.abs(each["n"]).max(axis=(0, 1)) for each in (plain, made)]
    assert reach[1].max() / reach[1].min() < 0.3 * reach[0].max() / reach[0].min()
    evaluator = Evaluator(model, Samples.of(x, model.inputs))
    before, after = (
        evaluator.sqnr_db(calibrated_graph(each, Samples.of(x, model.inputs), Config())[0])
        for each in (model, found.model)
    )
    assert after > before
