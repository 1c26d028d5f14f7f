"""What bad input gets: one exact sentence each, and one listing for all unsupported nodes."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from frontend.graphs import Node, Shapes, array, graph, integers
from models.make_models import MODELS
from tpuflow.errors import ModelError, SampleError, UnsupportedModelError, VerificationError
from tpuflow.evaluation.import_check import verify_import
from tpuflow.frontend import FloatSession, check_model, generate_samples, load, run_float
from tpuflow.pipeline.preflight import audit

X = {"x": [2, 3, 4, 5]}
RELU = [("Relu", "x", "z")]


def message(proto: onnx.ModelProto | Path | str, **options: object) -> str:
    """What loading says."""
    with pytest.raises(ModelError) as raised:
        load(proto, **options)  # type: ignore[arg-type]
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_files_that_are_not_models(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert message(path) == f"{path}: no such file"
    assert message(tmp_path) == f"{tmp_path}: not a file"
    whole = graph([("MatMul", "x w", "z")], {"x": [3, 4]}, ["z"], {"w": array(4, 64)}).SerializeToString()
    for content in (b"", b"certainly not a model", whole[: len(whole) // 2], b"\0" * 100):
        path.write_bytes(content)
        assert message(path) == f"{path}: not an ONNX model, or a truncated one"
    path.write_bytes(whole)
    assert load(str(path)).source == path


def test_initializer_with_too_little_data() -> None:
    proto = graph([("Add", "x w", "z")], X, ["z"], {"w": array(5)})
    proto.graph.initializer[0].raw_data = b"1234"
    expected = 'model: initialiser "w" is truncated: its data does not fill shape [5]'
    assert message(proto) == expected
    proto.graph.initializer[0].ClearField("raw_data")
    assert message(proto) == 'model: initialiser "w" holds no data'
    proto.graph.initializer[0].float_data.extend([1.0, 2.0])
    assert message(proto) == expected


def test_inconsistent_graph() -> None:
    assert message(graph([("Relu", "y", "z")], X, ["z"])) == (
        'model: node "relu0" (Relu) reads "y", which nothing before it computes'
    )
    twice = graph([("Relu", "x", "z"), ("Neg", "x", "z")], X, ["z"])
    assert message(twice).startswith("model: not a valid ONNX model: ")


@pytest.mark.parametrize("opset", [5, 29])
def test_opset_out_of_range(opset: int) -> None:
    assert message(graph(RELU, X, ["z"], opset=opset)) == f"model: opset {opset} is not supported (6 to 28)"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_numbers(value: float) -> None:
    weights = array(4, 3, 1, 1)
    weights[1, 2] = value
    proto = graph([("Conv", "x w", "z")], X, ["z"], {"w": weights})
    kind = "NaN" if np.isnan(value) else "infinite values"
    assert message(proto) == f'model: initialiser "w" holds {kind}'


def test_infinity_is_allowed_in_a_mask() -> None:
    proto = graph([("Where", "c x m", "z")], X, ["z"], {"c": np.ones(5, bool), "m": -np.inf})
    assert load(proto).outputs[0].shape == (2, 3, 4, 5)


OPEN: Shapes = {"x": ["N", 3, "height", 5], "y": ["N", "height"]}


def test_open_axes() -> None:
    proto = graph([("Relu", "x", "z"), ("Neg", "y", "u")], OPEN, ["z", "u"])
    assert message(proto) == (
        'model: input "x": axis 2 ("height") has no fixed size; give the whole shape with --input-shape x=...'
    )
    shapes = {"x": [4, 3, 6, 5]}
    assert message(proto, input_shapes=shapes).startswith('model: input "y": axis 1 ("height")')
    model = load(proto, input_shapes=shapes | {"y": [2, 7]})
    assert [port.shape for port in model.inputs] == [(4, 3, 6, 5), (2, 7)]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"q": [1]}, 'model: no input is called "q" (inputs: x, y)'),
        ({"x": [1, 3]}, 'model: input "x" has 4 axes, the shape [1, 3] given for it has 2'),
        ({"x": [1, 4, 2, 5]}, 'model: input "x": axis 1 is fixed to 3 by the model; 4 was asked for'),
        ({"x": [0, 3, 2, 5]}, 'model: input "x": shape [0, 3, 2, 5] has a size below 1'),
    ],
)
@pytest.mark.feature("IMP-04")
def test_wrong_input_shapes_name_the_input(shapes: dict[str, list[int]], expected: str) -> None:
    assert (
        message(graph([("Relu", "x", "z"), ("Neg", "y", "u")], OPEN, ["z", "u"]), input_shapes=shapes)
        == expected
    )


@pytest.mark.feature("IMP-25")
def test_an_open_batch_is_fixed_to_what_is_asked() -> None:
    proto = graph(RELU, {"x": ["N", 3]}, ["z"])
    assert load(proto).inputs[0].shape == (1, 3)
    assert load(proto, batch=4).outputs[0].shape == (4, 3)
    assert message(proto, batch=0) == "model: batch must be at least 1, not 0"
    fixed = graph(RELU, {"x": [2, 3]}, ["z"])
    assert load(fixed, batch=2).inputs[0].shape == (2, 3)
    assert load(fixed, batch=4).outputs[0].shape == (4, 3)


CHAIN = [("Relu", "x", "a"), ("Neg", "a", "b"), ("Add", "b y", "c"), ("Exp", "c", "z")]
BOTH: Shapes = {"x": ["N", 3], "y": ["N", 3]}


@pytest.mark.feature("IMP-22")
def test_a_network_is_cut_between_named_values() -> None:
    proto = graph(CHAIN, BOTH, ["z"])
    model = load(proto, cut_inputs=["b"], cut_outputs=["c"])
    assert [port.name for port in model.inputs] == ["b", "y"]
    assert [port.name for port in model.outputs] == ["c"]
    assert [node.op_type for node in model.model.graph] == ["Add"]
    verify_import(model, tolerance=(1.0, 1.0))
    model = load(proto, cut_outputs=["b"])
    assert [port.name for port in model.inputs] == ["x"]
    assert message(proto, cut_outputs=["q"]).startswith('model: cannot cut at "q": there is no such tensor')
    assert message(proto, cut_inputs=["c"], cut_outputs=["b"]) == (
        'model: cannot cut at "c": no output depends on it'
    )


@pytest.mark.feature("IMP-28")
def test_everything_unsupported_is_listed_at_once() -> None:
    nodes = [
        ("Relu", "x", "a"),
        ("custom:Magic", "a", "m"),
        ("NonZero", "a", "nz"),
        ("Cast", "nz", "nf", {"to": TensorProto.FLOAT}),
        ("Conv", "x y", "c"),
        ("Resize", "x _ s", "r", {"mode": "cubic"}),
        ("TopK", "x k", "t i"),
        ("MaxPool", "x", "p q", {"kernel_shape": [2, 2]}),
        ("NoSuchOperator", "a", "o"),
    ]
    proto = graph(
        nodes,
        X | {"y": [2, 3, 1, 1]},
        ["m", "nf", "c", "r", "t", "q", "o"],
        {"s": np.array([1, 1, 2, 2], np.float32), "k": integers(1)},
        types={"q": TensorProto.INT64},
        domains=["custom"],
    )
    expected = """model: 6 unsupported nodes:
  node "magic1" (custom.Magic): operator is not supported
  node "nonzero2" (NonZero): operator is not supported
  node "conv4" (Conv, input 1): must be constant, but "y" is computed at run time
  node "topk6" (TopK): operator is not supported
  node "maxpool7" (MaxPool, outputs): only the first output may be used
  node "nosuchoperator8" (NoSuchOperator): operator is not supported
  to do without them, cut the model: --cut-outputs a"""
    with pytest.raises(UnsupportedModelError) as raised:
        load(proto)
    assert str(raised.value) == expected
    found = check_model(proto)
    assert tuple(found) == raised.value.findings
    assert load(proto, cut_outputs=raised.value.cut_points).outputs[0].name == "a"
    assert check_model(graph(RELU, X, ["z"])) == []


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (("Conv", "x w", "z"), {"w": array(2, 4, 1, 1, 1)}, None),
        (("Pad", "x p", "z", {"mode": "wrap"}), {"p": integers(*[1] * 8)}, '"wrap" is not supported'),
        (("Pow", "x x", "z"), {}, "the exponent must be one constant"),
        (("Unique", "x", "z"), {}, "operator is not supported"),
        (("Det", "x", "z"), {}, None),
    ],
)
def test_limits(node: Node, constants: dict[str, Any], expected: str | None) -> None:
    proto = graph([node], X, ["z"], constants, opset=19)
    if expected is None:
        with pytest.raises(ModelError):
            load(proto)
        return
    (finding,) = check_model(proto)
    assert expected in finding.reason


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (("MatMul", "x w", "z"), {"w": array(5, 6)}, "Incompatible dimensions for matrix multiplication"),
        (("Gemm", "x w", "z"), {"w": array(5, 6)}, "Dimension mismatch in unification between 5 and 4"),
        (
            ("Reshape", "x s", "z"),
            {"s": integers(7, -1)},
            "Dimension could not be inferred: incompatible shapes",
        ),
        (("Transpose", "x", "z", {"perm": [0, 0]}), {}, "[0, 0] does not order the axes of an input"),
        (
            ("Slice", "x s s a", "z"),
            {"s": integers(0), "a": integers(7)},
            "[7] are not axes of the shape [3, 4]",
        ),
        (("Pad", "x p", "z"), {"p": integers(1, 2)}, "2 pads are given, 4 are needed"),
        (("Split", "x s", "z y"), {"s": integers(1, 9)}, "Mismatch between the sum of 'split' (10)"),
        (("Unsqueeze", "x a", "z"), {"a": integers(9)}, "[9] are not axes of an input of the shape [3, 4]"),
    ],
)
def test_nodes_that_contradict_their_inputs(
    node: tuple[Any, ...], constants: dict[str, Any], expected: str
) -> None:
    (finding,) = check_model(graph([node], {"x": [3, 4]}, ["z"], constants))
    assert finding.node == f"{node[0].lower()}0"
    assert finding.reason.startswith(f"is not valid: {expected}")


@pytest.mark.parametrize(
    ("operator", "weights"), [("Conv", array(5, 3, 1, 1)), ("ConvTranspose", array(3, 5, 1, 1))]
)
def test_a_bias_that_does_not_fit_is_not_folded_with_what_follows(operator: str, weights: np.ndarray) -> None:
    nodes: list[Node] = [(operator, "x w b", "c"), ("BatchNormalization", "c n n n n", "z")]
    constants = {"w": weights, "b": array(3), "n": array(5) + 1}
    with pytest.raises(UnsupportedModelError, match=r"a bias of the shape \[3\] does not fit 5 channels"):
        load(graph(nodes, {"x": [1, 3, 4, 4]}, ["z"], constants))


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (
            ("Min", "x c", "z"),
            {"c": array(1, 3, 4)},
            "its output has the shape [3, 4], its inputs broadcast to",
        ),
        (("ReverseSequence", "x n", "z"), {"n": integers(1, 2)}, "2 lengths are given for 4 sequences"),
        (("GatherND", "x n", "z"), {"n": integers(0, 9)}, "holds an index outside the axes of an input of"),
        (("DFT", "x", "z", {"axis": 1}), {}, "has the shape [3, 4]: the last axis holds one or two parts"),
    ],
)
def test_nodes_that_the_inference_of_onnx_lets_pass(
    node: tuple[Any, ...], constants: dict[str, Any], expected: str
) -> None:
    opset = 6 if node[0] == "Min" else 19  # which cannot broadcast yet
    (finding,) = check_model(graph([node], {"x": [3, 4]}, ["z"], constants, opset=opset))
    assert finding.reason.startswith(f"is not valid: {expected}")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([3, 0], "0 is out of range (at least 1)"),
        ([3], "has 1 entries, 2 are needed"),
        ([3, 2], "[3, 2] cannot come of the shape [1, 3, 4, 4]"),
    ],
)
def test_a_transposed_convolution_of_an_impossible_shape(shape: list[int], expected: str) -> None:
    node = ("ConvTranspose", "x w", "z", {"output_shape": shape})
    (finding,) = check_model(graph([node], {"x": [1, 3, 4, 4]}, ["z"], {"w": array(3, 5, 3, 3)}))
    assert str(finding) == f'node "convtranspose0" (ConvTranspose, output_shape): is not valid: {expected}'


def test_a_region_without_bounds() -> None:
    node = ("Resize", "x r s", "z", {"coordinate_transformation_mode": "tf_crop_and_resize"})
    roi = np.array([-np.inf, 0, np.inf, 1], np.float32)
    proto = graph([node], {"x": [3, 4]}, ["z"], {"r": roi, "s": np.array([2, 0.25], np.float32)})
    (finding,) = check_model(proto)
    assert finding.attribute == "input 1"
    assert finding.reason.endswith("are not all below 1e+06 and finite")


@pytest.mark.parametrize(
    ("nodes", "constants", "wrong"),
    [
        ([("Add", "x c", "a"), ("Add", "a d", "z")], {"c": array(2, 1), "d": array(5)}, "add0"),
        (
            [
                ("Mul", "x x", "q"),
                ("ReduceMean", "q", "m", {"axes": [0, 5]}),
                ("Add", "m e", "v"),
                ("Sqrt", "v", "s"),
                ("Div", "x s", "z"),
            ],
            {"e": 1e-5},
            "reducemean1",
        ),
    ],
)
def test_rewrites_do_not_look_at_what_is_not_valid(
    nodes: list[Node], constants: dict[str, Any], wrong: str
) -> None:
    (finding,) = check_model(graph(nodes, {"x": [3, 4]}, ["z"], constants))
    assert finding.node == wrong
    assert finding.reason.startswith("is not valid: ")


def test_what_an_unknown_operator_precedes_is_checked_as_well() -> None:
    nodes: list[Node] = [("Bogus", "x", "a"), ("Conv", "a w", "z", {"kernel_shape": [0.5]})]
    expected = 'model: node "conv1" (Conv, kernel_shape): is of the type FLOATS, not INTS'
    assert message(graph(nodes, X, ["z"], {"w": array(4, 3, 1, 1)})).startswith(expected)


@pytest.mark.parametrize(
    ("domain", "to", "expected"),
    [("", 99, 'node "cast0" (Cast, to): 99 is no element type'), ("custom:", [1], None)],
)
def test_types_that_do_not_exist(domain: str, to: Any, expected: str | None) -> None:
    proto = graph([(f"{domain}Cast", "x", "z", {"to": to})], X, ["z"], domains=["custom"])
    if expected is not None:
        assert message(proto) == f"model: {expected}"
    else:
        (finding,) = check_model(proto)
        assert finding.reason == "operator is not supported"


def test_constants_and_inputs_of_no_type() -> None:
    proto = graph([("Add", "x w", "z")], X, ["z"], {"w": array(5)})
    proto.graph.initializer[0].data_type = 99
    assert message(proto) == 'model: initialiser "w": 99 is no element type'
    proto = graph([("Relu", "x", "z")], X, ["z"])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("y", TensorProto.UNDEFINED, [1]))
    assert message(proto) == 'model: "y" is not a tensor of a known type'


def test_attributes_of_our_own_functions_are_of_their_types() -> None:
    node = ("tpuflow:RMSNormalization", "x w", "z", {"axis": 0.5})
    (finding,) = check_model(graph([node], X, ["z"], {"w": array(5)}, domains=["tpuflow"]))
    assert finding.reason == "is not valid: is of the type FLOAT, not INT"


def test_a_pool_of_an_empty_window_whose_count_is_rounded_up() -> None:
    """To shorten its padding would never come to an end."""
    node = ("MaxPool", "x", "z", {"kernel_shape": [0, 2], "strides": [2, 2], "ceil_mode": 1})
    (finding,) = check_model(graph([node], {"x": [1, 3, 5, 5]}, ["z"]))
    assert finding.attribute == "kernel_shape"


def test_numbers_turned_into_text() -> None:
    types = {"x": TensorProto.STRING}
    nodes: list[Node] = [("CastLike", "c x", "a"), ("Add", "x a", "z")]
    assert check_model(graph(nodes, {"x": [3]}, ["z"], {"c": array(1)}, types=types, opset=18))


def test_a_constant_output_of_an_open_shape() -> None:
    proto = graph([("Compress", "c c", "z")], X, ["z"], {"c": np.array([False, True])})
    found = audit(proto).findings
    assert [str(finding) for finding in found] == ['node "z" (output): is constant']


def test_tensors_larger_than_a_graph_may_hold() -> None:
    node = ("Conv", "x w", "z", {"pads": [0, 2**31 - 8, 0, 0]})
    found = audit(graph([node], X, ["z"], {"w": array(4, 3, 1, 1)})).findings
    assert [finding.reason for finding in found] == [
        "its output has the shape [2, 4, 4, 2147483645]: too large"
    ]


def test_lists_of_numbers_that_inference_must_not_follow() -> None:
    """It would make a gigabyte of these."""
    nodes: list[Node] = [("Cast", "x", "a", {"to": TensorProto.FLOAT}), ("Sub", "a o", "z")]
    proto = graph(nodes, {"x": [1 << 20]}, ["z"], {"o": 1.0}, types={"x": TensorProto.INT32})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load(proto).outputs[0].shape == (1 << 20,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18, "kilobytes"


def test_an_index_outside_its_axis() -> None:
    proto = graph([("Gather", "x i", "z", {"axis": 1})], {"x": [3, 4]}, ["z"], {"i": integers(1, 9)})
    (finding,) = check_model(proto)
    assert (
        str(finding)
        == 'node "gather0" (Gather, input 1): is not valid: holds an index outside the axis of size 4'
    )


def test_damaged_files_never_get_past_the_door(tmp_path: Path) -> None:
    """Whatever a damaged file does, what is raised is meant for the user."""
    whole = MODELS["attention"]().SerializeToString()
    generator = np.random.default_rng(0)
    path = tmp_path / "m.onnx"
    for _ in range(60):
        content = bytearray(whole)
        for place in generator.integers(0, min(len(content), 3000), 4):
            content[place] = generator.integers(0, 256)
        path.write_bytes(content)
        with contextlib.suppress(ModelError):
            load(path)


def test_training_mode_is_not_supported() -> None:
    constants = {name: np.ones(3, np.float32) for name in "sbmv"}
    nodes = [("BatchNormalization", "x s b m v", "z y u", {"training_mode": 1})]
    (finding,) = check_model(graph(nodes, X, ["z"], constants))
    assert finding.operator == "BatchNormalization"


def test_arrays_that_do_not_fit() -> None:
    session = FloatSession(graph(RELU, X, ["z"]))
    good = array(2, 3, 4, 5)
    assert session.run({"x": good.astype(np.float64)})["z"].dtype == np.float32
    for feeds, expected in (
        ({}, 'no array for input "x"'),
        ({"x": good, "q": good}, 'no input is called "q" (inputs: x)'),
        ({"x": good[:1]}, 'input "x" has shape [2, 3, 4, 5], the array given has [1, 3, 4, 5]'),
        ({"x": good.astype(complex)}, 'input "x" takes float32, the array given has complex128'),
    ):
        with pytest.raises(SampleError) as raised:
            session.run(feeds)
        assert str(raised.value) == expected
    with pytest.raises(ModelError, match='computes no tensor called "q"'):
        FloatSession(graph(RELU, X, ["z"]), ["q"])


def test_intermediate_tensors() -> None:
    proto = graph(CHAIN, {"x": [2, 3], "y": [2, 3]}, ["z"])
    feeds = {"x": array(2, 3), "y": array(2, 3)}
    assert list(run_float(proto, feeds, "all")) == ["a", "b", "c", "z"]
    result = FloatSession(load(proto).model, ["b", "z"], threads=1).run(feeds)
    np.testing.assert_array_equal(result["b"], -np.maximum(feeds["x"], 0))
    assert [value.name for value in proto.graph.output] == ["z"]


@pytest.mark.feature("IMP-27", "CMP-05")
def test_a_corrupted_weight_is_found() -> None:
    nodes = [("MatMul", "x w", "a"), ("Relu", "a", "b"), ("MatMul", "b v", "z")]
    model = load(graph(nodes, {"x": [3, 4]}, ["z"], {"w": array(4, 5), "v": array(5, 6)}))
    assert all(result.reaches((0.999, 0.999)) for _, result in verify_import(model))
    weight = model.model.graph.initializers["w"]
    assert weight.const_value is not None
    broken = weight.const_value.numpy().copy()
    broken[:, 0] += 3
    weight.const_value = ir.tensor(broken, name="w")
    with pytest.raises(VerificationError, match=r'output "z" of the normalised model .* first at tensor "a"'):
        verify_import(model)


@pytest.mark.feature("IMP-26")
def test_an_excepted_output_may_differ() -> None:
    nodes = [("MatMul", "x w", "z"), ("MatMul", "x v", "y")]
    model = load(graph(nodes, {"x": [3, 4]}, ["z", "y"], {"w": array(4, 5), "v": array(4, 6)}))
    weight = model.model.graph.initializers["w"]
    weight.const_value = ir.tensor(array(4, 5, seed=1), name="w")
    with pytest.raises(VerificationError, match='output "z"'):
        verify_import(model)
    assert [name for name, _ in verify_import(model, excepts=["z"])] == ["y"]


def test_samples_are_repeatable_and_within_range() -> None:
    nodes = [("Gather", "t i", "e"), ("Cast", "p", "f", {"to": TensorProto.FLOAT}), ("MatMul", "e f", "z")]
    types = {"i": TensorProto.INT64, "p": TensorProto.UINT8}
    model = load(graph(nodes, {"i": ["N", 50], "p": [4, 5]}, ["z"], {"t": array(7, 4)}, types=types))
    first, second = generate_samples(model, 3, seed=1), generate_samples(model, 3, seed=1)
    for one, other in zip(first, second, strict=True):
        assert one["i"].dtype == np.int64
        assert set(np.unique(one["i"])) <= set(range(7))
        assert one["p"].dtype == np.uint8
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert not np.array_equal(first[0]["i"], first[1]["i"])
