"""Ranges that need no samples: stated by the model, or by saved statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tpuflow import _core
from tpuflow.calibration import (
    STRATEGIES,
    Artifacts,
    Ranges,
    calibrate,
    collect,
    fit,
    load_statistics,
    save_artifacts,
    save_statistics,
)
from tpuflow.config import CalibrationConfig, Config
from tpuflow.errors import RangesError, TpuflowError
from tpuflow.frontend import FloatModel, load
from tpuflow.frontend.activations import ActivationSession, handed_out
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower

if TYPE_CHECKING:
    from numpy.typing import NDArray


def network(stated: dict[str, dict[str, Any]] | None = None) -> FloatModel:
    """A convolution, a Relu and a product; `stated` holds metadata by name of a node or of the input."""
    rng = np.random.default_rng(3)
    weights = {"w1": rng.standard_normal((4, 3, 1, 1)), "w2": rng.standard_normal((64, 5)) / 8}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1"),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Flatten", ["r1"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w2"], ["y"], name="product"),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])
    holders: list[onnx.NodeProto | onnx.ValueInfoProto] = [*nodes, image]
    for each in holders:
        for key, value in (stated or {}).get(each.name, {}).items():
            entry = each.metadata_props.add()
            entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    graph = helper.make_graph(
        nodes,
        "small",
        [image],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    return load(model)


STATED: dict[str, dict[str, Any]] = {
    "x": {"layer_top_range": [-3, 2.5]},
    "conv1": {"layer_top_range": [-9, 9], "weights_range": [[-2, 2], [-3, 3], [-4, 4], [-5, 1]]},
    "relu": {"layer_top_range": [[0, 8]]},
    "flat": {"layer_top_range": [0, 8]},
    "product": {"layer_top_range": [-6, 7], "weights_range": [-1, 1]},
}


def images(count: int, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 3, 4, 4)).astype(np.float32)}


@pytest.mark.feature("CAL-09")
def test_ranges_of_the_model_are_used_as_they_are() -> None:
    model = network(STATED)
    config = Config.parse(
        {
            "calibrate": {"strategy": "in_ir"},
            "quantize": {"weight_strategy": "in_ir", "output_dtype": "int8"},
        }
    )
    ranges = calibrate(model, {}, config)  # no sample is read
    told = {"x": ((-3.0, 2.5),), "r1": ((0.0, 8.0),), "y": ((-6.0, 7.0),)}
    assert {name: ranges.tensors[name].pairs for name in told} == told
    graph = lower(model, ranges, config)
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    assert tensors["x"].scale == [float(np.float32(5.5) / np.float32(255))]
    assert tensors["r1"].scale == [float(np.float32(8) / np.float32(255))]
    assert tensors["y"].scale == [float(np.float32(13) / np.float32(255))]
    weights = [tensor.scale for tensor in graph.tensors if tensor.is_constant and tensor.dtype == "int8"]
    assert weights[0] == [float(np.float32(reach) / np.float32(127)) for reach in (2, 3, 4, 5)]
    assert weights[1] == [float(np.float32(1) / np.float32(127))] * 5


@pytest.mark.feature("CAL-09")
def test_a_range_that_is_missing_is_named() -> None:
    model = network({"x": STATED["x"]})
    mixed = Config.parse(
        {"calibrate": {"strategy": "mse"}, "layers": [{"match": "relu", "strategy": "in_ir"}]}
    )
    with pytest.raises(RangesError, match='tensor "r1": the model states no range'):
        calibrate(model, images(2), mixed)
    stated = network({"relu": STATED["relu"]})
    assert calibrate(stated, images(2), mixed).tensors["r1"].pairs == ((0.0, 8.0),)
    weights = Config.parse({"quantize": {"weight_strategy": "in_ir"}})
    with pytest.raises(RangesError, match='"conv1": the model states no range of its weights'):
        lower(stated, calibrate(stated, images(2), weights), weights)
    for wrong in ("[1]", "5", "[[1, 2], 3]", "no"):
        with pytest.raises(RangesError, match=r'node "relu": layer_top_range'):
            calibrate(network({"relu": {"layer_top_range": wrong}}), images(2), mixed)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.sampled_from([4, 64]))
def test_a_histogram_is_what_it_consists_of(values: list[float], bins: int) -> None:
    first = _core.Histogram(bins)
    _core.observe([np.array(values, np.float32)], [first], [None])
    parts = {
        "width": first.width,
        "zeros": first.zeros,
        "negative": first.negative.tolist(),
        "positive": first.positive.tolist(),
        "extrema": first.extrema,
    }
    second = _core.Histogram.of_counts(bins, **parts)
    assert (second.range, second.count, second.width) == (first.range, first.count, first.width)
    assert second.percentile_range(90) == first.percentile_range(90)
    with pytest.raises(ValueError, match="go together"):
        _core.Histogram.of_counts(bins, **(parts | {"extrema": None, "width": 0.0}))


METHODS = [
    *(name for name in STRATEGIES if name not in {"pct", "weighted_scale_param", "in_ir"}),
    "pct[90]", "2std", "3kld", "0.5percentile", "weighted_scale_param[2,0,0,0]",
]  # fmt: skip


@pytest.mark.feature("CAL-14")
def test_saved_statistics_give_the_same_ranges(tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "statistics.json"
    first = Config.parse({"calibrate": {"save_statistic_info": str(path), "strategy": "extrema"}})
    calibrate(model, images(12), first)
    text = path.read_bytes()
    calibrate(model, images(12), first)
    assert path.read_bytes() == text
    for strategy in METHODS:
        told = calibrate(model, images(12), CalibrationConfig(strategy=strategy))
        # Arrays that fit no input show that no sample is read.
        reread = CalibrationConfig(strategy=strategy, statistic_file=str(path))
        again = calibrate(model, {"nothing": np.zeros(3, np.float32)}, reread)
        assert again.to_json() == told.to_json(), strategy
    config = Config.parse({"calibrate": {"statistic_file": str(path)}})
    scales = [
        [tensor.scale for tensor in lower(model, calibrate(model, given_, c), c).tensors]
        for given_, c in ((images(12), Config()), ({}, config))
    ]
    assert scales[0] == scales[1]


@pytest.mark.feature("CAL-15")
def test_what_a_file_lacks_is_an_error_or_seen_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    path = tmp_path / "statistics.json"
    whole = calibrate(model, images(4), CalibrationConfig(save_statistic_info=str(path)))
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["tensors"]["r1"]
    content["tensors"]["x"]["extrema"] = [-50, 50]
    path.write_text(json.dumps(content), encoding="utf-8")
    strict = Config.parse({"calibrate": {"statistic_file": str(path)}})
    with pytest.raises(TpuflowError, match='"r1" has no range'):
        lower(model, calibrate(model, {}, strict), strict)
    assert not caplog.records
    told = {"statistic_file": str(path), "ignore_missing_statistic": True, "strategy": "extrema"}
    lenient = Config.parse({"calibrate": told})
    found = calibrate(model, images(4), lenient)
    assert 'lacks "r1"' in caplog.text
    assert (
        found.tensors["r1"]
        == calibrate(model, images(4), CalibrationConfig(strategy="extrema")).tensors["r1"]
    )
    assert found.tensors.keys() == whole.tensors.keys()
    assert found.tensors["x"].pairs == ((-50.0, 50.0),)
    lower(model, found, lenient)


@pytest.mark.feature("CAL-15")
def test_what_a_file_lacks_is_seen_as_without_a_file(tmp_path: Path) -> None:
    model, path, again = network(), tmp_path / "s.json", tmp_path / "again.json"
    shuffled: dict[str, Any] = {"shuffle": True, "shuffle_seed": 3, "strategy": "mean"}
    calibrate(model, images(6), CalibrationConfig(save_statistic_info=str(path), **shuffled))
    written = path.read_text(encoding="utf-8")
    content = json.loads(written)
    del content["tensors"]["f"], content["means"]["f"]
    path.write_text(json.dumps(content), encoding="utf-8")
    shuffled |= {"statistic_file": str(path), "ignore_missing_statistic": True}
    calibrate(model, images(6), CalibrationConfig(save_statistic_info=str(again), **shuffled))
    found, first = json.loads(again.read_text(encoding="utf-8")), json.loads(written)
    # In the same order, and with histograms though this strategy reads none.
    assert found["tensors"]["f"] == first["tensors"]["f"]
    assert found["tensors"]["f"]["histogram"]
    assert found["means"]["f"] == first["means"]["f"]


@pytest.mark.feature("CAL-15")
def test_samples_are_run_only_where_something_is_missing(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "s.json"
    whole = calibrate(model, images(4), CalibrationConfig(save_statistic_info=str(path)))
    lenient = CalibrationConfig(statistic_file=str(path), ignore_missing_statistic=True)
    steps: list[int] = []
    wrong = {"nothing": np.zeros(3, np.float32)}  # fits no input, and is not looked at
    again = calibrate(model, wrong, lenient, lambda done, _: steps.append(done))
    assert again.to_json() == whole.to_json()
    assert not steps
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["tensors"]["y"]
    path.write_text(json.dumps(content), encoding="utf-8")
    calibrate(model, images(4), lenient, lambda done, _: steps.append(done))
    assert steps == [1, 2, 3, 4]


def test_what_a_session_hands_out_is_known_before_it_runs() -> None:
    model = network()
    (made,) = ActivationSession(model.model, memory_bytes=1 << 20).run(images(1))
    assert set(handed_out(model.model)) == set(made)
    wanted = {"x", "r1"}
    (made,) = ActivationSession(model.model, memory_bytes=1 << 20, wanted=wanted).run(images(1))
    assert set(handed_out(model.model, wanted)) == set(made) == wanted


@pytest.mark.feature("QMO-28")
@pytest.mark.slow
def test_saved_statistics_drop_the_same_outliers(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "s.json"
    shown = images(12)
    shown["x"][3, 0, 0, 0] = 40
    calibrate(model, shown, CalibrationConfig(save_statistic_info=str(path)))
    for strategy in METHODS:
        told = calibrate(model, shown, CalibrationConfig(strategy=strategy, z_threshold=4))
        reread = CalibrationConfig(strategy=strategy, z_threshold=4, statistic_file=str(path))
        assert calibrate(model, {}, reread).to_json() == told.to_json(), strategy


@pytest.mark.feature("QMO-28")
def test_extrema_stated_by_hand_stay_as_they_are(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "s.json"
    shown = images(12)
    shown["x"][3, 0, 0, 0] = 40
    calibrate(model, shown, CalibrationConfig(save_statistic_info=str(path)))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tensors"]["x"]["extrema"] = [-50, 60]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = fit(load_statistics(path), CalibrationConfig(strategy="extrema", z_threshold=4)).tensors
    assert found["x"].pairs == ((-50.0, 60.0),)
    assert (
        found["r1"].pairs
        != fit(load_statistics(path), CalibrationConfig(strategy="extrema")).tensors["r1"].pairs
    )


@pytest.mark.feature("QMO-28")
def test_outliers_of_stated_ranges_are_not_looked_for() -> None:
    stated = network(STATED)
    alone = Config.parse({"calibrate": {"strategy": "in_ir", "z_threshold": 3}})
    assert calibrate(stated, {}, alone).tensors["r1"].pairs == ((0.0, 8.0),)
    mixed = Config.parse(
        {"calibrate": {"strategy": "in_ir", "z_threshold": 3}, "layers": [{"match": "y", "strategy": "mse"}]}
    )
    assert calibrate(stated, images(4), mixed).tensors["r1"].pairs == ((0.0, 8.0),)


@pytest.mark.feature("QMO-28")
def test_statistics_without_histograms_have_no_outliers(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"format": 1, "tensors": {"r1": {"extrema": [0, 3]}}}', encoding="utf-8")
    with pytest.raises(RangesError, match='tensor "r1": z_threshold needs a histogram') as caught:
        fit(load_statistics(path), CalibrationConfig(strategy="extrema", z_threshold=3))
    assert "\n" not in str(caught.value)


@pytest.mark.feature("CAL-14")
def test_what_is_edited_holds(tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "statistics.json"
    statistics = collect(model, Samples.of(images(4), model.inputs), CalibrationConfig(), histograms=True)
    save_statistics(statistics, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tensors"]["r1"] |= {"extrema": [-1, 77.5], "mean": 1.0, "std": 2.0, "mad": 1.5}
    path.write_text(json.dumps(content), encoding="utf-8")
    edited = load_statistics(path)
    assert fit(edited, CalibrationConfig(strategy="extrema")).tensors["r1"].pairs == ((-1.0, 77.5),)
    assert fit(edited, CalibrationConfig(strategy="2std")).tensors["r1"].pairs == ((-1.0, 5.0),)
    assert (
        fit(edited, CalibrationConfig()).tensors["r1"] == fit(statistics, CalibrationConfig()).tensors["r1"]
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"extrema": [2, 1]}, 'tensor "r1": field "extrema": 2 is above 1'),
        ({"extrema": "wide"}, 'tensor "r1": field "extrema" must be pairs'),
        ({"std": None}, 'tensor "r1": field "std" must be a finite number'),
        ({"histogram": {"bins": 4}}, 'tensor "r1": field "negative" is missing'),
        ({"histogram": {"bins": 3, "negative": [], "positive": [], "width": 0, "zeros": 0}}, "power of two"),
    ],
)
@pytest.mark.feature("CAL-14")
def test_what_is_wrong_is_told(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    model = network()
    path = tmp_path / "statistics.json"
    statistics = collect(model, Samples.of(images(2), model.inputs), CalibrationConfig(), histograms=True)
    save_statistics(statistics, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tensors"]["r1"] |= change
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RangesError, match=told):
        load_statistics(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(RangesError, match="not a JSON file"):
        load_statistics(path)


@pytest.mark.feature("CAL-14")
def test_strategies_that_read_histograms_say_so(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"format": 1, "tensors": {"r1": {"extrema": [0, 3]}}}', encoding="utf-8")
    assert fit(load_statistics(path), CalibrationConfig(strategy="extrema")).tensors["r1"].max == 3
    with pytest.raises(RangesError, match='tensor "r1": its statistics have no histogram'):
        fit(load_statistics(path), CalibrationConfig())


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.feature("CAL-24")
def test_histograms_are_of_as_many_samples_as_asked_for(count: int, tmp_path: Path) -> None:
    model = network()
    samples = Samples.of(images(5), model.inputs)
    wanted = Artifacts(tmp_path, histograms=True, samples=count, statistics="statistics.json")
    files = save_artifacts(model, samples, calibrate(model, samples), wanted)
    assert all(file.is_file() for file in files)
    histograms = [file for file in files if file.suffix == ".npz"]
    kept = load_statistics(tmp_path / "statistics.json")
    assert len(histograms) == len(kept.tensors) >= 4
    assert kept.samples == (count or 5)
    sizes = {"x": 48, "r1": 64, "f": 64, "y": 5}
    for file in histograms:
        with np.load(file) as found:
            assert len(found["edges"]) == len(found["counts"]) + 1
            assert found["counts"].sum() + found["zeros"] == sizes[file.stem] * (count or 5)


@pytest.mark.feature("CAL-26")
def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    samples = Samples.of(images(2), model.inputs)
    ranges = calibrate(model, samples)
    (tmp_path / "here").mkdir(mode=0o555)
    monkeypatch.chdir(tmp_path / "here")
    assert save_artifacts(model, samples, ranges, Artifacts(histograms=True, samples=1)) == []
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]
    written = save_artifacts(model, samples, ranges, Artifacts(tmp_path / "there"))
    assert [path.name for path in written] == ["thresholds.json"]
    assert Ranges.load(written[0]) == ranges


@pytest.mark.feature("CFG-14")
def test_shuffled_samples_are_the_same_ones_in_another_order() -> None:
    model = network()
    samples = Samples.of(images(20), model.inputs)
    config = CalibrationConfig(strategy="mean", shuffle=True, shuffle_seed=4)
    first, again = calibrate(model, samples, config), calibrate(model, samples, config)
    assert first == again
    assert first != calibrate(model, samples, CalibrationConfig(strategy="mean"))
    assert first != calibrate(model, samples, config.model_copy(update={"shuffle_seed": 5}))
    rows = [row["x"].tobytes() for row in samples.rows()]
    other = [row["x"].tobytes() for row in samples.shuffle(1).rows()]
    assert rows != other
    assert sorted(rows) == sorted(other)
    assert [row["x"].tobytes() for row in samples.first(3).rows()] == rows[:3]
    assert [row["x"].tobytes() for row in samples.spread(4).rows()] == rows[::5]
