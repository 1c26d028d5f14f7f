"""Every tool that computes a network in integers gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.make_models import random_model, samples
from tpuflow import reference
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load
from tpuflow.lowering import lower
from tpuflow.runtime import Device


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.feature("SIM-11")
def test_reference_interpreter_simulator_and_devices_agree(seed: int, tmp_path: Path) -> None:
    proto = random_model(seed)
    model, drawn = load(proto), samples(proto, 3)
    graph = lower(model, calibrate(model, drawn))
    program = compile_graph(graph, machine="32x32_fpga", level=5)
    program.save(tmp_path / "net.tpu")
    feed = {port.name: drawn[port.name][: port.shape[0]] for port in model.inputs}
    interpreted, executed = GraphLevel(graph).compute(feed), ProgramLevel(program).compute(feed)
    for name, codes in interpreted.codes.items():
        assert codes.tobytes() == executed.codes[name].tobytes()
    tensors = [graph.tensors[index] for index in graph.inputs]
    stored = {
        t.name: port.encode(feed[port.name]) for t, port in zip(tensors, GraphLevel(graph).ports, strict=True)
    }
    own = reference.run(graph, stored)
    for name, array in graph.run(stored).items():
        assert np.array_equal(own[name], array)
    simulated = simulate(program, feed).outputs
    found = {name: [simulated[name], interpreted.tensors[name], executed.tensors[name]] for name in simulated}
    for mode in ("fast", "exact"):
        with (
            Device.open("sim:32x32_fpga", mode=mode) as device,
            device.load(tmp_path / "net.tpu") as loaded,
            loaded.inference() as inference,
        ):
            for name, array in inference.sync(feed).items():
                found[name].append(array)
    for arrays in found.values():
        assert len(arrays) == 5
        assert all(array.tobytes() == arrays[0].tobytes() for array in arrays[1:])
