"""Networks on several devices: the bits of one, through Python and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tpuflow
from cli.conftest import Built, Command
from frontend.decoders import VOCABULARY, decoder
from tpuflow import _core
from tpuflow.compiler import machine_text
from tpuflow.compiler.devices import compile_devices, divide
from tpuflow.errors import MachineError, ProgramError
from tpuflow.execution.decoder import Decoder
from tpuflow.execution.devices import DevicesLevel
from tpuflow.execution.graph_decoder import graph_decoder
from tpuflow.execution.levels import GraphLevel
from tpuflow.pipeline.bundle import Bundle, load_bundle
from tpuflow.pipeline.decoders import build_decoder, phases_of
from tpuflow.pipeline.request import Request
from tpuflow.pipeline.tensor_parallel import measure

PHASES = ("prefill4_context16", "decode1_context16")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of two layers, four heads of queries and two of keys."""
    folder = tmp_path_factory.mktemp("decoder")
    model, ids, file = folder / "d.onnx", folder / "ids.npz", folder / "d.tpub"
    onnx.save(decoder("exported"), model)
    np.savez(ids, ids=np.random.default_rng(0).integers(0, VOCABULARY, (10, 16)))
    built = build_decoder(Request(model, calibration=ids, verify=False), phases_of(4, 1, [16]))
    built.bundle.save(file)
    return file


def graph_of(bundle: Bundle, name: str) -> tpuflow.Graph:
    graph = bundle.graph(name)
    assert isinstance(graph, tpuflow.Graph)
    return graph


def codes(graph: tpuflow.Graph, seed: int) -> dict[str, NDArray[Any]]:
    level, generator = GraphLevel(graph), np.random.default_rng(seed)
    ports = zip(level.input_names, level.ports, strict=True)
    return {name: port.random_codes(generator) for name, port in ports}


@pytest.mark.feature("SCH-31")
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", PHASES)
def test_a_decoder_on_several_devices_keeps_every_bit(bundle: Path, name: str, devices: int) -> None:
    graph = graph_of(load_bundle(bundle), name)
    division = divide(graph, devices)
    given = codes(graph, devices)
    wanted = graph.run(given)
    joined = division.joined.run(given)
    assert {key: joined[key].tobytes() for key in wanted} == {
        key: array.tobytes() for key, array in wanted.items()
    }
    for machine, level in (("128x128_asic", 5), ("32x32_fpga", 1)):
        programs = compile_devices(division, machine, level)
        assert all(program.is_like(programs[0]) and program.fallback is None for program in programs)
        found = DevicesLevel(division, programs).codes(given)
        assert {key: array.tobytes() for key, array in found.items()} == {
            key: wanted[key].tobytes() for key in found
        }
    # Every device has its share of the weights that are divided, and of nothing more than there is.
    assert division.devices[0].graph.macs < graph.macs
    assert sum(each.graph.macs for each in division.devices) >= graph.macs


@pytest.mark.feature("SCH-31")
@pytest.mark.slow
def test_devices_generate_the_tokens_of_one(bundle: Path) -> None:
    held = load_bundle(bundle)
    graphs = [graph_of(held, name) for name in PHASES]
    prompt = [3, 1, 4, 1, 5]
    wanted = graph_decoder([GraphLevel(graph) for graph in graphs]).generate(prompt, 8)
    for devices in (2, 4):
        divisions = [divide(graph, devices) for graph in graphs]
        levels = [DevicesLevel(each, compile_devices(each, level=5)) for each in divisions]
        assert Decoder(levels).generate(prompt, 8) == wanted


def test_states_stay_on_their_device_at_every_position(bundle: Path) -> None:
    graph = graph_of(load_bundle(bundle), PHASES[1])
    division = divide(graph, 2)
    own = division.devices[0].graph
    assert len(own.states) == len(graph.states) == 4
    level = DevicesLevel(division, compile_devices(division, level=5))
    one = tpuflow.compile(graph, level=5)
    given = codes(graph, 3)
    names = [graph.tensors[number].name for number in graph.inputs]
    for position in (0, 1, 7, 15):
        found = level.codes(given, position)
        run = _core.simulate(one.at(position), [given[name] for name in names])
        for number, array in zip(graph.outputs, run.outputs, strict=True):
            np.testing.assert_array_equal(found[graph.tensors[number].name], array)
        assert level.cycles(position) > 0


def test_links_that_are_slower_cost_cycles(bundle: Path, tmp_path: Path) -> None:
    graph = graph_of(load_bundle(bundle), PHASES[1])
    slow = tmp_path / "slow.toml"
    slow.write_text(machine_text("128x128_asic").replace("link_latency = 500", "link_latency = 5000"))
    fast, late = (measure(graph, 2, machine, 5, values=False) for machine in ("128x128_asic", slow))
    assert fast.exchanges == late.exchanges > 0
    assert late.cycles > fast.cycles + 4000
    # One device has no links.
    alone = [measure(graph, 1, machine, 5).cycles for machine in ("128x128_asic", slow)]
    assert alone[0] == alone[1]


@pytest.mark.feature("SCH-31")
def test_the_command_compares_cycles_and_bits(
    bundle: Path, built: Built, command: Command, tmp_path: Path
) -> None:
    done = command(
        "tensor-parallel", bundle, "--devices", "1,2", "--json", tmp_path / "t", "-o", tmp_path / "p"
    )
    assert done.status == 0, done.err
    figures = json.loads((tmp_path / "t").read_text())["networks"]
    assert list(figures) == list(PHASES)
    for name, (one, two) in figures.items():
        assert (one["devices"], two["devices"], one["exchanges"]) == (1, 2, 0)
        assert one["equal"] is two["equal"] is True and two["exchanges"] > 0
        assert two["constant_bytes"] < one["constant_bytes"]
        assert f"{one['cycles']:,}" in done.out and f"{two['cycles']:,}" in done.out
        ranks = [_core.Program.load(tmp_path / "p" / f"{name}.2devices.{rank}.tpu") for rank in range(2)]
        assert ranks[0].is_like(ranks[1]) and ranks[0].digest() != ranks[1].digest()
        # A program alone has cycles but no values.
        rank = tmp_path / "p" / f"{name}.2devices.0.tpu"
        assert command("simulate", rank, "--timing-only").status == 0
        alone = command("simulate", rank)
        assert alone.status == 1 and "is one of 2 devices" in alone.err, alone.err
    done = command("tensor-parallel", built.graph, "--devices", "2", "--timing-only", "-O", "1")
    assert done.status == 0, done.err


def test_wrong_requests_are_refused(built: Built, bundle: Path, command: Command, tmp_path: Path) -> None:
    for words, message in (
        ((built.graph, "--devices", "0"), "--devices 0: give numbers of devices"),
        ((built.graph, "--devices", "two"), "--devices two: give numbers of devices"),
        ((built.graph, "--devices", "65"), "65 devices; a network is divided among 1 to 64"),
        ((built.program,), "is a program, not a quantised graph"),
        ((tmp_path / "none.tpuq",), "no such file"),
        ((built.graph, "--machine", "none"), "none"),
    ):
        done = command("tensor-parallel", *words)
        assert done.status in {1, 2} and message in done.err, (words, done.err)
    graph = graph_of(load_bundle(bundle), PHASES[1])
    division = divide(graph, 2)
    programs = compile_devices(division)
    with pytest.raises(ProgramError, match="is one of 2 devices"):
        _core.Devices(programs[:1])
    with pytest.raises(ProgramError, match="is one of 2 devices"):
        _core.Devices([programs[0], tpuflow.compile(graph)])
    with pytest.raises(ProgramError, match="is one of 2 devices"):
        tpuflow.simulate(programs[0])
    machine = tmp_path / "far.toml"
    machine.write_text(machine_text("128x128_asic").replace("link_latency = 500", "link_latency = 5000000"))
    with pytest.raises(MachineError, match=r"dma\.link_latency"):
        compile_devices(division, machine)
