"""Entries of packed tables: embeddings tied to a product's weights, and experts of 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from frontend.graphs import graph
from lowering.quantized import Array, Quantized, lowered
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.execution.simulation import simulate

WORDS, DEPTH = 300, 64
BLOCKS = {"weight_bits": 4, "per_block": True, "weight_block_size": 32}


def _table(kind: str = "normal") -> Array:
    """Embeddings of words that are more and less usual."""
    rng = np.random.default_rng(3)
    table = rng.standard_normal((WORDS, DEPTH)) * np.exp(rng.normal(0, 0.7, (WORDS, 1)))
    if kind == "with empty words":
        table[[0, 7, 299]] = 0
    elif kind == "of codes":
        scales = rng.uniform(0.01, 0.1, (WORDS, 2)).astype(np.float16)
        codes = rng.integers(-8, 8, (WORDS, DEPTH)).astype(np.float64)
        table = codes * np.repeat(scales.astype(np.float64), 32, axis=1)
    return table.astype(np.float32)


def _decoder(table: Array, product: Array) -> onnx.ModelProto:
    b = Builder("tied")
    x = b.node("Gather", b.constant(table), b.input("words", [1, 5], TensorProto.INT64))
    b.output(x, b.node("MatMul", b.node("Tanh", x), b.constant(np.ascontiguousarray(product))))
    return b.model()


def _words(count: int = 4) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"words": rng.integers(0, WORDS, (1, 5))} for _ in range(count)]


def _elements(made: Quantized) -> tuple[Array, Array]:
    """The int8 elements of the only packed constant, and the scales of its columns."""
    for number, tensor in enumerate(made.graph.tensors):
        if made.graph.packed(number) is not None:
            codes = made.graph.constant(number)
            assert codes is not None
            return codes, np.asarray(tensor.scale)
    raise AssertionError("nothing is packed")


def _packed(made: Quantized) -> list[str]:
    return [t.name for n, t in enumerate(made.graph.tensors) if made.graph.packed(n) is not None]


@pytest.mark.parametrize("kind", ["normal", "with empty words"])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_an_embedding_is_the_weights_of_the_product_it_is_tied_to(kind: str, dtype: str) -> None:
    table = _table(kind)
    feeds = _words()
    made = lowered(_decoder(table, table.T), feeds, {"quantize": {"dtype": dtype, **BLOCKS}})
    assert len(_packed(made)) == 1 and made.operators.count("embedding") == 2
    elements, scales = _elements(made)
    name = next(iter(made.compare(feeds[0])))
    for feed in feeds:
        words = feed["words"][0]
        exact = (elements[:, words] * scales[words]).T
        found = made.run(feed)[name][0]
        # A step of the grid, and what 16 bits leave of the scales.
        step = table.max() / (60 if dtype == "int8" else 16000)
        lost = np.abs(elements[:, words].T) * scales.max() / 65534
        assert np.all(np.abs(found - exact) <= step + lost)
        made.equals_reference(feed)
    for level in (1, 5):
        program = compile_graph(made.graph, level=level)
        made.equals_program(program, feeds[0])
    product = table.T.copy()
    product[0, 0] += 1
    apart = lowered(_decoder(table, product), feeds, {"quantize": {"dtype": dtype, **BLOCKS}}).graph
    both, alone = (sum(map(len, compile_graph(graph).constants())) for graph in (apart, made.graph))
    assert alone < both - 0.6 * WORDS * DEPTH, "stored once"


def test_codes_a_model_states_for_both_are_kept() -> None:
    table = _table("of codes")
    feeds = _words()
    made = lowered(_decoder(table, table.T), feeds, {"quantize": {"dtype": "int16", **BLOCKS}})
    assert len(_packed(made)) == 1
    name = next(iter(made.compare(feeds[0])))
    assert min(made.compare(feed)[name].sqnr for feed in feeds) > 20


@pytest.mark.parametrize(
    ("change", "quantize"),
    [
        ("another element", {}),
        ("none", {"layers": "the table has 8 bits"}),
        ("none", {"layers": "the product has 8 bits"}),
    ],
)
def test_what_is_not_equal_or_not_to_be_packed_is_stored_apart(change: str, quantize: dict[str, Any]) -> None:
    table = _table()
    product = table.T.copy()
    if change != "none":
        product[5, 5] += 1
    proto = _decoder(table, product)
    nodes = {"table": proto.graph.node[0].name, "product": proto.graph.node[2].name}
    layer = nodes["table" if "table" in quantize.get("layers", "") else "product"]
    apart = {"layers": [{"match": layer, "per_block": False, "weight_bits": 8}]} if quantize else {}
    made = lowered(proto, _words(), {"quantize": BLOCKS, **apart})
    assert made.operators.count("embedding") == 1
    assert len(_packed(made)) == (0 if "product" in quantize.get("layers", "") else 1)
    made.equals_reference(_words()[0])


def _experts(tokens: int, experts: int, rows: int = 64, columns: int = 96) -> onnx.ModelProto:
    b = Builder("experts")
    x = b.input("x", [tokens, rows])
    _, chosen = b.nodes("TopK", [b.linear(x, experts), b.integers(1)], 2)
    spread = np.exp(b.rng.normal(0, 1, (experts, 1, columns)))
    weights = (b.rng.standard_normal((experts, rows, columns)) * spread).astype(np.float32)
    picked = b.node("Gather", b.constant(weights), b.node("Reshape", chosen, b.integers(-1)))
    b.output(b.node("MatMul", b.node("Reshape", x, b.integers(tokens, 1, rows)), picked))
    return b.model()


def _rows(tokens: int, rows: int = 64) -> list[dict[str, Array]]:
    rng = np.random.default_rng(2)
    return [{"x": rng.standard_normal((tokens, rows)).astype(np.float32)} for _ in range(6)]


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_experts_have_4_bits_and_every_level_computes_the_same(block: int, dtype: str) -> None:
    feeds = _rows(2)
    quantize = {"dtype": dtype, **BLOCKS, "weight_block_size": block}
    made = lowered(_experts(2, 5), feeds, {"quantize": quantize})
    assert made.operators.count("embedding") >= 2 and len(_packed(made)) == 2, "the router and the experts"
    found = sorted(next(iter(made.compare(feed).values())).sqnr for feed in feeds)
    assert found[len(found) // 2] > 16, found
    made.equals_reference(feeds[0])
    for level in (1, 5):
        made.equals_program(compile_graph(made.graph, level=level), feeds[0])


def test_a_token_loads_half_the_bytes_of_experts_of_8_bits() -> None:
    loaded = {}
    for name, quantize in (("8", {}), ("4", BLOCKS)):
        made = lowered(_experts(1, 16, 128, 256), _rows(1, 128), {"quantize": quantize})
        report = simulate(compile_graph(made.graph), values=False).report
        loaded[name] = sum(layer["ddr_read_bytes"] for layer in report["layers"])
    assert loaded["4"] < 0.57 * loaded["8"], loaded


def test_matrices_that_are_no_whole_blocks_have_8_bits() -> None:
    made = lowered(_experts(2, 5, rows=72), _rows(2, 72), {"quantize": BLOCKS})
    assert len(_packed(made)) == 1, "the router's weights"
    made.equals_reference(_rows(2, 72)[0])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [16, 32])
def test_codes_of_experts_a_model_states_are_kept(block: int, zeros: bool) -> None:  # noqa: FBT001
    rng, experts, width, rows = np.random.default_rng(4), 4, 32, 48
    constants: dict[str, Array] = {}
    stored: list[Array] = []
    for number, (outputs, inputs) in enumerate(((rows, width), (width, rows)), 1):
        shape = (experts, outputs, -(-inputs // block))
        codes = rng.integers(0, 16, (experts, outputs, inputs))
        constants[f"w{number}"] = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
        constants[f"s{number}"] = rng.uniform(0.005, 0.1, shape).astype(np.float16).astype(np.float32)
        points = rng.integers(4, 12, shape)
        if zeros:
            padded = np.pad(points, ((0, 0), (0, 0), (0, shape[2] % 2)))
            constants[f"z{number}"] = (padded[..., ::2] | padded[..., 1::2] << 4).astype(np.uint8)
        points = points.repeat(block, 2)[..., :inputs] if zeros else np.full_like(codes, 8)
        stored.append((codes - points).transpose(0, 2, 1).reshape(-1, outputs))
    attributes = {"k": 1, "activation_type": "relu", "expert_weight_bits": 4, "block_size": block}
    names = "x router w1 s1 _ w2 s2 _" + (" _ _ _ z1 z2" if zeros else "")
    node = ("com.microsoft:QMoE", names, "y", attributes)
    proto = graph(
        [node], {"x": [1, width], "router": [1, experts]}, ["y"], constants, domains=["com.microsoft"]
    )
    feeds = [
        {
            "x": rng.standard_normal((1, width)).astype(np.float32),
            "router": rng.standard_normal((1, experts)).astype(np.float32),
        }
        for _ in range(4)
    ]
    made = lowered(proto, feeds, {"quantize": {"dtype": "int16"}})
    found = [each for n in range(len(made.graph.tensors)) if (each := made.graph.packed(n)) is not None]
    for numbers, inner, packed in zip(stored, (width, rows), found, strict=True):
        own_block, kept, _, zero_points, _ = packed
        # A matrix without a whole number of blocks is cut into shorter ones.
        assert own_block == (block if inner % block == 0 else 16)
        own = 8 if zero_points is None else zero_points.astype(np.int64).repeat(own_block, 0)
        np.testing.assert_array_equal(kept.astype(np.int64) - own, numbers)
    made.equals_reference(feeds[0])
    program = compile_graph(made.graph)
    made.equals_program(program, feeds[0])
    assert program.to_text(constants=False).count("PackedLookup(") == 2
