"""Operands of operators on one grid: which, by every method."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import ConfigError
from tpuflow.pipeline import graph_bytes


def summed(rule: str, operator: str = "Add") -> dict[str, float]:
    """Steps of what an operator reads and makes under a rule: operands reach 1 and 3, the result 6."""
    b = Builder("summed")
    x = b.input("x", [1, 4, 6, 6])
    small = b.node("Clip", x, b.constant(np.float32(-1)), b.constant(np.float32(1)))
    large = b.node("Clip", x, b.constant(np.float32(-3)), b.constant(np.float32(3)))
    operands = (small, large) if operator == "Add" else (small, b.node("Concat", large, large, axis=1))
    result = b.node("Add", small, large) if operator == "Add" else b.node("Concat", *operands, axis=1)
    doubled = b.node("Mul", result, b.constant(np.float32(1.5)))
    b.output(b.node("Sigmoid", doubled), b.node("Sigmoid", small), b.node("Sigmoid", operands[1]))
    feeds = [{"x": np.linspace(-4, 4, 144, dtype=np.float32).reshape(1, 4, 6, 6)}] * 2
    quantize = {"output_dtype": "int8", "activation_mode": "symmetric_restricted"}
    if rule:
        quantize["unify_scales_for_multi_inputs_operators"] = rule
    found = lowered(b.model(), feeds, {"quantize": quantize, "calibrate": {"strategy": "extrema"}})
    found.equals_reference(feeds[0])
    shown = {tensor.name: tensor.scale for tensor in found.graph.tensors}
    names = {"small": small, "large": operands[1], "result": result}
    return {key: 127 * (shown[name] or [np.nan])[0] for key, name in names.items()}


@pytest.mark.parametrize(
    ("method", "reach"),
    [("min", 3.0), ("max", 1.0), ("avg", 1.5), ("out", 4.0), ("first", 1.0), ("largest", 1.0)],
)
@pytest.mark.feature("NUM-24")
def test_operands_get_one_scale_by_a_method(method: str, reach: float) -> None:
    apart = summed("")
    assert (apart["small"], apart["large"], apart["result"]) == pytest.approx((1, 3, 4), rel=1e-5)
    found = summed(f"[(add, 0, 4, {method})]")
    assert (found["small"], found["large"]) == pytest.approx((reach, reach), rel=1e-5)
    assert found["result"] == pytest.approx(4, rel=1e-5)


@pytest.mark.feature("NUM-24")
def test_concatenations_choose_the_operand_with_most_elements() -> None:
    for method, reach in (("largest", 3.0), ("first", 1.0)):
        found = summed(f"[(Concat, 20, 4, {method})]", "Concat")
        assert tuple(found.values()) == pytest.approx((reach,) * 3, rel=1e-5)


@pytest.mark.feature("NUM-24")
def test_scales_that_differ_by_more_than_the_threshold_are_left() -> None:
    assert summed("[(Add, 0, 2.5, min)]") == summed("")
    assert summed("[(Add, 0, 4, skip)]") == summed("")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("(Add, 0, 2, min)", "must be like"),
        ("[(Add, 0, 2)]", "must be like"),
        ("[(Add, 0, 2, median)]", 'unknown method "median"'),
        ("[(Add, 0, 0.5, min)]", "lies below 1"),
        ("[(Where, 0, 2, min)]", "there is no Where of several computed operands"),
    ],
)
@pytest.mark.feature("NUM-24")
def test_rules_that_mean_nothing_are_errors(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        summed(rule)


@pytest.mark.feature("NUM-24")
def test_one_name_may_stand_for_several_operators() -> None:
    assert summed("[(Eltwise, 0, 4, min)]") == summed("[(Add, 0, 4, min)]")


@pytest.mark.slow
def test_concatenations_in_a_long_row_have_one_grid() -> None:
    # Every one asks which grid the last of them has: recursion ended at the depth Python allows.
    b = Builder("row")
    x = row = b.input("x", [1, 1, 1, 1])
    for _ in range(1200):
        row = b.node("Concat", row, x, axis=1)
    b.output(b.node("Sigmoid", row))
    found = lowered(b.model(), [{"x": np.full((1, 1, 1, 1), each, np.float32)} for each in (-1, 2)])
    joined = [tensor for tensor in found.graph.tensors if tensor.shape[-1] > 1]
    assert len(joined) >= 1200
    assert len({tuple(tensor.scale or ()) for tensor in joined[:1200]}) == 1


def recurrent(operator: str, steps: int, hidden: int, **quantize: object) -> Quantized:
    """A recurrent layer of one direction that gives all of its states."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    b = Builder("recurrent")
    x = b.input("x", [steps, 1, hidden])
    weights = [b.weight(1, gates * hidden, hidden, fan_in=hidden) for _ in range(2)]
    y = b.nodes(operator, [x, *weights, b.spread(1, 2 * gates * hidden)], 1, hidden_size=hidden)[0]
    b.output(b.node("Reshape", y, b.integers(steps, hidden)))
    return lowered(b.model(), normal(b, 4), {"quantize": quantize})


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.feature("NUM-34")
def test_constants_of_a_recurrence_are_those_of_one_step(operator: str) -> None:
    short, long = (recurrent(operator, steps, 64) for steps in (6, 12))
    sizes = [graph_bytes(found.graph) for found in (short, long)]
    assert sizes[1] <= 1.01 * sizes[0]
    floats = [graph_bytes(recurrent(operator, steps, 64, dtype="float16").graph) for steps in (6, 12)]
    assert floats[1] <= 1.01 * floats[0]
    apart = recurrent(operator, 12, 64, scales_by_step=True)
    assert graph_bytes(apart.graph) > 1.05 * sizes[1]
    for found, steps in ((short, 6), (long, 12), (apart, 12)):
        x = np.linspace(-1, 1, steps * 64, dtype=np.float32).reshape(steps, 1, 64)
        found.equals_reference({"x": x})


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_step_of_an_lstm_takes_nine_elementwise_instructions(dtype: str) -> None:
    graph = recurrent("LSTM", 24, 64, dtype=dtype, output_dtype=dtype).graph
    program = json.loads(compile_graph(graph, level=5).to_json())
    counts = Counter(each["unit"] for each in program["instructions"])
    # The sum of one per column tile: the first is there earlier.
    assert counts["ewp"] <= 9 * 24 + 8
    # All steps take the constants of the first.
    assert counts["dtl0"] + counts["dtl1"] < 24
