"""Programs against their graphs, instruction by instruction: the first wrong layer is named."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tpuflow
from models.builder import Builder, samples
from models.random_model import random_model
from tpuflow import _core
from tpuflow.config import Config
from tpuflow.errors import ProgramError
from tpuflow.execution.debug import StepReport, check_steps
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import random_feed


def built(model: object, dtype: str, machine: str, level: int) -> tuple[_core.Program, _core.Graph]:
    config = Config.parse({"quantize": {"dtype": dtype}})
    loaded = tpuflow.load(model)  # type: ignore[arg-type]
    ranges = tpuflow.calibrate(loaded, samples(model, 2), config) if config.needs_ranges else None  # type: ignore[arg-type]
    graph = tpuflow.quantize(loaded, ranges, config)
    return tpuflow.compile(graph, machine, level), graph


def checked(program: _core.Program, graph: _core.Graph, *, fail_fast: bool = False) -> StepReport:
    return check_steps(program, GraphLevel(graph), random_feed(program, 3), fail_fast=fail_fast)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("dtype", "machine", "level"),
    [("int8", "32x32_fpga", 5), ("int16", "64x64_edge", 1), ("float16", "128x128_asic", 5)],
)
@pytest.mark.feature("PRG-15")
def test_sound_programs_pass(seed: int, dtype: str, machine: str, level: int) -> None:
    program, graph = built(random_model(seed), dtype, machine, level)
    report = checked(program, graph)
    assert report.passed, report.to_json()
    assert report.executed == len(program)
    computed = [
        layer for layer in report.layers if layer.op in ("conv", "mat_mul", "max_pool", "binary", "unary")
    ]
    assert all(layer.compared >= layer.elements for layer in computed)


def chain() -> object:
    b = Builder("chain")
    x = b.conv(b.input("image", [1, 3, 8, 8]), 8, pads=(1, 1, 1, 1))
    x = b.node("Relu", b.conv(b.node("Sigmoid", x), 16, (1, 1)))
    x = b.node("Add", x, b.conv(x, 16, pads=(1, 1, 1, 1), group=16))
    b.output(b.gemm(b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 5))
    return b.model()


@pytest.fixture(scope="module")
def sound() -> tuple[_core.Program, _core.Graph]:
    return built(chain(), "int8", "128x128_asic", 5)


@pytest.mark.feature("PRG-15")
def test_a_wrong_descriptor_is_located(sound: tuple[_core.Program, _core.Graph]) -> None:
    program, graph = sound
    text = program.to_text()
    lines = text.splitlines()
    numbers = [n for n, line in enumerate(lines) if line.startswith("descriptor ")]
    layer_of: dict[int, str] = {}
    for line in lines:
        found = re.search(r"descriptor=(\d+) .* ; \d+ (.*)$", line)
        if found and line.split(" ")[0] in ("me", "ewp", "pdp"):
            layer_of.setdefault(int(found[1]), found[2])
    tried = 0
    for descriptor, layer in layer_of.items():
        at = numbers[descriptor]
        changed = re.sub(
            r"zero_point=(-?\d+)", lambda m: f"zero_point={int(m[1]) // 2 + 3}", lines[at], count=1
        )
        if changed == lines[at]:
            continue
        wrong = _core.Program.from_text("\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n")
        report = checked(wrong, graph)
        assert report.first_wrong is not None, changed
        assert report.first_wrong.name == layer
        assert not report.passed and "not" in report.first_wrong.detail
        fast = checked(wrong, graph, fail_fast=True)
        assert fast.first_wrong is not None and fast.first_wrong.first == report.first_wrong.first
        assert fast.executed <= len(program)
        tried += 1
    assert tried >= 4


@pytest.mark.feature("PRG-15")
def test_a_wrong_weight_is_located(sound: tuple[_core.Program, _core.Graph]) -> None:
    program, graph = sound
    last = graph.layers[-1].name
    texts = program.to_text(constants=False).splitlines()
    product = next(line for line in texts if line.startswith("me ") and line.endswith(f" {last}"))

    def field(name: str, line: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", line)
        assert found is not None, line
        return int(found[1])

    weights = field(r"weights=\(address", product)
    load = next(
        line
        for line in texts
        if line.startswith("dtl")
        and "direction=load" in line
        and "local_space=Cache" in line
        and 0 <= weights - field("local_address", line) < field("bytes", line)
    )
    space = field("ddr_space", load)
    address = field("ddr_address", load) + weights - field("local_address", load)
    lines = program.to_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"constants {space} ")) + 1
    row, column = divmod(address, 64)
    text = lines[first + row]
    flipped = format(int(text[2 * column : 2 * column + 2], 16) ^ 0x55, "02x")
    lines[first + row] = text[: 2 * column] + flipped + text[2 * column + 2 :]
    report = checked(_core.Program.from_text("\n".join(lines) + "\n"), graph)
    assert report.first_wrong is not None and report.first_wrong.name == last


@pytest.mark.feature("PRG-15")
def test_a_broken_instruction_stops_the_run(sound: tuple[_core.Program, _core.Graph]) -> None:
    program, graph = sound
    lines = program.to_text().splitlines()
    # The first load of weights goes: whoever needs them reads what nobody wrote.
    at = next(n for n, line in enumerate(lines) if line.startswith("me "))
    number = int(re.search(r"; (\d+) ", lines[at])[1])  # type: ignore[index]
    moved = re.sub(r"weights=\(address=(\d+)", lambda m: f"weights=(address={int(m[1]) + 8388608}", lines[at])
    lines[at] = moved
    report = checked(_core.Program.from_text("\n".join(lines) + "\n"), graph)
    assert report.executed == number and "reads bytes nobody has written" in report.stopped
    assert report.outputs_equal is None and not report.passed


def test_another_graph_is_refused(sound: tuple[_core.Program, _core.Graph]) -> None:
    other = built(random_model(1), "int8", "128x128_asic", 1)[1]
    with pytest.raises(ProgramError, match="other layers"):
        check_steps(sound[0], GraphLevel(other), {"image": np.zeros((1, 3, 8, 8), np.float32)})
