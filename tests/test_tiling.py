"""Layers in parts from Python and from configurations: done exactly or refused, and no bit changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.make_models import MODELS, samples
from tpu_framework import Network, Segment, TensorAxis, TPU_128x128_PARAMS, compile_
from tpuflow import _core
from tpuflow.calibration import calibrate
from tpuflow.compiler.parameters import O5
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.compiler.tiling import Tiling, TilingError, tiling_of
from tpuflow.config import Config
from tpuflow.config.cfg import parse_cfg
from tpuflow.config.section import ConfigError
from tpuflow.errors import ProgramError
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load
from tpuflow.lowering import lower

Arrays = Mapping[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def feed() -> Arrays:
    return samples(MODELS["residual"](), 3)


@pytest.fixture(scope="module")
def graph(feed: Arrays) -> _core.Graph:
    model = load(MODELS["residual"]())
    return lower(model, calibrate(model, feed))


def spatial(graph: _core.Graph) -> tuple[str, list[int]]:
    """Name and shape of the first layer whose result has rows to cut."""
    tensors = graph.tensors
    return next(
        (layer.name, list(tensors[layer.output].shape))
        for layer in graph.layers
        if len(tensors[layer.output].shape) == 4 and tensors[layer.output].shape[1] > 3
    )


def same(graph: _core.Graph, tiling: Tiling, feed: Arrays, level: int = 5) -> _core.Program:
    """The program in parts, after comparing its outputs with those of the whole."""
    whole = simulate(compile_graph(graph, level=level), feed)
    program = compile_graph(graph, level=level, schedule=Schedule(tiling=tiling))
    assert program.fallback is None
    assert _core.check(graph, program) == []
    found = simulate(program, feed)
    for name, array in whole.outputs.items():
        np.testing.assert_array_equal(found.outputs[name], array)
    assert len(found.report["layers"]) > len(whole.report["layers"])
    return program


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.feature("SCH-16")
def test_slices_of_a_layer(graph: _core.Graph, feed: Arrays, level: int) -> None:
    name, (_, rows, columns, _) = spatial(graph)
    upper = {TensorAxis.HEIGHT: Segment(0, 2)}
    lower = [
        {TensorAxis.HEIGHT: Segment(2, rows), TensorAxis.WIDTH: Segment(0, 1)},
        {TensorAxis.HEIGHT: Segment(2, rows), TensorAxis.WIDTH: Segment(1, columns)},
    ]
    program = same(graph, Tiling({name: (upper, *lower)}), feed, level)
    names = [layer["name"] for layer in json.loads(program.to_json())["layers"]]
    assert [f"{name}#{number}" in names for number in (1, 2, 3, 4)] == [True, True, True, False]


@pytest.mark.feature("SCH-16")
def test_schemes_of_the_published_function(graph: _core.Graph) -> None:
    name, (_, rows, _, _) = spatial(graph)
    network = Network(graph)
    halves = ({TensorAxis.HEIGHT: Segment(0, 1)}, {TensorAxis.HEIGHT: Segment(1, rows)})
    executable, _ = compile_(TPU_128x128_PARAMS, network, O5, {name: halves})
    assert isinstance(executable.program, _core.Program)
    assert _core.check(graph, executable.program) == []
    with pytest.raises(ProgramError, match=f'layer "{name}" has .* in no part'):
        compile_(TPU_128x128_PARAMS, network, O5, {name: halves[:1]})
    with pytest.raises(ProgramError, match='layer "nobody" is to be sliced but does not exist'):
        compile_(TPU_128x128_PARAMS, network, O5, {"nobody": halves})
    with pytest.raises(TilingError, match=r'layer "a": width 3 \.\. 3 is empty'):
        Tiling({"a": ({TensorAxis.WIDTH: Segment(3, 3)},)})


@pytest.mark.feature("TIL-01")
def test_ranges_of_layers(graph: _core.Graph, feed: Arrays) -> None:
    text = "[Common]\nfeaturemap_tiling_param = [(0,1,2,2)]\n"
    config = Config.parse(parse_cfg(text, "a.cfg"))
    assert config.schedule.featuremap_tiling_param == ((0, 1, 2, 2),)
    written = Config.parse({"schedule": {"featuremap_tiling_param": "[(0,1,2,2)]"}})
    assert written.schedule == config.schedule
    same(graph, tiling_of(config.schedule), feed)
    with pytest.raises(ConfigError, match="such as"):
        Config.parse({"schedule": {"featuremap_tiling_param": "0 to 3"}})
    with pytest.raises(ProgramError, match="do not exist"):
        compile_graph(graph, schedule=Schedule(tiling=Tiling(runs=((0, 999, 2, 2),))))


@pytest.mark.feature("TIL-02")
def test_parts_of_all_layers(graph: _core.Graph, feed: Arrays) -> None:
    config = Config.parse({"schedule": {"featuremap_splits_item_x": 2, "featuremap_splits_item_y": 2}})
    whole = Config.parse({"schedule": {"featuremap_splits_item_x": 1}})
    assert tiling_of(config.schedule) and not tiling_of(whole.schedule)
    same(graph, tiling_of(config.schedule), feed)


@pytest.mark.feature("TIL-03")
def test_overlap_is_a_share_below_all() -> None:
    assert Config().schedule.featuremap_splits_overlap_rate == 50
    for rate in (100, -1):
        with pytest.raises(ConfigError, match="featuremap_splits_overlap_rate"):
            Config.parse({"schedule": {"featuremap_splits_overlap_rate": rate}})
    with pytest.raises(TilingError, match="from 0 to 99"):
        Tiling(overlap=100)


def test_slices_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[schedule]\nslicing_scheme."conv 1" = [{height = [0, 2]}, {height = [2, 4]}]\n')
    from tpuflow.config import load_config  # noqa: PLC0415

    tiling = tiling_of(load_config(path).schedule)
    assert tiling.slices == {
        "conv 1": [{TensorAxis.HEIGHT: Segment(0, 2)}, {TensorAxis.HEIGHT: Segment(2, 4)}]
    }
