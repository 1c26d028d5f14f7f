"""Energy and area: counters recomputed from programs, cases by hand, tables, intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tpuflow
import tpuflow.energy
from cli.conftest import Built, Command
from tpuflow import _core
from tpuflow.compiler.bounds import lower_bounds
from tpuflow.compiler.machine import Machine
from tpuflow.energy import Interval, area, energy, load_table
from tpuflow.energy.table import SHIPPED
from tpuflow.errors import FileError
from tpuflow.execution.simulation import simulate
from tpuflow.partitioning.storage import load_graph, load_program

WORDS = {"Load": "ddr_read_bytes", "Store": "ddr_write_bytes"}


def program_of(built: Built) -> _core.Program:
    loaded = load_program(built.program)
    assert isinstance(loaded, _core.Program)
    return loaded


def moved_by_layer(program: Mapping[str, Any]) -> list[dict[str, int]]:
    """Bytes between DDR and caches by layer, from the instructions alone."""
    found = [{"ddr_read_bytes": 0, "ddr_write_bytes": 0} for _ in program["layers"]]
    for instruction in program["instructions"]:
        work = instruction["work"]
        transfer = work.get("Transfer", work.get("transfer"))
        if transfer is not None:
            key = WORDS[str(transfer["direction"]).capitalize()]
            found[instruction["layer"]][key] += transfer["bytes"] * math.prod(transfer["counts"])
    return found


def test_counters_of_layers_follow_from_the_program_and_sum_to_those_of_the_run(built: Built) -> None:
    program = program_of(built)
    run = simulate(program, values=False).report
    stated = moved_by_layer(json.loads(program.to_json()))
    assert [
        {key: layer[key] for key in own} for layer, own in zip(run["layers"], stated, strict=True)
    ] == stated
    assert any(own["ddr_read_bytes"] for own in stated)
    counters = run["counters"]
    for key in ("ddr_read_bytes", "ddr_write_bytes", "page_misses"):
        assert sum(layer[key] for layer in run["layers"]) == counters[key] > 0
    for number, unit in enumerate(counters["units"]):
        assert sum(layer["busy_by_unit"][number] for layer in run["layers"]) == unit["busy"]
    stepped = json.loads(_core.simulate(program, [], values=False, stepped=True).to_json())
    assert stepped["layers"] == run["layers"]


@pytest.mark.parametrize("table_name", SHIPPED)
def test_every_joule_is_a_counter_times_a_row(table_name: str) -> None:
    table, machine = load_table(table_name), Machine.preset("128x128_asic").parameters
    layer = {
        "name": "a", "dtype": "int8", "macs": 1000, "busy_by_unit": [0, 0, 7, 5, 3],
        "ddr_read_bytes": 64, "ddr_write_bytes": 32, "page_misses": 2,
    }  # fmt: skip
    pooled = layer | {"name": "b", "macs": 0, "busy_by_unit": [0, 0, 0, 0, 3]}
    report = {
        "layers": [layer, pooled], "cycles": 2000, "counters": {"bank_accesses": [4, 6]},
    }  # fmt: skip
    found = energy(report, machine, table)
    rows = {key: row.value * 1e-12 for key, row in table.rows.items()}
    own, other = (parts for _, parts in found.layers)
    assert own["mac"].value == pytest.approx(1000 * rows["mac.int8"])
    assert own["registers"].value == pytest.approx(7 * 128 * 128 * 5 * rows["array.register_byte"])
    assert own["accumulators"].value == pytest.approx(7 * 128 * 8 * rows["array.accumulator_byte"])
    assert own["elementwise"].value == pytest.approx(5 * 64 * rows["lane.elementwise"])
    assert "pooling" not in own
    assert own["ddr"].value == pytest.approx(96 * 8 * rows["ddr.bit"] + 8192 * rows["ddr.activate_byte"])
    assert other["pooling"].value == pytest.approx(3 * 128 * 3 * rows["lane.pooling_tap"])
    bank = 4096 * 128
    assert found.shared["cache"].value == pytest.approx(10 * 128 * table.sram_byte(bank).value * 1e-12)
    mm2 = sum(area(machine, table).values(), Interval())
    static = table.rows["static.watt_per_mm2"]
    for bound in ("value", "low", "high"):
        watts = getattr(mm2, bound) * getattr(static, bound)
        assert getattr(found.shared["static"], bound) == pytest.approx(watts * 2e-6)
    plain = found.to_json()
    layers = [layer["joules"][0] for layer in plain["layers"]]
    assert plain["joules"][0] == pytest.approx(
        sum(layers) + sum(each.value for each in found.shared.values())
    )
    assert plain["joules"][1] < plain["joules"][0] < plain["joules"][2]


@pytest.mark.parametrize("name", ["128x128_asic", "32x32_fpga", "128x128_dual_ddr"])
@pytest.mark.parametrize("level", [1, 5])
def test_no_run_takes_less_than_the_least_energy(name: str, level: int, built: Built) -> None:
    graph, machine, table = load_graph(built.graph), Machine.preset(name), load_table("45nm")
    assert isinstance(graph, _core.Graph)
    report = lower_bounds(graph, machine).report
    least = energy(report, machine.parameters, table)
    run = energy(
        simulate(tpuflow.compile(graph, machine, level), values=False).report, machine.parameters, table
    )
    assert run.parts["mac"] == least.parts["mac"]
    for part, joules in least.parts.items():
        assert 0 < joules.value <= run.parts[part].value
    inflated = {**report, "layers": [{**layer, "macs": layer["macs"] + 1} for layer in report["layers"]]}
    assert energy(inflated, machine.parameters, table).total.value > least.total.value


def test_banks_between_two_sizes_cost_between_them() -> None:
    table = load_table("45nm")
    at = [table.sram_byte(size).value for size in (8192, 16384, 32768, 1 << 18, 1 << 20, 1 << 22)]
    assert at == sorted(at)
    assert at[0] == pytest.approx(1.25)
    assert at[1] == pytest.approx(math.sqrt(1.25 * 2.5))
    assert at[4] == pytest.approx(12.5)
    assert at[5] > 12.5


@pytest.mark.parametrize("name", SHIPPED)
def test_every_row_has_an_interval_and_a_source(name: str) -> None:
    table = load_table(name)
    assert set(table.sources) == set(table.rows)
    assert all(len(source) > 5 for source in table.sources.values())
    assert all(row.low < row.value < row.high for row in table.rows.values())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("low = 0.2", "low = 0.9"), "mac.int8: low 0.9, value 0.3, high 0.4 must rise"),
        (("[mac] ", "[mack]"), "row mac.int8 is missing"),
        (("[area] ", "[area]\nx = { value = 1, low = 1, high = 1, source = 'y' } "), "area.x is unknown"),
        (("value = 0.3,", ""), "mac.int8: write { value"),
        (("byte_8192 ", "byte_x "), "sram.byte_x is unknown"),
    ],
)
def test_a_table_that_makes_no_sense_is_one_line(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    shipped = Path(tpuflow.energy.__file__).parent / "tables" / "45nm.toml"
    text = shipped.read_text(encoding="utf-8")
    assert change[0] in text
    path = tmp_path / "t.toml"
    path.write_text(text.replace(change[0], change[1], 1), encoding="utf-8")
    with pytest.raises(FileError) as error:
        load_table(str(path))
    assert told in str(error.value)
    with pytest.raises(FileError, match="3nm"):
        load_table("3nm")


def test_simulate_shows_energy_by_part_and_layer(built: Built, command: Command, tmp_path: Path) -> None:
    figures = tmp_path / "r.json"
    shown = command("simulate", built.program, "--timing-only", "--energy", "--json", figures)
    assert shown.status == 0, shown.err
    assert "Energy (table 45nm)" in shown.out
    assert "Layers by energy" in shown.out
    assert " mm2 (" in shown.out
    found = json.loads(figures.read_text(encoding="utf-8"))["energy"]
    assert found["joules"][0] == pytest.approx(sum(part[0] for part in found["parts"].values()))
    plain = command("simulate", built.program, "--timing-only")
    assert "Energy" not in plain.out
    refused = command("simulate", built.program, "--timing-only", "--energy", "--energy-table", "1nm")
    assert refused.status == 1
    assert 'energy table "1nm" is unknown' in refused.err
