"""Machines as objects: presets, changes whose consequences follow, refusals that say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tpuflow
from models.make_models import MODELS, samples
from tpuflow.compiler.machine import Machine
from tpuflow.errors import MachineError

ASIC = "128x128_asic"


@pytest.mark.parametrize("name", Machine.presets())
def test_presets_are_the_files_they_come_from(name: str, tmp_path: Path) -> None:
    machine = Machine.preset(name)
    assert machine.name == name
    assert machine == Machine.parse(machine.to_toml()) == Machine.load(name)
    machine.save(tmp_path / "mine.toml")
    assert Machine.load(tmp_path / "mine.toml") == machine
    assert machine.replace({}) == machine
    assert machine["array.rows"] == machine["pdp.lanes"] == machine["cache.word_bytes"]


def test_a_file_with_a_base_states_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "{ASIC}"\nname = "mine"\n[ddr]\nchannels = 1\n')
    found, base = Machine.load(path), Machine.preset(ASIC)
    assert found == base.replace({"ddr.channels": 1}, name="mine")
    path.write_text(f'base = "{ASIC}"\nname = "mine"\n[ddr]\nchannel = 1\n')
    with pytest.raises(MachineError, match=r"mine\.toml: ddr\.channel is unknown; there are .*channels"):
        Machine.load(path)


@pytest.mark.parametrize("size", [32, 64, 256])
@pytest.mark.parametrize("key", ["array.size", "array.rows", "pdp.lanes", "cache.word_bytes"])
def test_the_length_of_a_word_takes_the_array_and_the_lanes_along(key: str, size: int) -> None:
    made = Machine.preset(ASIC).replace({key: size})
    for follower in ("array.rows", "array.columns", "pdp.lanes", "cache.word_bytes"):
        assert made[follower] == size
    assert made["ewp.lanes"] == size // 2
    assert made.name == f"{ASIC}_{key}-{size}"


@pytest.mark.parametrize("channels", [4, 8])
def test_ganged_channels_are_two_of_longer_words(channels: int) -> None:
    base, gang = Machine.preset(ASIC).replace({"cache.bytes": 1 << 16}), channels // 2
    sizes = {
        f"ddr.{key}": gang * base[f"ddr.{key}"] for key in ("word_bytes", "page_bytes", "capacity_bytes")
    }
    model = tpuflow.load(MODELS["residual"]())
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, samples(MODELS["residual"](), 2)))
    ganged, longer = (
        tpuflow.compile(graph, base.replace(changes), 5) for changes in ({"ddr.channels": channels}, sizes)
    )
    plain = tpuflow.compile(graph, base, 5)
    cycles = [tpuflow.simulate(program, values=False).cycles for program in (ganged, longer, plain)]
    assert cycles[0] == cycles[1] < cycles[2]


def test_what_is_given_does_not_follow() -> None:
    made = Machine.preset(ASIC).replace({"array.rows": 64, "array.columns": 32, "ewp.lanes": 64}, name="mine")
    assert (made["array.columns"], made["ewp.lanes"], made["pdp.lanes"], made.name) == (32, 64, 64, "mine")
    # An array that is not square keeps its columns, as far as the word allows.
    assert made.replace({"array.rows": 128})["array.columns"] == 32
    assert made.replace({"array.rows": 16})["array.columns"] == 16


def test_caches_by_their_bytes() -> None:
    asic = Machine.preset(ASIC)
    assert asic["cache.bytes"] == 16 << 20
    small = asic.replace({"cache.bytes": 1 << 20, "ewp_cache.bytes": 1 << 19})
    assert (small["cache.words"], small["cache.bytes"], small["ewp_cache.bytes"]) == (256, 1 << 20, 1 << 19)
    both = asic.replace({"cache.bytes": 1 << 20, "array.size": 64})
    assert both["cache.bytes"] == 1 << 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"array.row": 64}, 'no parameter "array.row", there are clock_hz, '),
        ({"array.rows": 64, "pdp.lanes": 32}, "array.rows 64, pdp.lanes 32 must be equal"),
        (
            {"array.size": 64, "array.columns": 32},
            "array.columns 32 contradicts array.size",
        ),
        ({"cache.bytes": 1000}, "cache.bytes 1000 are not whole words in every bank"),
        ({"cache.bytes": 4096, "cache.words": 2}, "cache.words 2 contradicts cache.bytes, by which it is 1"),
        ({"array.size": 96}, "cache.word_bytes 96 must be a power of two"),
        ({"array.columns": 256}, "array.columns 256 must not exceed cache.word_bytes 128"),
        ({"clock_hz": 0}, "clock_hz must be positive"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(changes: dict[str, int], message: str) -> None:
    with pytest.raises(MachineError) as refused:
        Machine.preset(ASIC).replace(changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unknown_presets_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="there are 128x128_asic, "):
        Machine.preset("128x128")
    (tmp_path / "broken.toml").write_text("name = 3\n")
    with pytest.raises(MachineError, match=r"broken\.toml.*line 1"):
        Machine.load(tmp_path / "broken.toml")


def test_programs_are_compiled_for_machines() -> None:
    model = tpuflow.load(MODELS["residual"]())
    graph = tpuflow.quantize(model, tpuflow.calibrate(model, samples(MODELS["residual"](), 2)))
    machine = Machine.preset(ASIC).replace({"array.size": 64, "cache.bytes": 1 << 20}, name="half")
    program = tpuflow.compile(graph, machine, 5)
    assert json.loads(program.metadata())["machine"]["name"] == "half"
    assert tpuflow.simulate(program, values=False).report["machine"] == "half"
    same = tpuflow.compile(graph, Machine.preset(ASIC), 5)
    assert same.digest() == tpuflow.compile(graph, ASIC, 5).digest()
