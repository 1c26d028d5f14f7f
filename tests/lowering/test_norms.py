"""How near normalised rows come to what the grids of their operands and results allow."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from lowering.quantized import Quantized, lowered
from models.builder import Builder
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
