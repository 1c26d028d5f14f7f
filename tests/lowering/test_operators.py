"""Every operator alone: how close its integers come to the float result, and which layers it becomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.frontend.supported import OPERATORS
from tpuflow.lowering import supported_operators

Made = Callable[[Builder, str], str]


def network(
    make: Made, shape: Sequence[int] = (1, 6, 9, 10), dtype: str = "int8", **quantize: Any
) -> Quantized:
    """A network of one input and what `make` adds to it, held to its float result and to the NumPy twin."""
    b = Builder("one")
    b.output(make(b, b.input("x", list(shape))))
    feeds = normal(b, 3)
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype, **quantize}})
    for found in made.compare(feeds[0]).values():
        assert found.sqnr > (24.0 if dtype == "int8" else 55.0)
    made.equals_reference(feeds[1])
    return made


def node(operator: str, **attributes: Any) -> Made:
    return lambda b, x: b.node(operator, x, **attributes)


def constant(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def positive(make: Made) -> Made:
    return lambda b, x: make(b, b.node("Add", b.node("Abs", x), b.constant(constant(0.25))))


UNARY: dict[str, Made] = {
    **{
        name: node(name)
        for name in (
            "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu",
            "Softplus", "Softsign", "Erf", "Exp", "Sin", "Cos", "LeakyRelu", "Atan", "Sinh", "Asinh",
        )
    },
    **{name: positive(node(name)) for name in ("Log", "Sqrt", "Reciprocal")},
    "Silu": lambda b, x: b.silu(x),
    "Gelu": lambda b, x: b.gelu(x),
    "Clip": lambda b, x: b.node("Clip", x, b.constant(constant(-0.5)[0]), b.constant(constant(0.75)[0])),
    "Pow": positive(lambda b, x: b.node("Pow", x, b.constant(constant(1.5)[0]))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    network(UNARY[name], dtype=dtype)


REAL: dict[str, Callable[[float], float]] = {
    "Sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "Tanh": math.tanh,
    "HardSigmoid": lambda v: min(1.0, max(0.0, 0.2 * v + 0.5)),
    "HardSwish": lambda v: v * min(1.0, max(0.0, v / 6 + 0.5)),
    "Elu": lambda v: v if v >= 0 else math.expm1(v),
    "Selu": lambda v: 1.0507010221481323 * (v if v >= 0 else 1.6732631921768188 * math.expm1(v)),
    "Celu": lambda v: max(v, 0.0) + min(0.0, math.expm1(min(v, 0.0))),
    "Softplus": lambda v: math.log1p(math.exp(v)),
    "Softsign": lambda v: v / (1 + abs(v)),
    "Erf": math.erf,
    "Exp": math.exp,
    "Sin": math.sin,
    "Cos": math.cos,
    "Tan": math.tan,
    "Atan": math.atan,
    "Sinh": math.sinh,
    "Cosh": math.cosh,
    "Asinh": math.asinh,
    "Abs": abs,
    "Round": round,
    "Gelu": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    "Silu": lambda v: v / (1 + math.exp(-v)),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.feature("NUM-19")
def test_every_entry_of_a_table_is_the_rounded_function(name: str) -> None:
    """All 256 codes; where the function lies within 1e-6 codes of a border either neighbour will do."""
    b = Builder("table")
    b.output(UNARY.get(name, node(name))(b, b.input("x", [1, 1, 16, 16])))
    grid = np.linspace(-1.4, 1.3, 256, dtype=np.float32).reshape(1, 1, 16, 16)
    quantized = lowered(b.model(), [{"x": grid}], {"quantize": {"output_dtype": "int8"}})
    x, y = (quantized.graph.tensors[i] for i in (*quantized.graph.inputs, *quantized.graph.outputs))
    codes = np.arange(-128, 128, dtype=np.int8).reshape(x.shape)
    found = quantized.graph.run([codes])
    (stored,) = found.values()
    assert x.scale is not None
    assert y.scale is not None
    for code, result in zip(codes.ravel().tolist(), stored.ravel().tolist(), strict=True):
        real = REAL[name](x.scale[0] * (code - x.zero_point)) / y.scale[0] + y.zero_point
        assert abs(min(127.0, max(-128.0, real)) - result) <= 0.5 + 1e-6, (code, real, result)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", sorted(set(UNARY) - {"Abs", "Neg", "Log", "Sqrt", "Reciprocal", "Pow"}))
@pytest.mark.feature("NUM-17")
def test_functions_are_fused_behind_convolutions(name: str, dtype: str) -> None:
    made = network(lambda b, x: UNARY[name](b, b.conv(x, 5)), dtype=dtype)
    assert made.operators == ["conv"]
    assert len(made.graph.layers[0].nodes) == 2


def test_functions_are_left_alone_when_told_so() -> None:
    made = network(lambda b, x: b.node("Tanh", b.conv(x, 5)), fuse_tables=False)
    assert made.operators == ["conv", "unary"]


def test_what_others_read_is_not_fused() -> None:
    def make(b: Builder, x: str) -> str:
        y = b.conv(x, 6, pads=(1, 1, 1, 1))
        return b.node("Add", y, b.node("Tanh", y))

    assert network(make).operators == ["conv", "unary", "add"]


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"strides": [2, 3]},
    "padded unevenly": {"pads": (0, 2, 1, 0)},
    "dilated": {"dilations": [2, 3]},
    "grouped": {"group": 3},
    "depthwise": {"group": 6},
}


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, dtype: str) -> None:
    made = network(lambda b, x: b.conv(x, 12, **CONVOLUTIONS[name]), dtype=dtype)
    assert made.operators == ["conv"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"strides": [3, 2], "pads": [1, 0, 0, 2], "output_padding": [1, 1]},
        {"dilations": [2, 1], "pads": [3, 0, 3, 1]},
        {"strides": [2, 2], "pads": [4, 3, 3, 4]},
    ],
)
def test_transposed_convolution(attributes: dict[str, Any], group: int) -> None:
    def make(b: Builder, x: str) -> str:
        weight = b.weight(6, 4, 3, 3, fan_in=20)
        return b.node("ConvTranspose", x, weight, b.spread(4 * group), group=group, **attributes)

    assert "conv" in network(make).operators


def test_a_flattened_image_is_multiplied_where_it_lies() -> None:
    made = network(lambda b, x: b.gemm(x, 7))
    assert made.operators == ["conv"]
    assert made.graph.tensors[made.graph.outputs[0]].shape == [1, 1, 1, 7]


def test_a_channel_without_weights_keeps_its_bias() -> None:
    def make(b: Builder, x: str) -> str:
        weight = np.random.default_rng(0).normal(size=(3, 6, 1, 1)).astype(np.float32)
        weight[1], weight[2] = 0.0, weight[2] * 1e-9
        return b.node("Conv", x, b.constant(weight), b.constant(constant(0.5, 0.75, -1.25)))

    made = network(make)
    feed = normal_feed(made)
    result = made.run(feed)[made.model.outputs[0].name]
    assert np.allclose(result[0, 1], 0.75, atol=0.03)
    assert np.allclose(result[0, 2], -1.25, atol=0.03)


def normal_feed(made: Quantized) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in made.model.inputs}


MATRICES: dict[str, tuple[tuple[int, ...], Made]] = {
    "constant right": ((1, 5, 12), lambda b, x: b.node("MatMul", x, b.weight(12, 7, fan_in=12))),
    "constant left": ((1, 5, 12), lambda b, x: b.node("MatMul", b.weight(3, 5, fan_in=5), x)),
    "with bias": ((1, 5, 12), lambda b, x: b.linear(x, 9)),
    "dynamic": ((1, 5, 12), lambda b, x: b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))),
    "batch of constants": ((3, 5, 12), lambda b, x: b.node("MatMul", x, b.weight(3, 12, 4, fan_in=12))),
    "broadcast": (
        (2, 5, 12), lambda b, x: b.node("MatMul", b.node("ReduceMax", x, axes=[0], keepdims=1),
        b.node("Transpose", x, perm=[0, 2, 1])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", MATRICES)
def test_matrix_product(name: str, dtype: str) -> None:
    shape, make = MATRICES[name]
    network(make, shape, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize("other", ["constant", "channels", "row", "itself", "gate", "outer"])
def test_binary(operator: str, other: str, dtype: str) -> None:
    def make(b: Builder, x: str) -> str:
        if other == "constant":
            return b.node(operator, x, b.constant(constant(-0.7)))
        if other == "channels":
            return b.node(operator, b.spread(6, 1, 1), x)
        if other == "row":
            return b.node(operator, x, b.spread(9, 1))
        if other == "itself":
            return b.node(operator, x, b.node("Tanh", x))
        if other == "gate":
            return b.node(operator, b.node("GlobalMaxPool", x), x)
        rows, columns = (b.node("ReduceMax", x, axes=[axis], keepdims=1) for axis in (2, 3))
        return b.node(operator, rows, columns)

    network(make, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_division(dtype: str) -> None:
    def make(b: Builder, x: str) -> str:
        return b.node("Div", x, b.node("Add", b.node("Abs", x), b.constant(constant(1.0))))

    assert network(make, dtype=dtype).operators[-1] == "div"


@pytest.mark.parametrize("factor", [0.125, 0.5, 3.7])
def test_a_positive_factor_costs_nothing(factor: float) -> None:
    def make(b: Builder, x: str) -> str:
        return b.node(
            "Tanh", b.node("Mul", b.node("MaxPool", x, kernel_shape=[2, 2]), b.constant(constant(factor)))
        )

    assert network(make).operators == ["max_pool", "unary"]


@pytest.mark.feature("NUM-17", "NUM-18")
def test_a_clamp_is_fused_behind_an_addition() -> None:
    assert network(lambda b, x: b.relu6(b.node("Add", x, b.spread(6, 1, 1)))).operators == ["add"]


def test_per_channel_slopes_follow_their_axis() -> None:
    made = network(lambda b, x: b.node("PRelu", b.conv(x, 6), b.spread(6, 1, 1)))
    assert made.operators == ["conv", "p_relu"]
    made = network(lambda b, x: b.node("PRelu", b.conv(x, 6), b.spread(7, 1)))
    assert made.operators == ["conv", "rearrange", "p_relu"]


POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "max": ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "max, ceil": ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "max, dilated": ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    "average": ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    "average, counted": (
        "AveragePool", {"kernel_shape": [3, 3], "pads": [2, 1, 0, 1], "count_include_pad": 1},
    ),
    "average, ceil": (
        "AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1,
        "count_include_pad": 1},
    ),
    "global average": ("GlobalAveragePool", {}),
    "global max": ("GlobalMaxPool", {}),
    "norm": ("LpPool", {"kernel_shape": [3, 2], "strides": [2, 1], "p": 2}),
    "norm of magnitudes": ("LpPool", {"kernel_shape": [2, 2], "p": 1}),
    "global norm": ("GlobalLpPool", {"p": 2}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.feature("NUM-26", "NUM-27")
def test_pool(name: str, dtype: str) -> None:
    operator, attributes = POOLS[name]
    network(node(operator, **attributes), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", ["max", "global max"])
@pytest.mark.feature("NUM-27")
def test_maximum_pools_keep_the_grid(name: str, dtype: str) -> None:
    operator, attributes = POOLS[name]
    found = network(lambda b, x: b.node(operator, b.node("Tanh", x), **attributes), dtype=dtype)
    layer = found.graph.layers[-1]
    grids = [
        (found.graph.tensors[number].scale, found.graph.tensors[number].zero_point)
        for number in (layer.operands[0], layer.output)
    ]
    assert grids[0] == grids[1]


MOVES: dict[str, tuple[Made, list[str]]] = {
    "reshape": (lambda b, x: b.node("Reshape", x, b.integers(1, 54, 10)), ["rearrange"]),
    "transpose": (node("Transpose", perm=[0, 3, 1, 2]), []),
    "slice": (
        lambda b, x: b.node("Slice", x, b.integers(1, 8), b.integers(5, 0), b.integers(1, 2), b.integers(2,
        -3)), ["rearrange"],
    ),
    "space to depth": (
        lambda b, x: b.node("SpaceToDepth", b.node("Slice", x, b.integers(0), b.integers(8), b.integers(2)),
        blocksize=2), ["rearrange"],
    ), "depth to space": (lambda b, x: b.node("DepthToSpace", b.conv(x, 8), blocksize=2), ["conv",
    "rearrange"]), "expand": (lambda b, x: b.node("Expand", b.node("GlobalMaxPool", x), b.integers(1, 6, 4,
    5)), ["max_pool", "rearrange"]), "tile": (lambda b, x: b.node("Tile", x, b.integers(1, 2, 1, 3)),
    ["rearrange"]), "gather": (lambda b, x: b.node("Gather", x, b.integers(5, 0, 0, 2), axis=1),
    ["gather"]), "gather in steps": (lambda b, x: b.node("Gather", x, b.integers(1, 3, 5), axis=2),
    ["rearrange"]), "pad": (lambda b, x: b.node("Pad", x, b.integers(0, 1, 0, 2, 0, 0, 3, 0),
    b.constant(constant(0.5)[0])), ["pad"]), "reflect": (lambda b, x: b.node("Pad", x, b.integers(0, 0, 1,
    2, 0, 0, 3, 0), mode="reflect"), ["pad"]), "edge": (lambda b, x: b.node("Pad", x, b.integers(0, 0, 1, 2,
    0, 0, 3, 0), mode="edge"), ["pad"]), "concat": (lambda b, x: b.node("Concat", x, b.node("Tanh", x),
    b.spread(1, 6, 9, 1), axis=3), ["unary", "concat"]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", MOVES)
def test_movement(name: str, dtype: str) -> None:
    make, layers = MOVES[name]
    assert network(
        lambda b, x: make(b, b.node("MaxPool", x, kernel_shape=[1, 1])), dtype=dtype
    ).operators in (
        layers,
        ["max_pool", *layers],
    )


def test_chains_of_views_become_one_layer() -> None:
    def make(b: Builder, x: str) -> str:
        y = b.node(
            "Transpose", b.node("Reshape", b.conv(x, 6), b.integers(1, 2, 3, 7, 8)), perm=[0, 2, 1, 3, 4]
        )
        y = b.node("Reshape", y, b.integers(1, 6, 7, 8))
        return b.conv(b.node("Slice", y, b.integers(1), b.integers(6), b.integers(1), b.integers(2)), 4)

    assert network(make).operators == ["conv", "rearrange", "conv"]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("axes", [[1], [2, 3], [1, 2, 3], [3]])
@pytest.mark.parametrize(
    "operator",
    ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"],
)
def test_reduction(operator: str, axes: list[int], dtype: str) -> None:
    def make(b: Builder, x: str) -> str:
        y = b.node("Add", x, b.constant(constant(0.4)))
        if operator == "ReduceSum":
            return b.node(operator, y, b.integers(*axes), keepdims=len(axes) % 2)
        return b.node(operator, y, axes=axes, keepdims=len(axes) % 2)

    network(make, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax(axis: int, dtype: str) -> None:
    network(node("Softmax", axis=axis), dtype=dtype)


@pytest.mark.parametrize("form", ["where", "add"])
def test_masked_softmax_is_one_layer(form: str) -> None:
    keep = np.tri(7, dtype=bool)[None]

    def make(b: Builder, x: str) -> str:
        if form == "where":
            masked = b.node("Where", b.constant(keep), x, b.constant(constant(-1e30)))
        else:
            masked = b.node("Add", x, b.constant(np.where(keep, 0, -65504).astype(np.float32)))
        return b.node("Softmax", masked, axis=-1)

    made = network(make, (2, 7, 7))
    assert made.operators == ["softmax"]
    result = made.run(normal_feed(made))[made.model.outputs[0].name]
    assert not np.any(result[:, ~keep[0]])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    ("form", "axis"),
    [("where", 1), ("where", -1), ("added", -1), ("added where it does not hold", 1), ("broadcast", -1)],
)
def test_a_mask_computed_at_run_time_is_part_of_the_softmax(form: str, axis: int, dtype: str) -> None:
    def make(b: Builder, x: str) -> str:
        slicing = [b.constant(np.array([number])) for number in (0, 1, 1)]
        source = b.node("Slice", x, *slicing) if form == "broadcast" else x
        seen = b.node("Less", source, b.constant(constant(0.7)))
        low = b.constant(constant(-1e30))
        if form in {"where", "broadcast"}:
            masked = b.node("Where", seen, x, low)
        elif form == "added":
            masked = b.node("Add", x, b.node("Where", seen, b.constant(constant(0.0)), low))
        else:
            masked = b.node("Add", b.node("Where", b.node("Not", seen), low, b.constant(constant(0.0))), x)
        return b.node("Softmax", masked, axis=axis)

    b = Builder("masked")
    b.output(make(b, b.input("x", [2, 5, 7])))
    # Halves: no code is on the other side of 0.7.
    feeds = [{name: np.rint(2 * array) / 2 for name, array in feed.items()} for feed in normal(b, 3)]
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype}})
    made.equals_reference(feeds[1])
    assert made.operators.count("softmax") == 1
    assert not {"select", "add"} & {*made.operators}
    for found in made.compare(feeds[0]).values():
        assert found.sqnr > (24.0 if dtype == "int8" else 55.0)
    x = feeds[0]["x"]
    hidden = np.broadcast_to(x[:, :1] if form == "broadcast" else x, x.shape) > 0.7
    result = made.run(feeds[0])[made.model.outputs[0].name]
    assert np.any(hidden)
    assert not np.any(result[hidden])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_layer_normalization(dtype: str) -> None:
    assert network(lambda b, x: b.layer_norm(x), (1, 5, 24), dtype).operators == ["layer_norm"]


RESIZES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest, half pixel": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "linear": {"mode": "linear"},
    "linear, corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "linear, pytorch": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    "linear, asymmetric": {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
}


@pytest.mark.parametrize("size", [(18, 20), (13, 7), (9, 31)])
@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.feature("NUM-31")
def test_resize(name: str, size: tuple[int, int]) -> None:
    network(lambda b, x: b.node("Resize", x, "", "", b.integers(1, 6, *size), **RESIZES[name]))


@pytest.mark.parametrize("axis", [1, 3])
def test_index_of_the_largest(axis: int) -> None:
    b = Builder("index")
    b.output(b.node("ArgMax", b.input("x", [1, 6, 9, 10]), axis=axis, keepdims=0))
    feed = {"x": (np.random.default_rng(0).permutation(540) / 540).reshape(1, 6, 9, 10).astype(np.float32)}
    made = lowered(b.model(), [feed], {"quantize": {"dtype": "int16"}})
    assert np.array_equal(made.run(feed)[made.model.outputs[0].name], feed["x"].argmax(axis))


def test_choice_by_a_constant_condition() -> None:
    condition = np.arange(10) % 3 > 0

    def make(b: Builder, x: str) -> str:
        return b.node("Where", b.constant(condition), x, b.node("Tanh", x))

    assert network(make).operators == ["unary", "rescale", "select"]
    made = network(lambda b, x: b.node("Where", b.constant(condition), x, b.constant(constant(0.5))))
    assert made.operators[-1] == "select"


@pytest.mark.parametrize(
    ("given", "condition", "varies", "written"),
    [
        ((1, 6, 1, 10), (6, 9, 10), (6, 9, 10), []),
        ((1, 1, 9, 1), (1, 6, 9, 10), (1, 6, 9, 10), []),
        ((6, 1, 10), (2, 1, 9, 1), (2, 1, 9, 1), []),
        ((10,), (6, 9, 1), (6, 9, 1), []),
        ((1, 6, 1, 10), (6, 9, 10), (6, 1, 10), ["rearrange"]),
    ],
)
def test_what_is_chosen_from_is_broadcast_by_the_choice(
    given: tuple[int, ...], condition: tuple[int, ...], varies: tuple[int, ...], written: list[str]
) -> None:
    """It is written out only where no operand shows an axis: the condition is the same all along it."""
    pattern = np.broadcast_to(np.random.default_rng(1).random(varies) > 0.4, condition)

    def make(b: Builder, x: str) -> str:
        return b.node("Where", b.constant(pattern), b.node("Tanh", x), b.constant(constant(0.5)))

    assert whole_before_the_last(network(make, given)) == written


def whole_before_the_last(made: Quantized) -> list[str]:
    """Operators of the layers before the last that have as many elements as the last."""
    sizes = [math.prod(made.graph.tensors[layer.output].shape) for layer in made.graph.layers]
    return [name for name, size in zip(made.operators[:-1], sizes, strict=False) if size == sizes[-1]]


def test_what_is_broadcast_is_put_in_the_order_of_the_reader() -> None:
    """Not the result, which is larger."""
    condition = np.random.default_rng(1).random((9, 10)) > 0.4

    def make(b: Builder, x: str) -> str:
        stored = b.node("Softmax", x, axis=1)  # with this axis last
        chosen = b.node("Where", b.constant(condition), stored, b.constant(constant(0.5)))
        turned = b.node("Transpose", chosen, perm=[0, 1, 3, 2])
        return b.node("MatMul", turned, b.spread(9, 9))

    assert whole_before_the_last(network(make, (1, 6, 9, 1))) == ["select"]


def test_both_that_are_chosen_from_are_broadcast() -> None:
    condition = np.random.default_rng(1).random((6, 9, 1)) > 0.4

    def make(b: Builder, x: str) -> str:
        high, low = (b.node("ReduceMax", x, axes=[axis]) for axis in (2, 3))
        return b.node("Where", b.constant(condition), high, low)

    assert whole_before_the_last(network(make)) == []


def test_rows_of_a_table() -> None:
    b = Builder("table")
    b.output(b.node("Gather", b.spread(20, 8), b.input("ids", [1, 5], TensorProto.INT64), axis=0))
    feeds = normal(b, 2)
    made = lowered(b.model(), feeds)
    assert made.operators == ["embedding"]
    assert all(found.sqnr > 35 for found in made.compare(feeds[0]).values())


def test_a_value_that_is_input_or_given_twice() -> None:
    b = Builder("several")
    x = b.input("x", [1, 4, 5, 6])
    y = b.node("Relu", x)
    b.output(y, b.node("Reshape", y, b.integers(1, 120)), b.node("Mul", y, b.constant(constant(2.0))))
    feeds = normal(b, 2)
    made = lowered(b.model(), feeds)
    assert len(made.graph.outputs) == 3
    assert all(found.sqnr > 35 for found in made.compare(feeds[0]).values())


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_grid_stated_in_the_model(kind: type[np.integer[Any]]) -> None:
    b = Builder("stated")
    scale, zero = b.constant(np.float32(0.03)), b.constant(np.array(5, kind))
    y = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 4))
    z = b.node("DequantizeLinear", b.node("QuantizeLinear", y, scale, zero), scale, zero)
    b.output(b.conv(z, 2), y)
    feeds = normal(b)
    made = lowered(b.model(), feeds, {"quantize": {"output_dtype": "int8"}})
    grids = {tuple(t.scale or ()): t.zero_point for t in made.graph.tensors if not t.is_constant}
    stated = (float(np.float32(0.03)),)
    assert grids[stated] == (5 - 128 if kind is np.uint8 else 5)
    assert all(found.sqnr > 25 for found in made.compare(feeds[0]).values())
    made.equals_reference(feeds[1])


def test_supported_operators_are_listed() -> None:
    assert {"Conv", "Reshape", "Silu", "Softmax"} <= set(supported_operators())


def test_everything_the_frontend_lets_through_is_lowered() -> None:
    assert set(OPERATORS) <= set(supported_operators())


def test_an_operand_repeated_along_its_axes_is_shown_as_it_is() -> None:
    b = Builder("repeated")
    x, y = b.input("x", [1, 3, 1, 5]), b.input("y", [1, 3, 4, 5])
    small = b.node("Sigmoid", x)
    b.output(b.node("Where", b.node("Greater", x, y), small, y))
    generator = np.random.default_rng(0)
    feed = {name: generator.standard_normal(b.shape(name)).astype(np.float32) for name in ("x", "y")}
    made = lowered(b.model(), [feed])
    # Every tensor that has a name in the model has the shape it has there.
    assert made.run(feed, all_tensors=True)[small].shape == (1, 3, 1, 5)
