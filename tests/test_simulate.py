"""Programs fed and read as the model is, against the integer graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from models.builder import Builder
from models.make_models import samples
from tpuflow import _core
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.errors import FileError, ProgramError, SampleError
from tpuflow.execution.simulation import program_ports, simulate
from tpuflow.frontend import load
from tpuflow.lowering import lower

if TYPE_CHECKING:
    from tpuflow._core import RequantFields, WindowFields

SCALE, ZERO = 0.05, 3
REPORT_KEYS = {
    "program", "machine", "level", "clock_hz", "cycles", "time_us", "macs", "utilization", "bounds", "bound",
    "binding", "gap", "stalls", "host_us", "memory", "host_seconds", "checker", "layers",
}  # fmt: skip


def _graph(batch: int) -> _core.Graph:
    """A 3x3 convolution over `[batch, 3, 6, 5]` (channels first in the model)."""
    generator = np.random.default_rng(1)
    builder = _core.GraphBuilder("net")
    source = {"name": "image", "shape": [batch, 3, 6, 5], "permutation": [0, 2, 3, 1], "dtype": "float32"}
    image = builder.input("image", [batch, 6, 5, 3], "int8", SCALE, ZERO, json.dumps(source))
    weights = builder.constant("w", generator.integers(-90, 90, (7, 3, 3, 3), np.int8), 0.01)
    bias = builder.constant("b", generator.integers(-900, 900, 7, np.int32))
    requant: RequantFields = {"multiplier": [21000], "shift": [21], "zero_point": -4, "lo": -128, "hi": 127}
    window: WindowFields = {"kernel": [3, 3], "stride": [1, 1], "dilation": [1, 1], "pads": [1, 1, 1, 1]}
    op = _core.Op.conv(
        input=image, weights=weights, bias=bias, window=window, groups=1, epilogue={"requant": requant}
    )
    result = source | {"name": "features", "shape": [batch, 7, 6, 5]}
    output = builder.layer("conv", op, "features", [batch, 6, 5, 7], "int8", 0.25, -4, json.dumps(result))
    builder.output(output)
    return builder.finish()


@pytest.fixture(scope="module")
def graph() -> _core.Graph:
    return _graph(2)


@pytest.fixture(scope="module")
def program(graph: _core.Graph) -> _core.Program:
    return compile_graph(graph, "32x32_fpga")


def test_any_number_of_samples_gives_the_graphs_integers(graph: _core.Graph, program: _core.Program) -> None:
    images = np.random.default_rng(2).normal(0, 3, (5, 3, 6, 5)).astype(np.float32)
    run = simulate(program, {"image": images})
    assert run.outputs["features"].shape == (5, 7, 6, 5)
    assert run.outputs["features"].dtype == np.float32
    codes = np.clip(np.rint(images.astype(np.float64) / np.float32(SCALE)) + ZERO, -128, 127).astype(np.int8)
    for first in (0, 2, 3):
        batch = np.ascontiguousarray(codes[first : first + 2].transpose(0, 2, 3, 1))
        expected = (graph.run({"image": batch})["features"].astype(np.float32) + 4) * np.float32(0.25)
        np.testing.assert_array_equal(
            run.outputs["features"][first : first + 2], expected.transpose(0, 3, 1, 2)
        )


@pytest.mark.feature("SCH-35")
def test_the_report_has_every_figure(program: _core.Program) -> None:
    run = simulate(program)
    report = json.loads(run.to_json())
    assert set(report) >= REPORT_KEYS
    assert run.cycles == report["cycles"] > 0
    assert run.time_us == report["cycles"] / 200  # 200 MHz
    assert [layer["name"] for layer in run.layers] == ["conv"]
    layer = run.layers[0]
    assert set(layer) == {
        "name", "op", "dtype", "unit", "start", "end", "busy", "busy_by_unit", "macs", "bound", "binding",
        "ddr_read_bytes", "ddr_write_bytes", "page_misses",
    }  # fmt: skip
    assert 0 < layer["start"] < layer["start"] + layer["busy"] < layer["end"] <= run.cycles
    assert report["macs"] == layer["macs"] == 2 * 6 * 5 * 7 * 27
    for unit in report["counters"]["units"]:
        assert unit["busy"] + sum(unit["stalls"].values()) == unit["end"] - unit["start"]
    assert sum(report["stalls"].values()) == sum(
        sum(unit["stalls"].values()) for unit in report["counters"]["units"]
    )


@pytest.mark.feature("SIM-07")
def test_utilization_is_work_over_time(program: _core.Program) -> None:
    report = json.loads(simulate(program).to_json())
    units = report["counters"]["units"]
    order = ("dtl0", "dtl1", "me", "ewp", "pdp")
    assert sorted(order) == sorted(report["utilization"])
    for name, unit in zip(order, units, strict=True):
        assert report["utilization"][name] == unit["busy"] / report["cycles"] <= 1
    for name in ("me", "ewp", "pdp"):
        busy = sum(layer["busy"] for layer in report["layers"] if layer["unit"] == name)
        assert busy <= units[order.index(name)]["busy"]


@pytest.mark.feature("SIM-06", "SCH-19")
def test_stretches_of_the_cache_never_overlap(program: _core.Program) -> None:
    content = json.loads(program.metadata())
    stretches = content["allocations"]
    assert stretches
    for number, one in enumerate(stretches):
        assert one["address"] >= 0 and one["first"] <= one["last"] < len(program)
        for two in stretches[:number]:
            in_time = one["first"] <= two["last"] and two["first"] <= one["last"]
            in_space = (
                one["address"] < two["address"] + two["bytes"]
                and two["address"] < one["address"] + one["bytes"]
            )
            assert not (in_time and in_space), (one, two)
    most = max(
        sum(each["bytes"] for each in stretches if each["first"] <= at <= each["last"])
        for at in range(len(program))
    )
    assert most <= content["cache_peak_bytes"]


@pytest.mark.feature("IMP-31")
def test_random_inputs_repeat(program: _core.Program) -> None:
    first, again, other = (simulate(program, seed=seed).outputs["features"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_cycles_do_not_depend_on_values_or_the_model_of_the_array(program: _core.Program) -> None:
    run = simulate(program, array="register")
    timing = simulate(program, values=False, trace=True)
    assert timing.outputs == {}
    assert timing.cycles == run.cycles
    np.testing.assert_array_equal(run.outputs["features"], simulate(program).outputs["features"])
    assert run.intervals is None
    assert timing.intervals is not None
    assert {interval["unit"] for interval in timing.intervals} >= {"dtl0", "me"}
    assert max(interval["end"] for interval in timing.intervals) == timing.cycles


@pytest.mark.feature("SIM-09")
@pytest.mark.slow
def test_time_follows_from_clock_and_bandwidth(tmp_path: Path) -> None:
    """Mostly array time: shorter at twice the clock, longer at a tenth of the bandwidth."""
    b = Builder("busy")
    x = b.input("x", [1, 64, 48, 48])
    for _ in range(4):
        x = b.conv(x, 128, pads=(1, 1, 1, 1))
    b.output(b.node("GlobalAveragePool", x))
    model = load(b.model())
    graph = lower(model, calibrate(model, samples(b.model(), 1)))
    text = _core.machine_text("128x128_asic")

    def microseconds(changed: str) -> float:
        (tmp_path / "m.toml").write_text(changed)
        run = simulate(compile_graph(graph, machine=str(tmp_path / "m.toml"), level=5), values=False)
        assert run.report["time_us"] == pytest.approx(run.cycles * 1e6 / run.report["clock_hz"])
        return float(run.report["time_us"])

    usual = microseconds(text)
    fast = text.replace("clock_hz = 1_000_000_000", "clock_hz = 2_000_000_000")
    assert fast != text
    assert 0.5 <= microseconds(fast) / usual < 0.6
    slow = text.replace("clock_hz = 800_000_000 ", "clock_hz = 80_000_000 ")
    assert slow != text
    assert microseconds(slow) / usual > 1.5


def test_nan_is_real_zero_and_infinity_the_largest_code(program: _core.Program) -> None:
    port = program_ports(program)[0][0]
    array = np.zeros(port.shape, np.float32)
    array[0, 0, 0, :4] = [np.nan, np.inf, -np.inf, 0.075]
    codes = port.encode(array)
    # 0.075 / 0.05 lies a hair off 1.5 in float32; what counts is the quotient of the stored numbers.
    tie = round(float(np.float64(np.float32(0.075)) / np.float64(np.float32(SCALE)))) + ZERO
    assert codes[0, 0, :4, 0].tolist() == [ZERO, 127, -128, tie]


def test_a_saved_program_runs_the_same(program: _core.Program, tmp_path: Path) -> None:
    path = tmp_path / "net.tpu"
    program.save(path)
    loaded = _core.Program.load(path)
    assert loaded.to_json() == program.to_json()
    np.testing.assert_array_equal(simulate(loaded).outputs["features"], simulate(program).outputs["features"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"net\.tpu: .*cut short"):
        _core.Program.load(path)


def test_inputs_that_do_not_fit_are_named(program: _core.Program) -> None:
    with pytest.raises(SampleError, match=r'input "image" is missing'):
        simulate(program, {})
    with pytest.raises(SampleError, match=r'input "image": shape'):
        simulate(program, {"image": np.zeros((1, 3, 6, 6), np.float32)})
    with pytest.raises(SampleError, match="no values"):
        simulate(program, {"image": np.zeros((2, 3, 6, 5), np.float32)}, values=False)
    with pytest.raises(SampleError, match=r'input "image" is int16'):
        _core.simulate(program, [np.zeros((2, 6, 5, 3), np.int16)])
    with pytest.raises(ProgramError, match="array model"):
        _core.simulate(program, [], values=False, array="open")
