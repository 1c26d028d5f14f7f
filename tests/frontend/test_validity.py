"""Nodes that ONNX's checker lets pass and that contradict themselves: one line each, no rewrite sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from frontend.graphs import array, graph, integers
from tpuflow.errors import ModelError, UnsupportedModelError
from tpuflow.frontend import check_model, load
from tpuflow.pipeline.preflight import audit

IMAGE = [1, 4, 8, 8]
WEIGHTS = {"w": array(6, 4, 3, 3)}
POOL = {"kernel_shape": [2, 2]}


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (("Conv", "x w", "z", {"group": 0}), WEIGHTS, "group): is not valid: 0 is out of range (at least 1)"),
        (("Conv", "x w", "z", {"group": 2**30}), WEIGHTS, "group): is not valid: 1073741824 groups of"),
        (("Conv", "x w", "z", {"group": -2}), WEIGHTS, "group): is not valid: -2 is out of range"),
        (("Conv", "x w", "z", {"group": 3}), WEIGHTS, "group): is not valid: 3 groups of weights"),
        (("Conv", "x w", "z", {"strides": [0, 1]}), WEIGHTS, "strides): is not valid: 0 is out of range"),
        (("Conv", "x w", "z", {"pads": [-1, 0, 0, 0]}), WEIGHTS, "pads): is not valid: -1 is out of range"),
        (("Conv", "x w", "z", {"kernel_shape": [3]}), WEIGHTS, "kernel_shape): is not valid: has 1 entries"),
        (("Conv", "x w", "z"), {"w": array(21)}, "input 1): is not valid: weights of the shape [21]"),
        (("Conv", "x w b", "z"), WEIGHTS | {"b": array(5)}, "input 2): is not valid: a bias of the shape"),
        (("Conv", "x w", "z", {"auto_pad": "MUCH"}), WEIGHTS, 'auto_pad): is not valid: "MUCH" is not'),
        (("MaxPool", "x", "z", POOL | {"pads": [2, 0, 0, 0]}), {}, "pads): is not valid: [2, 0, 0, 0] leave"),
        (("MaxPool", "x", "z", {"kernel_shape": [9, 9]}), {}, "kernel_shape): is not valid: no window fits"),
        (("Softmax", "x", "z", {"axis": 7}), {}, "axis): is not valid: 7 is not an axis of the shape"),
        (("PRelu", "x w", "z"), {"w": array(5)}, "input 1): is not valid: the shape [5] does not broadcast"),
        (("LayerNormalization", "x w", "z"), {"w": array(5)}, "input 1): is not valid: the shape [5]"),
        (("Slice", "x a b c d", "z"), {k: integers(v) for k, v in zip("abcd", (0, 1, 1, 0), strict=True)},
         "input 4): is not valid: a step is 0"),
        (("Resize", "x _ s", "z"), {"s": array(4) * 0}, "input 2): is not valid: [0.0, "),
        (("DepthToSpace", "x", "z", {"blocksize": 3}), {}, "blocksize): is not valid: 3 does not divide"),
        (("Reshape", "x s", "z"), {"s": integers(1, 5)}, "is not valid: "),
        (("ReduceMax", "x a", "z"), {"a": integers(4)}, "input 1): is not valid: [4] are not axes"),
        (("MeanVarianceNormalization", "x", "z", {"axes": [0, 4]}), {}, "axes): is not valid: [0, 4] are"),
        (("MeanVarianceNormalization", "x", "z", {"axes": [1, -3]}), {}, "is not valid: the axes [1, -3]"),
        (("ReduceMax", "x", "z", {"keepdims": -2}), {}, "keepdims): is not valid: -2 is neither 0 nor 1"),
        (("Add", "x w", "z"), {"w": integers(1)}, "input 1): is not valid: has another type than"),
        (("ScatterElements", "x i u", "z"), {"i": integers(1), "u": array(1)},
         "input 1): is not valid: indices of the shape [1] do not fit"),
        (("TensorScatter", "x u", "z"), {"u": array(2)},
         "input 1): is not valid: rows of the shape [2] do not"),
        (("TensorScatter", "x u", "z", {"axis": 0}), {"u": array(1)},
         "axis): is not valid: 0 is not an axis"),
        (("Attention", "x k k", "z"), {"k": array(1, 3, 8, 8)},
         "is not valid: 3 heads of keys do not divide 4"),
        (("Attention", "x k k", "z"), {"k": array(1, 8)},
         "is not valid: keys of the shape [1, 8] do not fit"),
        (("ScatterND", "x i u", "z"), {"i": integers(7) * np.ones((2, 5), np.int64), "u": array(2)},
         "input 1): is not valid: indices of the shape [2, 5] do not fit"),
        (("GlobalLpPool", "w", "z"), {"w": array(2, 3)}, "input 0): is not valid: has the shape [2, 3]"),
        (("Resize", "x r _ s", "z", {"coordinate_transformation_mode": "tf_crop_and_resize"}),
         {"r": array(1, 8), "s": integers(1, 4, 3, 3)}, "one row of numbers is needed"),
        (("Resize", "x r _ s", "z", {"coordinate_transformation_mode": "tf_crop_and_resize"}),
         {"r": np.full(8, -1e30, np.float32), "s": integers(1, 4, 3, 3)},
         "are not all below 1e+06 and finite"),
        (("tpuflow:Silu", "x", "z", {"keepdims": [0.5]}), {}, "keepdims): is not valid: is no attribute of"),
        (("Unique", "w", "z"), {"w": array(1, 0, 4)}, "input 0): is not valid: must have elements"),
        (("Compress", "s c", "z", {"axis": 0}), {"s": 1.0, "c": np.ones(1, bool)},
         "input 0): is not valid: has no axes"),
        (("CumProd", "x a", "z"), {"a": integers(4).reshape(())}, "4 is not an axis of"),
        (("Max", "x _ x", "z"), {}, "input 1): is not valid: is left out"),
        (("RandomUniformLike", "x", "z", {"low": 2.0}), {}, "low): is not valid: 2 is above high, 1"),
        (("RandomNormalLike", "x", "z", {"scale": 0.0}), {}, "scale): is not valid: 0 is not above 0"),
        (("tpuflow:Bogus", "x", "z"), {}, "is not valid: is no function of this domain"),
        (("tpuflow:RMSNormalization", "x g", "z"), {"g": array(0, 3)}, "input 1): is not valid: the shape"),
        (("GridSample", "x p", "z"), {"p": array(0, 2, 4, 2)}, "input 1): is not valid: positions of the"),
        (("QuantizeLinear", "x s", "z"), {"s": array(1) * 0}, "input 1): is not valid: a scale is not"),
        (("QuantizeLinear", "x s", "z"), {"s": -array(1)}, "input 1): is not valid: a scale is not"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_listed(
    node: tuple[Any, ...], constants: dict[str, Any], expected: str
) -> None:
    newer = {"TensorScatter": 24, "Attention": 24, "CumProd": 26}
    opset = newer.get(node[0], 18)
    found = [str(each) for each in check_model(graph([node], {"x": IMAGE}, ["z"], constants, opset=opset))]
    assert any(expected in each for each in found), found


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            ("LayerNormalization", "x w", "z", {"axis": 2**31}),
            "(LayerNormalization, axis): 2147483648 is out",
        ),
        (("LayerNormalization", "x w", "z", {"axis": -(2**63)}), "axis): -9223372036854775808 is out of"),
        (("Split", "x", "z q", {"num_outputs": 2**31 - 1}), "num_outputs): 2147483647 is stated, the node"),
    ],
)
def test_numbers_that_libraries_do_not_survive_are_refused_before_they_see_them(
    node: tuple[Any, ...], expected: str
) -> None:
    proto = graph([node], {"x": IMAGE}, ["z"], {"w": array(8)}, opset=18)
    inner = onnx.helper.make_graph(proto.graph.node, "body", [], proto.graph.output)
    branches = onnx.helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    within = graph([("Relu", "x", "y")], {"x": IMAGE, "c": []}, ["z"], {"w": array(8)}, opset=18)
    within.graph.node.append(branches)
    for each in (proto, within):
        with pytest.raises(ModelError) as error:
            load(each, host=True)
        assert expected in str(error.value)


def test_the_host_is_not_given_what_it_would_divide_by_zero_for() -> None:
    tokens = [1, 4, 24]
    node = ("Attention", "x y y", "z", {"q_num_heads": 3, "kv_num_heads": 0})
    proto = graph([node], {"x": tokens, "y": tokens}, ["z"], opset=23)
    with pytest.raises(UnsupportedModelError, match="kv_num_heads"):
        load(proto, host=True)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            ("RandomNormal", "", "y", {"shape": [3], "seed": float("-inf")}),
            "seed.* is not finite",
        ),
        (("RandomNormal", "", "y", {"shape": [3], "scale": -0.0}), "scale.* is not above 0"),
        (("SplitToSequence", "w n", "y", {"keepdims": 2}), "input 1.*0: must be one number above 0"),
        (("Einsum", "x", "y", {"equation": "\u00e9\n"}), "equation.*: has other characters than letters"),
    ],
)
def test_the_host_is_not_given_what_ends_the_process(node: tuple[Any, ...], expected: str) -> None:
    nodes = [node, ("Relu", "x", "r"), ("Add", "r y", "z")]
    constants = {"w": array(4), "n": np.array(0, np.int64)} if "w" in node[1] else {}
    with pytest.raises(ModelError, match=expected):
        load(graph(nodes, {"x": [3]}, ["z"], constants), host=True)


def test_one_operand_has_no_larger_one() -> None:
    load(graph([("Max", "x", "y"), ("Relu", "y", "z")], {"x": IMAGE}, ["z"]))


@pytest.mark.parametrize("name", ["Silu", "Wrapped"])
def test_functions_of_a_file_under_our_domain_are_what_the_file_says(name: str) -> None:
    body = [onnx.helper.make_node("Tanh", ["a"], ["b"])]
    imports = [onnx.helper.make_opsetid("", 14)]
    function = onnx.helper.make_function("tpuflow", name, ["a"], ["b"], body, imports)
    proto = graph([(f"tpuflow:{name}", "x", "z")], {"x": IMAGE}, ["z"], opset=14, domains=["tpuflow"])
    proto.functions.append(function)
    assert [node.op_type for node in load(proto, host=True).model.graph] == ["Tanh"]


def test_attributes_of_unknown_operators_are_nobodys_concern() -> None:
    proto = graph([("Unheard", "x", "z", {"keepdims": [1], "axis": 0.5})], {"x": IMAGE}, ["z"])
    with pytest.raises(UnsupportedModelError, match="Unheard"):
        load(proto)


def test_branches_give_what_their_node_hands_out() -> None:
    made = [onnx.helper.make_node("Constant", [], ["o"], value_float=value) for value in (1.0, 2.0)]
    given = [onnx.helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, [])] * 2
    then, other = (onnx.helper.make_graph([node], "body", [], given) for node in made)
    # Of a condition whose shape is unknown ONNX's inference says nothing.
    proto = graph([("Unheard", "x", "c")], {"x": IMAGE}, ["y"], opset=18)
    proto.graph.node.append(onnx.helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    with pytest.raises(UnsupportedModelError, match=r"then_branch.* gives 2 values, 1 are handed out"):
        load(proto)


def test_empty_tensors_of_functions_settle() -> None:
    reshape = ("Reshape", "x s", "r", {"allowzero": 1})
    nodes = [reshape, ("LayerNormalization", "r g", "n"), ("Gelu", "n", "z")]
    constants = {"s": integers(0, 3), "g": array(3)}
    found = check_model(graph(nodes, {"x": [0, 6]}, ["z"], constants, opset=20))
    assert found


def test_rewrites_leave_alone_what_they_would_write_again() -> None:
    nodes = [("ai.onnx.ml:Nothing", "x", "y"), ("Pow", "y e", "z")]
    proto = graph(nodes, {"x": IMAGE}, ["z"], {"e": np.array([2.0, 2.0], np.float32)}, domains=["ai.onnx.ml"])
    assert any("Nothing" in str(each) for each in check_model(proto))


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (("Resize", "x _ s", "z", {"axes": [1, 2]}), {"s": array(2) * 0 + 2}),
        (("ScatterND", "x i u", "z"), {"i": integers(*range(5)).reshape(1, 5), "u": array(1)}),
        (("GatherND", "x i", "z"), {"i": np.zeros((2, 0), np.int64)}),
        (("Trilu", "x k", "z"), {"k": integers(2**62).reshape(())}),
        (("AveragePool", "x", "z", {"kernel_shape": [2, 2], "pads": [0]}), {}),
        (("ConvTranspose", "x w", "z", {"output_shape": [9]}), {"w": array(4, 6, 3, 3)}),
        (("DequantizeLinear", "c s", "z", {"axis": 1, "block_size": 2}),
         {"c": np.ones((2, 4), np.int8), "s": np.full(4, 0.5, np.float32)}),
    ],
)  # fmt: skip
def test_odd_nodes_are_listed_or_taken(node: tuple[Any, ...], constants: dict[str, Any]) -> None:
    check_model(graph([node], {"x": IMAGE}, ["z"], constants, opset=21))


def test_scales_of_zero_are_taken_where_they_stand_for_weights_alone() -> None:
    scales, codes = np.array([0.5, 0.0, 0.25], np.float32), np.zeros((3, 4, 1, 1), np.int8)
    nodes = [("DequantizeLinear", "c s", "w", {"axis": 0}), ("Conv", "x w", "z")]
    assert not check_model(graph(nodes, {"x": IMAGE}, ["z"], {"c": codes, "s": scales}))


def test_a_scale_for_each_element_is_one_by_element() -> None:
    x = array(2, 3, 4)
    scales = np.abs(array(2, 3, 4)) + 0.5
    nodes = [("QuantizeLinear", "c s", "q"), ("DequantizeLinear", "q s", "w"), ("Add", "x w", "z")]
    check_model(graph(nodes, {"x": [2, 3, 4]}, ["z"], {"c": x, "s": scales}, opset=21))


def test_a_permutation_is_one_also_of_what_has_no_shape() -> None:
    nodes = [("ai.onnx.ml:Nothing", "x", "y"), ("Transpose", "y", "t", {"perm": [0, 2]}),
             ("ReduceSum", "t a", "z")]  # fmt: skip
    found = check_model(graph(nodes, {"x": IMAGE}, ["z"], {"a": integers(2)}, domains=["ai.onnx.ml"]))
    assert any("perm" in str(each) for each in found), found


def test_axes_of_what_has_no_shape_are_not_looked_up_in_a_permutation() -> None:
    nodes = [("ai.onnx.ml:Nothing", "x", "y"), ("Transpose", "y", "t", {"perm": [0, 2, 1]}),
             ("ReduceSum", "t a", "z")]  # fmt: skip
    assert check_model(graph(nodes, {"x": IMAGE}, ["z"], {"a": integers(5)}, domains=["ai.onnx.ml"]))


def test_a_window_of_no_axes_is_listed() -> None:
    proto = graph([("AveragePool", "x", "z", {"ceil_mode": 1})], {"x": [3, 3]}, ["z"], opset=10)
    none = onnx.helper.make_attribute("kernel_shape", [], attr_type=onnx.AttributeProto.INTS)
    proto.graph.node[0].attribute.append(none)
    assert check_model(proto)


def test_a_size_below_zero_is_none() -> None:
    nodes = [("Expand", "x s", "e"), ("MeanVarianceNormalization", "e", "z")]
    found = check_model(graph(nodes, {"x": [3, 3, 5, 1]}, ["z"], {"s": integers(-3).reshape(())}, opset=13))
    assert any("Expand" in str(each) for each in found), found


def test_a_value_with_too_many_bytes_is_refused() -> None:
    value = onnx.TensorProto(name="v", dims=[1], data_type=onnx.TensorProto.UINT8, raw_data=bytes(4))
    proto = graph([("ConstantOfShape", "x", "z", {"value": value})], {"x": [1]}, ["z"], opset=25)
    with pytest.raises(ModelError, match=r"\(ConstantOfShape, value\) is truncated"):
        load(proto, host=True)


def test_a_constant_of_texts_on_the_host_ends_in_one_line() -> None:
    node = ("Constant", "", "z", {"value_strings": ["a"]})
    with pytest.raises(ModelError):
        load(graph([node], {}, ["z"], opset=21), host=True)


def test_operators_of_maps_are_refused() -> None:
    nodes = [("Relu", "x", "y"), ("ai.onnx.ml:DictVectorizer", "y", "z", {"int64_vocabulary": [1, 2]})]
    with pytest.raises(ModelError, match="takes maps"):
        load(graph(nodes, {"x": IMAGE}, ["z"], domains=["ai.onnx.ml"]), host=True)


def test_a_constant_that_is_listed_as_a_sparse_input_is_dense() -> None:
    proto = graph([("Conv", "x w b", "z")], {"x": IMAGE, "b": [6]}, ["z"], WEIGHTS | {"b": array(6)})
    kind = onnx.helper.make_sparse_tensor_type_proto(onnx.TensorProto.FLOAT, [3])
    proto.graph.input[1].type.CopyFrom(kind)
    assert not check_model(proto)


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean", "Concat"])
def test_a_last_operand_without_a_name_is_none(operator: str) -> None:
    node = (operator, "x _", "z", {"axis": 0} if operator == "Concat" else {})
    model = load(graph([node], {"x": IMAGE}, ["z"]))
    assert len(model.model.graph) <= 1


def test_a_graph_that_reads_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="the graph has no inputs"):
        load(graph([("Relu", "w", "z")], {}, ["z"], {"w": array(3)}))


def test_a_sparse_input_has_no_shape_to_compute_with() -> None:
    proto = graph(
        [("CumProd", "x a", "z", {"exclusive": 1})], {"x": [3]}, ["z"], {"a": integers(0)[0]}, opset=26
    )
    kind = onnx.helper.make_sparse_tensor_type_proto(onnx.TensorProto.FLOAT, [3])
    proto.graph.input[0].type.CopyFrom(kind)
    assert check_model(proto)


def test_triangles_are_of_rows_and_columns() -> None:
    (finding,) = check_model(graph([("Trilu", "x", "z")], {"x": [5]}, ["z"], opset=21))
    assert "rows and columns are needed" in str(finding)


def test_what_follows_a_node_that_is_not_valid_is_left_alone() -> None:
    nodes = [("Conv", "x w", "y", {"group": 0}), ("Relu", "y", "r"), ("Mul", "r s", "z")]
    (finding,) = check_model(graph(nodes, {"x": IMAGE}, ["z"], WEIGHTS | {"s": array(6, 1, 1)}))
    assert finding.node == "conv0"


def test_a_graph_without_outputs() -> None:
    proto = graph([("Relu", "x", "z")], {"x": IMAGE}, ["z"])
    del proto.graph.output[:]
    with pytest.raises(ModelError, match=r"^model: the graph has no outputs$"):
        load(proto)


def test_words_that_are_not_text() -> None:
    proto = graph([("MaxPool", "x", "z", POOL | {"auto_pad": "VALID"})], {"x": IMAGE}, ["z"])
    next(each for each in proto.graph.node[0].attribute if each.name == "auto_pad").s = b"\xff"
    with pytest.raises(ModelError, match=r"a name or word in it is not UTF-8 text$"):
        load(proto)


def test_a_constant_of_two_values() -> None:
    proto = graph([("Add", "x c", "z")], {"x": IMAGE}, ["z"], {"c": array(8)})
    del proto.graph.initializer[:]
    made = onnx.helper.make_node("Constant", [], ["c"], value_float=1.0, value_floats=[1.0])
    proto.graph.node.insert(0, made)
    with pytest.raises(ModelError, match=r"onstant"):
        load(proto)


def test_an_operator_that_its_opset_does_not_have_yet_keeps_its_inputs() -> None:
    proto = graph([("OneHot", "x", "z")], {"x": [1, 4]}, ["z"])
    proto.opset_import[0].version = 6
    assert [finding.attribute for finding in check_model(proto)] == ["input 1"]


@pytest.mark.parametrize("operator", ["CumSum", "CumProd"])
def test_a_running_sum_along_no_axis(operator: str) -> None:
    proto = graph([(operator, "x a", "z")], {"x": [1, 4]}, ["z"], {"a": np.array(5, np.int64)})
    proto.opset_import[0].version = 26
    assert [finding.node for finding in check_model(proto)] == [f"{operator.lower()}0"]


def test_a_constant_that_is_no_number_where_shapes_are_folded() -> None:
    proto = graph([("Slice", "x s e", "z")], {"x": [4, 4]}, ["z"], {"s": integers(0, 1), "e": integers(1, 2)})
    proto.graph.initializer[0].data_type = onnx.TensorProto.STRING
    with pytest.raises(ModelError, match="is truncated"):
        check_model(proto)


def test_a_function_of_ours_whose_shape_nobody_knows() -> None:
    proto = graph([("Relu", "x", "y"), ("RMSNormalization", "y g", "z", {"axis": -1})], {"x": [1, 4]}, ["z"],
                  {"g": array(4)})  # fmt: skip
    proto.graph.node[1].domain = "tpuflow"
    proto.opset_import.append(onnx.helper.make_opsetid("tpuflow", 1))
    for finding in audit(proto).findings:
        assert "shape" in finding.reason


def test_a_network_that_is_as_the_standard_says_is_not_objected_to() -> None:
    nodes = [
        ("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}),
        ("PRelu", "c s", "p"),
        ("LayerNormalization", "p g", "l", {"axis": -1}),
        ("MaxPool", "l", "z", POOL),
    ]
    constants = WEIGHTS | {"s": array(6, 1, 1), "g": np.ones(8, np.float32)}
    assert check_model(graph(nodes, {"x": IMAGE}, ["z"], constants)) == []


def test_data_in_the_field_of_another_type_is_refused() -> None:
    proto = graph([("Cast", "w", "z", {"to": 1})], {}, ["z"], {"w": array(2)}, opset=21)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_type = onnx.TensorProto.FLOAT8E4M3FN
    tensor.int64_data.extend([1, 2])
    with pytest.raises(ModelError, match=r"its data does not fill|not a valid ONNX model"):
        load(proto)


def test_texts_that_do_not_fill_their_shape_are_refused() -> None:
    proto = graph([("Equal", "x c", "z")], {"x": [1]}, ["z"], types={"x": onnx.TensorProto.STRING}, opset=19)
    proto.graph.initializer.add(
        name="c", data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"a", b"b"]
    )
    with pytest.raises(ModelError, match=r'"c" is truncated: its data does not fill shape \[1\]'):
        load(proto, host=True)


def test_norms_of_single_numbers_are_listed() -> None:
    for domain in ("tpuflow:", ""):
        proto = graph(
            [(f"{domain}RMSNormalization", "x g", "z")], {"x": []}, ["z"], {"g": array(1)}, opset=23
        )
        assert [each.attribute for each in check_model(proto)] == ["input 0"]


@pytest.mark.parametrize("operator", ["LpNormalization", "Softmax", "LogSoftmax", "Hardmax", "ArgMax"])
def test_single_numbers_have_no_axis(operator: str) -> None:
    found = check_model(graph([(operator, "x", "z")], {"x": []}, ["z"]))
    assert [each.attribute for each in found] == ["input 0"]


def test_places_of_an_older_operator_are_as_many_as_axes() -> None:
    constants = {"i": integers(1), "u": array(1)}
    found = check_model(graph([("Scatter", "x i u", "z")], {"x": [2, 4]}, ["z"], constants, opset=10))
    assert [each.attribute for each in found] == ["input 1"]


def test_a_norm_of_a_sequence_is_refused() -> None:
    nodes = [("LayerNormalization", "x g", "n m"), ("Relu", "n", "z")]
    proto = graph(nodes, {"x": [1, 4]}, ["z"], {"g": array(4)})
    inner = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, None])
    proto.graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(inner))
    with pytest.raises(ModelError):
        load(proto, host=True)


def test_sums_of_what_does_not_broadcast_are_not_merged() -> None:
    nodes = [("ai.onnx.ml:Nothing", "x", "y"), ("Add", "y c", "a"), ("Add", "a d", "z")]
    constants = {"c": array(2, 10), "d": array(6)}
    assert check_model(graph(nodes, {"x": IMAGE}, ["z"], constants, domains=["ai.onnx.ml"]))
