"""Networks the machine can compute in part: divided, built, saved, loaded, run at every level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tpuflow
from models.builder import Builder, samples
from tpuflow import _core
from tpuflow.errors import FileError, UnsupportedModelError
from tpuflow.frontend import run_float
from tpuflow.partition import HostSegment, Partitioned
from tpuflow.run import graph_level, open_level, run_samples
from tpuflow.samples import Samples


def top_scores() -> onnx.ModelProto:
    """A classifier that gives its three best classes."""
    b = Builder("top_scores")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 9, 9]), 8, pads=(1, 1, 1, 1)))
    scores = b.node("Sigmoid", b.gemm(b.node("GlobalAveragePool", x), 10))
    b.output(*b.nodes("TopK", [scores, b.integers(3)], 2))
    return b.model()


def gathered() -> onnx.ModelProto:
    """The device, the host, the device again: channels are sorted by their mean between two convolutions."""
    b = Builder("gathered")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 6, pads=(1, 1, 1, 1)))
    flat = b.node("Reshape", x, b.integers(6, 64))
    _, order = b.nodes("TopK", [b.node("ReduceMean", flat, axes=[1]), b.integers(6)], 2, axis=0)
    sorted_channels = b.node("Gather", x, b.node("Reshape", order, b.integers(6)), axis=1)
    b.output(b.conv(sorted_channels, 5), x)
    return b.model()


NETWORKS = {"top_scores": top_scores, "gathered": gathered}


def built(model: onnx.ModelProto) -> tuple[Partitioned[_core.Graph], Partitioned[_core.Program]]:
    parts = tpuflow.partition(tpuflow.load(model, host=True))
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, samples(model, 4)))
    return graph, tpuflow.compile(graph, level=5)


def test_without_the_host_every_such_node_is_listed() -> None:
    with pytest.raises(UnsupportedModelError, match="TopK"):
        tpuflow.load(top_scores())


def test_the_host_takes_what_the_machine_cannot() -> None:
    parts = tpuflow.partition(tpuflow.load(top_scores(), host=True))
    assert [part.name for part in parts.segments] == ["device1", "host1"]
    (host,) = parts.host
    assert host.reason == "TopK: operator is not supported"
    assert len(host.nodes) == 1
    assert host.outputs == tuple(port.name for port in parts.outputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_graph_and_program_agree_in_every_bit(name: str, tmp_path: Path) -> None:
    model = NETWORKS[name]()
    graph, program = built(model)
    graph.save(tmp_path / "n.tpuq")
    program.save(tmp_path / "n.tpu")
    arrays = samples(model, 3)
    levels = [graph_level(graph), open_level(tmp_path / "n.tpuq"), open_level(tmp_path / "n.tpu")]
    first, *others = (run_samples(level, Samples.of(arrays, level.ports)) for level in levels)
    run = tpuflow.simulate(program, arrays)
    for found in (*others, run.outputs):
        assert found.keys() == first.keys()
        assert all(np.array_equal(found[key], first[key]) for key in first)
    assert run.cycles == sum(part["cycles"] for part in run.report["segments"] if part["side"] == "device")
    assert run.report["host_us"] > 0


def test_values_are_those_of_the_float_model_but_for_quantisation() -> None:
    model = gathered()
    graph, _ = built(model)
    feed = {name: array[:1] for name, array in samples(model, 1).items()}
    ours, theirs = graph_level(graph).run(feed), run_float(model, feed)
    for name, array in theirs.items():
        assert np.abs(ours[name] - array).max() < 0.1 * np.abs(array).max()


def test_files_that_were_cut_or_altered_are_refused(tmp_path: Path) -> None:
    graph, _ = built(top_scores())
    path = tmp_path / "n.tpuq"
    graph.save(path)
    content = path.read_bytes()
    assert isinstance(open_level(path).outputs, tuple)
    for at in (60, len(content) // 2, len(content) - 3):
        (tmp_path / "altered.tpuq").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(FileError, match=r"altered\.tpuq: "):
            open_level(tmp_path / "altered.tpuq")
        (tmp_path / "cut.tpuq").write_bytes(content[:at])
        with pytest.raises(FileError, match=r"cut\.tpuq: "):
            open_level(tmp_path / "cut.tpuq")
    (tmp_path / "n.tpu").write_bytes(content)
    with pytest.raises(FileError, match=r"belongs in a \.tpuq file"):
        open_level(tmp_path / "n.tpu")


def test_host_segments_say_why() -> None:
    parts = tpuflow.partition(tpuflow.load(gathered(), host=True))
    assert [isinstance(part, HostSegment) for part in parts.segments] == [False, True, False]
