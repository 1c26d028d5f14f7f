"""Constants behind functions that fall below zero: the same in floats, unsigned codes, smaller errors."""

from __future__ import annotations

import numpy as np
import pytest

from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import Graph, lower
from tpuflow.ptq import quantize
from tpuflow.ptq.shift_negative import shift_negative

SYMMETRIC = {"activation_mode": "symmetric_full", "unsigned": True, "output_dtype": "int8"}


def network(function: str, kind: str) -> FloatModel:
    b = Builder(f"{function}_{kind}")
    if kind == "product":
        x = b.linear(b.input("x", [1, 6, 8]), 12)
    else:
        x = b.conv(b.input("x", [1, 3, 6, 6]), 8, (3, 3), pads=(1, 1, 1, 1))
    if function == "Swish":
        y = b.node("Mul", x, b.node("Sigmoid", x))
    else:
        y = b.node(function, x)
    if kind == "product":
        b.output(b.linear(y, 5))
    elif kind == "read elsewhere":
        b.output(b.conv(y, 4, (1, 1)), b.node("Relu", y))
    elif kind == "padded":
        b.output(b.conv(y, 4, (3, 3), pads=(1, 0, 2, 1)), b.conv(y, 6, (1, 1)))
    else:
        b.output(b.conv(y, 4, (1, 1)))
    return load(b.model())


def samples(model: FloatModel, seed: int = 0) -> Samples:
    shape = tuple(int(size) for size in model.inputs[0].shape[1:])
    x = 2 * np.random.default_rng(seed).standard_normal((16, *shape)).astype(np.float32)
    return Samples.of({"x": x}, model.inputs)


def error(model: FloatModel, graph: Graph, seen: Samples) -> float:
    level, session, off = GraphLevel(graph), FloatSession(model.model), 0.0
    for batch in seen.batches():
        floats, found = session.run(batch.arrays), level.run(batch.arrays)
        off += sum(float(np.sum((floats[port.name] - found[port.name]) ** 2)) for port in model.outputs)
    return off


@pytest.mark.feature("QMO-27")
@pytest.mark.parametrize("kind", ["plain", "padded", "product"])
@pytest.mark.parametrize("function", ["HardSwish", "Swish", "Elu"])
def test_shifted_tensors_are_unsigned_and_nothing_else_changes(function: str, kind: str) -> None:
    model, config = network(function, kind), Config.parse({"quantize": SYMMETRIC})
    seen = samples(model)
    ranges = calibrate(model, seen, config)
    made, shifted, count = shift_negative(model, ranges, 1.0)
    assert count == 1
    for batch in samples(model, 5).batches():
        floats = [FloatSession(each.model).run(batch.arrays) for each in (model, made)]
        for port in model.outputs:
            np.testing.assert_allclose(floats[0][port.name], floats[1][port.name], rtol=1e-4, atol=1e-5)
    before, after = lower(model, ranges, config), lower(made, shifted, config)
    assert [layer.op for layer in after.layers if layer.op != "pad"] == [layer.op for layer in before.layers]
    assert error(model, after, seen) < error(model, before, seen)
    stored = next(layer for layer in after.layers if layer.op != "pad")
    assert after.tensors[stored.output].zero_point == -128
    assert before.tensors[before.layers[0].output].zero_point == 0
    level, program = GraphLevel(after), ProgramLevel(compile_graph(after))
    for batch in seen.batches():
        ours, theirs = level.run(batch.arrays), program.run(batch.arrays)
        assert all(np.array_equal(ours[port.name], theirs[port.name]) for port in model.outputs)


@pytest.mark.feature("QMO-27")
@pytest.mark.parametrize(("kind", "ratio"), [("read elsewhere", 1.0), ("plain", 0.001)])
def test_other_tensors_stay(kind: str, ratio: float) -> None:
    model = network("HardSwish", kind)
    ranges = calibrate(model, samples(model), Config())
    assert shift_negative(model, ranges, ratio) == (model, ranges, 0)


@pytest.mark.feature("QMO-27")
def test_the_recipe_shifts_where_it_is_asked_to() -> None:
    model = network("HardSwish", "plain")
    made = [
        quantize(model, samples=samples(model), config=Config.parse({"quantize": SYMMETRIC} | more))
        for more in ({}, {"calibrate": {"shift_negative": 1.0}})
    ]
    zeros = [graph.tensors[graph.layers[0].output].zero_point for graph in made]
    assert zeros == [0, -128]
