"""Every tensor of a graph from its program: groups of layers in parts, operands in place, batches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import tpuflow
from conftest import slow_except
from models.builder import Builder, samples
from models.random_model import random_model
from tpuflow import _core
from tpuflow.compiler import Machine
from tpuflow.config import Config
from tpuflow.execution.debug import StepReport, check_steps
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import random_feed

# Little cache before so slow a memory that layers are computed in groups, part by part.
SMALL = Machine.load("32x32_fpga").replace({"cache.words": 96, "ddr.clock_hz": 5_000_000}, name="small")


def grouped(batch: int) -> onnx.ModelProto:
    b = Builder("grouped")
    x = b.node("Relu", b.conv(b.input("image", [batch, 8, 48, 48]), 16, pads=(1, 1, 1, 1)))
    y = b.node("Add", x, b.conv(x, 16, pads=(1, 1, 1, 1), group=16))
    y = b.node("MaxPool", b.conv(y, 16, (1, 1)), kernel_shape=[2, 2], strides=[2, 2])
    b.output(b.gemm(b.node("GlobalAveragePool", y), 5))
    return b.model()


def arranged(batch: int) -> onnx.ModelProto:
    """Operands in place, copies, padding, looked-up rows, reductions, positions."""
    b = Builder("arranged")
    x = b.input("image", [batch, 4, 6, 6])
    left, right = b.conv(x, 8, pads=(1, 1, 1, 1)), b.node("Sigmoid", b.conv(x, 8, pads=(1, 1, 1, 1)))
    joined = b.node("Concat", left, b.node("Concat", right, x, axis=1), axis=1)
    padded = b.node("Pad", joined, b.constant(np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64)))
    turned = b.node("Transpose", padded, perm=[0, 1, 3, 2])
    b.output(turned)
    b.output(b.node("ReduceMax", joined, axes=[1], keepdims=0))
    b.output(b.node("ArgMax", turned, axis=3, keepdims=0))
    return b.model()


def built(
    model: onnx.ModelProto, dtype: str, machine: str | Machine, level: int
) -> tuple[_core.Graph, _core.Program]:
    config = Config.parse({"quantize": {"dtype": dtype}})
    loaded = tpuflow.load(model)
    ranges = tpuflow.calibrate(loaded, samples(model, 2), config)
    graph = tpuflow.quantize(loaded, ranges, config)
    assert isinstance(graph, _core.Graph)
    return graph, tpuflow.compile(graph, machine, level)


def checked(graph: _core.Graph, program: _core.Program, seed: int = 3) -> StepReport:
    return check_steps(program, GraphLevel(graph), random_feed(program, seed))


def integers(graph: _core.Graph, program: _core.Program, seed: int = 3) -> dict[str, np.ndarray]:
    """Every tensor by the interpreter."""
    feed = random_feed(program, seed)
    ports = zip(graph.inputs, GraphLevel(graph).ports, strict=True)
    given = {graph.tensors[index].name: port.encode(feed[port.name]) for index, port in ports}
    return graph.run(given, all_tensors=True)


def complete(graph: _core.Graph, program: _core.Program) -> StepReport:
    """The report, after comparing every tensor with the interpreter's."""
    report, truth = checked(graph, program), integers(graph, program)
    assert report.passed, report.to_json()
    names = [graph.tensors[layer.output].name for layer in graph.layers]
    assert [each.name for each in report.tensors] == names
    assert set(report.codes) == set(names)
    for name in names:
        np.testing.assert_array_equal(report.codes[name], truth[name])
        assert report.codes[name].dtype == truth[name].dtype
    assert all((each.compared, each.wrong) == (each.elements, 0) for each in report.tensors)
    return report


@pytest.mark.parametrize("batch", slow_except([1], [1, 2]))
@pytest.mark.parametrize("dtype", slow_except(["int8"], ["int8", "int16"]))
@pytest.mark.feature("PRG-15")
@pytest.mark.slow
def test_tensors_inside_groups_are_compared(dtype: str, batch: int) -> None:
    graph, program = built(grouped(batch), dtype, SMALL, 5)
    report = complete(graph, program)
    (tiling, *_) = json.loads(program.metadata())["tilings"]
    inside = [each for each in report.tensors[tiling["first"] : tiling["last"]] if each.op != "rearrange"]
    assert inside and all(each.parts > 1 and not each.reason for each in inside)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_tensors_that_are_moved_are_compared(dtype: str, batch: int) -> None:
    graph, program = built(arranged(batch), dtype, "64x64_edge", 5)
    report = complete(graph, program)
    assert {"concat", "pad", "rearrange", "reduce", "arg_max"} <= {each.op for each in report.tensors}
    # What has no copy of its own says so, and names what lies there.
    told = [each.reason for each in report.tensors if each.reason]
    assert told and all(re.fullmatch(r"no copy, in place: .+", each) for each in told)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("dtype", "machine", "level"),
    [("int8", "128x128_asic", 5), ("int16", "32x32_fpga", 1)],
)
def test_every_tensor_of_any_network_is_compared(seed: int, dtype: str, machine: str, level: int) -> None:
    complete(*built(random_model(seed), dtype, machine, level))


def damaged(program: _core.Program, layer: str, change: Callable[[str], str]) -> _core.Program:
    """The program with the descriptor of a layer's instructions changed."""
    lines = program.to_text().splitlines()
    numbers = [n for n, line in enumerate(lines) if line.startswith("descriptor ")]
    found = next(
        re.search(r"descriptor=(\d+) ", line)
        for line in lines
        if line.endswith(f" {layer}") and "descriptor=" in line
    )
    assert found is not None
    at = numbers[int(found[1])]
    changed = change(lines[at])
    assert changed != lines[at]
    return _core.Program.from_text("\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n")


@pytest.mark.parametrize("dtype", slow_except(["int8"], ["int8", "int16"]))
@pytest.mark.feature("PRG-15")
@pytest.mark.slow
def test_a_wrong_value_inside_a_group_is_found(dtype: str) -> None:
    graph, program = built(grouped(2), dtype, SMALL, 5)
    tensor = next(each for each in checked(graph, program).tensors if each.parts > 1 and each.op == "conv")
    part = f"{tensor.layer}#2"
    wrong = damaged(program, part, lambda text: re.sub(r"\bhi=(\d+)", "hi=1", text, count=1))
    report, truth = checked(graph, wrong), integers(graph, program)
    assert not report.passed and report.first_wrong is not None
    found = next(each for each in report.tensors if each.name == tensor.name)
    assert found.codes is not None
    assert found.wrong == np.count_nonzero(found.codes != truth[tensor.name]) > 0
    before = report.tensors[: report.tensors.index(found)]
    assert not any(each.wrong for each in before)


def test_a_wrong_copy_is_found() -> None:
    graph, program = built(arranged(2), "int8", "64x64_edge", 5)
    layer = next(each for each in checked(graph, program).tensors if each.op == "pad")
    wrong = damaged(program, layer.layer, lambda text: re.sub(r"\bcode=(-?\d+)", "code=77", text, count=1))
    report = checked(graph, wrong)
    assert report.first_wrong is not None and report.first_wrong.name == layer.layer
    found = next(each for each in report.tensors if each.name == layer.name)
    # Padding: a row before and two columns behind, of 6 x 6 pixels with 20 channels, in two samples.
    assert found.wrong == 2 * (7 * 8 - 6 * 6) * 20
