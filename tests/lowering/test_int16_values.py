"""Which values have 16 bits around norms and softmax although layers have 8."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import shape_inference

from lowering.quantized import Quantized, lowered, normal
from models.builder import Builder
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.lowering.int16_values import added_values, head_values, int16_values


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
    settings = {"int16_normalization": False, "int16_softmax": False, "output_dtype": "int8"}
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
        settings = {"int16_normalization": wide, "int16_softmax": wide}
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
    assert {value.name for value in int16_values(graph, norms=True, softmax=True)} == expected
    assert not int16_values(graph, norms=False, softmax=True)


def boxes() -> Builder:
    """A residual, then scores and corners of boxes, whose offsets and sizes the last layer gives."""
    b = Builder("boxes")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 8))
    x = b.node("Relu", b.node("Add", b.conv(x, 8, (1, 1)), b.conv(x, 8, (1, 1))))
    rows = b.node("Reshape", b.node("Transpose", b.conv(x, 4), perm=[0, 2, 3, 1]), b.integers(1, 4, 4))
    offsets, sizes = b.nodes("Split", [rows], 2, axis=-1)
    places = b.constant(b.rng.uniform(0.1, 0.9, (1, 4, 2)).astype(np.float32))
    centers = b.node("Add", b.node("Mul", offsets, b.constant(np.float32(0.1))), places)
    half = b.node("Mul", b.node("Exp", b.node("Mul", sizes, b.constant(np.float32(0.2)))), b.spread(1, 4, 2))
    b.output(b.node("Concat", b.node("Sub", centers, half), b.node("Add", centers, half), axis=-1))
    return b


def test_what_is_computed_behind_last_layers_has_sixteen_bits() -> None:
    noise = {}
    for wide in (False, True):
        made = lowered(boxes().model(), normal(boxes()), {"quantize": {"int16_heads": wide}})
        last = max(at for at, layer in enumerate(made.graph.layers) if layer.op == "conv")
        behind = made.graph.layers[last:]
        found = {made.graph.tensors[layer.output].dtype for layer in behind}
        assert found == ({"int16"} if wide else {"int8", "int16"})
        # Layers read 8 bits as before.
        for layer in made.graph.layers:
            if layer.op == "conv":
                assert made.graph.tensors[layer.operands[0]].dtype == "int8"
        noise[wide] = sum(next(iter(made.compare(feed).values())).rmse for feed in normal(boxes()))
    assert noise[True] < noise[False]


def test_tails_have_eight_bits_where_outputs_have() -> None:
    made = lowered(boxes().model(), normal(boxes()), {"quantize": {"output_dtype": "int8"}})
    assert set(dtypes(made).values()) == {"int8"}


def test_what_an_average_reads_has_eight_bits() -> None:
    b = Builder("pooled")
    x = b.input("x", [1, 3, 8, 8])
    b.output(b.node("GlobalAveragePool", b.node("Relu", b.conv(x, 10))))
    made = lowered(b.model(), normal(b))
    assert dtypes(made) == {"conv": "int8", "average_pool": "int16"}


@pytest.mark.parametrize(
    "settings", [{"int16_residual_additions": True}, {"int16_residual_additions": True, "int16_heads": False}]
)
def test_tails_and_parts_of_sums_go_through_every_level(settings: dict[str, bool]) -> None:
    made = lowered(boxes().model(), normal(boxes()), {"quantize": settings})
    program = compile_graph(made.graph)
    for feed in normal(boxes(), 2, seed=3):
        made.equals_reference(feed)
        ours, theirs = (
            level.compute(feed).codes for level in (graph_level(made.graph), program_level(program))
        )
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_parts_of_a_residual_have_sixteen_bits_where_asked_for() -> None:
    for wide in (False, True):
        made = lowered(boxes().model(), normal(boxes()), {"quantize": {"int16_residual_additions": wide}})
        add = next(layer for layer in made.graph.layers if layer.op == "add")
        parts = {made.graph.tensors[operand].dtype for operand in add.operands}
        assert parts == {"int16" if wide else "int8"}
        assert made.graph.tensors[add.output].dtype == "int8"


@given(st.data())
def test_tails_and_parts_of_sums_are_those_found_path_by_path(data: st.DataObject) -> None:
    b = Builder("random")
    made, outputs = [b.input("x", [1, 4, 4])], set()
    for _ in range(data.draw(st.integers(1, 9))):
        kind = data.draw(
            st.sampled_from(("Add", "bias", "Relu", "Transpose", "MatMul", "product", "average"))
        )
        first, second = (data.draw(st.sampled_from(made)) for _ in range(2))
        if kind == "product":
            made.append(b.node("MatMul", first, b.weight(4, 4, fan_in=4)))
        elif kind == "bias":
            made.append(b.node("Add", first, b.spread(4)))
        elif kind == "average":
            made.append(b.node("AveragePool", first, kernel_shape=[3], pads=[1, 1]))
        else:
            made.append(b.node(kind, first, *([second] if kind in {"Add", "MatMul"} else []), **_order(kind)))
    outputs.add(made[-1])
    outputs.update(data.draw(st.sets(st.sampled_from(made[1:]))))
    b.output(*sorted(outputs))
    graph = ir.from_proto(shape_inference.infer_shapes(b.model())).graph
    nodes = list(graph)

    def ancestors(node: ir.Node) -> set[ir.Node]:
        makers = {value.producer() for value in node.inputs if value is not None} - {None}
        return {node}.union(*(ancestors(maker) for maker in makers if maker is not None))

    def is_layer(node: ir.Node) -> bool:
        return node.op_type == "MatMul" and node.inputs[1].is_initializer()  # type: ignore[union-attr]

    def additions(value: ir.Value) -> bool:
        reads = [node for node in nodes if any(operand is value for operand in node.inputs)]
        moved = [node.outputs[0] for node in reads if node.op_type == "Transpose"]
        biases = {"bias" for node in reads if any(operand.is_initializer() for operand in node.inputs)}  # type: ignore[union-attr]
        rest = ({node.op_type for node in reads} | biases) - {"Transpose"}
        return bool(reads) and value.name not in outputs and rest <= {"Add"} and all(map(additions, moved))

    tails = {
        node.outputs[0].name
        for node in nodes
        if any(map(is_layer, ancestors(node)))
        and not any(node in ancestors(o) - {o} for o in nodes if o.op_type in {"MatMul", "AveragePool"})
    }
    assert {value.name for value in head_values(nodes)} == tails
    sums = {
        node.outputs[0].name
        for node in nodes
        if node.op_type in {"Add", "MatMul"} and additions(node.outputs[0])
    }
    assert {value.name for value in added_values(nodes)} == sums


def _order(kind: str) -> dict[str, list[int]]:
    return {"perm": [0, 2, 1]} if kind == "Transpose" else {}
