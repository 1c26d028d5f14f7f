"""Machines by name or file, and what wrong requests are answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tpuflow import _core
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.program import machine_text, machines, require_machine
from tpuflow.errors import MachineError, ProgramError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow._core import EpilogueFields, RequantFields, WindowFields


@pytest.fixture(scope="module")
def graph() -> _core.Graph:
    """A fully connected layer of 24 inputs and 10 outputs."""
    rng = np.random.default_rng(7)
    builder = _core.GraphBuilder("small")
    x = builder.input("x", [1, 24], "int8", 0.05, 3)
    w = builder.constant("w", rng.integers(-128, 128, (24, 10)).astype(np.int8), 0.01)
    b = builder.constant("b", rng.integers(-999, 999, 10).astype(np.int32))
    requant: RequantFields = {"multiplier": [20000], "shift": [24], "zero_point": 0, "lo": -128, "hi": 127}
    op = _core.Op.mat_mul(a=x, b=w, bias=b, epilogue={"requant": requant})
    builder.output(builder.layer("dense", op, "y", [1, 10], "int8", 0.1))
    return builder.finish()


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.parametrize("machine", machines())
def test_every_preset_gives_the_bits_of_the_graph(graph: _core.Graph, machine: str, level: int) -> None:
    program = compile_graph(graph, machine, level, strict=True)
    assert (program.level, program.fallback) == (level, None)
    x = np.random.default_rng(1).integers(-128, 128, (1, 24)).astype(np.int8)
    run = _core.simulate(program, [x])
    np.testing.assert_array_equal(run.outputs[0], graph.run({"x": x})["y"])


def test_a_preset_written_to_a_file_is_the_same_machine(graph: _core.Graph, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(machine_text("64x64_edge"), encoding="utf-8")
    assert compile_graph(graph, path).to_json() == compile_graph(graph, "64x64_edge").to_json()


def test_a_field_of_older_machine_files_is_noted_and_has_no_effect(
    graph: _core.Graph, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.toml"
    text = machine_text("64x64_edge").replace("[feeder]", "parameter_tiles = 32\n\n[feeder]")
    path.write_text(text, encoding="utf-8")
    program = compile_graph(graph, path)
    assert program.to_json() == compile_graph(graph, "64x64_edge").to_json()
    note = f"{path}: array.parameter_tiles has no effect any more; delete it"
    assert [record.getMessage() for record in caplog.records] == [note]
    require_machine(program, path)


def test_an_unknown_machine_lists_the_presets(graph: _core.Graph) -> None:
    with pytest.raises(MachineError, match=r'"tpu9" is unknown.*128x128_asic, 128x128_dual_ddr'):
        compile_graph(graph, "tpu9")


def test_a_machine_file_at_fault_is_named(graph: _core.Graph, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(machine_text("64x64_edge").replace("channels = 1", "channels = 3"), encoding="utf-8")
    with pytest.raises(MachineError, match=r"odd\.toml.*ddr\.channels 3"):
        compile_graph(graph, path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MachineError, match=r"odd\.toml: not a text file: not UTF-8"):
        compile_graph(graph, path)


@pytest.mark.parametrize("level", [0, 2, 9])
def test_a_level_that_does_not_exist(graph: _core.Graph, level: int) -> None:
    with pytest.raises(ProgramError, match=f"optimisation level {level} does not exist; choose 1 or 5"):
        compile_graph(graph, level=level)


def test_limits_make_sense(graph: _core.Graph) -> None:
    with pytest.raises(ProgramError, match="seed -1 is negative"):
        compile_graph(graph, seed=-1)
    with pytest.raises(ProgramError, match="time limit 0 is not a positive number"):
        compile_graph(graph, time_limit=0)


def test_strict_refuses_what_fell_back(graph: _core.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    class FallbackProgram:
        fallback = "12 violations of the checker"

    monkeypatch.setattr(_core, "schedule", lambda *_, **__: FallbackProgram())
    assert isinstance(compile_graph(graph, level=5), FallbackProgram)
    with pytest.raises(ProgramError, match="level 5 fell back to a lower one: 12 violations"):
        compile_graph(graph, level=5, strict=True)


def test_a_layer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    builder = _core.GraphBuilder("wide")
    x = builder.input("x", [1, 200_000], "int8", 0.05)
    requant: RequantFields = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": -128, "hi": 127}
    op = _core.Op.rescale(input=x, requant=requant)
    builder.output(builder.layer("scale", op, "y", [1, 200_000], "int8", 0.05))
    path = tmp_path / "small.toml"
    text = machine_text("32x32_fpga").replace("words = 4096", "words = 64")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MachineError, match='layer "scale" does not fit the shared cache of 32x32_fpga'):
        compile_graph(builder.finish(), path)


def linear(kind: str, dtype: str, channels: int, columns: int) -> tuple[_core.Graph, NDArray[Any]]:
    """A product or a 3x2 convolution, and its weights as `[k, columns]`."""
    rng = np.random.default_rng(11)
    builder = _core.GraphBuilder("one")
    most = np.iinfo(dtype).max
    requant: RequantFields = {"multiplier": [20000], "shift": [30], "zero_point": 0, "lo": -128, "hi": 127}
    bias = rng.integers(-999, 999, columns).astype(np.int32 if dtype == "int8" else np.int64)
    if kind == "product":
        weights = rng.integers(-most, most + 1, (channels, columns)).astype(dtype)
        x, y = [1, channels], [1, columns]
        listed = weights
    else:
        listed = rng.integers(-most, most + 1, (columns, 3, 2, channels)).astype(dtype)
        weights = listed.reshape(columns, -1).T
        x, y = [1, 5, 4, channels], [1, 3, 3, columns]
    a = builder.input("x", x, dtype, 0.05, 0)
    b = builder.constant("w", listed, 0.01)
    c = builder.constant("b", bias)
    epilogue: EpilogueFields = {"requant": requant}
    window: WindowFields = {"kernel": [3, 2], "stride": [1, 1], "dilation": [1, 1], "pads": [0, 0, 0, 0]}
    operator = (
        _core.Op.mat_mul(a=a, b=b, bias=c, epilogue=epilogue)
        if kind == "product"
        else _core.Op.conv(input=a, weights=b, bias=c, window=window, groups=1, epilogue=epilogue)
    )
    builder.output(builder.layer("layer", operator, "y", y, "int8", 0.1))
    return builder.finish(), weights


@pytest.mark.parametrize(("machine", "width"), [("32x32_fpga", 32), ("128x128_asic", 128)])
@pytest.mark.parametrize("columns", [10, 24, 200])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("kind", ["product", "convolution"])
@pytest.mark.feature("LOW-12")
def test_weights_lie_in_the_order_the_array_takes_them(
    machine: str, width: int, columns: int, dtype: str, kind: str
) -> None:
    graph, weights = linear(kind, dtype, 24, columns)
    constants = b"".join(compile_graph(graph, machine, 1, strict=True).constants())
    planes = np.ascontiguousarray(weights).view(np.uint8).reshape(*weights.shape, -1)  # bytes apart
    for first in range(0, columns, width):
        # Row after row of what the array holds at a time, each padded to a power of two.
        part = planes[:, first : first + width]
        row = 1 << (part.shape[1] - 1).bit_length()
        start = constants.find(part[0, :, 0].tobytes())
        assert start >= 0
        size = len(weights) * row * planes.shape[2]
        stored = np.frombuffer(constants[start : start + size], np.uint8).reshape(-1, len(weights), row)
        unpacked = np.moveaxis(stored, 0, 2)[:, : part.shape[1]]
        np.testing.assert_array_equal(unpacked, part)
        assert not stored[:, :, part.shape[1] :].any()
