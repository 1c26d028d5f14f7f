"""Weights of 4 bits in blocks: the same elements everywhere, the file's own codes, half the size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from lowering.quantized import Array, lowered, normal
from models.builder import Builder
from tpuflow import _core, reference
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import ConfigError
from tpuflow.errors import GraphError
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.lowering.packed import Packed, pack, packed_codes

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"
BLOCKS = {"weight_bits": 4, "per_block": True, "weight_block_size": 32}


def random_parts(rows: int, columns: int, block: int, seed: int, *, zeros: bool) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    blocks = -(-rows // block)
    return (
        rng.integers(0, 16, (rows, columns), np.uint8),
        rng.choice(np.array([0, 1, 8, 16, 17, 100, 255], np.uint8), (blocks, columns)),
        rng.integers(0, 16, (blocks, columns), np.uint8) if zeros else None,
    )


@given(
    st.integers(1, 140),
    st.integers(1, 9),
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from(["symmetric", "zero points", "floats"]),
    st.integers(0, 99),
)
@settings(max_examples=90, deadline=None)
def test_elements_are_those_of_the_reference(
    rows: int, columns: int, block: int, kind: str, seed: int
) -> None:
    parts = random_parts(rows, columns, block, seed, zeros=kind == "zero points")
    builder, is_float = _core.GraphBuilder("packed"), kind == "floats"
    number = builder.packed_constant("w", *parts, block=block, scale=[0.1] * columns, is_float=is_float)
    op = _core.Op.rearrange(input=0, dims=[1], strides=[1], offset=0)  # anything that makes it a graph
    builder.output(builder.layer("y", op, "y", [1], "int8"))
    graph = builder.finish()
    expected = reference.expand(*parts, block, is_float=is_float)
    np.testing.assert_array_equal(graph.constant(number), expected)
    ours = Packed(block, *parts, np.ones(columns), is_float)
    np.testing.assert_array_equal(ours.elements(), expected)
    found = graph.packed(number)
    assert found is not None
    assert found[0] == block
    np.testing.assert_array_equal(found[1], parts[0])
    np.testing.assert_array_equal(found[2], parts[1])
    assert (found[3] is None) == (parts[2] is None)
    assert found[4] == is_float


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": 48}, "a block of packed weights has 16, 32, 64 or 128 rows, not 48"),
        ({"block": 64}, "have 8 bytes of scales, not 16"),
        ({"codes": np.full((64, 8), 16, np.uint8)}, "codes of packed weights are 0 to 15, not 16"),
        ({"zero_points": np.full((2, 8), 99, np.uint8)}, "zero points of packed weights are 0 to 15, not 99"),
        (
            {"zero_points": np.full((2, 8), 9, np.uint8), "is_float": True},
            "codes that are floats have no zero points",
        ),
    ],
)
def test_wrong_parts_are_refused(change: dict[str, Any], words: str) -> None:
    given_parts: dict[str, Any] = {
        "codes": np.zeros((64, 8), np.uint8),
        "scales": np.zeros((2, 8), np.uint8),
        "block": 32,
    }
    with pytest.raises(GraphError, match=f'constant "w": .*{words}'):
        _core.GraphBuilder("packed").packed_constant("w", **given_parts | change)


def network() -> onnx.ModelProto:
    """Two products with an activation between, wider than an array and no multiples of a block."""
    b = Builder("dense")
    x = b.input("x", [1, 5, 80])
    x = b.node("Relu", b.node("MatMul", x, b.weight(80, 150, fan_in=80)))
    b.output(b.node("MatMul", x, b.weight(150, 33, fan_in=150)))
    return b.model()


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("block", [32, 128])
def test_every_level_computes_the_same(dtype: str, block: int, tmp_path: Path) -> None:
    proto = network()
    feeds = normal(proto)
    wanted = {"quantize": {**BLOCKS, "dtype": dtype, "weight_block_size": block}}
    found = lowered(proto, feeds, wanted)
    assert all(each.sqnr > 15 for each in found.compare(feeds[0]).values())
    found.equals_reference(feeds[1])
    found.graph.save(tmp_path / "x.tpuq")
    loaded = _core.Graph.load(tmp_path / "x.tpuq")
    assert loaded.to_json() == found.graph.to_json()
    for machine, level in (("128x128_asic", 1), ("128x128_asic", 5), ("32x32_fpga", 1), (SMALL, 1)):
        program = compile_graph(loaded, machine, level)
        assert "Expand(" in program.to_text(constants=False)
        ours, theirs = (
            each.compute(feeds[2]).codes for each in (graph_level(found.graph), program_level(program))
        )
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_constants_take_their_packed_size() -> None:
    b = Builder("wide")
    b.output(b.node("MatMul", b.input("x", [1, 512]), b.weight(512, 1024, fan_in=512)))
    proto = b.model()
    feeds = normal(proto, 1)
    program = compile_graph(lowered(proto, feeds, {"quantize": BLOCKS}).graph)
    packed = 512 * 1024 // 2 + 16 * 1024
    assert sum(map(len, program.constants())) <= 1.03 * packed


@pytest.mark.parametrize("bits", [4, 8])
def test_a_flattened_image_is_multiplied_in_blocks(bits: int) -> None:
    b = Builder("flattened")
    x = b.node("Relu", b.input("x", [1, 5, 6, 7]))
    b.output(b.node("MatMul", b.node("Flatten", x, axis=1), b.weight(210, 48, fan_in=210)))
    proto = b.model()
    feeds = normal(proto)
    found = lowered(proto, feeds, {"quantize": BLOCKS if bits == 4 else {}})
    found.equals_reference(feeds[1])
    # Without blocks it is a convolution of the image where that lies: a block is one of rows, not of places.
    kinds = [layer.op for layer in found.graph.layers]
    assert ("mat_mul" in kinds, "conv" in kinds) == (bits == 4, bits == 8)
    program = compile_graph(found.graph)
    assert ("Expand(" in program.to_text(constants=False)) == (bits == 4)
    ours, theirs = (
        each.compute(feeds[2]).codes for each in (graph_level(found.graph), program_level(program))
    )
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def stated(codes: Array, scales: Array, block: int) -> onnx.ModelProto:
    """A product with weights of 4 bits as ONNX states them."""
    weights = helper.make_tensor(
        "codes", TensorProto.INT4, codes.shape, codes.astype(np.int8).ravel().tolist()
    )
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], axis=0, block_size=block),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "stated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, codes.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, codes.shape[1]])],
        [weights, numpy_helper.from_array(scales, "scales")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_codes_a_model_states_are_kept() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(-8, 8, (96, 20))
    scales = rng.uniform(0.01, 0.05, (3, 20)).astype(np.float16).astype(np.float32)
    proto = stated(codes, scales, 32)
    feeds = normal(proto, 2)
    found = lowered(proto, feeds)
    packed = next(each for number in range(9) if (each := found.graph.packed(number)) is not None)
    np.testing.assert_array_equal(packed[1].astype(np.int64) - 8, codes)
    assert packed[0] == 32 and packed[3] is None
    assert all(each.sqnr > 28 for each in found.compare(feeds[0]).values())
    found.equals_reference(feeds[1])


FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.feature("QMO-22")
def test_every_float_of_4_bits_is_exact_where_scales_are_near_powers_of_two() -> None:
    """MXFP4 weights, every code in blocks whose scales lie up to 8 times apart: elements lose nothing."""
    numbers = np.tile(FLOATS, 8)[:, np.newaxis].repeat(5, 1)
    exponents = np.random.default_rng(6).integers(-3, 1, (4, 5)) + np.arange(-60, 65, 31)
    steps = np.ldexp(0.5, exponents).repeat(32, 0).astype(np.float32)
    weights = (numbers * 2 * steps).astype(np.float32)
    found = packed_codes(weights, steps)
    assert found is not None and found.is_float and found.block == 32
    np.testing.assert_array_equal(found.elements() * found.columns, weights)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("scales", ["powers", "any"])
def test_floats_of_4_bits_stay_packed_and_every_level_computes_the_same(
    scales: str, block: int, tmp_path: Path
) -> None:
    rng, rows, columns = np.random.default_rng(7), 96, 150
    codes = FLOATS[rng.integers(0, 16, (rows, columns))].astype(ml_dtypes.float4_e2m1fn)
    count = rows // block
    if scales == "powers":
        stated_scales = (
            rng.integers(118, 124, (count, columns)).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
        )
    else:
        stated_scales = rng.uniform(0.01, 0.2, (count, columns)).astype(np.float32)
    constants = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(stated_scales, "scales")]
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["codes", "scales"], ["w"], axis=0, block_size=block, output_dtype=1
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, width])
        for name, width in (("x", rows), ("y", columns))
    ]
    graph = helper.make_graph(nodes, "floats", ports[:1], ports[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    feeds = normal(proto, 2)
    found = lowered(proto, feeds)
    packed = next(each for number in range(9) if (each := found.graph.packed(number)) is not None)
    assert packed[4] and packed[0] == block
    np.testing.assert_array_equal(FLOATS[packed[1]], codes.astype(np.float64))
    assert all(each.sqnr > 35 for each in found.compare(feeds[0]).values())
    found.equals_reference(feeds[1])
    found.graph.save(tmp_path / "x.tpuq")
    loaded = _core.Graph.load(tmp_path / "x.tpuq")
    for machine, level in (("128x128_asic", 5), ("32x32_fpga", 1), (SMALL, 1)):
        program = compile_graph(loaded, machine, level)
        assert "Floats" in program.to_text(constants=False)
        program.save(tmp_path / "x.tpu")
        found.equals_program(_core.Program.load(tmp_path / "x.tpu"), feeds[0])


def test_zero_points_of_stated_codes() -> None:
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 16, (64, 6)) - np.repeat(rng.integers(0, 16, (2, 6)), 32, axis=0)
    steps = np.repeat(rng.uniform(0.01, 0.05, (2, 6)), 32, axis=0)
    found = packed_codes(numbers * steps, steps)
    assert found is not None and found.zero_points is not None
    shown = found.elements() * found.columns
    assert 10 * np.log10(np.square(numbers * steps).sum() / np.square(shown - numbers * steps).sum()) > 35
    assert packed_codes(numbers * steps * 1.3, steps) is None, "no multiples of their steps"
    assert packed_codes(numbers * steps, np.broadcast_to(steps[:1], steps.shape)) is None, (
        "one scale a column"
    )


def test_a_block_of_zeros_and_a_floor() -> None:
    weights = np.zeros((64, 3))
    weights[32:, 1] = 1.0
    found = pack(weights, 32, np.array([0.0, 0.0, 0.5]))
    assert found.columns[2] == 0.5
    np.testing.assert_allclose(found.elements() * found.columns, weights, atol=0.01)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"per_block": True}, "per_block needs weight_bits = 4"),
        ({"per_block": True, "weight_bits": 4}, "weight_block_size = 256"),
    ],
)
def test_what_blocks_need(wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        lowered(network(), normal(network(), 1), {"quantize": wanted})


@pytest.mark.parametrize("columns", [1, 3, 64])
def test_columns_are_packed_the_same_in_parts(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(5).standard_normal((70, 64)).astype(np.float32)
    whole = pack(weights, 32, np.zeros(64))
    monkeypatch.setattr("tpuflow.lowering.packed.PART", 70 * columns)
    parts = pack(weights, 32, np.zeros(64))
    for name in ("codes", "scales", "columns"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name
    assert np.array_equal(whole.elements(), parts.elements())


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        pytest.param({**BLOCKS, "dtype": "int16"}, "int8", id="beside-4-bits"),
        pytest.param({"dtype": "int16"}, "int16", id="beside-16-bits"),
    ],
)
def test_a_table_of_embeddings_is_weights(config: dict[str, Any], dtype: str) -> None:
    b = Builder("embedding")
    table = b.constant(np.random.default_rng(1).standard_normal((30, 64)).astype(np.float32))
    ids = b.input("ids", [1, 4], onnx.TensorProto.INT64)
    x = b.node("Gather", table, ids)
    b.output(b.node("Add", b.node("MatMul", x, b.weight(64, 64, fan_in=64)), x))
    graph = lowered(b.model(), normal(b), {"quantize": config}).graph
    (layer,) = [layer for layer in graph.layers if layer.op == "embedding"]
    assert graph.tensors[layer.output].dtype == dtype
