"""Frozen TensorFlow graphs: each operator against its formula in NumPy, one network against its ONNX twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from end_to_end.levels import config
from importers.graphdefs import GraphBuilder
from tpuflow.calibration import calibrate
from tpuflow.errors import ModelError, UnsupportedModelError
from tpuflow.frontend import FloatSession, load, run_float
from tpuflow.importers import from_graphdef
from tpuflow.importers.graphdef import supported_operators
from tpuflow.lowering import lower

Array = NDArray[Any]
Build = Callable[[GraphBuilder], object]
RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.normal(size=(2, 6, 5, 4)).astype(np.float32)
ROWS = RANDOM.normal(size=(3, 4)).astype(np.float32)
POSITIVE = np.abs(ROWS) + 0.1


def image_of(x: Array, size: tuple[int, int], stride: tuple[int, int], fill: float) -> Array:
    """`x` padded as "SAME" asks for: the odd pixel at the end."""
    pads = []
    for length, kernel, step in zip(x.shape[1:3], size, stride, strict=True):
        total = max((-(-length // step) - 1) * step + kernel - length, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)


def windows(x: Array, size: tuple[int, int], stride: tuple[int, int], dilation: int = 1) -> Array:
    """All windows of an image: `[n, h, w, kh, kw, c]`."""
    reach = [(kernel - 1) * dilation + 1 for kernel in size]
    found = np.lib.stride_tricks.sliding_window_view(x, reach, (1, 2))
    found = found[:, :: stride[0], :: stride[1], :, ::dilation, ::dilation]
    return found.transpose(0, 1, 2, 4, 5, 3)


def convolved(x: Array, w: Array, stride: tuple[int, int] = (1, 1), dilation: int = 1) -> Array:
    found: Array = np.einsum("nhwklc,klco->nhwo", windows(x, w.shape[:2], stride, dilation), w)
    return found


W = RANDOM.normal(size=(3, 2, 4, 6)).astype(np.float32)
DEPTHWISE = RANDOM.normal(size=(3, 3, 4, 2)).astype(np.float32)
VECTOR = RANDOM.normal(size=4).astype(np.float32)


def convolution(b: GraphBuilder) -> None:
    b.constant("w", W)
    b.node("Identity", "w/read", "w")
    b.node("Conv2D", "z", "x", "w/read", strides=(1, 2, 2, 1), padding="SAME")


def explicit(b: GraphBuilder) -> None:
    b.constant("w", W)
    pads = (0, 0, 1, 2, 0, 1, 0, 0)
    b.node("Conv2D", "z", "x", "w", strides=(1, 1, 1, 1), padding="EXPLICIT", explicit_paddings=pads)


def depthwise(b: GraphBuilder) -> None:
    b.constant("w", DEPTHWISE)
    b.node("DepthwiseConv2dNative", "z", "x", "w", strides=(1, 1, 1, 1), padding="VALID")


def depthwise_expected() -> Array:
    found: Array = np.einsum("nhwklc,klcm->nhwcm", windows(IMAGE, (3, 3), (1, 1)), DEPTHWISE)
    return found.reshape(*found.shape[:3], -1)


def dilated(b: GraphBuilder) -> None:
    """As frameworks write it: blocks to the batch, a convolution, and back. 6 x 5 pixels, padded by 2."""
    b.constant("block", [2, 2])
    b.constant("pads", [[2, 2], [2, 3]])
    b.constant("crops", [[0, 0], [0, 1]])
    b.constant("w", W3)
    b.constant("v", RANDOM_BIAS)
    b.node("SpaceToBatchND", "s", "x", "block", "pads")
    b.node("Conv2D", "c", "s", "w", strides=(1, 1, 1, 1), padding="VALID")
    b.node("BiasAdd", "d", "c", "v")
    b.node("BatchToSpaceND", "z", "d", "block", "crops")


W3 = RANDOM.normal(size=(3, 3, 4, 6)).astype(np.float32)
RANDOM_BIAS = RANDOM.normal(size=6).astype(np.float32)


def transposed(b: GraphBuilder) -> None:
    b.constant("sizes", [2, 11, 10, 6])
    b.constant("w", np.ascontiguousarray(W3.transpose(0, 1, 3, 2)))
    b.node("Conv2DBackpropInput", "z", "sizes", "w", "x", strides=(1, 2, 2, 1), padding="SAME")


def transposed_expected() -> Array:
    """The gradient of a convolution, pixel by pixel: 11 x 10 pixels make 6 x 5 with stride 2."""
    whole: Array = np.zeros((2, 14, 13, 6))
    for y in range(6):
        for x in range(5):
            part = np.einsum("nc,klco->nklo", IMAGE[:, y, x], W3)
            whole[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3] += part
    # 11 pixels want (6 - 1) 2 + 3 - 11 = 2 more, one at each side; 10 want 1 more, at the end.
    return whole[:, 1:12, 0:10]


def normalized(b: GraphBuilder) -> None:
    for name, value in zip(
        ("s", "o", "m", "v"), (VECTOR, VECTOR + 1, VECTOR / 2, np.abs(VECTOR)), strict=True
    ):
        b.constant(name, value)
    b.node("FusedBatchNormV3", "z", "x", "s", "o", "m", "v", is_training=False, epsilon=0.01)


def response(b: GraphBuilder) -> None:
    b.node("LRN", "z", "x", depth_radius=1, bias=2.0, alpha=0.5, beta=0.75)


def response_expected() -> Array:
    squares = np.pad(IMAGE**2, [(0, 0)] * 3 + [(1, 1)])
    sums = squares[..., :-2] + squares[..., 1:-1] + squares[..., 2:]
    found: Array = IMAGE / (2 + 0.5 * sums) ** 0.75
    return found


def pooled(op: str, padding: str) -> Build:
    return lambda b: b.node(op, "z", "x", ksize=(1, 3, 2, 1), strides=(1, 2, 2, 1), padding=padding)


def average_same() -> Array:
    ones = windows(image_of(np.ones_like(IMAGE), (3, 2), (2, 2), 0), (3, 2), (2, 2)).sum((3, 4))
    sums: Array = windows(image_of(IMAGE, (3, 2), (2, 2), 0), (3, 2), (2, 2)).sum((3, 4))
    sums /= ones
    return sums


def with_constants(op: str, *constants: Any, before: int = 1, **attributes: Any) -> Build:
    """`op` of the input and constants; `before` says how many operands come before the constants."""

    def build(b: GraphBuilder) -> None:
        names = [b.constant(f"k{index}", value) for index, value in enumerate(constants)]
        b.node(op, "z", *(["x"] * before), *names, **attributes)

    return build


def resized(op: str, **attributes: Any) -> Build:
    return with_constants(op, [9, 10], **attributes)


def nearest(x: Array, rows: Array, columns: Array) -> Array:
    return x[:, rows.astype(int)][:, :, columns.astype(int)]


def linear(x: Array, rows: Array, columns: Array) -> Array:
    for axis, wished in ((1, rows), (2, columns)):
        places = np.clip(wished, 0, x.shape[axis] - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        share = (places - low).reshape([-1 if a == axis else 1 for a in range(4)])
        x = x.take(low, axis) * (1 - share) + x.take(high, axis) * share
    return x


def strided(*spec: Any, **masks: int) -> Build:
    begin, end, step = (list(column) for column in zip(*spec, strict=True))
    return with_constants(
        "StridedSlice", begin, end, step, **{f"{name}_mask": bits for name, bits in masks.items()}
    )


def filled(b: GraphBuilder) -> None:
    shape, value = b.constant("d", [3, 1]), b.constant("v", np.float32(2))
    b.node("Add", "z", "x", b.node("Fill", "f", shape, value))


CASES: dict[str, tuple[Array, Build, Array]] = {
    "convolution": (IMAGE, convolution, convolved(image_of(IMAGE, (3, 2), (2, 2), 0), W, (2, 2))),
    "explicit": (IMAGE, explicit, convolved(np.pad(IMAGE, [(0, 0), (1, 2), (0, 1), (0, 0)]), W)),
    "depthwise": (IMAGE, depthwise, depthwise_expected()),
    "dilated": (
        IMAGE,
        dilated,
        convolved(np.pad(IMAGE, [(0, 0), (2, 2), (2, 2), (0, 0)]), W3, dilation=2) + RANDOM_BIAS,
    ),
    "dilations": (
        IMAGE,
        lambda b: b.node(
            "Conv2D",
            "z",
            "x",
            b.constant("w", W3),
            strides=(1, 1, 1, 1),
            dilations=(1, 2, 2, 1),
            padding="VALID",
        ),
        convolved(IMAGE, W3, dilation=2),
    ),
    "transposed": (IMAGE, transposed, transposed_expected()),
    "norm": (IMAGE, normalized, (IMAGE - VECTOR / 2) / np.sqrt(np.abs(VECTOR) + 0.01) * VECTOR + VECTOR + 1),
    "LRN": (IMAGE, response, response_expected()),
    "MaxPool": (
        IMAGE,
        pooled("MaxPool", "SAME"),
        windows(image_of(IMAGE, (3, 2), (2, 2), -np.inf), (3, 2), (2, 2)).max((3, 4)),
    ),
    "AvgPool": (IMAGE, pooled("AvgPool", "SAME"), average_same()),
    "AvgPool valid": (IMAGE, pooled("AvgPool", "VALID"), windows(IMAGE, (3, 2), (2, 2)).mean((3, 4))),
    "BiasAdd": (IMAGE, with_constants("BiasAdd", VECTOR), IMAGE + VECTOR),
    "MatMul": (ROWS, with_constants("MatMul", ROWS, transpose_b=True), ROWS @ ROWS.T),
    "BatchMatMul": (
        IMAGE,
        lambda b: b.node("BatchMatMulV2", "z", "x", "x", adj_x=True),
        IMAGE.swapaxes(2, 3) @ IMAGE,
    ),
    "Relu6": (ROWS * 6, lambda b: b.node("Relu6", "z", "x"), np.clip(ROWS * 6, 0, 6)),
    "LeakyRelu": (
        ROWS,
        lambda b: b.node("LeakyRelu", "z", "x", alpha=0.3),
        np.where(ROWS > 0, ROWS, 0.3 * ROWS),
    ),
    "Elu": (ROWS, lambda b: b.node("Elu", "z", "x"), np.where(ROWS > 0, ROWS, np.expm1(ROWS))),
    "Softplus": (ROWS, lambda b: b.node("Softplus", "z", "x"), np.log1p(np.exp(ROWS))),
    "Rsqrt": (POSITIVE, lambda b: b.node("Rsqrt", "z", "x"), POSITIVE**-0.5),
    "Square": (ROWS, lambda b: b.node("Square", "z", "x"), ROWS**2),
    "SquaredDifference": (ROWS, with_constants("SquaredDifference", VECTOR), (ROWS - VECTOR) ** 2),
    "RealDiv": (ROWS, with_constants("RealDiv", POSITIVE), ROWS / POSITIVE),
    "Maximum": (ROWS, with_constants("Maximum", VECTOR), np.maximum(ROWS, VECTOR)),
    "Pow": (POSITIVE, with_constants("Pow", np.float32(1.5)), POSITIVE**1.5),
    "AddN": (ROWS, lambda b: b.node("AddN", "z", "x", "x", "x"), 3 * ROWS),
    "Softmax": (
        ROWS,
        lambda b: b.node("Softmax", "z", "x"),
        np.exp(ROWS) / np.exp(ROWS).sum(1, keepdims=True),
    ),
    "Mean": (IMAGE, with_constants("Mean", [1, 2], keep_dims=True), IMAGE.mean((1, 2), keepdims=True)),
    "Sum": (IMAGE, with_constants("Sum", -1), IMAGE.sum(-1)),
    "Max": (IMAGE, with_constants("Max", [1]), IMAGE.max(1)),
    "ArgMax": (ROWS, with_constants("ArgMax", 1, output_type=np.dtype(np.int32)), ROWS.argmax(1)),
    "Reshape": (ROWS, with_constants("Reshape", [2, -1]), ROWS.reshape(2, 6)),
    "ExpandDims": (ROWS, with_constants("ExpandDims", 1), ROWS[:, None]),
    "Squeeze": (ROWS[None], lambda b: b.node("Squeeze", "z", "x", squeeze_dims=(0,)), ROWS),
    "Transpose": (IMAGE, with_constants("Transpose", [0, 3, 1, 2]), IMAGE.transpose(0, 3, 1, 2)),
    "Slice": (IMAGE, with_constants("Slice", [0, 1, 0, 2], [-1, 3, 4, -1]), IMAGE[:, 1:4, :4, 2:]),
    "StridedSlice": (IMAGE, strided((0, 1, 1), (-1, -9, -2), begin=1, end=1), IMAGE[:, -1::-2]),
    "StridedSlice new": (
        IMAGE,
        strided((0, 0, 1), (0, 0, 1), (1, 3, 2), (2, 3, 1), ellipsis=1, new_axis=2, shrink_axis=8),
        IMAGE[..., np.newaxis, 1:3:2, 2],
    ),
    "StridedSlice element": (
        IMAGE,
        strided((0, 0, 1), (-1, 0, 1), begin=1, end=1, shrink_axis=2),
        IMAGE[:, -1],
    ),
    "Pack": (ROWS, lambda b: b.node("Pack", "z", "x", "x", axis=1), np.stack([ROWS, ROWS], 1)),
    "ConcatV2": (ROWS, with_constants("ConcatV2", -1, before=2), np.concatenate([ROWS, ROWS], -1)),
    "Tile": (ROWS, with_constants("Tile", [1, 2]), np.tile(ROWS, (1, 2))),
    "Fill": (ROWS, filled, ROWS + 2),
    "GatherV2": (ROWS, with_constants("GatherV2", [2, 0], 1), ROWS[:, [2, 0]]),
    "Pad": (ROWS, with_constants("Pad", [[1, 0], [2, 1]]), np.pad(ROWS, [(1, 0), (2, 1)])),
    "PadV2": (
        ROWS,
        with_constants("PadV2", [[1, 0], [2, 1]], np.float32(7)),
        np.pad(ROWS, [(1, 0), (2, 1)], constant_values=7),
    ),
    "MirrorPad": (
        ROWS,
        with_constants("MirrorPad", [[1, 1], [0, 2]], mode="REFLECT"),
        np.pad(ROWS, [(1, 1), (0, 2)], "reflect"),
    ),
    "MirrorPad symmetric": (
        ROWS,
        with_constants("MirrorPad", [[1, 1], [0, 1]], mode="SYMMETRIC"),
        np.pad(ROWS, [(1, 1), (0, 1)], "symmetric"),
    ),
    "nearest": (
        IMAGE,
        resized("ResizeNearestNeighbor"),
        nearest(IMAGE, np.arange(9) * 6 // 9, np.arange(10) * 5 // 10),
    ),
    "nearest half": (
        IMAGE,
        resized("ResizeNearestNeighbor", half_pixel_centers=True),
        nearest(IMAGE, (np.arange(9) + 0.5) * 6 / 9, (np.arange(10) + 0.5) * 5 / 10),
    ),
    "bilinear": (
        IMAGE,
        resized("ResizeBilinear"),
        linear(IMAGE, np.arange(9) * 6 / 9, np.arange(10) * 5 / 10),
    ),
    "bilinear corners": (
        IMAGE,
        resized("ResizeBilinear", align_corners=True),
        linear(IMAGE, np.arange(9) * 5 / 8, np.arange(10) * 4 / 9),
    ),
    "bilinear half": (
        IMAGE,
        resized("ResizeBilinear", half_pixel_centers=True),
        linear(IMAGE, (np.arange(9) + 0.5) * 6 / 9 - 0.5, (np.arange(10) + 0.5) * 5 / 10 - 0.5),
    ),
    "SpaceToDepth": (
        IMAGE[:, :, :4],
        lambda b: b.node("SpaceToDepth", "z", "x", block_size=2),
        IMAGE[:, :, :4].reshape(2, 3, 2, 2, 2, 4).transpose(0, 1, 3, 2, 4, 5).reshape(2, 3, 2, 16),
    ),
    "DepthToSpace": (
        IMAGE,
        lambda b: b.node("DepthToSpace", "z", "x", block_size=2),
        IMAGE.reshape(2, 6, 5, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 10, 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.feature("IMP-02")
def test_every_operator_is_its_formula(case: str) -> None:
    x, build, expected = CASES[case]
    b = GraphBuilder()
    b.input("x", *x.shape)
    build(b)
    model = from_graphdef(b.bytes)
    onnx.checker.check_model(model, full_check=True)
    found = FloatSession(model).run({"x:0": x})["z:0"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Split", "SplitV", "Unpack"])
@pytest.mark.feature("IMP-02")
def test_operators_of_several_results(op: str) -> None:
    b = GraphBuilder()
    b.input("x", 3, 4)
    if op == "Split":
        b.node("Split", "s", b.constant("axis", 1), "x", num_split=2)
        parts = np.split(ROWS, 2, 1)
    elif op == "SplitV":
        b.node("SplitV", "s", "x", b.constant("sizes", [3, -1]), b.constant("axis", 1), num_split=2)
        parts = np.split(ROWS, [3], 1)
    else:
        b.node("Unpack", "s", "x", num=3, axis=0)
        parts = list(ROWS)
    b.node("Exp", "z", "s:1")
    found = run_float(from_graphdef(b.bytes), {"x:0": ROWS})
    expected = {f"s:{i}": part for i, part in enumerate(parts) if i != 1} | {"z:0": np.exp(parts[1])}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


def network(b: GraphBuilder) -> None:
    b.input("image", -1, 8, 8, 3)
    b.constant("kernel", W[:, :, :3])
    b.constant("bias", RANDOM_BIAS)
    b.node("Conv2D", "conv", "image", "kernel", strides=(1, 1, 1, 1), padding="SAME")
    b.node("BiasAdd", "conv/bias", "conv", "bias")
    b.node("Relu", "scores", "conv/bias")


def twin() -> onnx.ModelProto:
    """The same network, written in ONNX by hand."""
    pads = [1, 0, 1, 1]
    nodes = [
        helper.make_node("Transpose", ["image:0"], ["a"], "a", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["a", "w", "b"], ["c"], "c", kernel_shape=[3, 2], pads=pads),
        helper.make_node("Relu", ["c"], ["d"], "d"),
        helper.make_node("Transpose", ["d"], ["scores:0"], "e", perm=[0, 2, 3, 1]),
    ]
    weights = np.ascontiguousarray(W[:, :, :3].transpose(3, 2, 0, 1))
    made = helper.make_graph(
        nodes,
        "twin",
        [helper.make_tensor_value_info("image:0", 1, [1, 8, 8, 3])],
        [helper.make_tensor_value_info("scores:0", 1, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(RANDOM_BIAS, "b")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.feature("IMP-02")
def test_a_graph_and_its_onnx_twin_agree_bit_for_bit(tmp_path: Path) -> None:
    b = GraphBuilder()
    network(b)
    path = tmp_path / "network.pb"
    path.write_bytes(b.bytes)
    models = [load(path), load(twin())]
    x = RANDOM.normal(size=(4, 8, 8, 3)).astype(np.float32)
    settings = config("int8")
    results = []
    for model in models:
        assert [port.name for port in model.inputs] == ["image:0"]
        assert [port.name for port in model.outputs] == ["scores:0"]
        graph = lower(model, calibrate(model, {"image:0": x}, settings), settings)
        port = graph.tensors[graph.inputs[0]]
        assert port.scale is not None
        codes = np.clip(np.rint(x[:1] / port.scale[0]) + port.zero_point, -128, 127).astype(np.int8)
        results.append(graph.run({port.name: codes.reshape(port.shape)}))
    left, right = results
    assert [array.tobytes() for array in left.values()] == [array.tobytes() for array in right.values()]


@pytest.mark.feature("IMP-02")
def test_texts_messages_and_open_batches(tmp_path: Path) -> None:
    b = GraphBuilder()
    network(b)
    text = tmp_path / "network.pbtxt"
    text.write_text(str(b.graph))
    assert load(text, batch=3).outputs[0].shape == (3, 8, 8, 6)
    assert from_graphdef(b.graph).graph.node[0].op_type == "Transpose"


@pytest.mark.feature("IMP-02")
def test_what_cannot_be_read(tmp_path: Path) -> None:
    for name, content, words in (
        ("a.pb", b"\x0a\xff\xff", "not a TensorFlow graph, or a truncated one"),
        ("b.pb", b"certainly not", "not an ONNX model, or a truncated one"),
        ("c.pbtxt", b"node { nam", "not a TensorFlow graph, or a truncated one"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=words):
            load(tmp_path / name)
    b = GraphBuilder()
    b.node("Relu", "r", "nothing")
    with pytest.raises(ModelError, match='node "r" reads "nothing", which does not exist'):
        from_graphdef(b.bytes)
    b.node("Identity", "nothing", "r")
    with pytest.raises(ModelError, match="read each other"):
        from_graphdef(b.bytes)


@pytest.mark.feature("IMP-28")
def test_unsupported_operators_are_listed_at_once() -> None:
    b = GraphBuilder()
    b.input("x", 1, 4)
    b.node("VariableV2", "v")
    b.node("MatMul", "m", "x", "v")
    b.node("Betainc", "e", "m", "m", "m")
    b.constant("c", ROWS)
    b.node("Conv2D", "k", "e", "m", strides=(1, 1, 1, 1), padding="SAME")
    with pytest.raises(UnsupportedModelError) as raised:
        from_graphdef(b.bytes, "net.pb")
    assert str(raised.value) == (
        "net.pb: 3 unsupported nodes:\n"
        '  node "v" (TensorFlow VariableV2): the graph is not frozen: '
        "turn its variables into constants first\n"
        '  node "e" (TensorFlow Betainc): operator is not supported\n'
        '  node "k" (TensorFlow Conv2D): the filter must be constant'
    )


def test_supported_operators_hold_the_common_ones() -> None:
    assert len(supported_operators()) > 100
    assert {"Conv2D", "DepthwiseConv2dNative", "FusedBatchNormV3", "StridedSlice"} <= set(
        supported_operators()
    )


def test_half_precision_and_repeated_constants() -> None:
    """Constants state values once where all are alike, and half floats as the bits of integers."""
    b = GraphBuilder()
    b.input("x", 2, 3)
    node = b.graph.node.add(name="k", op="Const")
    tensor = node.attr.add(key="value").value.tensor
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=3)
    tensor.float_val.append(2.5)
    node = b.graph.node.add(name="h", op="Const")
    tensor = node.attr.add(key="value").value.tensor
    tensor.dtype = 19
    tensor.tensor_shape.dim.add(size=3)
    tensor.half_val.extend(np.array([1, 2, 3], np.float16).view(np.uint16).tolist())
    b.node("Cast", "f", "h", DstT=np.dtype(np.float32))
    b.node("Mul", "m", "x", "k")
    b.node("Add", "z", "m", "f")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run_float(from_graphdef(b.bytes), {"x:0": x})["z:0"], [[3.5, 4.5, 5.5]] * 2)
