"""Programs kept in a folder: equal requests compile once, and no entry is trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpuflow import _core
from tpuflow.compiler import Machine
from tpuflow.compiler.parameters import parameters_of
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.program import machine_text
from tpuflow.compiler.schedule import Schedule
from tpuflow.config import ScheduleConfig
from tpuflow.errors import FileError, MachineError, ProgramError


def dense(weight: int = 3, outputs: int = 10) -> _core.Graph:
    """A fully connected layer of 24 inputs; `weight` is its first one."""
    rng = np.random.default_rng(7)
    builder = _core.GraphBuilder("small")
    x = builder.input("x", [1, 24], "int8", 0.05, 3)
    weights = rng.integers(-128, 128, (24, outputs)).astype(np.int8)
    weights[0, 0] = weight
    w = builder.constant("w", weights, 0.01)
    b = builder.constant("b", rng.integers(-999, 999, outputs).astype(np.int32))
    requant: _core.RequantFields = {
        "multiplier": [20000], "shift": [24], "zero_point": 0, "lo": -128, "hi": 127,
    }  # fmt: skip
    op = _core.Op.mat_mul(a=x, b=w, bias=b, epilogue={"requant": requant})
    builder.output(builder.layer("dense", op, "y", [1, outputs], "int8", 0.1))
    return builder.finish()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The levels that were really compiled, in order."""
    levels: list[int] = []
    schedule = _core.schedule

    def counting(graph: _core.Graph, text: str, level: int, **details: object) -> _core.Program:
        levels.append(level)
        return schedule(graph, text, level, **details)  # type: ignore[arg-type]

    monkeypatch.setattr(_core, "schedule", counting)
    return levels


def saved(program: _core.Program, path: Path) -> bytes:
    program.save(path)
    return path.read_bytes()


@pytest.mark.feature("SCH-32")
@pytest.mark.parametrize("level", [1, 5])
def test_the_same_request_is_compiled_once_and_gives_the_bytes_of_a_cold_build(
    compiled: list[int], tmp_path: Path, level: int
) -> None:
    folder = tmp_path / "made" / "here"
    cold = saved(compile_graph(dense(), level=level), tmp_path / "cold.tpu")
    first = saved(compile_graph(dense(), level=level, cache=folder), tmp_path / "first.tpu")
    again = saved(compile_graph(dense(), level=level, cache=str(folder)), tmp_path / "again.tpu")
    assert cold == first == again
    assert compiled == [level, level]
    (entry,) = folder.iterdir()
    assert entry.read_bytes() == cold


def test_whatever_a_program_follows_from_leads_to_another_entry(compiled: list[int], tmp_path: Path) -> None:
    other = parameters_of(1, ScheduleConfig(ram_io_balancing="mirror"))
    slower = Machine.preset("64x64_edge").replace({"clock_hz": 123_000_000}, name="64x64_edge")
    requests: list[Callable[[], object]] = [
        lambda: compile_graph(dense(), cache=tmp_path),
        lambda: compile_graph(dense(weight=4), cache=tmp_path),
        lambda: compile_graph(dense(), level=5, cache=tmp_path),
        lambda: compile_graph(dense(), level=5, seed=1, cache=tmp_path),
        lambda: compile_graph(dense(), schedule=Schedule(other), cache=tmp_path),
        lambda: compile_graph(dense(), "64x64_edge", cache=tmp_path),
        lambda: compile_graph(dense(), slower, cache=tmp_path),
    ]
    for _ in range(2):
        for request in requests:
            request()
    assert len(compiled) == len(requests) == len(list(tmp_path.iterdir()))


def test_a_preset_and_a_file_of_its_text_share_an_entry(compiled: list[int], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(machine_text("64x64_edge"), encoding="utf-8")
    for machine in ("64x64_edge", path):
        compile_graph(dense(), machine, cache=tmp_path / "cache")
    assert compiled == [1]


def damages(content: bytes) -> list[bytes]:
    """What an entry may turn into: cut, empty, foreign, or with one byte changed anywhere."""
    places = np.random.default_rng(3).integers(0, len(content), 60).tolist()
    changed = [content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :] for at in places]
    return [b"", content[:-1], content[: len(content) // 2], content + b"\0", b"not a program", *changed]


@pytest.mark.feature("SCH-32")
def test_a_damaged_entry_is_compiled_anew_and_replaced(
    compiled: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compile_graph(dense(), cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    right = entry.read_bytes()
    harmful = damages(right)
    for content in harmful:
        entry.write_bytes(content)
        compile_graph(dense(), cache=tmp_path)
        assert entry.read_bytes() == right
    assert len(compiled) == len(caplog.records) + 1 == len(harmful) + 1
    assert all(f"{entry}: compiled anew" in record.getMessage() for record in caplog.records)


def test_a_sound_program_of_another_request_is_not_taken(compiled: list[int], tmp_path: Path) -> None:
    """Whoever can write to the folder may exchange entries: each passes its own checksum."""
    folder = tmp_path / "cache"
    own = compile_graph(dense(), cache=folder)
    (entry,) = folder.iterdir()
    right = entry.read_bytes()
    slower = Machine.preset("128x128_asic").replace({"clock_hz": 123_000_000}, name="128x128_asic")
    others = [
        compile_graph(dense(weight=4)),
        compile_graph(dense(outputs=11)),
        compile_graph(dense(), level=5),
        compile_graph(dense(), "64x64_edge"),
        compile_graph(dense(), slower),
        own.to_raw(),
    ]
    compiled.clear()
    for other in others:
        other.save(entry)
        assert saved(compile_graph(dense(), cache=folder), tmp_path / "own.tpu") == right
    assert compiled == [1] * len(others)


def test_a_time_limit_leaves_the_folder_alone(compiled: list[int], tmp_path: Path) -> None:
    """The program then depends on how fast the computer is, so no other one may stand for it."""
    for _ in range(2):
        compile_graph(dense(), level=5, time_limit=60.0, cache=tmp_path)
    assert compiled == [5, 5]
    assert not list(tmp_path.iterdir())


def test_a_request_that_fails_leaves_no_entry(tmp_path: Path) -> None:
    tiny = Machine.preset("32x32_fpga").replace({"ddr.capacity_bytes": 4096})
    with pytest.raises(MachineError):
        compile_graph(dense(outputs=2000), tiny, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_strict_refuses_an_entry_that_fell_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class FallbackProgram:
        fallback = "12 violations of the checker"

    monkeypatch.setattr("tpuflow.compiler.program.compile_or_reuse", lambda *_: FallbackProgram())
    assert isinstance(compile_graph(dense(), level=5, cache=tmp_path), FallbackProgram)
    with pytest.raises(ProgramError, match="level 5 fell back to a lower one: 12 violations"):
        compile_graph(dense(), level=5, strict=True, cache=tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")
    with pytest.raises(FileError, match="taken: cannot be made"):
        compile_graph(dense(), cache=taken)
