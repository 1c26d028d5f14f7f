"""Whole graphs: built, saved, loaded and run, alone and by many threads, and everything that is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tpuflow import _core, reference
from tpuflow._core import Op
from tpuflow.errors import FileError, GraphError, SampleError, TpuflowError

if TYPE_CHECKING:
    from pathlib import Path

    from tpuflow._core import EpilogueFields, RequantFields, WindowFields

SEED = np.random.default_rng(11)
X = SEED.integers(-128, 127, (2, 9, 9, 4), dtype=np.int8, endpoint=True)
UNIT: RequantFields = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": -128, "hi": 127}


def requant(multiplier: int, shift: int) -> RequantFields:
    return {**UNIT, "multiplier": [multiplier], "shift": [shift]}


def network() -> _core.Graph:
    """A residual block, a pool and a classifier; `half` is read twice and output twice."""
    generator = np.random.default_rng(5)
    builder = _core.GraphBuilder("residual")
    source = {"name": "image", "shape": [2, 4, 9, 9], "permutation": [0, 2, 3, 1], "dtype": "float32"}
    x = builder.input("x", X.shape, "int8", 0.05, -3, json.dumps(source))
    w = builder.constant("w", generator.integers(-127, 127, (6, 3, 3, 4), dtype=np.int8), [0.01] * 6)
    bias = builder.constant("bias", generator.integers(-999, 999, 6, dtype=np.int32))
    window: WindowFields = {"kernel": [3, 3], "stride": [1, 1], "dilation": [1, 1], "pads": [1, 1, 1, 1]}
    epilogue: EpilogueFields = {"requant": requant(20, 12)}
    conv = Op.conv(input=x, weights=w, bias=bias, window=window, groups=1, epilogue=epilogue)
    half = builder.layer("conv", conv, "half", [2, 9, 9, 6], "int8", 0.1)
    narrow = Op.gather(input=half, axis=3, indices=[5, 1, 0, 3])
    picked = builder.layer("pick", narrow, "picked", [2, 9, 9, 4], "int8", 0.1)
    add = Op.binary(kind="add", a=picked, b=x, ka=5, kb=9, requant=requant(3, 5))
    total = builder.layer("add", add, "sum", [2, 9, 9, 4], "int8", 0.2, nodes=["Add_7", "Relu_8"])
    mean = Op.reduce(input=total, kind="sum", axes=[1, 2], requant=requant(405, 15))
    pooled = builder.layer("mean", mean, "mean", [2, 4], "int8", 0.2)
    matrix = builder.constant("m", generator.integers(-127, 127, (4, 3), dtype=np.int8), 0.01)
    product = Op.mat_mul(a=pooled, b=matrix, epilogue={"requant": requant(1, 5)})
    builder.output(builder.layer("classify", product, "logits", [2, 3], "int8", 0.3))
    builder.output(half)
    builder.output(half)
    return builder.finish()


def test_every_tensor_is_the_references() -> None:
    graph = network()
    found = graph.run({"x": X}, all_tensors=True)
    expected = reference.run(graph, {"x": X})
    assert set(found) == set(expected) == {"x", "half", "picked", "sum", "mean", "logits"}
    for name, codes in expected.items():
        np.testing.assert_array_equal(found[name], codes, strict=True)
    assert len(np.unique(found["logits"])) > 1


def test_outputs_are_the_same_when_other_tensors_are_freed() -> None:
    graph = network()
    outputs = graph.run([X])
    everything = graph.run([X], all_tensors=True)
    assert set(outputs) == {"logits", "half"}
    for name, codes in outputs.items():
        np.testing.assert_array_equal(codes, everything[name])


def test_a_graph_may_output_its_input() -> None:
    builder = _core.GraphBuilder("nothing")
    builder.output(builder.input("x", [3], "int16", 1.0))
    codes = np.array([1, -2, 3], np.int16)
    np.testing.assert_array_equal(builder.finish().run([codes])["x"], codes, strict=True)


def test_threads_share_a_graph() -> None:
    graph = network()
    expected = network().run([X])
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: graph.run([X]), range(16)):
            np.testing.assert_array_equal(found["logits"], expected["logits"])


def test_arrays_need_not_be_contiguous() -> None:
    graph = network()
    turned = np.ascontiguousarray(X.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
    assert not turned.flags.c_contiguous
    np.testing.assert_array_equal(graph.run([turned])["half"], graph.run([X])["half"])


def test_what_a_graph_tells() -> None:
    graph = network()
    assert (graph.name, graph.inputs, len(graph.tensors)) == ("residual", [0], 9)
    assert [graph.tensors[i].name for i in graph.outputs] == ["logits", "half", "half"]
    assert [layer.op for layer in graph.layers] == ["conv", "gather", "add", "reduce", "mat_mul"]
    assert [layer.macs for layer in graph.layers] == [2 * 81 * 6 * 36, 0, 0, 0, 2 * 3 * 4]
    assert graph.macs == sum(layer.macs for layer in graph.layers)
    assert graph.layers[2].nodes == ["Add_7", "Relu_8"]
    x = graph.tensors[0]
    assert (x.shape, x.dtype, x.zero_point, x.is_constant) == ([2, 9, 9, 4], "int8", -3, False)
    assert x.scale is not None
    assert np.float32(x.scale[0]) == np.float32(0.05)
    assert json.loads(x.source_json or "")["permutation"] == [0, 2, 3, 1]
    with pytest.raises(GraphError, match="tensor 0 is no constant"):
        graph.constant(0)


def test_a_saved_graph_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "net.tpuq"
    network().save(path)
    loaded = _core.Graph.load(path)
    assert loaded.to_json() == network().to_json()
    np.testing.assert_array_equal(loaded.run([X])["logits"], network().run([X])["logits"])
    assert [file.name for file in tmp_path.iterdir()] == ["net.tpuq"]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tpuq"
    network().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(FileError, match=r"net\.tpuq: not a graph file, or cut short"):
        _core.Graph.load(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FileError, match=r"net\.tpuq: the file was altered"):
        _core.Graph.load(path)
    path.write_bytes(b"")
    with pytest.raises(FileError, match=r"net\.tpuq: not a graph file"):
        _core.Graph.load(path)
    with pytest.raises(FileError, match=r"absent\.tpuq: No such file"):
        _core.Graph.load(tmp_path / "absent.tpuq")
    with pytest.raises(FileError, match="No such file"):
        network().save(tmp_path / "absent" / "net.tpuq")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, 'input "x" is missing'),
        ({"x": X, "y": X}, '"residual" has no input "y"'),
        ([], '0 inputs given, "residual" takes 1'),
        ([X, X], '2 inputs given, "residual" takes 1'),
        ([X[:1]], r'input "x" has shape \[1, 9, 9, 4\], expected \[2, 9, 9, 4\]'),
        ([X.astype(np.float64)], 'input "x" is float64, expected int8, int16, int32, int64, float16, '),
        ([X.astype(np.float32)], 'input "x": 648 elements of float32 given, expected 648 of int8'),
        ([X.astype(np.int16)], 'input "x": 648 elements of int16 given, expected 648 of int8'),
        ([[1, 2]], "input \"x\" is <class 'list'>, expected an array"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        network().run(inputs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({**UNIT, "factor": 1}, "unknown field `factor`, expected one of `multiplier`, `shift`"),
        ({"multiplier": [1]}, "missing field `shift`"),
        ({**UNIT, "shift": ["a"]}, 'invalid type: string "a", expected i8'),
        ({**UNIT, "lo": 1 << 70}, "int too (big|large)"),
        ({**UNIT, "hi": 0.5}, "invalid type: floating point `0.5`, expected i32"),
        ({1: 2}, "'int' object"),
        (7, "integer `7`"),
        (None, "null"),
    ],
)
def test_parts_of_operators_that_have_other_fields(wrong: Any, message: str) -> None:
    with pytest.raises((GraphError, TypeError, OverflowError), match=message):
        Op.rescale(input=0, requant=wrong)


def test_operators_have_no_fields_but_their_own() -> None:
    for fields in ({}, {"requant": UNIT}, {"input": 0, "requant": UNIT, "zero_point": 1}):
        with pytest.raises(TypeError, match="argument"):
            Op.rescale(**fields)
    with pytest.raises(GraphError, match="unknown variant `dance`"):
        Op.binary(kind="dance", a=0, b=0, ka=1, kb=1, requant=UNIT)


def test_numbers_of_numpy_and_those_that_are_not_finite_are_taken_as_they_are() -> None:
    def written(op: Op, dtype: str, size: int, scale: float | None = None) -> Any:
        builder = _core.GraphBuilder("numbers")
        builder.input("x", [1, 4], dtype, scale)
        builder.output(builder.layer("l", op, "y", [1, size], dtype, scale))
        return json.loads(builder.finish().layers[0].op_json)

    numbers: Any = {"multiplier": [np.int64(3)], "shift": (np.int8(2),), "zero_point": np.int32(0)}
    found = written(Op.rescale(input=0, requant={**UNIT, **numbers}), "int8", 4, 0.1)
    assert found["requant"] == {**UNIT, "multiplier": [3], "shift": [2], "zero_point": 0}
    filled: list[tuple[Any, Any]] = [(-np.inf, "-inf"), (np.float32(np.inf), "inf"), (np.float64(0.5), 0.5)]
    for number, text in filled:
        found = written(Op.pad(input=0, before=[0, 1], after=[0, 1], mode={"value": number}), "float32", 6)
        assert found["mode"] == {"value": text}


def test_layers_that_do_not_fit_are_named() -> None:
    builder = _core.GraphBuilder("broken")
    x = builder.input("x", [1, 4], "int8", 0.1)
    for op, message in [
        (Op.rescale(input=7, requant=UNIT), 'layer "l": operand 7 does not exist'),
        (
            Op.rescale(input=x, requant={**UNIT, "multiplier": [40000]}),
            'layer "l": multiplier 40000 is outside 0..=32767',
        ),
        (Op.gather(input=x, axis=1, indices=[4]), 'layer "l": an index exceeds axis 1'),
    ]:
        with pytest.raises(GraphError) as caught:
            builder.layer("l", op, "y", [1, 4], "int8", 0.1)
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, TpuflowError)
    with pytest.raises(GraphError, match="element type"):
        builder.input("z", [1], "float64")
    builder.output(99)
    with pytest.raises(GraphError, match="output 99 is never produced"):
        builder.finish()
