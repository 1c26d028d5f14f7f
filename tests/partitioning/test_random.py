"""Random networks, random nodes on the host: segments are legal and few, and compute what the whole does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tpuflow
from models.builder import Builder
from models.make_models import random_model
from partitioning.test_segmentation import fewest
from tpuflow.errors import Finding, ModelError
from tpuflow.execution.levels import graph_level, run_samples
from tpuflow.frontend import FloatModel, FloatSession, generate_samples
from tpuflow.io.samples import Samples
from tpuflow.partitioning import DeviceSegment, HostRunner, HostSegment, PartitionedModel, partition, walk
from tpuflow.partitioning.segmentation import Side

Arrays = dict[str, NDArray[np.generic]]


@st.composite
def mixtures(draw: st.DrawFn) -> onnx.ModelProto:
    """Products and elementwise operators on one shape, each reading any earlier value."""
    b = Builder("mixture", seed=draw(st.integers(0, 99)))
    values = [b.input("x", [1, 6])]
    for _ in range(draw(st.integers(1, 8))):
        first = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["MatMul", "Add", "Sigmoid", "Tanh", "Mul"]))
        if kind == "MatMul":
            values.append(b.node(kind, first, b.weight(6, 6, fan_in=6)))
        elif kind in {"Add", "Mul"}:
            values.append(b.node(kind, first, draw(st.sampled_from(values))))
        else:
            values.append(b.node(kind, first))
    b.output(values[-1], *draw(st.lists(st.sampled_from(values[1:]), max_size=1)) if len(values) > 2 else ())
    return b.model()


def forced(model: FloatModel, names: Sequence[str]) -> PartitionedModel | None:
    """The model with some nodes on the host; None where none would be left for the device."""
    try:
        return partition(model, [Finding(name, "any", None, "chosen by the test") for name in names])
    except ModelError:
        return None


@given(mixtures(), st.data())
@settings(max_examples=60)
def test_segments_are_legal_few_and_compute_the_same(proto: onnx.ModelProto, data: st.DataObject) -> None:
    if len({value.name for value in proto.graph.output}) < len(proto.graph.output):
        return
    model = tpuflow.load(proto)
    nodes = list(model.model.graph)
    names = [node.name or "" for node in nodes]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    parts = forced(model, chosen)
    if parts is None:
        return
    on_host = {name for part in parts.host for name in part.nodes}
    assert on_host.issuperset(chosen)
    assert sorted(
        [*on_host, *(node.name or "" for part in parts.device for node in part.network.model.graph)]
    ) == (sorted(names))
    products = {node.name for node in nodes if node.op_type == "MatMul"} - set(chosen)
    assert not on_host & products
    if products:
        sides: list[Side | None] = [
            "host" if name in chosen else "device" if name in products else None for name in names
        ]
        before = [
            [nodes.index(maker) for value in node.inputs if value and (maker := value.producer())]
            for node in nodes
        ]
        assert len(parts.segments) == fewest(before, sides)
    (feed,) = generate_samples(model, 1)

    def device(part: DeviceSegment[FloatModel], taken: Arrays) -> Arrays:
        return FloatSession(part.network.model, threads=1).run(taken)

    found = walk(parts, feed, HostRunner(), device)
    for name, array in FloatSession(model.model, threads=1).run(feed).items():
        assert np.allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_integers_agree_wherever_a_network_is_divided(seed: int) -> None:
    model = tpuflow.load(random_model(seed))
    names = [node.name or "" for node in model.model.graph]
    generator = np.random.default_rng(seed)
    chosen = [name for name in names if generator.random() < 0.25] or names[-1:]
    parts = forced(model, chosen)
    assert parts is not None
    samples = Samples.of_feeds(generate_samples(model, 2), model.inputs)
    ranges = tpuflow.calibrate(parts, samples)
    graph = tpuflow.quantize(parts, ranges)
    program = tpuflow.compile(graph, level=5)
    assert any(isinstance(part, HostSegment) for part in graph.segments)
    ours = run_samples(graph_level(graph), samples)
    theirs = tpuflow.simulate(program, samples).outputs
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    whole = graph_level(tpuflow.quantize(model, tpuflow.calibrate(model, samples)))
    for name, array in run_samples(whole, samples).items():
        assert np.abs(ours[name] - array).max() <= 0.3 * np.abs(array).max() + 1e-6
