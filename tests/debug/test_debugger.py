"""Scripted sessions of the debugger against the simulation itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tpuflow
from debug.test_steps import built, chain
from tpuflow import _core
from tpuflow.execution.debug import Debugger, Replay
from tpuflow.execution.debug.debugger import DebuggerError
from tpuflow.execution.simulation import program_ports, random_feed, simulate


@pytest.fixture(scope="module")
def program() -> _core.Program:
    return built(chain(), "int8", "128x128_asic", 5)[0]


@pytest.fixture
def debugger(program: _core.Program) -> Debugger:
    feed = random_feed(program, 1)
    return Debugger(Replay(program, [port.encode(feed[port.name]) for port in program_ports(program)[0]]))


@pytest.mark.feature("SIM-04")
def test_a_scripted_session(debugger: Debugger) -> None:
    replay = debugger.replay
    layers = [layer["name"] for layer in replay.content["layers"]]
    target = layers[2]
    assert debugger.execute(f"break layer {target}") == f"1: break layer {target}".replace("break ", "", 1)
    first = next(each for n in replay.order if (each := replay.instructions[n]).layer == 2)
    assert f"next {first.number} ({first.unit}, {target}" in debugger.execute("continue")
    assert replay.next() == first
    debugger.execute("delete 1")
    last = len(replay.instructions) - 1
    debugger.execute(f"break instruction {last}")
    debugger.execute("c")
    following = replay.next()
    assert following is not None and following.number == last
    assert debugger.execute("breaks") == f"2: instruction {last}"
    assert "the program has ended" in debugger.execute("continue")
    assert "the program has ended" in debugger.execute("step 3")
    assert debugger.execute("restart").startswith("cycle 0 of ")
    assert debugger.execute("# nothing") == ""
    debugger.execute("quit")
    assert debugger.ended


@pytest.mark.feature("SIM-04")
def test_tokens_and_units_follow_the_trace(debugger: Debugger, program: _core.Program) -> None:
    intervals = simulate(program, values=False, trace=True).intervals
    assert intervals is not None
    for cycle in (0, 151, 400, 900, debugger.replay.cycles):
        debugger.execute(f"cycle {cycle}")
        assert debugger.replay.cycle == cycle
        ends: dict[tuple[str, int], int] = {}
        for interval in intervals:
            key = (interval["unit"], interval["instruction"])
            ends[key] = max(ends.get(key, 0), interval["end"])
        for unit, count in debugger.replay.tokens().items():
            assert count == sum(end <= cycle for (name, _), end in ends.items() if name == unit)
        shown = debugger.execute("show units").splitlines()
        assert len(shown) == 5
        busy = {interval["unit"] for interval in intervals if interval["start"] < cycle < interval["end"]}
        assert busy <= {line.split()[0] for line in shown if "idle" not in line}
    assert debugger.execute("show tokens").splitlines()[2].split() == [
        "me",
        str(sum(each.unit == "me" for each in debugger.replay.instructions)),
    ]


@pytest.mark.feature("SIM-04")
def test_memories_hold_what_the_run_leaves(debugger: Debugger, program: _core.Program) -> None:
    debugger.execute("continue")
    (output,) = simulate(program, random_feed(program, 1)).outputs.values()
    port = program_ports(program)[1][0]
    view = debugger.replay.content["outputs"][0]["view"]
    size = int(np.prod(port.stored)) * port.code.itemsize
    found, known = debugger.replay.read(f"ddr{view['space']['Ddr']}", view["address"], size)
    assert known.all()
    np.testing.assert_array_equal(port.decode(found.view(port.code).reshape(port.stored)), output)
    line = debugger.execute(f"show ddr{view['space']['Ddr']} {view['address']:#x} 4").split()
    assert line[1:] == [f"{byte:02x}" for byte in found[:4]]


@pytest.mark.feature("SIM-04")
def test_accumulators_become_the_codes(debugger: Debugger) -> None:
    graph = built(chain(), "int8", "128x128_asic", 5)[1]
    conv = graph.layers[0]
    debugger.execute("cycle 0")
    number = next(each.number for each in debugger.replay.instructions if each.unit == "me")
    debugger.execute(f"break instruction {number}")
    debugger.execute("continue")
    debugger.execute("step")
    sums = debugger.replay.accumulators(number)
    op = json.loads(conv.op_json)
    # docs/arithmetic.md: the sum of products of centred codes, and the bias.
    image = debugger.replay._codes[0][0]
    zero = graph.tensors[graph.inputs[0]].zero_point
    weights = graph.constant(op["weights"]).astype(np.int64)
    padded = np.zeros((10, 10, 3), np.int64)
    padded[1:9, 1:9] = image.astype(np.int64) - zero
    expected = np.array(
        [
            [(padded[y : y + 3, x : x + 3] * weights[c]).sum() for c in range(8)]
            for y in range(8)
            for x in range(8)
        ]
    ) + graph.constant(op["bias"])
    np.testing.assert_array_equal(sums, expected[: len(sums)])
    assert f"instruction {number}: {len(sums)} pixels of 8 columns" in debugger.execute(
        f"show accumulators {number}"
    )


@pytest.mark.feature("SIM-04")
def test_watch_stops_behind_the_writer(debugger: Debugger) -> None:
    replay = debugger.replay
    number = next(each.number for each in replay.instructions if each.unit == "me")
    address = replay.content["instructions"][number]["work"]["Matrix"]["output"]["address"]
    debugger.execute(f"watch cache {address:#x} 64")
    stopped = debugger.execute("continue")
    assert f"changed by {number} (me" in stopped
    bank, word = divmod(address // 128, 4096)
    assert debugger.execute(f"show bank {bank} {word} 1").count("\n") == 7
    assert debugger.execute("show cache 0xfffff0 64").count("\n") == 0
    assert "cache ends before" in debugger.execute("show cache 0xffffffff")
    assert debugger.execute("show cache 0x800000 16") == "0x00800000  " + " ".join([".."] * 16)


def test_break_at_a_cycle(debugger: Debugger) -> None:
    debugger.execute("break cycle 600")
    debugger.execute("continue")
    following = debugger.replay.next()
    assert following is not None and debugger.replay.cycle <= 600 <= following.begin
    assert debugger.execute("list 2").count("\n") == 1
    assert debugger.execute("show next") == following.text
    assert len(debugger.execute("layers").splitlines()) == len(debugger.replay.content["layers"])
    assert "break layer" in debugger.execute("help")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("jump", 'unknown command "jump"'),
        ("break", "write break layer NAME"),
        ("break layer nothing", '"nothing" is unknown'),
        ("break instruction 999", "instruction 999 does not exist"),
        ("break cycle x", '"x" is not a whole number'),
        ("watch disk 0", 'memory "disk" is none of'),
        ("watch cache", "write watch SPACE"),
        ("show", "write tokens, units"),
        ("show bank 99", "B from 0 to 31"),
        ("show accumulators", "the array is idle"),
        ("delete 7", "write the number of a break"),
        ("continue now", "takes no words"),
        ('break "', "No closing quotation"),
    ],
)
def test_wrong_commands_are_told(debugger: Debugger, line: str, message: str) -> None:
    with pytest.raises((DebuggerError, tpuflow.TpuflowError), match=message):
        debugger.execute(line)
