"""How near normalised rows come to what the grids of their operands and results allow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tpuflow
from lowering.quantized import Quantized, lowered
from models.builder import Builder
from tpuflow import _core
from tpuflow.evaluation.similarity import similarity
from tpuflow.frontend import FloatSession

RNG = np.random.default_rng(0)


def norm(kind: str, n: int, gamma: float, beta: float) -> onnx.ModelProto:
    """A norm over rows of `n`, with scales and offsets around such numbers."""
    constants = {"scale": gamma * RNG.uniform(0.5, 1.5, n), "offset": beta * RNG.standard_normal(n)}
    operands = ["scale", "offset"] if kind == "LayerNormalization" else ["scale"]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, n]) for name in "xy")
    initializers = [numpy_helper.from_array(constants[name].astype(np.float32), name) for name in operands]
    node = helper.make_node(kind, ["x", *operands], ["y"], axis=-1)
    graph = helper.make_graph([node], "norm", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def exact(found: Quantized, x: np.ndarray) -> np.ndarray:
    """What the float model gives."""
    (y,) = FloatSession(found.model.model, threads=1).run({"x": x}).values()
    return y


def allowed(found: Quantized, x: np.ndarray) -> float:
    """SQNR of exact results for operands on their grid, rounded to the grid of the results."""
    source, target = (found.graph.tensors[at[0]] for at in (found.graph.inputs, found.graph.outputs))
    assert source.scale is not None
    assert target.scale is not None
    rounded = (np.rint(x / source.scale[0]) * source.scale[0]).astype(np.float32)
    y = exact(found, rounded)
    return similarity(exact(found, x), np.rint(y / target.scale[0]) * target.scale[0]).sqnr


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("n", [16, 256, 2048, 8192])
@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 0.2), (0.003, 0.0), (1e-6, 3.0)])
def test_norms_of_16_bits_lose_nothing_beside_their_grids(
    kind: str, n: int, gamma: float, beta: float
) -> None:
    model = norm(kind, n, gamma, beta)
    x = (3 * RNG.standard_normal((1, 8, n)) + 1).astype(np.float32)
    found = lowered(model, [{"x": x}], {"quantize": {"dtype": "int16"}})
    (measured,) = found.compare({"x": x}).values()
    assert measured.sqnr > allowed(found, x) - 1.0
    if n <= 256:
        found.equals_reference({"x": x})


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_one_large_element_is_normalized_to_the_root_of_their_number(dtype: str) -> None:
    """The largest number that can come of a row of 1024 is nearly 32."""
    model = norm("RMSNormalization", 1024, 1.0, 0.0)
    x = np.zeros((1, 8, 1024), np.float32)
    x[0, np.arange(8), np.arange(8)] = [1, -1, 2, -2, 3, -3, 4, -4]
    found = lowered(model, [{"x": x}], {"quantize": {"dtype": dtype}})
    (measured,) = found.compare({"x": x}).values()
    assert measured.sqnr > (35 if dtype == "int8" else 80)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("size", [1e3, 1e15, 1e30])
def test_of_scores_far_apart_the_largest_gets_all(dtype: str, size: float) -> None:
    b = Builder("softmax")
    b.output(b.node("Softmax", b.input("x", [1, 8]), axis=-1))
    x = (size * np.array([[0.1, -1, 0.5, 1, 0, -0.3, 0.2, 0.9]])).astype(np.float32)
    found = lowered(b.model(), [{"x": x}], {"quantize": {"dtype": dtype, "output_dtype": dtype}})
    (measured,) = found.compare({"x": x}).values()
    assert measured.max_error < 0.01
    found.equals_reference({"x": x})


def over_an_image(groups: int) -> onnx.ModelProto:
    """Convolutions around a norm of groups of channels, as torch exports it; 0: with a scale an element."""
    b = Builder("image")
    x = b.conv(b.input("x", [2, 3, 6, 6]), 8, pads=(1, 1, 1, 1))
    shape = (8, 6, 6)
    if not groups:
        scale, offset = (b.constant(RNG.uniform(0.5, 1.5, shape).astype(np.float32)) for _ in range(2))
        y = b.node("LayerNormalization", x, scale, offset, axis=1)
    else:
        rows = b.node("Reshape", x, b.integers(2, groups, -1))
        scale, offset = (b.constant(np.full(groups, value, np.float32)) for value in (1.0, 0.0))
        y = b.node("Reshape", b.node("InstanceNormalization", rows, scale, offset), b.integers(2, *shape))
        y = b.node("Mul", y, b.constant(RNG.uniform(0.5, 1.5, (8, 1, 1)).astype(np.float32)))
        y = b.node("Add", y, b.constant(RNG.standard_normal((8, 1, 1)).astype(np.float32)))
    b.output(b.conv(b.node("Relu", y), 4))
    return b.model()


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("groups", [0, 1, 2, 8])
def test_norms_over_images(dtype: str, groups: int, tmp_path: Path) -> None:
    model = over_an_image(groups)
    feeds = [{"x": RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)} for _ in range(3)]
    found = lowered(model, feeds, {"quantize": {"dtype": dtype}})
    (measured,) = found.compare(feeds[0]).values()
    assert measured.sqnr > (28 if dtype == "int8" else 60)
    found.equals_reference(feeds[0])
    layers = json.loads(found.graph.to_json())["layers"]
    moves = [layer["op"] for layer in layers if layer["op"]["op"] == "rearrange"]
    if groups < 2:
        # All channels of a pixel are in the same row, so that they stay side by side.
        assert all(move["strides"] == [1] for move in moves)
    program = tpuflow.compile(found.graph, machine="64x64_edge", level=5)
    normal = [line for line in program.to_text().splitlines() if "LayerNorm" in line and "descriptor" in line]
    assert len(normal) == 1
    assert ("SharedLayerNorm" in normal[0]) is (groups > 0)
    program.save(tmp_path / "norm.tpu")
    inputs = found.inputs(feeds[0])
    run = _core.simulate(_core.Program.load(tmp_path / "norm.tpu"), list(inputs.values()))
    for stored, wanted in zip(run.outputs, found.graph.run(inputs).values(), strict=True):
        assert stored.tobytes() == wanted.tobytes()
