"""Parameters of schedules: presets, limits, and what they change."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY
from models.make_models import MODELS, samples
from tpuflow import _core
from tpuflow.calibration import calibrate
from tpuflow.compiler.parameters import (
    DEFAULT,
    O1,
    O5,
    BalancingMode,
    BiasScaleNegativeScaleAggressiveGrouping,
    CompileParameters,
    DependencyResolutionAlgorithm,
    IntermediateInsertion,
    ParameterError,
    ScheduleOptimization,
    SubgraphSlicerParameters,
    parameters_of,
)
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.config import Config, ScheduleConfig
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load
from tpuflow.lowering import lower


@pytest.fixture(scope="module")
def graph() -> _core.Graph:
    proto = MODELS["residual"]()
    model = load(proto)
    return lower(model, calibrate(model, samples(proto, 2)))


@pytest.mark.feature("SCH-04")
def test_o1_has_the_published_fields() -> None:
    assert repr(O1) == (
        "CompileParameters(action_graph_data_transfer_optimization=True, "
        "dependency_resolution_algorithm=<DependencyResolutionAlgorithm.SEQUENTIAL: 1>, "
        "ram_io_balancing=<BalancingMode.NONE: 2>, "
        "shared_cache_schedule_optimizations=ScheduleOptimization(configurations="
        "(IntermediateInsertion(depth=16, time_limit_seconds=240),), round_robin=False, "
        "fallthrough_patch=False), "
        "ewp_cache_schedule_optimizations=ScheduleOptimization(configurations=(), round_robin=False, "
        "fallthrough_patch=False), "
        "slicer=SubgraphSlicerParameters(analysis_depth=1, analysis_depth_branch=4, spatial_limit=2, "
        "max_cache_utilization=1), layer_fusion=0)"
    )


@pytest.mark.feature("SCH-05")
def test_o5_has_the_published_fields() -> None:
    assert (
        CompileParameters(
            True,
            DependencyResolutionAlgorithm.PARALLEL,
            BalancingMode.MIRROR,
            ScheduleOptimization(
                (BiasScaleNegativeScaleAggressiveGrouping(0, -1), IntermediateInsertion(-1, -1)), True, True
            ),
            ScheduleOptimization((), True, True),
            SubgraphSlicerParameters(10, 4, 4, 0.5),
            layer_fusion=-1,
        )
        == O5
    )


@pytest.mark.feature("SCH-06")
def test_the_default_is_o1() -> None:
    assert DEFAULT is O1


@pytest.mark.parametrize(("level", "preset"), [(1, O1), (5, O5)])
@pytest.mark.feature("SCH-04", "SCH-05")
def test_levels_are_the_presets(graph: _core.Graph, level: int, preset: CompileParameters) -> None:
    assert preset.level == level
    assert parameters_of(level, ScheduleConfig()) == preset
    named, given = (
        compile_graph(graph, level=level),
        compile_graph(graph, level=level, schedule=Schedule(preset)),
    )
    assert named.to_json() == given.to_json()


CHANGES: dict[str, dict[str, Any]] = {
    "action_graph_data_transfer_optimization": {"data_transfer_optimization": False},
    "dependency_resolution_algorithm": {"dependency_resolution": "sequential"},
    "ram_io_balancing": {"ram_io_balancing": "none"},
    "shared_cache_schedule_optimizations": {
        "insertion_depth": 0,
        "grouping_time_limit": 0,
        "shared_round_robin": False,
    },
    "ewp_cache_schedule_optimizations": {"ewp_round_robin": False, "ewp_fallthrough_patch": False},
    "slicer": {"analysis_depth": 1, "spatial_limit": 0, "max_cache_utilization": 0.1},
    "layer_fusion": {"layer_fusion": 0},
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.feature("SCH-07", "SCH-14")
def test_every_field_may_be_replaced_and_no_bit_changes(graph: _core.Graph, field: str) -> None:
    config = Config.parse({"schedule": CHANGES[field]})
    parameters = parameters_of(5, config.schedule)
    others = [each.name for each in dataclasses.fields(O5) if each.name != field]
    assert getattr(parameters, field) != getattr(O5, field)
    assert all(getattr(parameters, name) == getattr(O5, name) for name in others)
    program = compile_graph(graph, level=5, schedule=Schedule(parameters))
    assert program.fallback is None
    usual, changed = simulate(compile_graph(graph, level=5)), simulate(program)
    for name, array in usual.outputs.items():
        assert (array == changed.outputs[name]).all()


WRONG: dict[str, Callable[[], object]] = {
    "depth": lambda: IntermediateInsertion(-2, 0),
    "time_limit_seconds": lambda: BiasScaleNegativeScaleAggressiveGrouping(0, -3),
    "configurations": lambda: ScheduleOptimization((3,), True, True),  # type: ignore[arg-type]
    "round_robin": lambda: ScheduleOptimization((), 1, True),  # type: ignore[arg-type]
    "spatial_limit": lambda: SubgraphSlicerParameters(1, 1, -1, 1),
    "analysis_depth ": lambda: SubgraphSlicerParameters(0, 1, 1, 1),
    "max_cache_utilization": lambda: SubgraphSlicerParameters(1, 1, 1, 1.5),
    "layer_fusion": lambda: dataclasses.replace(O5, layer_fusion=-2),
    "ram_io_balancing": lambda: dataclasses.replace(O5, ram_io_balancing=2),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.feature("SCH-07")
def test_impossible_values_are_refused_with_their_range(what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        WRONG[what]()


@pytest.mark.feature("SCH-18")
def test_weights_are_loaded_while_the_array_works(graph: _core.Graph) -> None:
    def overlap(level: int) -> int:
        intervals = simulate(compile_graph(graph, level=level), values=False, trace=True).intervals
        assert intervals is not None
        work = [each for each in intervals if each["phase"] == "execute"]
        loads = [each for each in work if each["unit"] in {"dtl0", "dtl1"}]
        array = [each for each in work if each["unit"] == "me"]
        return sum(
            max(0, min(a["end"], b["end"]) - max(a["start"], b["start"])) for a in loads for b in array
        )

    assert overlap(1) == 0
    assert overlap(5) > 0


FIXTURES = ("plain", "residual", "depthwise", "fire", "squeeze_excite")


@pytest.mark.feature("SCH-24")
@pytest.mark.slow
def test_loads_work_and_stores_overlap_and_keep_apart_in_the_cache() -> None:
    """On a machine with a small cache, level 5 loads and stores parts while others are computed."""
    machine = REPOSITORY / "tests" / "end_to_end" / "small.toml"
    pairs: dict[int, set[tuple[str, str]]] = {1: set(), 5: set()}
    for name, level in itertools.product(("residual", "upsample", "fire"), (1, 5)):
        proto = MODELS[name]()
        model = load(proto)
        graph = lower(model, calibrate(model, samples(proto, 1)))
        program = compile_graph(graph, machine=machine, level=level)
        assert not _core.check(graph, program)
        text = program.to_text(constants=False)
        transfers = re.findall(r"direction=(load|store).*; (\d+) ", text)
        kinds = {int(number): kind for kind, number in transfers}
        intervals = simulate(program, values=False, trace=True).intervals
        assert intervals is not None
        work = [each for each in intervals if each["phase"] == "execute"]
        pairs[level] |= {
            (kinds.get(one["instruction"], "compute"), kinds.get(two["instruction"], "compute"))
            for one in work
            for two in work
            if one["unit"] != two["unit"] and max(one["start"], two["start"]) < min(one["end"], two["end"])
        }
    assert not pairs[1]
    assert {("load", "compute"), ("store", "compute"), ("load", "store")} <= pairs[5]


@pytest.mark.parametrize("change", [{"insertion_depth": 0}, {"layer_fusion": 0}])
@pytest.mark.feature("SCH-19")
def test_shared_reserved_and_prolonged_space_costs_no_cycles(change: dict[str, Any]) -> None:
    """Each of what level 5 does with the cache, switched off: the same bits, and over all no fewer cycles."""
    parameters = parameters_of(5, ScheduleConfig(**change))
    with_all = without = 0
    for name in FIXTURES:
        proto = MODELS[name]()
        model = load(proto)
        graph = lower(model, calibrate(model, samples(proto, 1)))
        program = compile_graph(graph, level=5, schedule=Schedule(parameters))
        assert not _core.check(graph, program)
        usual, changed = simulate(compile_graph(graph, level=5)), simulate(program)
        with_all, without = with_all + usual.cycles, without + changed.cycles
        for output, array in usual.outputs.items():
            assert (array == changed.outputs[output]).all()
    assert with_all <= without


@pytest.mark.feature("SCH-33")
def test_the_same_parameters_give_the_same_program(graph: _core.Graph, tmp_path: Path) -> None:
    for name in ("a", "b"):
        compile_graph(graph, level=5).save(tmp_path / f"{name}.tpu")
    assert (tmp_path / "a.tpu").read_bytes() == (tmp_path / "b.tpu").read_bytes()
