"""Networks the machine can compute in part: divided, built, saved, loaded, run at every level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import tpuflow
from frontend.graphs import graph
from models.make_models import MODELS
from partitioning.networks import NETWORKS, labeled, words, written
from tpuflow import _core
from tpuflow.config import Config
from tpuflow.errors import FileError, ModelError, SampleError, UnsupportedModelError, VerificationError
from tpuflow.evaluation.import_check import verify_import
from tpuflow.execution.levels import FloatLevel, graph_level, open_level, run_samples
from tpuflow.frontend import FloatModel, FloatSession, generate_samples
from tpuflow.frontend.values import all_bodies
from tpuflow.io.samples import Samples
from tpuflow.partitioning import DeviceSegment, HostRunner, HostSegment, Partitioned, PartitionedModel, walk

Arrays = dict[str, NDArray[np.generic]]


def feeds_of(model: FloatModel, count: int = 3) -> Samples:
    if any(port.dtype == np.dtype(object) for port in model.inputs):
        return Samples.of({"words": words(count)}, model.inputs)
    return Samples.of_feeds(generate_samples(model, count), model.inputs)


def built(parts: PartitionedModel) -> tuple[Partitioned[_core.Graph], Partitioned[_core.Program]]:
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, feeds_of(parts.model)))
    return graph, tpuflow.compile(graph, level=5)


def divided(model: onnx.ModelProto) -> PartitionedModel:
    return tpuflow.partition(tpuflow.load(model, host=True))


SIDES = {
    "top_scores": "device host",
    "between": "device host device",
    "gated": "device host",
    "detector": "device host",
    "positions": "device host",
    "loop": "device host",
    "branch": "device",
    "counted": "host device",
    "vendor": "device host device",
    "sequence": "host device host",
    "half": "device",
    "labelled": "host device",
}
ALL = {**NETWORKS, "labelled": labeled}


@pytest.mark.parametrize("name", ALL)
def test_every_node_runs_once_in_few_segments(name: str) -> None:
    parts = divided(ALL[name]())
    assert " ".join(part.name[:-1] for part in parts.segments) == SIDES[name]
    nodes: list[str | None] = []
    known = {port.name for port in parts.inputs}
    for part in parts.segments:
        assert known.issuperset(part.inputs), "a segment reads what earlier ones give"
        known.update(part.outputs)
        if isinstance(part, HostSegment):
            nodes += part.nodes
        else:
            nodes += [node.name for node in part.network.model.graph]
    assert sorted(map(str, nodes)) == sorted(str(node.name) for node in parts.model.model.graph)
    assert known.issuperset(port.name for port in parts.outputs)
    assert all(part.reason for part in parts.host)


@pytest.mark.parametrize("name", ALL)
def test_segments_in_float_compute_what_the_whole_does(name: str) -> None:
    parts = divided(ALL[name]())
    whole, host = FloatSession(parts.model.model, threads=1), HostRunner()
    (batch,) = feeds_of(parts.model, 1).batches()

    def device(part: DeviceSegment[FloatModel], taken: Arrays) -> Arrays:
        return FloatSession(part.network.model, threads=1).run(taken)

    found = walk(parts, batch.arrays, host, device)
    for key, array in whole.run(batch.arrays).items():
        assert np.array_equal(found[key], array) or np.allclose(found[key], array, atol=1e-6)
    assert list(found) == [port.name for port in parts.outputs]
    assert host.seconds.keys() == {part.name for part in parts.host}


@pytest.mark.parametrize("name", ALL)
def test_graph_and_program_agree_in_every_bit(name: str, tmp_path: Path) -> None:
    parts = divided(ALL[name]())
    graph, program = built(parts)
    graph.save(tmp_path / "n.tpuq")
    program.save(tmp_path / "n.tpu")
    samples = feeds_of(parts.model)
    levels = [graph_level(graph), open_level(tmp_path / "n.tpuq"), open_level(tmp_path / "n.tpu")]
    first, *others = (run_samples(level, samples) for level in levels)
    run = tpuflow.simulate(program, samples)
    for found in (*others, run.outputs):
        assert found.keys() == first.keys()
        assert all(np.array_equal(found[key], first[key]) for key in first)
    theirs = run_samples(FloatLevel(parts.model), samples)
    for key, array in theirs.items():
        assert first[key].dtype == array.dtype
        if first[key].shape == array.shape and array.dtype.kind == "f":
            assert np.abs(first[key] - array).max() < 0.25 * np.abs(array).max()


def test_figures_are_those_of_the_segments() -> None:
    parts = divided(NETWORKS["between"]())
    graph, program = built(parts)
    run = tpuflow.simulate(program, feeds_of(parts.model), trace=True)
    alone = [tpuflow.simulate(part.network, values=False).report for part in program.device]
    report = run.report
    assert run.cycles == sum(each["cycles"] for each in alone)
    assert report["bound"] == sum(each["bound"] for each in alone)
    assert report["macs"] == sum(part.network.macs for part in graph.device)
    assert [layer["name"] for layer in run.layers] == [
        layer["name"] for each in alone for layer in each["layers"]
    ]
    assert run.layers[-1]["end"] <= run.cycles
    assert [(part["name"], part["side"]) for part in report["segments"]] == [
        ("device1", "device"), ("host1", "host"), ("device2", "device"),
    ]  # fmt: skip
    assert report["host_us"] == pytest.approx(report["segments"][1]["us"])
    assert report["host_us"] > 0
    for unit in report["counters"]["units"]:
        idle = unit["end"] - unit["start"] - unit["busy"]
        assert unit["busy"] == 0 or sum(unit["stalls"].values()) == idle
    assert run.intervals is not None
    assert {interval["segment"] for interval in run.intervals} == {0, 1}
    assert max(interval["end"] for interval in run.intervals) <= run.cycles
    counted = tpuflow.simulate(program, values=False).report
    assert counted["cycles"] == run.cycles
    assert counted["segments"][1]["us"] is None


@pytest.mark.parametrize("name", ["plain", "residual"])
def test_a_network_the_machine_can_compute_is_one_device_segment(name: str, tmp_path: Path) -> None:
    parts = divided(MODELS[name]())
    (segment,) = parts.segments
    assert isinstance(segment, DeviceSegment)
    graph, program = built(parts)
    assert isinstance(graph.whole, _core.Graph)
    assert isinstance(program.whole, _core.Program)
    program.whole.save(tmp_path / "n.tpu")
    assert open_level(tmp_path / "n.tpu").outputs == tuple(port.name for port in parts.outputs)


@pytest.mark.feature("SCH-29")
def test_a_custom_operator_runs_on_the_host_between_two_subnets() -> None:
    parts = divided(NETWORKS["vendor"]())
    assert [part.nodes for part in parts.host] == [("/h",)]
    assert [len(part.network.model.graph) for part in parts.device] == [1, 4]


def test_without_the_host_every_such_node_is_listed() -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        tpuflow.load(NETWORKS["detector"]())
    assert {finding.operator for finding in raised.value.findings} >= {"NonMaxSuppression"}
    assert "--cut-outputs boxes,scores" in str(raised.value)
    model = tpuflow.load(NETWORKS["detector"](), host=True)
    with pytest.raises(UnsupportedModelError, match="partition"):
        tpuflow.quantize(model, tpuflow.calibrate(model, feeds_of(model)))


def test_what_onnxruntime_does_not_know_either_is_named() -> None:
    text = """
    magic (float[1,3,4,4] x) => (float[1,3,4,4] y) {
      a = Relu (x)  b = com.example.Magic (a)  c = com.example.Trick (b)  y = Relu (c)
    }
    """
    with pytest.raises(UnsupportedModelError) as raised:
        tpuflow.load(written(text), host=True)
    operators = [finding.operator for finding in raised.value.findings]
    assert operators == ["com.example.Magic", "com.example.Trick"]
    assert "onnxruntime" in str(raised.value)


def test_a_network_for_the_host_alone_is_refused() -> None:
    model = tpuflow.load(written("only (float[1,3,4,4] x) => (int64[M,N] y) { y = NonZero (x) }"), host=True)
    with pytest.raises(ModelError, match="nothing to compile") as raised:
        tpuflow.partition(model)
    assert 'node "/y" (NonZero)' in str(raised.value)


def test_a_network_without_products_keeps_its_device_part() -> None:
    text = """
    light (float[1,3,4,4] x) => (float[A,B,C,D] v, int64[A,B,C,D] i) <int64[1] k = {2}> {
      a = Relu (x)  v, i = TopK (a, k)
    }
    """
    assert [part.name for part in divided(written(text)).segments] == ["device1", "host1"]


def test_sizes_are_computed_where_nothing_rounds_them() -> None:
    text = """
    steps (float[1,3,4,4] x, int32 count) => (float[1,3,4,4] y, float[N] t)
    <float zero = {0}, float one = {1}, float less = {0.3}> {
      y = Sigmoid (x)  f = Cast <to = 1> (count)  last = Sub (f, less)  t = Range (zero, last, one)
    }
    """
    model = written(text)
    feeds = {"x": np.zeros((1, 3, 4, 4), np.float32), "count": np.array([10], np.int32)}
    parts = tpuflow.partition(tpuflow.load(model, host=True))
    on_host = {name for part in parts.host for name in part.nodes}
    assert {"/last"} <= on_host and "/y" not in on_host
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, feeds))
    assert graph_level(graph).run({**feeds, "count": feeds["count"][0]})["t"].shape == (10,)


def test_slices_for_the_host_are_cut_there() -> None:
    classes = range(4)
    slices = "\n".join(
        f"s{index} = Slice (scores, from{index}, from{index + 1}, axis)  n{index} = NonZero (s{index})"
        for index in classes
    )
    bounds = ", ".join(f"int64[1] from{index} = {{{index}}}" for index in range(5))
    results = ", ".join(f"int64[M{index},N{index}] n{index}" for index in classes)
    text = f"""
    slices (float[1,3,4,4] x) => ({results}) <int64[1] axis = {{1}}, {bounds}> {{
      y = Conv (x, w)  scores = Relu (y)
      {slices}
    }}
    """
    parts = divided(written(text, w=(5, 3, 1, 1)))
    assert [part.outputs for part in parts.device] == [("scores",)]


def test_outputs_of_other_sizes_are_filled_up() -> None:
    parts = divided(NETWORKS["positions"]())
    graph, _ = built(parts)
    samples = feeds_of(parts.model, 4)
    level = graph_level(graph)
    found = run_samples(level, samples)
    for index, batch in enumerate(samples.batches()):
        alone = level.run(batch.arrays)["values"]
        (size,) = found["values/shape"][index]
        assert np.array_equal(found["values"][index, :size], alone)
        assert not found["values"][index, size:].any()


def test_an_import_that_only_the_host_sees_differently_is_remarked_upon() -> None:
    model = tpuflow.load(NETWORKS["detector"](), host=True)
    remarks: list[str] = []
    compared = dict(verify_import(model, remark=remarks.append))
    assert {"boxes", "scores"} <= compared.keys()
    assert "found" not in compared
    assert not remarks
    boxes = next(node for node in model.model.graph if node.op_type == "NonMaxSuppression")
    limit = boxes.inputs[2]
    assert limit is not None
    limit.const_value = ir.tensor(np.array([1], np.int64), name=limit.name)
    verify_import(model, remark=remarks.append)
    assert any("shapes" in remark for remark in remarks)


def test_an_import_of_another_shape_is_an_error() -> None:
    model = tpuflow.load(graph([("Relu", "x", "y")], {"x": [1, 8]}, ["y"]))
    made = next(iter(model.model.graph))
    made.op_type = "Transpose"
    made.outputs[0].shape = ir.Shape([8, 1])
    with pytest.raises(VerificationError, match=r'"y" of the normalised model has the shape \[8, 1\]'):
        verify_import(model)


def test_text_cannot_be_made_up() -> None:
    model = tpuflow.load(labeled(), host=True)
    with pytest.raises(SampleError, match="text"):
        generate_samples(model)


def test_bodies_of_an_old_opset_are_brought_up() -> None:
    model = tpuflow.load(NETWORKS["loop"](), host=True).model
    nodes = [node for body in all_bodies(model.graph) for node in body]
    assert {"Squeeze", "Unsqueeze"} <= {node.op_type for node in nodes}
    assert not any("axes" in node.attributes for node in nodes)


def test_files_that_were_cut_or_altered_are_refused(tmp_path: Path) -> None:
    graph, program = built(divided(NETWORKS["top_scores"]()))
    for network, suffix in ((graph, ".tpuq"), (program, ".tpu")):
        path = tmp_path / f"n{suffix}"
        network.save(path)
        content = path.read_bytes()
        network.save(tmp_path / f"again{suffix}")
        assert (tmp_path / f"again{suffix}").read_bytes() == content
        for at in range(60, len(content), len(content) // 17):
            altered, cut = tmp_path / f"altered{suffix}", tmp_path / f"cut{suffix}"
            altered.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(FileError, match=altered.name):
                open_level(altered)
            cut.write_bytes(content[:at])
            with pytest.raises(FileError, match=cut.name):
                open_level(cut)
        other = tmp_path / ("n.tpu" if suffix == ".tpuq" else "n.tpuq")
        other.write_bytes(content)
        with pytest.raises(FileError, match="belongs in a"):
            open_level(other)
        newer = tmp_path / f"newer{suffix}"
        newer.write_bytes(content.replace(b'\\"version\\":1', b'\\"version\\":2', 1))
        with pytest.raises(FileError, match="version 2"):
            open_level(newer)
    assert not list(tmp_path.glob(".*"))


def test_a_setting_for_a_node_of_the_host_is_refused() -> None:
    parts = divided(NETWORKS["top_scores"]())
    ranges = tpuflow.calibrate(parts, feeds_of(parts.model))
    config = Config.model_validate({"layers": [{"match": "/topk*", "dtype": "int16"}]})
    with pytest.raises(tpuflow.TpuflowError, match="device computes"):
        tpuflow.quantize(parts, ranges, config)
    config = Config.model_validate({"layers": [{"match": "/relu*", "dtype": "int16"}]})
    assert tpuflow.quantize(parts, ranges, config).device


def test_a_setting_about_weights_needs_weights_in_one_segment() -> None:
    parts = divided(NETWORKS["between"]())
    ranges = tpuflow.calibrate(parts, feeds_of(parts.model))
    config = Config.model_validate({"layers": [{"match": "*", "weight_mode": "symmetric_full"}]})
    assert tpuflow.quantize(parts, ranges, config).device
    config = Config.model_validate({"layers": [{"match": "/reducemean*", "weight_bits": 16}]})
    with pytest.raises(tpuflow.TpuflowError, match="has weights"):
        tpuflow.quantize(parts, ranges, config)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_segments_compute_in_floats(dtype: str) -> None:
    parts = divided(NETWORKS["between"]())
    config = Config.model_validate({"quantize": {"dtype": dtype}})
    samples = feeds_of(parts.model)
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, samples, config), config)
    ours, theirs = run_samples(graph_level(graph), samples), run_samples(FloatLevel(parts.model), samples)
    bound = 1e-2 if dtype == "float16" else 1e-5
    assert all(np.abs(ours[name] - theirs[name]).max() < bound for name in theirs)


def test_an_input_nothing_reads_does_not_stop_a_network_of_one_segment() -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in ("x", "u")]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 8])]
    parts = divided(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", inputs, outputs)))
    _, program = built(parts)
    feeds = feeds_of(parts.model)
    assert tpuflow.simulate(program, feeds).outputs["y"].shape == (3, 8)


def test_what_a_device_segment_reads_stays_as_the_host_gave_it() -> None:
    # The float input is read by the device and, after it, by the host.
    read = Partitioned(
        "n",
        (
            DeviceSegment("device1", None, ("x",), ("y",)),
            DeviceSegment("device2", None, ("x", "y"), ("z",)),
        ),
        (),
        (),
    )
    seen: list[Arrays] = []

    def device(part: DeviceSegment[None], arrays: Arrays) -> Arrays:
        seen.append(arrays)
        return {"x": np.array([0.5]), part.outputs[0]: np.array([1.0])}  # with what it makes of its input

    walk(read, {"x": np.array([0.4])}, HostRunner(), device, every=True)
    assert [float(arrays["x"][0]) for arrays in seen] == [0.4, 0.4]
