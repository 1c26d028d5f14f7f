"""Every float operator in every type: kernels against reference, bit by bit, and near real arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import apply, layer_graph, pooled, windows
from tpuflow import _core, reference
from tpuflow.errors import GraphError
from tpuflow.kernels import Operand
from tpuflow.reference import functions
from tpuflow.reference.floating import DTYPES, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tpuflow._core import FinishFields

TYPES = sorted(DTYPES)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, 3e38, 65504.0, 6e-8, 1.0]

floats = st.sampled_from(TYPES)


@st.composite
def numbers(draw: st.DrawFn, dtype: str, shape: Sequence[int], *, finite: bool = False) -> NDArray[Any]:
    """Numbers of very different sizes, so that another order of a sum gives other bits; some special."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0, 3, 12, 60]))
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(-spread, spread + 1, shape)
    if not finite and draw(st.integers(0, 3)) == 0:
        values = np.where(generator.random(shape) < 0.1, generator.choice(SPECIAL, shape), values)
    rounded = nearest(np.asarray(values), dtype)
    if finite:
        rounded[~np.isfinite(rounded.astype(np.float32))] = 1
    return rounded


@st.composite
def finishes(draw: st.DrawFn) -> dict[str, Any]:
    """Nothing, a clamp, or a function."""
    return draw(
        st.sampled_from(
            [
                {},
                {},
                {"lo": 0.0},
                {"lo": 0.0, "hi": 6.0},
                {"lo": "-inf", "hi": 0.5},
                {"function": [{"exp": 0}, {"constant": 1.0}, {"add": [1, 2]}, {"div": [0, 3]}], "lo": -1.0},
            ]
        )
    )


def bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def agree(op: Mapping[str, Any], *, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """The kernels and the reference compute the same bits, which are returned."""
    graph, inputs = layer_graph(op, shape=shape, dtype=dtype)
    found = graph.run(inputs)["y"]
    expected = reference.run(graph, inputs)["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(bits(found), bits(expected), strict=True)
    return found


@given(st.data(), floats, floats)
def test_conv(data: st.DataObject, x_type: str, y_type: str) -> None:
    groups, per_group, inner = (data.draw(st.integers(1, n)) for n in (3, 3, 3))
    x = data.draw(numbers(x_type, [2, 5, 6, groups * inner]))
    window = data.draw(windows(5, 6))
    channels = groups * per_group
    op = {
        "op": "conv",
        "input": Operand(x),
        "weights": Operand(
            data.draw(numbers(x_type, [channels, *window["kernel"], inner], finite=True)), 0, True
        ),
        "bias": Operand(data.draw(numbers("float32", [channels])), 0, True),
        "window": window,
        "groups": groups,
        "epilogue": {"float": data.draw(finishes())},
    }
    agree(op, shape=[*pooled(x.shape, window)[:3], channels], dtype=y_type)


@given(st.data(), floats, floats)
def test_depthwise(data: st.DataObject, x_type: str, y_type: str) -> None:
    channels = data.draw(st.sampled_from([1, 7, 16, 33]))
    x = data.draw(numbers(x_type, [1, 4, 5, channels]))
    window = data.draw(windows(4, 5))
    op = {
        "op": "conv",
        "input": Operand(x),
        "weights": Operand(
            data.draw(numbers(x_type, [channels, *window["kernel"], 1], finite=True)), 0, True
        ),
        "bias": Operand(data.draw(numbers("float32", [channels])), 0, True),
        "window": window,
        "groups": channels,
        "epilogue": {"float": data.draw(finishes())},
    }
    agree(op, shape=[*pooled(x.shape, window)[:3], channels], dtype=y_type)


@given(st.data(), floats, floats, st.booleans())
def test_mat_mul(data: st.DataObject, x_type: str, y_type: str, constant: bool) -> None:  # noqa: FBT001
    lead, m, k, n = (
        data.draw(st.sampled_from(sizes)) for sizes in ([1, 2], [1, 3, 9], [1, 4, 19], [1, 15, 33])
    )
    biased = data.draw(st.booleans())
    op: dict[str, Any] = {
        "op": "mat_mul",
        "a": Operand(data.draw(numbers(x_type, [lead, m, k]))),
        "b": Operand(data.draw(numbers(x_type, [k, n] if constant else [lead, k, n])), 0, constant),
        "epilogue": {"float": data.draw(finishes())},
    }
    if biased:
        op["bias"] = Operand(data.draw(numbers("float32", [n])), 0, True)
    agree(op, shape=[lead, m, n], dtype=y_type)


SHAPES = [([4, 1, 3], [5, 1]), ([7], [7]), ([2, 3, 4], [1]), ([1], [2, 3]), ([2, 1, 4], [2, 3, 4]), ([], [3])]


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "max", "min"])
@given(data=st.data(), a=floats, b=floats, y=floats, shapes=st.sampled_from(SHAPES))
def test_binary(
    kind: str, data: st.DataObject, a: str, b: str, y: str, shapes: tuple[list[int], list[int]]
) -> None:
    op = {
        "op": "binary",
        "kind": kind,
        "a": Operand(data.draw(numbers(a, shapes[0]))),
        "b": Operand(data.draw(numbers(b, shapes[1]))),
        "ka": 1,
        "kb": 1,
        "requant": {"float": data.draw(finishes())},
    }
    agree(op, shape=list(np.broadcast_shapes(*map(tuple, shapes))), dtype=y)


@pytest.mark.parametrize("kind", ["less", "less_or_equal", "equal", "not_equal"])
@given(data=st.data(), a=floats, b=floats)
def test_comparisons_give_conditions(kind: str, data: st.DataObject, a: str, b: str) -> None:
    coarse = data.draw(numbers(a, [40]))
    other = np.where(np.arange(40) % 3 == 0, coarse.astype(np.float32), 1.0)
    op = {
        "op": "binary",
        "kind": kind,
        "a": Operand(coarse),
        "b": Operand(nearest(other, b)),
        "ka": 1,
        "kb": 1,
        "requant": {"float": {}},
    }
    condition = agree(op, shape=[40], dtype="int8")
    chosen = {"op": "select", "condition": Operand(condition), "a": op["a"], "b": Operand(-coarse)}
    agree(chosen, shape=[40], dtype=a)


def unary(name: str) -> list[dict[str, Any]]:
    return [{name: 0}]


ONE_OPERAND = sorted(set(functions.PRIMITIVES) - {"add", "sub", "mul", "div", "max", "min", "choose"})


@pytest.mark.parametrize("name", ONE_OPERAND)
@given(data=st.data(), x_type=floats, y_type=floats)
def test_primitives(name: str, data: st.DataObject, x_type: str, y_type: str) -> None:
    x = data.draw(numbers(x_type, [300]))
    op = {"op": "unary", "input": Operand(x), "function": {"float": {"function": unary(name)}}}
    agree(op, shape=[300], dtype=y_type)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "choose"])
@given(data=st.data(), x_type=floats)
def test_primitives_of_several_values(name: str, data: st.DataObject, x_type: str) -> None:
    steps: list[dict[str, Any]] = [{"constant": 0.75}, {"sub": [1, 0]}]
    steps.append({name: [2, 0, 1] if name == "choose" else [0, 2]})
    op = {
        "op": "unary",
        "input": Operand(data.draw(numbers(x_type, [200]))),
        "function": {"float": {"function": steps}},
    }
    agree(op, shape=[200], dtype="float32")


NEAR: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "expm1": math.expm1,
    "sin": math.sin,
    "cos": math.cos,
    "atan": math.atan,
    "erf": math.erf,
    "log": math.log,
    "log1p": math.log1p,
}


@pytest.mark.parametrize("name", NEAR)
def test_primitives_are_near_the_functions(name: str) -> None:
    """Within 4e-15 of the platform's library, relative to the larger of 1 and the value."""
    x = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-0.01, 0.01, 2000)])
    operand = x[x > 0] if name.startswith("log") else x
    with np.errstate(all="ignore"):
        found = functions.PRIMITIVES[name](operand)
    expected = np.array([NEAR[name](float(v)) for v in operand])
    assert np.max(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))) < 4e-15


@given(st.data(), floats, floats)
def test_rescale_converts_and_clamps(data: st.DataObject, x_type: str, y_type: str) -> None:
    x = data.draw(numbers(x_type, [60]))
    found = agree({"op": "rescale", "input": Operand(x), "requant": {"float": {}}}, shape=[60], dtype=y_type)
    if DTYPES[x_type] is DTYPES[y_type]:
        np.testing.assert_array_equal(found.astype(np.float32), x.astype(np.float32))
    clamped = {"op": "rescale", "input": Operand(x), "requant": {"float": {"lo": -1.0, "hi": 2.5}}}
    agree(clamped, shape=[60], dtype=y_type)


@given(st.data(), floats, st.sampled_from(["int8", "int16", "int32"]))
def test_quantize_and_dequantize(data: st.DataObject, x_type: str, codes: str) -> None:
    limits = np.iinfo(codes)
    scale = float(np.float32(data.draw(st.floats(1e-3, 10))))
    zero_point = data.draw(st.integers(-100, 100))
    op = {
        "op": "quantize",
        "input": Operand(data.draw(numbers(x_type, [80]))),
        "scale": scale,
        "zero_point": zero_point,
        "lo": int(limits.min),
        "hi": int(limits.max),
    }
    found = agree(op, shape=[80], dtype=codes)
    back = {"op": "dequantize", "input": Operand(found, zero_point), "scale": scale, "finish": {}}
    agree(back, shape=[80], dtype=x_type)


@given(st.data(), floats, floats, st.integers(1, 5))
def test_p_relu(data: st.DataObject, x_type: str, y_type: str, channels: int) -> None:
    count = data.draw(st.sampled_from([1, channels]))
    slopes = [float(np.float32(data.draw(st.floats(-2, 2)))) for _ in range(count)]
    op = {
        "op": "p_relu",
        "input": Operand(data.draw(numbers(x_type, [3, 2, channels]))),
        "slopes": {"float": {"negative": slopes}},
    }
    agree(op, shape=[3, 2, channels], dtype=y_type)


@given(st.data(), floats)
def test_max_pool(data: st.DataObject, dtype: str) -> None:
    x = data.draw(numbers(dtype, [2, 5, 4, 3]))
    window = data.draw(windows(5, 4))
    op = {"op": "max_pool", "input": Operand(x), "window": window}
    agree(op, shape=pooled(x.shape, window), dtype=dtype)


@given(st.data(), floats, floats, st.booleans())
def test_average_pool(data: st.DataObject, x_type: str, y_type: str, count_include_pad: bool) -> None:  # noqa: FBT001
    x = data.draw(numbers(x_type, [1, 5, 4, 3]))
    window = data.draw(windows(5, 4))
    op = {
        "op": "average_pool",
        "input": Operand(x),
        "window": window,
        "count_include_pad": count_include_pad,
        "beyond": [data.draw(st.integers(0, window["pads"][axis + 2])) for axis in (0, 1)],
        "average": {"float": data.draw(finishes())},
    }
    agree(op, shape=pooled(x.shape, window), dtype=y_type)


@given(st.data(), floats, floats, st.integers(1, 20))
def test_softmax(data: st.DataObject, x_type: str, y_type: str, n: int) -> None:
    op: dict[str, Any] = {
        "op": "softmax",
        "input": Operand(data.draw(numbers(x_type, [2, 3, n]))),
        "exponentials": {"float": {}},
    }
    if data.draw(st.booleans()):
        generator = np.random.default_rng(n)
        shape = data.draw(st.sampled_from([[n], [3, n], [2, 1, n], [2, 3, n], [1]]))
        op["mask"] = Operand(generator.integers(0, 2, shape).astype(np.int8), 0, True)
    agree(op, shape=[2, 3, n], dtype=y_type)


@given(st.data(), floats, floats, st.integers(1, 20), st.booleans())
def test_layer_norm(data: st.DataObject, x_type: str, y_type: str, n: int, center: bool) -> None:  # noqa: FBT001
    op = {
        "op": "layer_norm",
        "input": Operand(data.draw(numbers(x_type, [2, 3, n]))),
        "gamma": Operand(data.draw(numbers("float32", [n])), 0, True),
        "beta": Operand(data.draw(numbers("float32", [n])), 0, True),
        "center": center,
        "norm": {"float": {"epsilon": float(np.float32(1e-5)), "finish": data.draw(finishes())}},
    }
    agree(op, shape=[2, 3, n], dtype=y_type)


@pytest.mark.parametrize("kind", ["sum", "sum_abs", "sum_square", "norm", "max", "min"])
@given(data=st.data(), x_type=floats, y_type=floats, axes=st.sampled_from([[0], [1], [2], [0, 2], [0, 1, 2]]))
def test_reduce(kind: str, data: st.DataObject, x_type: str, y_type: str, axes: list[int]) -> None:
    op = {
        "op": "reduce",
        "input": Operand(data.draw(numbers(x_type, [3, 4, 5]))),
        "kind": kind,
        "axes": axes,
        "requant": {"float": {"divisor": data.draw(st.sampled_from([1.0, 12.0]))}},
    }
    kept = [extent for axis, extent in enumerate([3, 4, 5]) if axis not in axes]
    agree(op, shape=kept, dtype=x_type if kind in {"max", "min"} else y_type)


@given(st.data(), floats, st.booleans(), st.booleans())
def test_arg_max(data: st.DataObject, dtype: str, largest: bool, select_last: bool) -> None:  # noqa: FBT001
    x = data.draw(numbers(dtype, [6, 5]))
    x[0] = x[0, 0]
    op = {"op": "arg_max", "input": Operand(x), "largest": largest, "select_last": select_last}
    agree(op, shape=[6], dtype="int32")


@given(st.data(), floats)
def test_resize_linear(data: st.DataObject, dtype: str) -> None:
    def taps(extent: int) -> list[dict[str, float]]:
        index = st.integers(0, extent - 1)
        weight = st.floats(0, 1, width=32)
        tap = st.fixed_dictionaries({"first": index, "second": index, "weight": weight})
        return data.draw(st.lists(tap, min_size=1, max_size=5))

    rows, columns = taps(4), taps(3)
    op = {
        "op": "resize_linear",
        "input": Operand(data.draw(numbers(dtype, [2, 4, 3, 2]))),
        "rows": rows,
        "columns": columns,
    }
    agree(op, shape=[2, len(rows), len(columns), 2], dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_movement(dtype: str) -> None:
    x = nearest(np.arange(48, dtype=np.float64).reshape(1, 4, 4, 3) / 7 - 2, dtype)
    operand = Operand(x)
    agree(
        {"op": "rearrange", "input": operand, "dims": [3, 16], "strides": [1, 3], "offset": 0},
        shape=[3, 16],
        dtype=dtype,
    )
    agree({"op": "gather", "input": operand, "axis": 2, "indices": [3, 0]}, shape=[1, 4, 2, 3], dtype=dtype)
    agree({"op": "insert_zeros", "input": operand, "stride": [2, 3]}, shape=[1, 7, 10, 3], dtype=dtype)
    for mode in ({"value": 0.1}, {"value": "-inf"}, "reflect", "edge"):
        pads = {"before": [0, 1, 2, 0], "after": [0, 2, 0, 1], "mode": mode}
        agree({"op": "pad", "input": operand, **pads}, shape=[1, 7, 6, 4], dtype=dtype)
    joined = {"op": "concat", "inputs": [operand, Operand(-x)], "axis": 3, "requants": [None, None]}
    agree(joined, shape=[1, 4, 4, 6], dtype=dtype)
    table = {"op": "embedding", "table": Operand(x.reshape(16, 3), 0, True)}
    agree(table | {"indices": Operand(np.array([3, 0, 15], np.int32))}, shape=[3, 3], dtype=dtype)


def test_values_by_hand() -> None:
    """One case of each rounding rule in numbers one can check."""
    half = np.float16
    # 2048 + 1 is a tie of float16 and goes to 2048; 2048 + 3 to 2052.
    op = {"op": "binary", "kind": "add", "ka": 1, "kb": 1, "requant": {"float": {}}}
    op |= {"a": Operand(np.array([2048, 2048, 65504, 65504], half))}
    op |= {"b": Operand(np.array([1, 3, 15.99, 16], half))}
    assert agree(op, shape=[4], dtype="float16").tolist() == [2048, 2052, 65504, math.inf]
    # 1 + 2^-8 is a tie of bfloat16.
    op |= {"a": Operand(np.array([1, 1], np.float32)), "b": Operand(np.array([2**-8, 3 * 2**-8], np.float32))}
    assert agree(op, shape=[2], dtype="bfloat16").astype(float).tolist() == [1.0, 1.015625]
    # Sums run in order: 2^24 + 1 + 1 stays 2^24, 1 + 1 + 2^24 does not.
    product = {"op": "mat_mul", "epilogue": {"float": {}}, "b": Operand(np.ones((3, 1), np.float32))}
    product |= {"a": Operand(np.array([[2**24, 1, 1], [1, 1, 2**24]], np.float32))}
    assert agree(product, shape=[2, 1], dtype="float32").ravel().tolist() == [2**24, 2**24 + 2]


def test_every_nan_is_the_canonical_one() -> None:
    for dtype, canonical in (("float16", 0x7E00), ("bfloat16", 0x7FC0), ("float32", 0x7FC00000)):
        x = np.array([np.nan, -np.inf], np.float32)
        x[:1].view(np.uint32)[0] |= 0x80000001
        op = {"op": "binary", "kind": "add", "ka": 1, "kb": 1, "requant": {"float": {}}}
        op |= {"a": Operand(x), "b": Operand(-x)}
        assert bits(agree(op, shape=[2], dtype=dtype)).tolist() == [canonical, canonical]


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        ({"op": "rescale", "requant": {"float": {}}}, "int8", "as float16, bfloat16 or float32"),
        (
            {"op": "rescale", "requant": {"float": {"lo": 2.0, "hi": 1.0}}},
            "float32",
            "clamp 2.0..=1.0 is empty",
        ),
        ({"op": "rescale", "requant": {"float": {"lo": 0.1}}}, "float32", "clamp 0.1 is no float32"),
        ({"op": "unary", "function": {"float": {}}}, "float32", "the function is missing"),
        (
            {"op": "unary", "function": {"float": {"function": [{"exp": 1}]}}},
            "float32",
            "step 0 of a function reads value 1",
        ),
        (
            {"op": "pad", "before": [1], "after": [0], "mode": {"constant": 0}},
            "float32",
            "does not fill float32",
        ),
    ],
)
def test_operators_that_do_not_fit(op: dict[str, Any], dtype: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        layer_graph(op | {"input": Operand(np.ones(3, np.float32))}, shape=[3], dtype=dtype)


def test_weights_that_are_not_finite_are_refused() -> None:
    op = {
        "op": "conv",
        "input": Operand(np.ones((1, 2, 2, 1), np.float16)),
        "weights": Operand(np.full((1, 1, 1, 1), np.inf, np.float16), 0, True),
        "bias": Operand(np.zeros(1, np.float32), 0, True),
        "window": {"kernel": [1, 1], "stride": [1, 1], "dilation": [1, 1], "pads": [0, 0, 0, 0]},
        "groups": 1,
        "epilogue": {"float": {}},
    }
    with pytest.raises(GraphError, match="holds numbers that are not finite"):
        apply(op, shape=[1, 2, 2, 1], dtype="float16")


def test_files_keep_every_bit(tmp_path: Any) -> None:
    builder = _core.GraphBuilder("floats")
    x = builder.input("x", [2, 2], "bfloat16")
    weights = np.array([[0.1, -0.0], [3e38, 1e-40]], ml_dtypes.bfloat16)
    b = builder.constant("w", weights)
    finish: FinishFields = {"function": [{"constant": 0.1}, {"mul": [0, 1]}], "hi": np.inf}
    op = _core.Op.mat_mul(a=x, b=b, epilogue={"float": finish})
    builder.output(builder.layer("product", op, "y", [2, 2], "float16"))
    graph = builder.finish()
    graph.save(tmp_path / "net.tpuq")
    loaded = _core.Graph.load(tmp_path / "net.tpuq")
    assert loaded.to_json() == graph.to_json()
    np.testing.assert_array_equal(bits(loaded.constant(b)), bits(weights))
    sample = {"x": np.array([[1, 2], [-3, 0.5]], ml_dtypes.bfloat16)}
    np.testing.assert_array_equal(bits(loaded.run(sample)["y"]), bits(graph.run(sample)["y"]))
