"""Mixtures of experts in integers: what is loaded, on which grids, and how close the result is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from lowering.quantized import Array, lowered
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.execution.simulation import simulate

WIDTH, INNER = 64, 96


def _mixture(tokens: int, experts: int) -> onnx.ModelProto:
    """Rows through the best two of several experts, each of two layers."""
    b = Builder("mixture")
    x = b.input("rows", [tokens, WIDTH])
    values, chosen = b.nodes("TopK", [b.node("Softmax", b.linear(x, experts), axis=-1), b.integers(2)], 2)
    column = b.node("Reshape", chosen, b.integers(-1, 1))
    y = b.node("Expand", b.node("Reshape", x, b.integers(tokens, 1, WIDTH)), b.integers(tokens, 2, WIDTH))
    y = b.node("Reshape", y, b.integers(-1, WIDTH, 1))
    for inner, outer in ((WIDTH, INNER), (INNER, WIDTH)):
        # Columns and experts of very different size: each keeps its codes.
        spread = np.exp(b.rng.normal(0, 1, (experts, outer, 1)))
        weights = b.rng.standard_normal((experts, outer, inner)) / np.sqrt(inner) * spread
        picked = b.node("GatherND", b.constant(weights.astype(np.float32)), column)
        y = b.node("MatMul", picked, y)
        y = b.node("Relu", y) if outer == INNER else y
    y = b.node("Reshape", y, b.integers(tokens, 2, WIDTH))
    y = b.node("Mul", y, b.node("Reshape", values, b.integers(tokens, 2, 1)))
    b.output(b.node("ReduceSum", y, b.integers(1), keepdims=0))
    return b.model()


def _feeds(tokens: int, count: int = 8) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"rows": rng.standard_normal((tokens, WIDTH)).astype(np.float32)} for _ in range(count)]


def test_a_row_loads_its_own_experts_only() -> None:
    loaded = []
    for experts in (4, 32):
        graph = lowered(_mixture(1, experts), _feeds(1)).graph
        report = simulate(compile_graph(graph, level=5), values=False).report
        loaded.append(sum(layer["ddr_read_bytes"] for layer in report["layers"]))
    router = WIDTH * 128 + 128 * 16
    assert loaded[0] > 2 * 2 * WIDTH * INNER
    assert loaded[1] - loaded[0] < router, "only the router's own weights and parameters grow"


@pytest.mark.parametrize(("dtype", "least"), [("int8", 25), ("int16", 55)])
@pytest.mark.parametrize("tokens", [1, 40])
def test_results_are_close_and_equal_at_every_level(tokens: int, dtype: str, least: float) -> None:
    feeds = _feeds(tokens)
    made = lowered(_mixture(tokens, 6), feeds, {"quantize": {"dtype": dtype}})
    found = sorted(next(iter(made.compare(feed).values())).sqnr for feed in feeds)
    assert found[len(found) // 2] > least, found
    made.equals_reference(feeds[0])
    made.equals_program(compile_graph(made.graph, level=1), feeds[0])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    ("shape", "count"), [((1, 2, 4), 2), ((3, 2, 4), 3), ((2, 8), 2), ((1, 3, 5), 2), ((1, 96), 8)]
)
def test_choices_are_exact_on_any_grid(shape: tuple[int, ...], count: int, dtype: str) -> None:
    b = Builder("choice")
    values, _ = b.nodes("TopK", [b.input("x", shape), b.integers(count)], 2)
    b.output(b.node("MatMul", values, b.constant(np.eye(count, dtype=np.float32))))
    feeds = [{"x": np.random.default_rng(n).random(shape).astype(np.float32)} for n in range(6)]
    made = lowered(b.model(), feeds, {"quantize": {"dtype": dtype}})
    assert "arg_max" not in made.operators, "indices are not used"
    for feed in feeds:
        made.equals_reference(feed)
        assert next(iter(made.compare(feed).values())).sqnr > (38 if dtype == "int8" else 70)


def test_a_group_of_experts_is_chosen_first() -> None:
    """Shares are left out of groups by indices that are placed, as in DeepSeek's routers."""
    b = Builder("groups")
    x = b.input("x", [3, WIDTH])
    shares = b.node("Sigmoid", b.linear(x, 8))
    best, _ = b.nodes("TopK", [b.node("Reshape", shares, b.integers(3, 2, 4)), b.integers(2)], 2)
    _, group = b.nodes("TopK", [b.node("ReduceSum", best, b.integers(2), keepdims=0), b.integers(1)], 2)
    empty, one = (b.constant(np.full(size, value, np.float32)) for size, value in (((3, 2), 0), ((3, 1), 1)))
    kept = b.node("Reshape", b.node("ScatterElements", empty, group, one, axis=1), b.integers(3, 2, 1))
    kept = b.node("Reshape", b.node("Expand", kept, b.integers(3, 2, 4)), b.integers(3, 8))
    masked = b.node("Mul", shares, kept)
    _, chosen = b.nodes("TopK", [masked, b.integers(2)], 2)
    weights = b.node("GatherElements", shares, chosen, axis=1)
    picked = b.node("Gather", b.weight(8, WIDTH, fan_in=1), chosen)
    weighed = b.node("Mul", picked, b.node("Reshape", weights, b.integers(3, 2, 1)))
    b.output(b.node("ReduceSum", weighed, b.integers(1), keepdims=0))
    feeds = [{"x": np.random.default_rng(n).standard_normal((3, WIDTH)).astype(np.float32)} for n in range(8)]
    made = lowered(b.model(), feeds, {"quantize": {"dtype": "int16"}})
    found = sorted(next(iter(made.compare(feed).values())).sqnr for feed in feeds)
    assert found[2] > 50, found
    made.equals_reference(feeds[0])


def test_matrices_of_a_table_have_the_width_of_weights() -> None:
    blocks = {"weight_bits": 4, "per_block": True, "weight_block_size": 32}
    for quantize, dtype in (({}, "int8"), ({"dtype": "int16"}, "int16"), (blocks, "int8")):
        graph = lowered(_mixture(1, 6), _feeds(1), {"quantize": quantize}).graph
        tables = [graph.tensors[layer.operands[0]] for layer in graph.layers if layer.op == "embedding"]
        sizes = (table for table in tables if np.prod(table.shape) == 6 * WIDTH * INNER)
        matrices = {table.name: table for table in sizes}
        assert len(matrices) == 2
        assert all((table.dtype, table.zero_point) == (dtype, 0) for table in matrices.values())
