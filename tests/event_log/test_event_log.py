"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tensorboard.backend.event_processing import event_accumulator

import tpuflow
from models.make_models import MODELS, samples
from tpuflow.frontend import FloatSession, load
from tpuflow.partitioning import Partitioned
from tpuflow.pipeline import BuildResult, Request, build
from tpuflow.report.tensorboard import RunLog, log_folder, writer
from tpuflow.report.tensorboard.histogram import ChannelStatistics, Histogram

# Their logs take some seconds to write.
pytestmark = pytest.mark.slow

RUNS = ("original", "normalised", "calibrated", "quantised", "program")


def events(folder: Path) -> Any:
    """What TensorBoard reads from a run."""
    everything = {"images": 0, "scalars": 0, "histograms": 0, "tensors": 0}
    found = event_accumulator.EventAccumulator(str(folder), size_guidance=everything)
    found.Reload()
    return found


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path, BuildResult, dict[str, NDArray[Any]]]:
    """A network built with a log folder set: the folder, the model's file, what was built, the samples."""
    folder = tmp_path_factory.mktemp("logged")
    model = MODELS["residual"]()
    onnx.save(model, folder / "model.onnx")
    drawn = samples(model, 24)
    np.savez(folder / "calib.npz", **drawn)  # type: ignore[arg-type]
    tpuflow.set_log_folder(folder / "logs")
    try:
        request = Request(folder / "model.onnx", calibration=folder / "calib.npz")
    finally:
        tpuflow.set_log_folder(None)
    return folder / "logs", folder / "model.onnx", build(request), drawn


@pytest.mark.feature("VIS-01")
@pytest.mark.slow
def test_set_log_folder_makes_builds_write_there(built: Any) -> None:
    logs = built[0]
    assert log_folder() is None
    assert Request(Path("m.onnx")).log is None
    runs = {str(path.parent.relative_to(logs)) for path in logs.rglob("events.out.tfevents.*")}
    channels = {f"statistics/{kind}_per_channel" for kind in ("min", "max", "mean")}
    assert runs == {*RUNS, "statistics", "similarity", "configuration", *channels}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.feature("VIS-02")
@pytest.mark.slow
def test_a_graph_per_stage(built: Any, run: str) -> None:
    graph = events(built[0] / run).Graph()
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names)) > 1
    assert {source for node in graph.node for source in node.input} <= set(names)
    if run == "original":
        whole = load(built[1]).original.graph
        assert [node.op for node in graph.node if node.op != "Placeholder"] == [n.op_type for n in whole.node]
        return
    normal = [node.op_type for node in load(built[1]).model.graph]
    layers = [layer.op for layer in built[2].graph.layers]
    operators = [node.op for node in graph.node if node.op != "Placeholder"]
    assert operators == (normal if run in {"normalised", "calibrated"} else layers)


@pytest.mark.feature("VIS-03")
def test_resources_are_bytes_of_weights_and_outputs(built: Any) -> None:
    log = events(built[0] / "quantised")
    stats = log.RunMetadata("Resources").step_stats.dev_stats[0].node_stats
    counted = sum(memory.total_bytes for node in stats for memory in node.memory)
    graph = built[2].graph
    sizes = [int(np.prod(t.shape, dtype=int)) * np.dtype(t.dtype).itemsize for t in graph.tensors]
    assert counted == sum(sizes)
    assert [node.node_name for node in stats] == [node.name for node in log.Graph().node]
    wanted = [sizes[number] for number in graph.inputs]
    for layer in graph.layers:
        weights = {number for number in layer.operands if graph.tensors[number].is_constant}
        wanted.append(sizes[layer.output] + sum(sizes[number] for number in weights))
    assert [sum(memory.total_bytes for memory in node.memory) for node in stats] == wanted


@pytest.mark.parametrize("run", ["original", "normalised"])
@pytest.mark.feature("VIS-03")
def test_resources_of_float_networks_have_every_activation(built: Any, run: str) -> None:
    log = events(built[0] / run)
    stats = log.RunMetadata("Resources").step_stats.dev_stats[0].node_stats
    assert all(memory.total_bytes > 0 for node in stats for memory in node.memory)
    inputs = [node.name for node in log.Graph().node if node.op == "Placeholder"]
    told = {node.node_name: sum(memory.total_bytes for memory in node.memory) for node in stats}
    image = load(built[1]).inputs[0]
    assert told[inputs[0]] == 4 * int(np.prod(image.shape))


@pytest.mark.feature("VIS-03")
def test_resources_of_the_program_are_its_cycles(built: Any) -> None:
    log = events(built[0] / "program")
    report = tpuflow.simulate(built[2].program, values=False).report
    cycles = {node.name: int(node.attr["cycles"].s) for node in log.Graph().node if "cycles" in node.attr}
    assert sorted(cycles.values()) == sorted(row["end"] - row["start"] for row in report["layers"])


@pytest.mark.feature("VIS-04")
def test_nodes_tell_how_they_are_quantized(built: Any) -> None:
    graph = built[2].graph
    nodes = {node.name: node for node in events(built[0] / "quantised").Graph().node}
    shown = 0
    for layer in graph.layers:
        tensor = graph.tensors[layer.output]
        node = next(n for name, n in nodes.items() if name.endswith(layer.name.strip("/")))
        assert node.attr["output: dtype"].s.decode() == tensor.dtype
        assert float(node.attr["output: scale"].s) == pytest.approx(tensor.scale[0], rel=1e-8)
        assert int(node.attr["output: zero point"].s) == tensor.zero_point
        shown += any("constant" in key and "scale" in key for key in node.attr)
    assert shown


def activations(built: Any) -> dict[str, NDArray[Any]]:
    """Every float tensor over the first 20 samples."""
    _, path, _, drawn = built
    session = FloatSession(load(path).model, "all")
    feeds = [{name: array[i : i + 1] for name, array in drawn.items()} for i in range(20)]
    rows = [{**feed, **session.run(feed)} for feed in feeds]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.feature("VIS-05")
def test_histograms_of_activations_before_quantization(built: Any) -> None:
    log = events(built[0] / "statistics")
    expected = activations(built)
    assert set(log.Tags()["histograms"]) == set(expected)
    for name, array in expected.items():
        (event,) = log.Histograms(name)
        found = event.histogram_value
        values = array.astype(np.float64)
        assert (found.num, found.min, found.max) == (values.size, values.min(), values.max())
        assert found.sum == pytest.approx(values.sum(), rel=1e-9, abs=1e-9)
        assert found.sum_squares == pytest.approx(np.square(values).sum(), rel=1e-9)
        assert sum(found.bucket) == values.size
        least = found.bucket_limit[0]
        for limit, count in zip(found.bucket_limit[1:], found.bucket[1:], strict=True):
            assert count == ((values > least) & (values <= limit)).sum()
            least = limit


@pytest.mark.parametrize(("kind", "function"), [("min", np.min), ("max", np.max), ("mean", np.mean)])
@pytest.mark.feature("VIS-06")
def test_scalars_by_channel(built: Any, kind: str, function: Any) -> None:
    log = events(built[0] / "statistics" / f"{kind}_per_channel")
    expected = activations(built)
    assert set(log.Tags()["tensors"]) == set(expected)
    for name, array in expected.items():
        axis = 1 if array.ndim >= 4 else array.ndim - 1
        others = tuple(i for i in range(array.ndim) if i != axis)
        found = log.Tensors(name)
        assert [event.step for event in found] == list(range(array.shape[axis]))
        values = [scalar(event) for event in found]
        np.testing.assert_allclose(
            values, function(array.astype(np.float64), axis=others), rtol=1e-6, atol=1e-7
        )


def scalar(event: Any) -> float:
    proto = event.tensor_proto
    return float(proto.float_val[0]) if proto.float_val else struct.unpack("<f", proto.tensor_content)[0]


@pytest.mark.feature("VIS-07")
def test_similarity_of_twenty_samples(built: Any) -> None:
    log = events(built[0] / "similarity")
    assert set(log.Tags()["images"]) == {f"similarity_distance_sample_{i}" for i in range(20)}
    (image,) = log.Images("similarity_distance_sample_0")
    assert image.encoded_image_string[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image.encoded_image_string[16:24]) == (image.width, image.height)


@pytest.mark.feature("VIS-08", "VIS-14")
def test_bits_by_layer_as_figure_and_text(built: Any) -> None:
    log = events(built[0] / "configuration")
    text = log.Tensors("bits/text_summary")[0] if "bits/text_summary" in log.Tags()["tensors"] else None
    text = text or log.Tensors("bits")[0]
    table = text.tensor_proto.string_val[0].decode()
    graph = built[2].graph
    assert table.count("\n") == len(graph.layers) + 1
    for layer in graph.layers:
        weights = [graph.tensors[i].dtype for i in layer.operands if graph.tensors[i].is_constant]
        bits = [each.removeprefix("int") for each in (*weights[:1], graph.tensors[layer.output].dtype)]
        assert f"| {layer.name} | {bits[0] if weights else '-'} | {bits[-1]} |" in table
    assert log.Tags()["images"] == ["bits"]


@pytest.mark.feature("VIS-15")
def test_odd_names_become_plain_nodes(tmp_path: Path) -> None:
    odd = ["", "", "a", "a", "/a//b/", "^c", "d:0", "x" * 1000, "x" * 1000, "日本", "a/b", "_"]
    nodes = [writer.Node(name, "Relu") for name in odd]
    for left, right in itertools.pairwise(nodes):
        right.inputs = [left, left]
    nodes.append(writer.Node("", ""))
    with RunLog(tmp_path) as run:
        run.graph(nodes)
    graph = events(tmp_path).Graph()
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(nodes)
    assert all(name and len(name) < 256 and name.isascii() and name[0].isalnum() for name in names)
    assert [list(node.input) for node in graph.node[1:-1]] == [[name] for name in names[: len(odd) - 1]]


@pytest.mark.feature("VIS-16")
def test_without_tensorboard_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr(writer, "import_module", missing)
    with pytest.raises(tpuflow.TpuflowError, match=r'pip install "tpuflow\[tensorboard\]"'):
        build(Request(Path("model.onnx"), log=Path("logs")))


@pytest.mark.feature("VIS-04")
@pytest.mark.slow
def test_segments_of_the_host_are_nodes(tmp_path: Path) -> None:
    from partitioning.networks import NETWORKS  # noqa: PLC0415 - only here

    onnx.save(NETWORKS["between"](), tmp_path / "m.onnx")
    done = build(Request(tmp_path / "m.onnx", log=tmp_path / "logs"))
    nodes = {node.name: node for node in events(tmp_path / "logs" / "program").Graph().node}
    host = [node for node in nodes.values() if node.op == "Host"]
    assert isinstance(done.program, Partitioned)
    assert [node.name for node in host] == [part.name for part in done.program.host]
    assert host[0].input
    assert any(host[0].name in node.input for node in nodes.values())


def test_histograms_leave_out_what_is_no_number() -> None:
    histogram = Histogram()
    histogram.observe(np.array([np.nan, np.inf, 1.0, -2.0], np.float32))
    histogram.observe(np.zeros((0, 3), np.float32))
    assert (histogram.count, histogram.low, histogram.high) == (2, -2.0, 1.0)
    assert Histogram().buckets() == ([0.0], [0.0])


def test_channels_of_vectors_are_the_last_axis() -> None:
    statistics = ChannelStatistics()
    rows = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    statistics.observe(rows)
    statistics.observe(rows - 20)
    assert statistics.low.tolist() == [-20, -19, -18]
    assert statistics.high.tolist() == [9, 10, 11]
    assert statistics.mean.tolist() == [-5.5, -4.5, -3.5]
