"""Which values have 16 bits around norms and softmax although layers have 8."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import shape_inference

from models.builder import Builder
from quantize.quantized import Quantized, lowered, normal
from tpuflow.quantize.wide import wide_values


def block(*, after: bool = False) -> Builder:
    """Attention and a product, with norms before them, or behind their sums."""
    b = Builder("block")
    x = b.input("x", [1, 6, 8])

    def norm(value: str) -> str:
        return b.node("LayerNormalization", value, b.spread(8, low=0.5, high=1.5), b.spread(8), axis=-1)

    def product(value: str, rows: int, columns: int) -> str:
        return b.node("MatMul", value, b.weight(rows, columns, fan_in=rows))

    stream = product(x, 8, 8)
    read = stream if after else norm(stream)
    q, k, v = (product(read, 8, 8) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    shares = b.node("Softmax", b.node("Mul", scores, b.constant(np.float32(0.35))), axis=-1)
    stream = b.node("Add", stream, product(b.node("MatMul", shares, v), 8, 8))
    if after:
        stream = norm(stream)
        stream = b.node("Add", stream, product(stream, 8, 8))
    b.output(product(norm(stream), 8, 8))
    return b


def dtypes(found: Quantized) -> dict[str, str]:
    """Element type of what the graph stores, by the producer's operator."""
    made: dict[str, set[str]] = {}
    for layer in found.graph.layers:
        made.setdefault(layer.op, set()).add(found.graph.tensors[layer.output].dtype)
    return {name: "/".join(sorted(each)) for name, each in made.items()}


def test_streams_scores_and_shares_have_sixteen_bits() -> None:
    found = dtypes(lowered(block().model(), normal(block())))
    assert found["add"] == "int16"
    assert found["softmax"] == "int16"
    # The last one's output is read by a product: 8 bits.
    assert found["layer_norm"] == "int8"
    assert found["mat_mul"] == "int16/int8"


def test_both_can_be_left_at_eight_bits() -> None:
    settings = {"wide_norms": False, "wide_softmax": False, "output_dtype": "int8"}
    found = lowered(block().model(), normal(block()), {"quantize": settings})
    assert set(dtypes(found).values()) == {"int8"}


@pytest.mark.parametrize("after", [False, True])
def test_what_a_product_with_weights_reads_has_eight_bits(after: bool) -> None:  # noqa: FBT001 - parametrised
    found = lowered(block(after=after).model(), normal(block(after=after)))
    tensors = found.graph.tensors
    for layer in found.graph.layers:
        if layer.op == "mat_mul" and tensors[layer.operands[1]].is_constant:
            assert tensors[layer.operands[0]].dtype == "int8"
        if layer.op == "layer_norm":
            assert tensors[layer.operands[0]].dtype == "int16"


@pytest.mark.parametrize("after", [False, True])
def test_outputs_are_closer(after: bool) -> None:  # noqa: FBT001 - parametrised
    feeds = normal(block(after=after))
    noise = []
    for wide in (False, True):
        settings = {"wide_norms": wide, "wide_softmax": wide}
        found = lowered(block(after=after).model(), feeds, {"quantize": settings})
        noise.append(sum(next(iter(found.compare(feed).values())).rmse for feed in feeds))
    assert noise[1] < noise[0]


def test_a_target_of_eight_bits_is_obeyed() -> None:
    found = lowered(block().model(), normal(block()), {"quantize": {"target": "int8"}})
    assert set(dtypes(found).values()) == {"int8"}


@given(
    st.lists(st.sampled_from(("Add", "Mul", "Relu", "Transpose")), min_size=1, max_size=6),
    st.none() | st.integers(0, 5),
)
def test_wide_is_what_only_joins_and_moves_in_front_of_a_norm(kinds: list[str], read: int | None) -> None:
    """On a chain: from the norm back to what a product reads or an operator that does more makes."""
    read = None if read is None else read % len(kinds)
    b = Builder("chain")
    value, made = b.input("x", [1, 4, 4]), []
    for at, kind in enumerate(kinds):
        operands = {"Add": (b.input(f"y{at}", [1, 4, 4]),), "Mul": (b.constant(np.float32(2)),)}
        value = b.node(kind, value, *operands.get(kind, ()), **_order(kind))
        made.append(value)
    b.output(b.node("LayerNormalization", value, b.constant(np.ones(4, np.float32)), axis=-1))
    if read is not None:
        b.output(b.node("MatMul", made[read], b.weight(4, 4, fan_in=4)))
    expected = set()
    for at in reversed(range(len(kinds))):
        if read is not None and at <= read and all(kind == "Transpose" for kind in kinds[at + 1 : read + 1]):
            break
        expected.add(made[at])
        if kinds[at] == "Relu":
            break
    graph = ir.from_proto(shape_inference.infer_shapes(b.model())).graph
    assert {value.name for value in wide_values(graph, norms=True, softmax=True)} == expected
    assert not wide_values(graph, norms=False, softmax=True)


def _order(kind: str) -> dict[str, list[int]]:
    return {"perm": [0, 2, 1]} if kind == "Transpose" else {}
