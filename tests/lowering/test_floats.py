"""Networks in floats: every operator and small whole networks, beside float results and the NumPy twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from lowering import test_operators as operators
from lowering.quantized import Quantized, extrema, normal
from models.builder import Builder
from models.make_models import MODELS, random_model
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatSession, load
from tpuflow.lowering import QuantizeError, lower
from tpuflow.lowering.expressions import EXPRESSIONS, program
from tpuflow.lowering.functions import FUNCTIONS
from tpuflow.reference.functions import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

DECIBELS = {"float32": 100.0, "float16": 45.0, "bfloat16": 28.0}


def lowered(proto: onnx.ModelProto, dtype: str, **quantizing: Any) -> Quantized:
    """Without ranges, which floats do not need."""
    model = load(proto)
    config = Config.parse({"quantize": {"dtype": dtype, **quantizing}})
    return Quantized(model, lower(model.model, None, config))


def check(proto: onnx.ModelProto, dtype: str, slack: float = 0.0) -> Quantized:
    made = lowered(proto, dtype)
    first, second = normal(proto, 2)
    for output, found in made.compare(first).items():
        assert found.sqnr > DECIBELS[dtype] - slack, output
    made.equals_reference(second)
    return made


def one(make: operators.Made, dtype: str, shape: Sequence[int] = (1, 6, 9, 10)) -> Quantized:
    b = Builder("one")
    b.output(make(b, b.input("x", list(shape))))
    return check(b.model(), dtype)


@pytest.mark.parametrize("dtype", DECIBELS)
@pytest.mark.parametrize("name", operators.UNARY)
def test_functions(name: str, dtype: str) -> None:
    one(operators.UNARY[name], dtype)
    if name not in {"Abs", "Neg", "Log", "Sqrt", "Reciprocal", "Pow"}:
        made = one(lambda b, x: operators.UNARY[name](b, b.conv(x, 5)), dtype)
        assert made.operators[-1] in {"conv", "p_relu"}


@pytest.mark.parametrize("dtype", DECIBELS)
def test_convolutions(dtype: str) -> None:
    for options in operators.CONVOLUTIONS.values():

        def convolved(b: Builder, x: str, options: dict[str, Any] = options) -> str:
            return b.conv(x, 12, **options)

        one(convolved, dtype)


@pytest.mark.parametrize("dtype", DECIBELS)
def test_matrix_products(dtype: str) -> None:
    for shape, make in operators.MATRICES.values():
        one(make, dtype, shape)


@pytest.mark.parametrize("dtype", DECIBELS)
def test_pools(dtype: str) -> None:
    for operator, attributes in operators.POOLS.values():
        one(operators.node(operator, **attributes), dtype)


@pytest.mark.parametrize("dtype", DECIBELS)
@pytest.mark.parametrize("name", MODELS)
def test_low_small_networks_in_floats(name: str, dtype: str) -> None:
    check(MODELS[name](), dtype, slack=3.0)


@pytest.mark.parametrize("seed", range(20))
def test_random_networks_in_floats(seed: int) -> None:
    check(random_model(seed), list(DECIBELS)[seed % 3], slack=10.0)


@pytest.mark.feature("LOW-08")
def test_layers_may_differ_in_kind() -> None:
    """Codes, floats of one type and floats of another in one network."""
    b = Builder("mixed")
    first = b.node("Relu", b.conv(b.input("x", [1, 4, 8, 8]), 6))
    b.output(b.node("Sigmoid", b.node("Add", b.conv(first, 6, pads=(1, 1, 1, 1)), first)))
    proto = b.model()
    model, feeds = load(proto), normal(proto)
    names = [node.name for node in model.model.graph if node.op_type in {"Conv", "Add"}]
    config = {
        "quantize": {"dtype": "int8", "output_dtype": "int8"},
        "layers": [
            {"match": names[1], "dtype": "float16"},
            {"match": names[2], "dtype": "float32"},
        ],
    }
    made = Quantized(model, lower(model.model, extrema(model, feeds), Config.parse(config)))
    assert {"dequantize", "quantize"} <= set(made.operators)
    for found in made.compare(feeds[0]).values():
        assert found.sqnr > 24.0
    made.equals_reference(feeds[1])


@pytest.mark.parametrize("dtype", DECIBELS)
def test_indices_become_numbers(dtype: str) -> None:
    def make(b: Builder, x: str) -> str:
        return b.node("Cast", b.node("ArgMax", b.node("Tanh", x), axis=1), to=TensorProto.FLOAT)

    assert one(make, dtype).operators[-1] == "dequantize"


@pytest.mark.parametrize(
    "kind", [TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16]
)
def test_numbers_become_integers(kind: int) -> None:
    b = Builder("whole")
    x = b.node("Mul", b.node("Abs", b.input("x", [1, 2, 6, 6])), b.constant(np.array(9.0, np.float32)))
    b.output(b.node("Cast", x, to=kind))
    proto = b.model()
    made = lowered(proto, "float32")
    (feed,) = normal(proto, 1)
    graph = GraphLevel(made.graph).run(feed)
    (found,), (expected,) = graph.values(), FloatSession(made.model.model).run(feed).values()
    np.testing.assert_array_equal(found, expected, strict=True)
    made.equals_reference(feed)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_stated_quantization_is_followed(kind: type[np.integer[Any]]) -> None:
    """Floats are rounded to the grid the model states, and no further."""
    b = Builder("stated")
    scale, zero = b.constant(np.array(0.05, np.float32)), b.constant(np.array(3, kind))
    stored = b.node("QuantizeLinear", b.conv(b.input("x", [1, 2, 6, 6]), 3), scale, zero)
    b.output(b.node("Relu", b.node("DequantizeLinear", stored, scale, zero)))
    proto = b.model()
    made = lowered(proto, "float32")
    assert made.operators == ["conv", "quantize", "dequantize", "rescale"]
    (feed,) = normal(proto, 1)
    (found,) = made.compare(feed).values()
    assert found.sqnr > 100.0
    made.equals_reference(feed)


def test_codes_need_ranges() -> None:
    with pytest.raises(QuantizeError, match="has no range"):
        lower(load(MODELS["plain"]()).model)


def test_every_function_has_both_forms() -> None:
    assert set(EXPRESSIONS) == set(FUNCTIONS)


POWERS = [-3.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5, 20.0]
DOMAINS = {"Acosh": (1.0, 9.0), "Acos": (-1.0, 1.0), "Asin": (-1.0, 1.0), "Atanh": (-0.99, 0.99)}


def made_node(operator: str, exponent: float = 2.0) -> ir.Node:
    x = ir.Value(name="x")
    inputs: list[ir.Value | None] = [x]
    if operator == "Pow":
        value = ir.Value(name="e", const_value=ir.tensor(np.array(exponent, np.float32)))
        inputs.append(value)
    return ir.Node("", operator, inputs)


@pytest.mark.parametrize("operator", sorted(EXPRESSIONS))
def test_programs_are_the_functions(operator: str) -> None:
    """The recorded steps against NumPy's own functions, within a few units of float64."""
    low, high = DOMAINS.get(operator, (0.01, 8.0) if operator in {"Log", "Sqrt", "Pow"} else (-8.0, 8.0))
    x = np.concatenate([np.linspace(low, high, 4001), np.linspace(0.0, 1.0, 101)[1:] * min(high, 1.0)])
    x = x[(x >= low) & (x != 0.0)]
    for exponent in POWERS if operator == "Pow" else [2.0]:
        node = made_node(operator, exponent)
        found = evaluate(program(EXPRESSIONS[operator](node)), x)
        expected = FUNCTIONS[operator](node)(x)
        assert np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 1e-3)) < 1e-11


@pytest.mark.parametrize("alpha", [0.3, 1.5])
def test_attributes_of_functions_are_followed(alpha: float) -> None:
    x = np.linspace(-4, 4, 801)
    for operator in ("Celu", "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "Swish", "HardSigmoid"):
        node = made_node(operator)
        node.attributes["alpha"] = ir.AttrFloat32("alpha", alpha)
        found = evaluate(program(EXPRESSIONS[operator](node)), x)
        np.testing.assert_allclose(found, FUNCTIONS[operator](node)(x), rtol=1e-11, atol=1e-13)
    shrink = made_node("Shrink")
    shrink.attributes["lambd"] = ir.AttrFloat32("lambd", alpha)
    shrink.attributes["bias"] = ir.AttrFloat32("bias", 0.25)
    found = evaluate(program(EXPRESSIONS["Shrink"](shrink)), x)
    np.testing.assert_allclose(found, FUNCTIONS["Shrink"](shrink)(x), rtol=1e-12)
