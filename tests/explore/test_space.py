"""Spaces: fields, what follows from them, constraints, and what is no space."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuflow.compiler import Machine
from tpuflow.errors import MachineError, TpuflowError
from tpuflow.explore import ExploreError, Settings, Space, load_settings
from tpuflow.explore.space import derived_fields, parsed_values

BASE = Machine.preset("128x128_asic")


def test_points_are_all_combinations_and_machines_follow_with_reasons() -> None:
    space = Space({"array.size": (32, 128), "cache.bytes": (1 << 20, 4 << 20), "batch": (1, 2)})
    points = list(space.points())
    assert len(points) == space.size == 8
    assert points[1] == {"array.size": 32, "cache.bytes": 1 << 20, "batch": 2}
    machine = space.machine(points[0], BASE)
    assert machine["array.rows"] == machine["array.columns"] == machine["pdp.lanes"] == 32
    assert machine["cache.bytes"] == 1 << 20
    follows = derived_fields(points[0], machine, BASE)
    assert follows["cache.word_bytes"] == (32, "a word is one row vector")
    assert follows["ewp.lanes"] == (16, "keeps its share of the word")
    assert follows["cache.words"][0] == machine["cache.words"]
    assert "clock_hz" not in follows


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("cache.bytes >= 8192 * array.size", False),
        ("cache.bytes >= 8192 * array.size or ddr.channels == 2", True),
        ("not (array.rows < 64)", True),
        ("1 <= ddr.channels < 2", False),
        ("batch % 3 == 2 and clock_hz / 1e9 <= 1", True),
        ("-array.size // 100 == -2", True),
    ],
)
def test_constraints_are_expressions_over_fields(constraint: str, *, holds: bool) -> None:
    space = Space({"array.size": (128,), "cache.bytes": (1 << 19,), "batch": (5,)}, (constraint,))
    point = next(space.points())
    if holds:
        space.machine(point, BASE)
    else:
        with pytest.raises(MachineError, match="breaks the constraint"):
            space.machine(point, BASE)


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        ("__import__('os')", "fields, numbers"),
        ("cache.bytes >=", "not an expression"),
        ("cache.size > 1", 'no field "cache.size"'),
        ("cache.bytes / 0 > 1", "division by zero"),
        ("(lambda: 1)()", "fields, numbers"),
    ],
)
def test_what_is_no_constraint_is_one_line(constraint: str, told: str) -> None:
    with pytest.raises(ExploreError, match="constraint") as error:
        Space({"array.size": (64,)}, (constraint,)).machine({"array.size": 64}, BASE)
    assert told in str(error.value)


def test_values_are_lists_or_steps() -> None:
    assert parsed_values("x", 3) == (3,)
    assert parsed_values("x", {"low": 32, "high": 256, "factor": 2}) == (32, 64, 128, 256)
    assert parsed_values("x", {"low": 1, "high": 6, "step": 2}) == (1, 3, 5)
    for wrong in (
        {"low": 1},
        {"low": 2, "high": 1, "step": 1},
        {"low": 0, "high": 1, "factor": 2},
        [True],
        [None],
    ):
        with pytest.raises(ExploreError, match="space: x"):
            parsed_values("x", wrong)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("networks = ['n.tpuq']", "no table [space]"),
        ("networks = ['n.tpuq']\n[space]", "no field varies"),
        ("networks = ['n.tpuq']\n[space]\nx.y = [1]", 'no field "x.y", there are'),
        ("networks = []\n[space]\nbatch = [1]", "networks: there are none"),
        ("netwroks = []\n[space]\nbatch = [1]", 'no key "netwroks"'),
        (
            "networks = ['n.tpuq']\nobjectives = ['speed']\n[space]\nbatch = [1]",
            'objectives "speed": choose of',
        ),
        ("networks = ['n.tpuq']\nlevels = [5, 1]\n[space]\nbatch = [1]", "levels [5, 1]: write"),
        ("networks = ['n.tpuq']\nwave = 0\n[space]\nbatch = [1]", "wave 0: there must be"),
        ("networks = ['n.tpuq']\nwave = 'x'\n[space]\nbatch = [1]", "wave x: not a int"),
        (
            "networks = ['n.tpuq']\nenergy_table = '3nm'\n[space]\nbatch = [1]",
            'energy table "3nm" is unknown',
        ),
        ("networks = ['n.tpuq']\nmachine = 'q'\n[space]\nbatch = [1]", 'machine "q" is unknown'),
        ("networks = ['n.tpuq']\n[space]\narray.size = [64, 64]", "array.size has a value twice"),
        ("networks = ['a/n.tpuq', 'a/n.onnx']\n[space]\nbatch = [1]", "two are called a_n"),
        ("networks = [", "not a TOML file"),
    ],
)
def test_a_study_that_makes_no_sense_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TpuflowError) as error:
        load_settings(path)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_study_file_says_all_that_python_does(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        "networks = ['n.tpuq']\nobjectives = ['energy', 'area']\nstrategy = 'random'\ntrials = 5\n"
        "constraints = ['cache.bytes > 1']\n[space]\ncache.bytes = [1048576, 2097152]\n"
        "[space.array]\nsize = { low = 32, high = 128, factor = 2 }\n",
        encoding="utf-8",
    )
    space = Space({"cache.bytes": (1048576, 2097152), "array.size": (32, 64, 128)}, ("cache.bytes > 1",))
    wanted = Settings(
        (str(tmp_path / "n.tpuq"),), space, objectives=("energy", "area"), strategy="random", trials=5
    )
    assert load_settings(path) == wanted


def test_networks_of_the_same_file_name_are_told_apart_by_their_folders() -> None:
    networks = ("a/model.onnx", "b/model.onnx", "b/other.tpuq")
    settings = Settings(networks, Space({"array.size": (32, 64)}))
    assert settings.names == ("a_model", "b_model", "other")
