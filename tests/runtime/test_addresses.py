"""Addresses of inputs and outputs, chosen when a program is compiled or loaded: the same bits everywhere."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest

import tpuflow
from frontend.decoders import VOCABULARY
from models.builder import Builder, samples
from runtime.small import feed, program
from tpuflow import _core
from tpuflow.compiler import Machine
from tpuflow.compiler.schedule import GroupSearch, IoMemory, Schedule
from tpuflow.config import Config
from tpuflow.errors import ProgramError
from tpuflow.execution.decoder import PhaseLevel, phase_feed
from tpuflow.execution.levels import graph_level
from tpuflow.execution.simulation import simulate
from tpuflow.pipeline.decoders import BuiltDecoder
from tpuflow.runtime import Device

FREE = 0x400000


def ports(loaded: Any) -> dict[str, int]:
    content = json.loads(loaded.metadata())
    return {port["name"]: port["view"]["address"] for port in content["inputs"] + content["outputs"]}


def output(**places: Any) -> tuple[dict[str, bytes], dict[str, int]]:
    with (
        Device.open(mode="exact") as device,
        device.load(program(), **places) as loaded,
        loaded.inference() as inference,
    ):
        found = inference.sync(feed(1))
        assert isinstance(loaded.program, _core.Program)
        assert found.cycles == json.loads(loaded.program.metadata())["predicted_cycles"]
        return {name: array.tobytes() for name, array in found.items()}, ports(loaded.program)


@pytest.mark.feature("SCH-26")
def test_inputs_and_outputs_are_moved_when_a_program_is_loaded() -> None:
    expected, where = output()
    together, moved = output(io_address=FREE)
    assert together == expected
    lowest = min(where.values())
    assert moved == {name: address - lowest + FREE for name, address in where.items()}
    names = list(where)
    places = {name: FREE + 0x10000 * number for number, name in enumerate(reversed(names))}
    apart, moved = output(addresses=places)
    assert (apart, moved) == (expected, places)
    one, moved = output(addresses={names[0]: FREE})
    assert one == expected and moved == {**where, names[0]: FREE}


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"addresses": {"picture": FREE}}, '"picture" is neither an input nor an output'),
        ({"addresses": {"image": FREE + 1}}, "addresses are multiples of 4096 bytes"),
        ({"addresses": {"image": 0}}, "which the program uses"),
        ({"io_address": 2**48}, "the memory ends at"),
        ({"io_address": -4096}, "not one of 64 bits"),
        ({"io_address": 2**64}, "not one of 64 bits"),
        ({"io_address": FREE, "addresses": {"image": FREE}}, "give one address for all"),
    ],
)
def test_places_that_cannot_be_are_refused(places: dict[str, Any], words: str) -> None:
    with Device.open() as device, pytest.raises(ProgramError, match=words):
        device.load(program(), **places)


@pytest.mark.slow
def test_states_move_with_the_rows_they_append(built: BuiltDecoder) -> None:
    chosen = built.parts["decode1_context8"]
    part, level = chosen.program, graph_level(chosen.graph)
    assert isinstance(part, _core.Program)
    phase = PhaseLevel.of(level).phase
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 8).tolist()
    found = []
    choices: tuple[dict[str, Any], ...] = ({}, {"io_address": FREE})
    for places in choices:
        with Device.open() as device, device.load(part, **places) as loaded:
            inference = loaded.inference()
            feeds = [phase_feed(level, phase, None, [token], position) for position, token in enumerate(ids)]
            found.append([inference.step(feed)["logits"].tobytes() for feed in feeds])
    assert found[0] == found[1]
    past, present = "past_key_values.0.key", "present.0.key/output"
    with pytest.raises(ProgramError, match="move together"):
        part.relocated(None, {past: FREE, present: FREE + 0x10000})


def graph() -> _core.Graph:
    b = Builder("net")
    x = b.input("image", [1, 8, 64, 64])
    for channels in (16, 16):
        x = b.node("Relu", b.conv(x, channels, pads=(1, 1, 1, 1)))
    b.output(x)
    model = tpuflow.load(b.model())
    config = tpuflow.Config.parse({"quantize": {"array_columns": 1}})
    found = tpuflow.quantize(model, tpuflow.calibrate(model, samples(b.model(), 2)), config)
    assert isinstance(found, _core.Graph)
    return found


@pytest.mark.feature("SCH-22", "SCH-26")
@pytest.mark.slow
def test_choices_of_a_schedule_change_programs_and_no_bit() -> None:
    network = graph()
    # Memory so slow that what passes through it decides.
    few = {"cache.words": 128, "ddr.clock_hz": 5_000_000}
    machine = Machine.load("32x32_fpga").replace(few, name="small")
    image = {"image": np.random.default_rng(0).normal(size=(1, 8, 64, 64)).astype(np.float32)}
    results, tilings, sizes = set(), {}, {}
    for search in get_args(GroupSearch):
        for io_memory in get_args(IoMemory):
            found = tpuflow.compile(
                network, machine, 5, schedule=Schedule(layer_groups=search, io_memory=io_memory)
            )
            assert _core.check(network, found) == []
            ports = [port for way in ("inputs", "outputs") for port in json.loads(found.metadata())[way]]
            assert io_memory != "contiguous" or all(
                (port["view"]["space"], port.get("parts", [])) == ({"Ddr": 0}, []) for port in ports
            )
            results.add(tuple(array.tobytes() for array in simulate(found, image).outputs.values()))
            tilings[search] = json.loads(found.metadata()).get("tilings", [])
            flat = tpuflow.compile(network, machine, 1, schedule=Schedule(io_memory=io_memory))
            sizes[io_memory] = json.loads(flat.metadata())["ddr_bytes"][0]
    assert len(results) == 1
    assert all(tilings.values())
    assert sizes["shared"] < sizes["separate"]


def test_unknown_choices_are_named() -> None:
    with pytest.raises(ProgramError, match='layer_groups "best" does not exist; choose greedy or dynamic or'):
        Schedule(layer_groups="best")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match='io_memory "none" does not exist'):
        Schedule(io_memory="none")  # type: ignore[arg-type]
    schedule = Config.parse({"schedule": {"layer_groups": "exact", "io_memory": "shared"}}).schedule
    assert (schedule.layer_groups, schedule.io_memory) == ("exact", "shared")
