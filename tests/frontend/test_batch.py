"""Batches: open ones, ones the file fixes, networks without one; n samples at once equal n runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from end_to_end.levels import config
from frontend.graphs import array, graph, integers
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.errors import ModelError
from tpuflow.execution.levels import GraphLevel, graph_level, run_samples
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatModel, generate_samples, load, run_float
from tpuflow.frontend.batch import change_batch
from tpuflow.frontend.values import shape_of
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower


def classifier(batch: int | str) -> onnx.ModelProto:
    """Convolution, reshapes that hold the batch, a class token, attention over tokens, a head."""
    size = 1 if isinstance(batch, str) else batch
    return graph(
        [
            ("Conv", "x w b", "c", {"strides": [2, 2]}),
            ("Relu", "c", "r"),
            ("Reshape", "r tokens", "t"),
            ("Transpose", "t", "u", {"perm": [0, 2, 1]}),
            ("Concat", "class u", "v", {"axis": 1}),
            ("Add", "v places", "a"),
            ("Reshape", "a flat", "f"),
            ("MatMul", "f m", "g"),
            ("Reshape", "g heads", "h"),
            ("Transpose", "h", "k", {"perm": [0, 2, 1, 3]}),
            ("Softmax", "k", "s", {"axis": -1}),
            ("ReduceMean", "s", "z", {"axes": [2], "keepdims": 0}),
        ],
        {"x": [batch, 3, 6, 6]},
        ["z"],
        {
            "w": array(8, 3, 2, 2, scale=0.3), "b": array(8), "m": array(8, 8),
            "class": np.repeat(array(1, 1, 8), size, 0), "places": array(1, 10, 8),
            "tokens": integers(size, 8, 9), "flat": integers(size * 10, 8),
            "heads": integers(size, 10, 2, 4),
        },
    )  # fmt: skip


def open_classifier() -> onnx.ModelProto:
    return graph(
        [("Conv", "x w", "c"), ("Relu", "c", "r"), ("Flatten", "r", "f"), ("MatMul", "f m", "z")],
        {"x": ["N", 3, 4, 4]},
        ["z"],
        {"w": array(5, 3, 3, 3), "m": array(20, 6)},
    )


def recurrent(batch: int) -> onnx.ModelProto:
    return graph(
        [("Transpose", "x", "t", {"perm": [1, 0, 2]}), ("LSTM", "t w r _ _ h h", "y", {"hidden_size": 4})],
        {"x": [batch, 3, 5]},
        ["y"],
        {"w": array(1, 16, 5), "r": array(1, 16, 4), "h": np.zeros((1, batch, 4), np.float32)},
    )


def moving(batch: int) -> onnx.ModelProto:
    """Space to batch and back, a whole slice, a resize by sizes, an expansion."""
    return graph(
        [
            ("Reshape", "x six", "a"),
            ("Transpose", "a", "b", {"perm": [3, 5, 0, 1, 2, 4]}),
            ("Reshape", "b blocks", "c"),
            ("Conv", "c w", "d", {"pads": [1, 1, 1, 1]}),
            ("Reshape", "d apart", "e"),
            ("Transpose", "e", "f", {"perm": [2, 3, 4, 0, 5, 1]}),
            ("Reshape", "f whole", "g"),
            ("Slice", "g zero n axis", "h"),
            ("Resize", "h _ _ sizes", "i", {"mode": "nearest"}),
            ("Expand", "i shape", "z"),
        ],
        {"x": [batch, 2, 4, 6]},
        ["z"],
        {
            "six": integers(batch, 2, 2, 2, 3, 2), "blocks": integers(4 * batch, 2, 2, 3),
            "w": array(2, 2, 3, 3), "apart": integers(2, 2, batch, 2, 2, 3),
            "whole": integers(batch, 2, 4, 6), "zero": integers(0), "n": integers(batch), "axis": integers(0),
            "sizes": integers(batch, 2, 8, 12), "shape": integers(batch, 2, 8, 12),
        },
    )  # fmt: skip


def samples_of(model: FloatModel, count: int) -> dict[str, Any]:
    feeds = generate_samples(model, count)
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


@pytest.mark.parametrize(
    "model",
    [classifier(1), classifier(2), recurrent(1), recurrent(2), moving(1), moving(2)],
    ids=["attention", "attention-2", "recurrent", "recurrent-2", "moving", "moving-2"],
)
@pytest.mark.parametrize("batch", [4, 3])
@pytest.mark.feature("IMP-25")
def test_a_batch_equals_its_samples(model: onnx.ModelProto, batch: int) -> None:
    one = ir.from_proto(model)
    many = change_batch(one, "model", batch)
    size, *rest = shape_of(one.graph.inputs[0]) or ()
    assert shape_of(many.graph.inputs[0]) == (batch, *rest)
    x = array(batch, *rest)
    together = run_float(many, {"x": x})
    for index in range(batch):
        alone = run_float(model, {"x": np.repeat(x[index : index + 1], size, 0)})
        for name, expected in alone.items():
            shapes = zip(expected.shape, together[name].shape, strict=True)
            axis = next(a for a, (before, after) in enumerate(shapes) if before != after)
            found = together[name].take([index], axis)
            np.testing.assert_allclose(found, expected.take([0], axis), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", [1, 5])
@pytest.mark.parametrize("model", [open_classifier(), classifier(1)], ids=["open", "fixed"])
@pytest.mark.feature("IMP-25")
def test_a_program_of_four_equals_four_runs(model: onnx.ModelProto, level: int) -> None:
    one = load(model)
    arrays = samples_of(one, 4)
    settings = config("int8")
    ranges = calibrate(one, arrays, settings)
    four = one.with_batch(4)
    assert four.inputs[0].shape[0] == 4
    singles = GraphLevel(lower(one, ranges, settings))
    graph4 = lower(four, ranges, settings)
    program = compile_graph(graph4, machine="128x128_asic", level=level)
    results = simulate(program, arrays).outputs["z"]
    together = GraphLevel(graph4).run(arrays)["z"]
    np.testing.assert_array_equal(results, together)
    for index in range(4):
        alone = singles.run({name: value[index : index + 1] for name, value in arrays.items()})["z"]
        np.testing.assert_array_equal(results[index : index + 1], alone)


@pytest.mark.parametrize(
    ("nodes", "constants", "words"),
    [
        ([("ReduceSum", "x axis", "z", {"keepdims": 1})], {"axis": integers(0)}, "loses the samples"),
        ([("Gather", "x first", "z", {"axis": 0})], {"first": integers(0)}, "loses the samples"),
        ([("Softmax", "x", "z", {"axis": 0})], {}, "samples of a batch meet"),
        ([("Concat", "x c", "z", {"axis": 0})], {"c": array(1, 4)}, "appends to the batch"),
        ([("Squeeze", "x axis", "z")], {"axis": integers(0)}, "does not take it"),
        (
            [("Reshape", "x to", "y"), ("MatMul", "y w", "z")],
            {"to": integers(4), "w": array(4, 3)},
            "does not",
        ),
    ],
)
@pytest.mark.feature("IMP-25")
def test_samples_that_meet_are_an_error(nodes: Any, constants: Any, words: str) -> None:
    model = graph(nodes, {"x": [1, 4]}, ["z"], constants)
    with pytest.raises(ModelError, match=words) as raised:
        load(model, batch=4)
    assert "cannot be made for a batch of 4 instead of 1" in str(raised.value)


@pytest.mark.feature("IMP-25")
def test_what_has_no_batch() -> None:
    flat = graph([("Relu", "x", "z")], {"x": [5]}, ["z"])
    assert load(flat, batch=5).inputs[0].shape == (5,)
    with pytest.raises(ModelError, match="a batch of 4 makes no sense, the inputs have no batch axis"):
        load(flat, batch=4)
    two = graph([("MatMul", "x y", "z")], {"x": [2, 3], "y": [3, 4]}, ["z"])
    with pytest.raises(ModelError, match="the inputs differ in their first axis"):
        load(two, batch=4)


@pytest.mark.feature("IMP-04")
def test_input_shapes_fix_open_axes() -> None:
    """Open axes get sizes before shapes are inferred; a wrong rank names the input."""
    model = graph(
        [("GlobalAveragePool", "x", "g"), ("Flatten", "g", "z"), ("Relu", "x", "r")],
        {"x": ["N", 3, "h", "w"]},
        ["z", "r"],
    )
    found = load(model, input_shapes={"x": [2, 3, 5, 7]})
    assert [port.shape for port in found.outputs] == [(2, 3), (2, 3, 5, 7)]
    with pytest.raises(ModelError, match=r'input "x" has 4 axes, the shape .* has 3'):
        load(model, input_shapes={"x": [2, 3, 5]})


@pytest.mark.feature("IMP-10")
def test_every_tensor_has_a_static_shape() -> None:
    """The shapes inferred are those onnxruntime computes."""
    for model in (classifier(1), open_classifier(), moving(2)):
        found = load(model, batch=3)
        results = run_float(found.model, generate_samples(found, 1)[0], "all")
        for node in found.model.graph:
            for value in node.outputs:
                assert value.shape is not None
                assert value.name is not None
                assert tuple(value.shape) == results[value.name].shape


@pytest.mark.feature("IMP-23")
def test_several_inputs_and_outputs_in_the_order_of_the_header() -> None:
    """Feeding is by name; ports, results and their order are the model's at every level."""
    model = graph(
        [("Add", "b a", "s"), ("Relu", "a", "r"), ("Conv", "s w", "c")],
        {"b": [1, 3, 4, 4], "a": [1, 3, 4, 4]},
        ["r", "c", "s"],
        {"w": array(2, 3, 1, 1)},
    )
    found = load(model)
    arrays = samples_of(found, 3)
    settings = config("int8")
    program = compile_graph(lower(found, calibrate(found, arrays, settings), settings))
    run = simulate(program, dict(reversed(arrays.items())))
    assert [port.name for port in found.inputs] == ["b", "a"]
    assert list(run.outputs) == [port.name for port in found.outputs] == ["r", "c", "s"]
    expected = run_float(model, {name: value[:1] for name, value in arrays.items()})
    for name, value in expected.items():
        np.testing.assert_allclose(run.outputs[name][:1], value, atol=0.1)


@pytest.mark.feature("IMP-24")
def test_networks_without_a_batch_axis() -> None:
    """A whole input per sample: the axis of samples leads and is no axis of the network."""
    model = graph([("MatMul", "x w", "y"), ("Relu", "y", "z")], {"x": [7, 5]}, ["z"], {"w": array(5, 4)})
    flat = graph([("Mul", "x w", "y"), ("Relu", "y", "z")], {"x": [5]}, ["z"], {"w": array(5)})
    for proto, shape in ((model, (7, 5)), (flat, (5,))):
        found = load(proto)
        arrays = {"x": array(3, *shape)}
        settings = config("int8")
        program = compile_graph(lower(found, calibrate(found, arrays, settings), settings))
        run = simulate(program, arrays)
        assert run.outputs["z"].shape == (3, *shape[:-1], run.outputs["z"].shape[-1])
        for index in range(3):
            expected = run_float(proto, {"x": arrays["x"][index]})["z"]
            np.testing.assert_allclose(run.outputs["z"][index], expected, atol=0.1)
            alone = simulate(program, {"x": arrays["x"][index : index + 1]}).outputs["z"]
            np.testing.assert_array_equal(run.outputs["z"][index], alone[0])


def test_a_network_without_a_batch_axis_takes_exactly_its_own_shape() -> None:
    """The first axis is one of the network's: with it transposed away, outputs are no samples of it."""
    proto = graph([("Relu", "x", "y"), ("Transpose", "y", "z")], {"x": [3, 4, 5]}, ["z"])
    found, arrays = load(proto), {"x": array(3, 4, 5)}
    settings = config("int8")
    quantized = lower(found, calibrate(found, arrays, settings), settings)
    expected = run_float(proto, arrays)["z"]
    run = simulate(compile_graph(quantized), arrays)
    level = graph_level(quantized)
    same = run_samples(level, Samples.of(arrays, level.ports))
    assert run.outputs["z"].shape == same["z"].shape == (5, 4, 3)
    np.testing.assert_allclose(run.outputs["z"], expected, atol=0.1)
    np.testing.assert_array_equal(run.outputs["z"], same["z"])


@pytest.mark.feature("IMP-07")
def test_original_names_everywhere() -> None:
    """Names of the exporter reach the program, whatever normalisation does in between."""
    model = graph(
        [("Conv", "data/in:0 w", "c"), ("BatchNormalization", "c s t m v", "n"), ("Relu", "n", "scores:0")],
        {"data/in:0": [1, 3, 5, 5]},
        ["scores:0"],
        {"w": array(4, 3, 3, 3), "s": array(4), "t": array(4), "m": array(4), "v": np.abs(array(4)) + 1},
    )
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    found = load(model)
    arrays = samples_of(found, 2)
    settings = config("int8")
    ranges = calibrate(found, arrays, settings)
    assert {"data/in:0", "scores:0"} <= set(ranges.tensors)
    lowered = lower(found, ranges, settings)
    level = GraphLevel(lowered)
    assert [port.name for port in level.ports] == ["data/in:0"]
    run = simulate(compile_graph(lowered), arrays)
    assert list(run.outputs) == ["scores:0"]
