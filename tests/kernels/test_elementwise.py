"""Binary operators, rescale, PRelu, tables, selection: kernels against reference and real arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import LIMITS, agree, apply, clamps, codes, dtypes, operands, requants, tables
from tpuflow import kernels
from tpuflow.kernels import Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SHAPES = [([4, 1, 3], [5, 1]), ([7], [7]), ([2, 3, 4], [1]), ([1], [2, 3]), ([2, 1, 4], [2, 3, 4]), ([], [3])]


KINDS = ["add", "sub", "mul", "div", "max", "min", "less", "less_or_equal", "equal", "not_equal"]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), a_type=dtypes, b_type=dtypes, y_type=dtypes, shapes=st.sampled_from(SHAPES))
@pytest.mark.feature("NUM-15", "NUM-16")
def test_binary_operators_equal_the_reference(
    kind: str, data: st.DataObject, a_type: str, b_type: str, y_type: str, shapes: tuple[list[int], list[int]]
) -> None:
    scaled = kind not in {"mul", "div"}
    multiplier = st.integers(0, 32767) if scaled else st.just(1)
    ka, kb = data.draw(multiplier), data.draw(multiplier)
    size = float(LIMITS[a_type][1] * max(ka, 1))
    if kind == "mul":
        size *= LIMITS[b_type][1]
    requant = data.draw(requants(y_type, 1.0 if kind == "div" else size))
    op = {
        "op": "binary",
        "kind": kind,
        "a": data.draw(operands(a_type, shapes[0])),
        "b": data.draw(operands(b_type, shapes[1])),
        "ka": ka,
        "kb": kb,
        "requant": requant,
    }
    agree(op, shape=list(np.broadcast_shapes(*map(tuple, shapes))), dtype=y_type)


@pytest.mark.parametrize("multiplier", [1, 0])
def test_division_by_zero(multiplier: int) -> None:
    requant = {"multiplier": [multiplier], "shift": [0], "zero_point": 5, "lo": -100, "hi": 110}
    x, y = Operand(np.array([3, -3, 0, 8], np.int8)), Operand(np.array([0, 0, 0, 4], np.int8))
    op = {"op": "binary", "kind": "div", "a": x, "b": y, "ka": 1, "kb": 1, "requant": requant}
    assert agree(op, shape=[4], dtype="int8").tolist() == [110, -100, 5, 5 + 2 * multiplier]


@given(st.data(), dtypes, dtypes)
def test_rescale(data: st.DataObject, x_type: str, y_type: str) -> None:
    requant = data.draw(requants(y_type, float(LIMITS[x_type][1])))
    agree(
        {"op": "rescale", "input": data.draw(operands(x_type, [40])), "requant": requant},
        shape=[40],
        dtype=y_type,
    )


@given(st.data(), dtypes, dtypes, st.integers(1, 5))
def test_p_relu(data: st.DataObject, x_type: str, y_type: str, channels: int) -> None:
    count = data.draw(st.sampled_from([1, channels]))
    pairs = data.draw(
        st.lists(st.tuples(st.integers(-32767, 32767), st.integers(-3, 30)), min_size=count, max_size=count)
    )
    op = {
        "op": "p_relu",
        "input": data.draw(operands(x_type, [3, 2, channels])),
        "slopes": {
            "positive": data.draw(requants(y_type, float(LIMITS[x_type][1]))),
            "negative_multiplier": [m for m, _ in pairs],
            "negative_shift": [n for _, n in pairs],
        },
    }
    agree(op, shape=[3, 2, channels], dtype=y_type)


@given(st.data(), dtypes, dtypes)
def test_unary(data: st.DataObject, x_type: str, y_type: str) -> None:
    entries, lo, hi = data.draw(tables(8 * np.dtype(x_type).itemsize, y_type))
    table = {"entries": Operand(entries, constant=True), "lo": lo, "hi": hi}
    agree(
        {"op": "unary", "input": data.draw(operands(x_type, [60])), "function": table},
        shape=[60],
        dtype=y_type,
    )


@given(st.data(), dtypes, st.sampled_from([*SHAPES, ([2, 3], [2, 3])]))
def test_select(data: st.DataObject, dtype: str, shapes: tuple[list[int], list[int]]) -> None:
    shape = list(np.broadcast_shapes(*map(tuple, shapes)))
    condition = data.draw(codes("int8", data.draw(st.sampled_from([shape, shape[-1:], [1]])), lo=-1, hi=1))
    op = {
        "op": "select",
        "condition": Operand(condition, constant=data.draw(st.booleans())),
        "a": Operand(data.draw(codes(dtype, shapes[0]))),
        "b": Operand(data.draw(codes(dtype, shapes[1]))),
    }
    agree(op, shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("less", lambda a, b: a < b),
        ("less_or_equal", lambda a, b: a <= b),
        ("equal", lambda a, b: a == b),
        ("not_equal", lambda a, b: a != b),
    ],
)
def test_sub_comparisons_are_conditions(kind: str, holds: Callable[[Any, Any], Any]) -> None:
    """Operands of scales 1 and 3, the second shifted: 0 or 1 by real value, and what `select` then takes."""
    a = np.arange(-128, 128).astype(np.int8)
    b = np.array([[-40], [0], [1], [42]], np.int8)
    step = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": 0, "hi": 1}
    op = {
        "op": "binary",
        "kind": kind,
        "a": Operand(a),
        "b": Operand(b, 1),
        "ka": 10922,
        "kb": 32766,
        "requant": step,
    }
    condition = agree(op, shape=[4, 256], dtype="int8")
    assert np.array_equal(condition, holds(a.astype(int), 3 * (b.astype(int) - 1)))
    chosen = {"op": "select", "condition": Operand(condition), "a": Operand(a), "b": Operand(b)}
    assert np.array_equal(agree(chosen, shape=[4, 256], dtype="int8"), np.where(condition, a, b))


def common_step(scale_a: float, scale_b: float) -> tuple[int, int, float]:
    """`ka`, `kb` and the common step of `docs/arithmetic.md`, section 7."""
    if scale_a == scale_b:
        return 1, 1, scale_a
    step = max(scale_a, scale_b) / 32767
    return round(scale_a / step), round(scale_b / step), step


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.51), ("int16", 2.0)])
@pytest.mark.parametrize("ratio", [1.0, 1.7, 3.7, 50.0, 1e4])
@pytest.mark.parametrize("zero_points", [(0, 0), (-17, 40)])
@pytest.mark.feature("NUM-15")
def test_addition_is_near_the_real_sum(
    dtype: str, bound: float, ratio: float, zero_points: tuple[int, int]
) -> None:
    """Bounds in codes of the output; no operand vanishes at these ratios."""
    low, high = LIMITS[dtype]
    generator = np.random.default_rng(3)
    for kind in ("add", "sub", "max", "min"):
        scale_a = float(generator.uniform(0.001, 0.1))
        scale_b = scale_a / ratio
        scale_y = scale_a + scale_b
        ka, kb, step = common_step(scale_a, scale_b)
        found = kernels.approximate(step / scale_y, max_shift=31 if dtype == "int8" else 47)
        assert found is not None
        requant: dict[str, Any] = {
            "multiplier": [found[0]],
            "shift": [found[1]],
            "zero_point": 0,
            "lo": low,
            "hi": high,
        }
        a, b = (generator.integers(low, high, 4000, dtype=dtype, endpoint=True) for _ in range(2))
        op = {
            "op": "binary",
            "kind": kind,
            "a": Operand(a, zero_points[0]),
            "b": Operand(b, zero_points[1]),
            "ka": ka,
            "kb": kb,
            "requant": requant,
        }
        codes_found = apply(op, shape=[4000], dtype=dtype)
        real_a = scale_a * (a.astype(float) - zero_points[0])
        real_b = scale_b * (b.astype(float) - zero_points[1])
        functions = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}
        real = np.clip(functions[kind](real_a, real_b) / scale_y, low, high)
        assert np.abs(codes_found - real).max() <= bound


FUNCTIONS: dict[str, tuple[Callable[[NDArray[Any]], NDArray[Any]], float, float]] = {
    "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), 8.0, 1 / 32768),
    "tanh": (np.tanh, 4.0, 1 / 32768),
    "gelu_tanh": (
        lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        6.0,
        6 / 32767,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.feature("NUM-20")
def test_tables_are_near_the_function(name: str) -> None:
    """16 bits through 2^10 steps, over all 65536 codes: 1.3 codes; 8 bits: half a code, at all 256."""
    function, span, scale_y = FUNCTIONS[name]
    scale_x = span / 32768
    codes16 = np.arange(-32768, 32768).astype(np.int16)
    knots = -32768.0 + 64 * np.arange(1025)
    entries = np.rint(function(knots * scale_x) / scale_y).astype(int)
    found = kernels.lookup(entries.tolist(), codes16, lo=-32768, hi=32767)
    real = np.clip(function(codes16 * scale_x) / scale_y, -32768, 32767)
    assert np.abs(found - real).max() <= 1.3

    codes8 = np.arange(-128, 128).astype(np.int8)
    entries = np.rint(function(np.arange(-128.0, 129) * span / 128) / (256 * scale_y)).astype(int)
    found = kernels.lookup(entries.tolist(), codes8, lo=-128, hi=127)
    real = np.clip(function(codes8 * span / 128) / (256 * scale_y), -128, 127)
    assert np.abs(found - real).max() <= 0.5


def test_clamps_are_drawn_within_their_type() -> None:
    @given(clamps("int8"))
    def inside(clamp: tuple[int, int]) -> None:
        assert -128 <= clamp[0] <= clamp[1] <= 127

    inside()
