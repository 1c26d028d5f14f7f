"""What the search widens inside norms and softmax, and the walk that shows layers their operands."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tpuflow
from models.builder import Builder
from ptq.test_gptq import images, network
from tpuflow.config import Config
from tpuflow.errors import SampleError
from tpuflow.evaluation.fidelity import Evaluator, Fidelity
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.ptq import search
from tpuflow.ptq.folds import sample_folds
from tpuflow.ptq.search import DEFAULT, Plan
from tpuflow.ptq.validation import kept_apart, validate_graph
from tpuflow.ptq.walk import Walk


def transformer(seed: int = 0) -> FloatModel:
    """A block: attention of one head behind a norm, added to what it read, a norm and a product."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float64]] = {
        name: rng.standard_normal((8, 8)) / 2 for name in ("wq", "wk", "wv", "wo", "wy")
    }
    weights |= {name: rng.uniform(0.5, 1.5, 8) for name in ("g1", "g2")}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g1"], ["n1"], axis=-1),
        *(helper.make_node("MatMul", ["n1", f"w{name}"], [name]) for name in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "wo"], ["branch"]),
        helper.make_node("Add", ["x", "branch"], ["stream"]),
        helper.make_node("LayerNormalization", ["stream", "g2"], ["n2"], axis=-1),
        helper.make_node("MatMul", ["n2", "wy"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 8])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return load(model)


@pytest.mark.feature("GCA-13")
@pytest.mark.slow
def test_a_search_widens_what_norms_and_softmax_hold() -> None:
    model = transformer()
    x = np.random.default_rng(3).standard_normal((24, 6, 8)).astype(np.float32)
    x[..., 3] *= 20  # one channel outgrows the others, as in streams of transformers
    told: list[str] = []
    narrow = Config.parse({"quantize": {"int16_normalization": False, "int16_softmax": False}})
    found = search(model, Samples.of({"x": x}, model.inputs), narrow, told.append)
    tried = {entry.name: entry for entry in found.candidates}
    assert {"16 bits inside norms", "16 bits inside softmax"} <= tried.keys()
    assert tried["16 bits inside norms"].config.quantize.int16_normalization
    assert tried["16 bits inside softmax"].config.quantize.int16_softmax
    plain = max(e.sqnr_db for e in found.candidates[:8])
    assert max(e.sqnr_db for e in found.candidates) > plain
    level = GraphLevel(found.graph)  # type: ignore[arg-type]
    expected = FloatSession(model.model).run({"x": x[:1]})["y"]
    noise = np.linalg.norm(level.run({"x": x[:1]})["y"] - expected) / np.linalg.norm(expected)
    assert -20 * np.log10(noise) > 25


@pytest.mark.feature("GCA-13")
@pytest.mark.slow
def test_a_search_widens_the_parts_of_a_residual() -> None:
    b = Builder("residual")
    x = b.node("Relu", b.conv(b.input("x", [1, 4, 8, 8]), 8))
    b.output(b.gemm(b.node("Relu", b.node("Add", b.conv(x, 8, (1, 1)), b.conv(x, 8, (1, 1)))), 4))
    for model, there in ((load(b.model()), True), (network(), False)):
        samples = Samples.of({"x": images(16)}, model.inputs)
        found = search(model, samples, remark=lambda _: None, growth=1)
        tried = [entry for entry in found.candidates if entry.name == "16 bits for sums that are added"]
        assert len(tried) == there
        assert all(entry.config.quantize.int16_residual_additions for entry in tried)


@pytest.mark.feature("GCA-13")
def test_samples_that_reach_far_evaluate_and_are_calibrated_with_in_turn() -> None:
    model, x = network(), images(32)
    far = [3, 11, 17, 30]
    x[far] *= np.array([8, 7, 6, 5], np.float32)[:, np.newaxis, np.newaxis, np.newaxis]
    folds = sample_folds(model, Samples.of({"x": x}, model.inputs), Config())
    places = {row.tobytes(): at for at, row in enumerate(x)}
    seen: set[int] = set()
    for shown, (typical, furthest) in folds:
        groups = [{places[row["x"].tobytes()] for row in part.rows()} for part in (shown, typical, furthest)]
        assert sum(map(len, groups)) == len(set().union(*groups)) == 32
        assert len(groups[2] & set(far)) == 2  # the others of them are calibrated with, or typical
        seen |= groups[2]
    assert set(far) <= seen


@pytest.mark.feature("GCA-13")
def test_two_samples_are_enough_for_a_search() -> None:
    model = network()
    (fold,) = sample_folds(model, Samples.of({"x": images(2)}, model.inputs), Config())
    assert (fold[0].count, [part.count for part in fold[1]]) == (1, [1])
    with pytest.raises(SampleError, match="at least two"):
        sample_folds(model, Samples.of({"x": images(1)}, model.inputs), Config())


@pytest.mark.feature("GCA-13")
@pytest.mark.slow
def test_a_search_counts_all_values_unless_told_otherwise() -> None:
    model = network()
    samples = Samples.of({"x": images(8)}, model.inputs)
    for stated, expected in (({}, True), ({"calibrate": {"count_all": False}}, False)):
        found = search(model, samples, Config.parse(stated), growth=1)
        assert found.candidates[0].config.calibrate.count_all is expected


@pytest.mark.slow
def test_what_is_worse_than_the_default_on_samples_kept_apart_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that takes whatever it tried last, which clips half of all values."""
    model = network()
    samples = Samples.of({"x": images(16)}, model.inputs)
    fair = search(model, samples, growth=1)
    assert fair.validation is not None
    assert fair.validation.samples == 8
    assert fair.estimate is not None
    assert fair.estimate.samples == 8
    module = importlib.import_module("tpuflow.ptq.search")
    plans = [
        Plan(Config.parse({"calibrate": {"strategy": each, "count_all": True}}))
        for each in ("mse", "pct[50]")
    ]
    monkeypatch.setattr(module, "_steps", lambda *_: [list(zip(("mse", "half"), plans, strict=True))])
    monkeypatch.setattr("tpuflow.ptq.plans.LOST_DB", 1e3)
    monkeypatch.setattr(Fidelity, "beats", lambda *_: True)
    narrow = Config.parse({"calibrate": {"equalize": False}, "quantize": {"bias_correction": False}})
    told: list[str] = []
    found = search(model, samples, narrow, told.append, growth=1)
    assert [entry.name for entry in found.candidates if entry.kept] == ["mse", "half"]
    assert found.validation is not None
    assert not found.validation.holds
    assert found.name == DEFAULT
    assert told[-1].endswith("the default is taken")
    x = {"x": images(1)}
    default = tpuflow.quantize(model, config=narrow, samples=samples)
    np.testing.assert_array_equal(
        *(next(iter(GraphLevel(each).run(x).values())) for each in (found.graph, default))  # type: ignore[arg-type]
    )


def test_decisions_may_differ_more_often_by_chance_alone() -> None:
    model = network()
    x = images(24)
    evaluator = Evaluator(model, Samples.of({"x": x}, model.inputs))
    graphs = [
        tpuflow.quantize(model, tpuflow.calibrate(model, {"x": x}, config), config)
        for config in (Config(), Config.parse({"calibrate": {"strategy": "pct[60]"}}))
    ]
    flips = [evaluator.flips_by_sample(evaluator.outputs(graph)) for graph in graphs]
    for graph, own in zip(graphs, flips, strict=True):
        assert own.sum() == pytest.approx(evaluator.fidelity(graph).flips * len(x))
    assert flips[1].sum() > flips[0].sum() + 1
    same = validate_graph(evaluator, graphs[0], graphs[0], 24)
    assert same.holds
    assert (same.more_flips, same.standard_error) == (0, 0)
    worse = validate_graph(evaluator, graphs[1], graphs[0], 24)
    assert worse.more_flips > worse.standard_error > 0
    assert not replace(worse, found_db=99.0).holds
    more = np.arange(24) == 0  # one decision of 24 is within its standard error
    one = replace(worse, found_db=99.0, more_flips=1 / 24, standard_error=more.std(ddof=1) / 24**0.5 * 1.0001)
    assert one.holds


@pytest.mark.parametrize(("count", "kept"), [(8, 4), (33, 16), (64, 16), (1000, 128)])
def test_samples_kept_apart_are_not_chosen_with(count: int, kept: int) -> None:
    model = network()
    x = np.ones((count, *images(1).shape[1:]), np.float32)
    x *= np.arange(count, dtype=np.float32)[:, None, None, None]
    parts = kept_apart(Samples.of({"x": x}, model.inputs))
    assert parts is not None
    shown, apart = ({float(row["x"].flat[0]) for row in part.rows()} for part in parts)
    assert len(apart) == kept
    assert shown.isdisjoint(apart)


def test_of_few_samples_a_search_chooses_nothing() -> None:
    model = network()
    samples = Samples.of({"x": images(7)}, model.inputs)
    told: list[str] = []
    found = search(model, samples, remark=told.append)
    assert (found.name, found.candidates, found.estimate) == (DEFAULT, (), None)
    assert told[0] == "7 samples: too few to choose by, the default recipe is taken"


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_a_walk_gives_what_the_whole_model_computes(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuflow.ptq.walk.LIMIT", limit)
    model, x = network(), images(5)
    walk = Walk(model.model, ["x", "r1", "f"], Samples.of({"x": x}, model.inputs))
    session = FloatSession(model.model, ["r1", "f"])
    for name in ("x", "r1", "f"):
        found = list(walk.upto(name))
        assert len(found) == 5
        for row, array in zip(x, found, strict=True):
            expected = row[np.newaxis] if name == "x" else session.run({"x": row[np.newaxis]})[name]
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
