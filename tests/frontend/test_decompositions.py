"""Operators outside the closed set that are written with it: the same results as onnxruntime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from conftest import slow_except
from frontend.graphs import Node, array, graph, integers, normalized, operators
from tpuflow.frontend import check_model, load
from tpuflow.frontend.rewrites.recurrent import STEPWISE

X = {"x": [2, 3, 4]}
IMAGE = {"x": [2, 3, 6, 7]}
VOLUME = {"x": [2, 4, 5, 6, 7]}

PICKING: dict[str, tuple[list[Node], dict[str, Any], dict[str, int]]] = {
    "along an axis": (
        [("GatherElements", "x i", "z", {"axis": 2})],
        {"i": np.broadcast_to(np.array([3, 0, -1]), (2, 3, 3)).copy()},
        {"Gather": 1},
    ),
    "element by element": (
        [("GatherElements", "x i", "z", {"axis": 1})],
        {"i": np.random.default_rng(0).integers(-3, 3, (2, 2, 4))},
        {"Reshape": 2, "Gather": 1},
    ),
    "rows of two axes": (
        [("GatherND", "x i", "z")],
        {"i": np.array([[0, 1], [1, -1], [0, 0]])},
        {"Reshape": 1, "Gather": 1},
    ),
    "within a batch": (
        [("GatherND", "x i", "z", {"batch_dims": 1})],
        {"i": np.array([[2], [0]])},
        {"Reshape": 1, "Slice": 1},
    ),
    "a block replaced": (
        [("ScatterND", "x i u", "z")],
        {"i": np.array([[1]]), "u": array(1, 3, 4)},
        {"Slice": 1, "Concat": 1},
    ),
    "every other row replaced": (
        [("ScatterND", "x i u", "z")],
        {"i": np.array([[0, 1], [1, 2]]), "u": array(2, 4)},
        {"Reshape": 2, "Slice": 2, "Concat": 1},
    ),
    "elements added twice": (
        [("ScatterElements", "x i u", "z", {"axis": 2, "reduction": "add"})],
        {"i": np.array([[[1, 1], [3, 3], [0, 1]]] * 2), "u": array(2, 3, 2)},
        {"Reshape": 2, "Add": 1},
    ),
    "sequences reversed": (
        [("ReverseSequence", "x n", "z", {"batch_axis": 0, "time_axis": 1})],
        {"n": integers(2, 3)},
        {"Reshape": 2, "Gather": 1},
    ),
    "a condition": (
        [("Compress", "x c", "z", {"axis": 1})],
        {"c": np.array([True, False, True])},
        {"Slice": 1},
    ),
    "upper triangle": ([("Trilu", "x k", "z", {"upper": 1})], {"k": np.int64(1)}, {"Where": 1}),
}


@pytest.mark.parametrize(("nodes", "constants", "expected"), PICKING.values(), ids=PICKING)
def test_picking_and_placing(nodes: list[Node], constants: dict[str, Any], expected: dict[str, int]) -> None:
    opset = 18 if nodes[0][0] == "ScatterElements" else 17
    model = normalized(graph(nodes, X, ["z"], constants, opset=opset))
    assert operators(model) == expected


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_running_sum(exclusive: int, reverse: int) -> None:
    nodes = [("CumSum", "x a", "z", {"exclusive": exclusive, "reverse": reverse})]
    model = normalized(graph(nodes, X, ["z"], {"a": np.int64(1)}))
    assert operators(model) == {"Transpose": 2, "MatMul": 1}


def test_recurrences_of_a_sparse_operand_are_listed() -> None:
    weights = {"w": array(1, 5, 3), "r": array(1, 5, 5)}
    node = ("RNN", "x w r b", "y", {"hidden_size": 5})
    proto = graph([node], {"x": [1, 3, 3], "b": [1, 10]}, ["y"], weights)
    sparse = proto.graph.input[1].type.sparse_tensor_type
    sparse.elem_type = TensorProto.FLOAT
    sparse.shape.dim.add().dim_value = 10
    assert any("(RNN)" in str(each) for each in check_model(proto))


@pytest.mark.parametrize("direction", slow_except(["bidirectional"], ["forward", "reverse", "bidirectional"]))
@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("lengths", [None, [5, 2]], ids=["whole", "of two lengths"])
def test_recurrent(operator: str, direction: str, lengths: list[int] | None) -> None:
    gates, ways = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator], 2 if direction == "bidirectional" else 1
    constants: dict[str, Any] = {
        "w": array(ways, gates * 6, 4),
        "r": array(ways, gates * 6, 6, seed=1, scale=0.4),
        "b": array(ways, 2 * gates * 6, seed=2),
        "h": array(ways, 2, 6, seed=3),
    }
    if lengths is not None:
        constants["n"] = np.array(lengths, np.int32)
    names = "x w r b " + ("n" if lengths else "_") + " h"
    attributes: dict[str, Any] = {"hidden_size": 6, "direction": direction, "clip": 1.5}
    outputs = ["y", "yh"]
    if operator == "GRU":
        attributes["linear_before_reset"] = 1
    if operator == "LSTM":
        constants |= {"c": array(ways, 2, 6, seed=4), "p": array(ways, 3 * 6, seed=5)}
        names, outputs = f"{names} c p", [*outputs, "yc"]
    proto = graph([(operator, names, " ".join(outputs), attributes)], {"x": [5, 2, 4]}, outputs, constants)
    model = normalized(proto)
    # One product for the inputs of all steps, and one per step for the state (two in a GRU) but the first,
    # which is constant.
    assert operators(model)["MatMul"] == ways * (1 + 4 * (2 if operator == "GRU" else 1))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("operator", "gates", "products"), [("RNN", 1, 1), ("GRU", 3, 2), ("LSTM", 4, 1)])
def test_recurrent_layers_follow_each_other_step_by_step(
    operator: str, gates: int, products: int, batch: int
) -> None:
    constants: dict[str, Any] = {"a": np.array([1])}
    for layer, inputs in enumerate((4, 6)):
        constants |= {
            f"w{layer}": array(1, gates * 6, inputs, seed=3 * layer),
            f"r{layer}": array(1, gates * 6, 6, seed=3 * layer + 1, scale=0.4),
            f"b{layer}": array(1, 2 * gates * 6, seed=3 * layer + 2),
        }
    attributes = {"hidden_size": 6} | ({"linear_before_reset": 1} if operator == "GRU" else {})
    nodes: list[Node] = [
        (operator, "x w0 r0 b0", "y yh", attributes),
        ("Squeeze", "y a", "s", {}),
        (operator, "s w1 r1 b1", "z zh", attributes),
    ]
    model = normalized(graph(nodes, {"x": [5, batch, 4]}, ["z", "zh", "yh"], constants))
    # One product for all inputs of the first layer, and one for each of the second.
    assert operators(model)["MatMul"] == 1 + 5 + 2 * 4 * products
    names = [str(node.name) for node in model.model.graph if node.op_type == "MatMul"]
    lower, upper = ([at for at, name in enumerate(names) if f"{n}/" in name] for n in (0, 2))
    assert len(lower) + len(upper) == len(names)
    assert upper[0] < lower[3] and upper[-1] > lower[-1]
    assert not any(STEPWISE in node.metadata_props for node in model.model.graph)


WINDOWS: dict[str, tuple[Node, dict[str, Any]]] = {
    "convolution": (
        ("Conv", "x w b", "z", {"pads": [1, 0, 1, 2, 1, 0]}),
        {"w": array(6, 4, 3, 2, 3), "b": array(6)},
    ),
    "grouped, strided, dilated": (
        ("Conv", "x w", "z", {"group": 2, "strides": [2, 1, 2], "dilations": [2, 1, 1], "pads": [2] * 6}),
        {"w": array(6, 2, 2, 3, 3)},
    ),
    "transposed": (
        (
            "ConvTranspose",
            "x w b",
            "z",
            {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1], "output_padding": [1, 0, 0]},
        ),
        {"w": array(4, 3, 3, 2, 3), "b": array(3)},
    ),
    "transposed, grouped": (
        ("ConvTranspose", "x w", "z", {"group": 2, "strides": [3, 2, 1], "dilations": [2, 1, 1]}),
        {"w": array(4, 2, 2, 2, 2)},
    ),
    "largest": (
        ("MaxPool", "x", "z", {"kernel_shape": [2, 3, 2], "strides": [2, 1, 1], "pads": [1, 1, 0, 0, 1, 1]}),
        {},
    ),
    "mean": (
        (
            "AveragePool",
            "x",
            "z",
            {"kernel_shape": [3, 2, 2], "strides": [2, 1, 2], "pads": [1, 0, 1, 1, 1, 0], "ceil_mode": 1},
        ),
        {},
    ),
}


@pytest.mark.parametrize(("node", "constants"), WINDOWS.values(), ids=WINDOWS)
def test_windows_of_three_axes(node: Node, constants: dict[str, Any]) -> None:
    normalized(graph([node], VOLUME, ["z"], constants), tolerance=1e-5)


@pytest.mark.parametrize("sizes", [[2, 3, 4, 9], [2, 3, 13, 5]])
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_cubic_resize(transform: str, sizes: list[int]) -> None:
    attributes = {"mode": "cubic", "coordinate_transformation_mode": transform, "cubic_coeff_a": -0.5}
    model = normalized(graph([("Resize", "x _ _ s", "z", attributes)], IMAGE, ["z"], {"s": integers(*sizes)}))
    assert operators(model)["MatMul"] == 2


def test_only_the_axes_that_a_resize_crops_are_resampled() -> None:
    attributes = {"mode": "linear", "axes": [2, 3], "coordinate_transformation_mode": "tf_crop_and_resize"}
    constants = {"r": np.array([0.25, 0.0, 0.75, 1.0], np.float32), "s": integers(3, 4)}
    model = normalized(
        graph([("Resize", "x r _ s", "z", attributes)], {"x": [1, 1, 4, 4, 5]}, ["z"], constants, opset=18)
    )
    assert operators(model)["MatMul"] == 1


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_resize(mode: str) -> None:
    nodes = [("Resize", "x _ _ s", "z", {"mode": mode, "antialias": 1})]
    normalized(graph(nodes, IMAGE, ["z"], {"s": integers(2, 3, 3, 5)}, opset=18))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("shape", "scales"), [([2, 3, 5], [1, 1, 2]), ([1, 2, 3, 4, 5], [1, 1, 2, 1, 3])])
def test_resize_of_other_than_images(mode: str, shape: list[int], scales: list[float]) -> None:
    nodes = [("Resize", "x _ s", "z", {"mode": mode, "coordinate_transformation_mode": "asymmetric"})]
    normalized(graph(nodes, {"x": shape}, ["z"], {"s": np.array(scales, np.float32)}))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_sampling_on_a_constant_grid(mode: str, padding: str, align: int) -> None:
    grid = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 4, 5, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    normalized(
        graph([("GridSample", "x g", "z", attributes)], IMAGE, ["z"], {"g": grid}, opset=20), tolerance=1e-4
    )


EQUATIONS = {
    "three operands": ("bij,bjk,bkl->bil", [[2, 3, 4], [2, 4, 5], [2, 5, 6]]),
    "diagonal": ("bii->bi", [[2, 4, 4]]),
    "trace": ("ii->", [[4, 4]]),
    "ellipsis": ("...ij,...jk->...ik", [[2, 3, 4], [2, 4, 5]]),
    "implicit": ("ij,jk", [[3, 4], [4, 5]]),
    "sums": ("abc,ad->d", [[2, 3, 4], [2, 5]]),
    "outer product": ("i,j->ij", [[3], [4]]),
    "attention": ("bqhd,bkhd->bhqk", [[1, 3, 2, 4], [1, 5, 2, 4]]),
}


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS.values(), ids=EQUATIONS)
def test_einsum(equation: str, shapes: list[list[int]]) -> None:
    inputs: dict[str, list[int | str]] = {
        name: list(shape) for name, shape in zip("abc", shapes, strict=False)
    }
    model = normalized(graph([("Einsum", " ".join(inputs), "z", {"equation": equation})], inputs, ["z"]))
    assert "Einsum" not in operators(model)


PRODUCTS: dict[str, tuple[list[Node], dict[str, Any]]] = {
    "of integers": (
        [("MatMulInteger", "x w z v", "y")],
        {"w": np.array([[1, -2], [3, 4]], np.int8), "z": np.uint8(7), "v": np.int8(1)},
    ),
    "of codes": (
        [("QLinearMatMul", "x s z w t v u k", "y")],
        {
            "s": 0.05, "z": np.uint8(128), "w": np.array([[100, -20], [30, 4]], np.int8), "t": 0.02,
            "v": np.int8(0), "u": 0.1, "k": np.uint8(120),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "constants"), PRODUCTS.values(), ids=PRODUCTS)
def test_products_of_codes(nodes: list[Node], constants: dict[str, Any]) -> None:
    kind = TensorProto.INT32 if nodes[0][0] == "MatMulInteger" else TensorProto.UINT8
    proto = graph(nodes, {"x": [3, 2]}, ["y"], constants, types={"x": TensorProto.UINT8, "y": kind})
    assert operators(normalized(proto))["MatMul"] == 1


def test_loop_of_a_constant_number_of_steps() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "two"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, None),
        ],
    )
    constants = {"n": np.int64(3), "true": np.array(True), "two": 2.0}
    model = normalized(graph([("Loop", "n true x", "z s", {"body": body})], X, ["z", "s"], constants))
    assert "Loop" not in operators(model)
    assert model.outputs[1].shape == (3,)


def test_sequences_leave_nothing() -> None:
    nodes = [
        ("SplitToSequence", "x n", "q", {"axis": 2}),
        ("SequenceAt", "q one", "a"),
        ("SequenceInsert", "q a", "r"),
        ("ConcatFromSequence", "r", "z", {"axis": 2}),
    ]
    model = normalized(graph(nodes, X, ["z"], {"n": np.int64(2), "one": np.int64(1)}))
    assert set(operators(model)) == {"Slice", "Concat"}


@pytest.mark.parametrize("operator", ["LRN", "GlobalLpPool", "LpNormalization", "Hardmax", "LogSoftmax"])
def test_norms_and_extrema(operator: str) -> None:
    stated: dict[str, dict[str, Any]] = {"LRN": {"size": 3, "alpha": 0.1}, "GlobalLpPool": {"p": 3}}
    attributes = stated.get(operator, {})
    normalized(graph([(operator, "x", "z", attributes)], IMAGE, ["z"]))


def test_functions_of_onnx_are_inlined() -> None:
    """What ONNX defines by other operators needs no rewrite of its own."""
    names = "log_probability target"
    inputs: dict[str, list[int | str]] = {"log_probability": [2, 5, 3], "target": [2, 3]}
    proto = graph(
        [("NegativeLogLikelihoodLoss", names, "loss", {"reduction": "mean"})],
        inputs,
        ["loss"],
        types={"target": TensorProto.INT64},
    )
    model = load(proto, host=True)
    assert "NegativeLogLikelihoodLoss" not in operators(model)


def test_operators_of_later_opsets() -> None:
    nodes = [("RMSNormalization", "x g", "z", {"axis": -1, "epsilon": 1e-6})]
    proto = graph(nodes, {"x": [2, 5, 8]}, ["z"], {"g": array(8)}, opset=23)
    assert check_model(proto) == []
