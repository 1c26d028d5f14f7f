"""Codes at chosen inputs and outputs, and quantisation turned off for debugging."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lowering.quantized import lowered as quantized_network
from lowering.quantized import normal
from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.lowering import Graph, lower


def network() -> FloatModel:
    b = Builder("ports")
    x = b.node("Add", b.input("a", [1, 3, 6, 6]), b.input("b", [1, 3, 6, 6]))
    y = b.node("Relu", b.conv(x, 4, pads=(1, 1, 1, 1)))
    b.output(b.conv(y, 2, (1, 1)), b.gemm(b.node("GlobalAveragePool", y), 5))
    return load(b.model())


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((8, 3, 6, 6)).astype(np.float32) for name in "ab"}


def lowered(**values: object) -> Graph:
    model, config = network(), Config.parse({"quantize": values})
    return lower(model, calibrate(model, data(), config), config)


@pytest.mark.feature("LOW-04")
@pytest.mark.parametrize("first", [0, "a"])
def test_chosen_ports_alone_are_codes(first: int | str) -> None:
    plain, chosen = lowered(), lowered(quant_inputs=[first], quant_outputs=[1])
    every = lowered(quant_input=True, quant_output=True)
    types = [[port.dtype for port in GraphLevel(graph).ports] for graph in (plain, chosen, every)]
    assert [[str(np.dtype(each)) for each in own] for own in types] == [
        ["float32", "float32"], ["int8", "float32"], ["int8", "int8"],
    ]  # fmt: skip
    samples = {name: array[:1] for name, array in data().items()}
    scale = next(plain.tensors[index] for index in plain.inputs)
    codes = np.clip(np.rint(samples["a"] / np.float32((scale.scale or [1])[0])) + scale.zero_point, -128, 127)
    raw = samples | {"a": codes.astype(np.int8)}
    names = GraphLevel(plain).outputs
    floats = GraphLevel(plain).run(samples)
    for level in (GraphLevel(chosen), ProgramLevel(compile_graph(chosen))):
        found = level.run(raw)
        np.testing.assert_array_equal(found[names[0]], floats[names[0]])
        assert found[names[0]].dtype == np.float32 and found[names[1]].dtype == np.int16


@pytest.mark.feature("LOW-04")
@pytest.mark.parametrize(("key", "port"), [("quant_inputs", 2), ("quant_outputs", "a")])
def test_ports_there_are_not(key: str, port: int | str) -> None:
    what = key.removeprefix("quant_").removesuffix("s")
    with pytest.raises(ConfigError, match=rf'{key}: unknown {what} {port} \({what}s: 0 "'):
        lowered(**{key: [port]})


@pytest.mark.feature("MSC-13")
def test_with_bypass_nothing_is_quantized() -> None:
    """Whatever entries say of layers, outputs are those of the float network."""
    model = network()
    wish = {
        "quantize": {"bypass": True, "weight_bits": 4},
        "layers": [{"operators": ["Conv"], "dtype": "int16"}],
    }
    config = Config.parse(wish)
    graph = lower(model, calibrate(model, data(), config), config)
    assert {tensor.dtype for tensor in graph.tensors} == {"float32"}
    samples = {name: array[:1] for name, array in data().items()}
    floats = FloatSession(model.model).run(samples)
    for level in (GraphLevel(graph), ProgramLevel(compile_graph(graph))):
        for name, array in level.run(samples).items():
            np.testing.assert_allclose(array, floats[name], rtol=1e-5, atol=1e-6)


def test_an_output_that_a_layer_reads_is_moved_once() -> None:
    """Scores of classes as detectors hand them out: each column, and where it exceeds a threshold."""
    b = Builder("scores")
    scores = b.node("Sigmoid", b.linear(b.input("x", [320, 16]), 3))
    for column in range(3):
        score = b.node("Gather", scores, b.constant(np.array(column)), axis=1)
        b.output(score)
        b.output(b.node("Greater", score, b.constant(np.float32(0.5))))
    feeds = normal(b)
    quantized = quantized_network(b.model(), feeds)
    layers = json.loads(quantized.graph.to_json())["layers"]
    assert sum(layer["op"]["op"] == "rearrange" for layer in layers) == 3
    quantized.equals_reference(feeds[0])
