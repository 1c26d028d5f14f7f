"""Small networks the machine can compute in part, each with another thing it cannot do, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.builder import Builder

__all__ = ["NETWORKS", "labeled", "written"]


def written(text: str, opset: int = 17, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """The network of a text in ONNX's syntax, with seeded weights; `text` begins with the graph's name."""
    imports = f'"" : {opset}, "ai.onnx.ml" : 3, "com.example" : 1, "com.microsoft" : 1'
    model: onnx.ModelProto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{text}")
    generator = np.random.default_rng(3)
    for name, shape in weights.items():
        array = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    for node in model.graph.node:
        node.name = node.name or f"/{node.output[0]}"
    return model


def top_scores() -> onnx.ModelProto:
    """A classifier that gives its three best classes."""
    b = Builder("top_scores")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 9, 9]), 8, pads=(1, 1, 1, 1)))
    scores = b.node("Sigmoid", b.gemm(b.node("GlobalAveragePool", x), 10))
    b.output(*b.nodes("TopK", [scores, b.integers(3)], 2))
    return b.model()


def between() -> onnx.ModelProto:
    """Device, host, device: channels sorted by whole numbers between two convolutions; outputs of both."""
    b = Builder("between")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 6, pads=(1, 1, 1, 1)))
    flat = b.node("Reshape", x, b.integers(6, 64))
    means = b.node("Mul", b.node("ReduceMean", flat, axes=[1]), b.constant(np.float32(1000)))
    whole = b.node("Cast", means, to=onnx.TensorProto.INT32)
    _, order = b.nodes("TopK", [whole, b.integers(6)], 2, axis=0)
    ordered = b.node("Gather", x, b.node("Reshape", order, b.integers(6)), axis=1)
    b.output(b.conv(ordered, 5), x)
    return b.model()


def gated() -> onnx.ModelProto:
    """What exceeds its mean passes; where that is, the host lists."""
    b = Builder("gated")
    x = b.conv(b.input("image", [1, 3, 8, 8]), 6, pads=(1, 1, 1, 1))
    above = b.node("Greater", x, b.node("GlobalAveragePool", x))
    quarter = b.node("Mul", x, b.constant(np.array(0.25, np.float32)))
    b.output(b.conv(b.node("Where", above, x, quarter), 5), b.node("NonZero", above))
    return b.model()


def detector() -> onnx.ModelProto:
    """Boxes and scores, suppressed and gathered: as many as there are."""
    return written(
        """
        detector (float[1,3,8,8] image) => (float[N,4] found, float[N] score) <
          int64[1] most = {4}, float[1] overlap = {0.5}, float[1] least = {0.45},
          int64[3] as_boxes = {1, -1, 4}, int64[3] as_scores = {1, 2, -1}, int64[1] last = {2},
          int64[1] axis = {1}, int64[1] zero = {0}, int64[1] end = {3}
        > {
          x = Conv <pads = [1, 1, 1, 1]> (image, w)
          y = Relu (x)
          raw = Conv (y, w_boxes)
          grid = Transpose <perm = [0, 2, 3, 1]> (raw)
          flat = Reshape (grid, as_boxes)
          boxes = Sigmoid (flat)
          logits = Conv (y, w_scores)
          scores_flat = Reshape (logits, as_scores)
          scores = Sigmoid (scores_flat)
          picked = NonMaxSuppression (boxes, scores, most, overlap, least)
          which = Slice (picked, last, end, axis)
          index = Squeeze (which, axis)
          all_boxes = Squeeze (boxes, zero)
          found = Gather (all_boxes, index)
          classes = Squeeze (scores, zero)
          across = Transpose (classes)
          best = ReduceMax <axes = [1], keepdims = 0> (across)
          score = Gather (best, index)
        }
        """,
        w=(8, 3, 3, 3),
        w_boxes=(4, 8, 1, 1),
        w_scores=(2, 8, 1, 1),
    )


def positions() -> onnx.ModelProto:
    """Where an activation is large, and its scaled values there."""
    return written(
        """
        positions (float[1,3,6,6] image) => (int64[M,K] where, float[K] values) <
          float high = {0.3}, int64[1] flat_shape = {-1}, float factor = {2.5}
        > {
          x = Conv (image, w)
          flat = Reshape (x, flat_shape)
          large = Greater (flat, high)
          where = NonZero (large)
          picked = Compress <axis = 0> (flat, large)
          values = Mul (picked, factor)
        }
        """,
        w=(4, 3, 3, 3),
    )


def loop() -> onnx.ModelProto:
    """A loop whose number of rounds the network computes; its body is of an old opset."""
    return written(
        """
        loop (float[1,3,6,6] image) => (float[1,4] total, float[R,1,4] steps) <bool go = {1}> {
          x = Conv (image, w)
          pooled = GlobalAveragePool (x)
          flat = Flatten (pooled)
          largest = ReduceMax <axes = [0, 1], keepdims = 0> (flat)
          size = Abs (largest)
          three = Constant <value_float = 3.0> ()
          bounded = Add (size, three)
          rounds = Cast <to = 7> (bounded)
          total, steps = Loop (rounds, go, flat) <body = body (int64 i, bool on, float[1,4] sum)
            => (bool still, float[1,4] next, float[1,4] out) {
              still = Identity (on)
              half = Constant <value_float = 0.5> ()
              part = Mul (sum, half)
              wide = Unsqueeze <axes = [0]> (part)
              narrow = Squeeze <axes = [0]> (wide)
              next = Add (narrow, flat)
              out = Identity (next)
            }>
        }
        """,
        opset=12,
        w=(4, 3, 3, 3),
    )


def branch() -> onnx.ModelProto:
    """One of two ways, chosen by what the network sees; both read values from outside."""
    return written(
        """
        branch (float[1,3,6,6] image) => (float[1,5] y) <float border = {0.0}> {
          x = Conv (image, w)
          r = Relu (x)
          pooled = GlobalAveragePool (x)
          flat = Flatten (pooled)
          mean = ReduceMean <keepdims = 0> (flat)
          bright = Greater (mean, border)
          chosen = If (bright) <
            then_branch = yes () => (float[1,4] a) { p = GlobalMaxPool (r) a = Flatten (p) },
            else_branch = no () => (float[1,4] b) { b = Neg (flat) }
          >
          y = MatMul (chosen, w_out)
        }
        """,
        w=(4, 3, 3, 3),
        w_out=(4, 5),
    )


def labeled() -> onnx.ModelProto:
    """Words in: the host looks them up, the device embeds and mixes them."""
    return written(
        """
        labelled (string[1,6] words) => (float[1,6,8] y) {
          index = ai.onnx.ml.LabelEncoder <
            keys_strings = ["a", "b", "c"], values_int64s = [0, 1, 2], default_int64 = 3
          > (words)
          x = Gather (table, index)
          h = MatMul (x, w)
          y = Relu (h)
        }
        """,
        table=(4, 8),
        w=(8, 8),
    )


def counted() -> onnx.ModelProto:
    """Integers in, sorted by the host before the device picks rows with them."""
    return written(
        """
        counted (int64[1,5] ids) => (float[1,5,6] y) <int64[1] five = {5}> {
          index, order = TopK (ids, five)
          x = Gather (table, index)
          y = MatMul (x, w)
        }
        """,
        table=(11, 8),
        w=(8, 6),
    )


def vendor() -> onnx.ModelProto:
    """An operator of onnxruntime's own, of which ONNX infers no shape, between two products."""
    return written(
        """
        vendor (float[1,3,6,6] image) => (float[1,5] y) {
          x = Conv (image, w)
          h = com.microsoft.QuickGelu <alpha = 1.5> (x)
          z = Conv (h, v)
          pooled = GlobalAveragePool (z)
          flat = Flatten (pooled)
          y = MatMul (flat, u)
        }
        """,
        w=(4, 3, 3, 3),
        v=(6, 4, 1, 1),
        u=(6, 5),
    )


def sequence() -> onnx.ModelProto:
    """A sequence of tensors passes a turn of the device."""
    return written(
        """
        sequence (float[1,4,6,6] image) => (float[1,4,6,6] y, float[1,5,4,4] z) <
          int64 one = {1}, int64 size = {2}, float hundred = {100}, int64[1] k = {4}
        > {
          hundreds = Mul (image, hundred)
          whole = Cast <to = 6> (hundreds)
          most, order = TopK <axis = 3> (whole, k)
          values = Cast <to = 1> (most)
          parts = SplitToSequence <axis = 1> (image, size)
          h = Conv (values, w)
          z = Conv <pads = [1, 1, 0, 0]> (h, v)
          least, where = TopK <axis = 1, largest = 0> (z, one_k)
          first = SequenceAt (parts, one)
          scaled = Mul (first, least_mean)
          y = Concat <axis = 1> (scaled, scaled)
        }
        """.replace("least_mean", "mean")
        .replace("first = SequenceAt", "mean = ReduceMean <axes = [0, 1, 2, 3]> (least)\n first = SequenceAt")
        .replace("int64[1] k = {4}", "int64[1] k = {4}, int64[1] one_k = {1}"),
        w=(5, 4, 3, 1),
        v=(5, 5, 2, 2),
    )


def half() -> onnx.ModelProto:
    """A network in float16 with a branch that is, too."""
    model = branch()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for attribute in next(node for node in model.graph.node if node.op_type == "If").attribute:
        attribute.g.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
        limit = helper.make_tensor("limit", TensorProto.FLOAT16, [], [0.75])
        name = attribute.g.output[0].name
        attribute.g.node[-1].output[0] = f"{name}/free"
        attribute.g.node.append(helper.make_node("Constant", [], [f"{name}/limit"], value=limit))
        attribute.g.node.append(helper.make_node("Min", [f"{name}/free", f"{name}/limit"], [name]))
    return model


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        top_scores,
        between,
        gated,
        detector,
        positions,
        loop,
        branch,
        counted,
        vendor,
        sequence,
        half,
    )
}


def words(count: int) -> NDArray[np.str_]:
    """Samples of `labelled`."""
    return np.random.default_rng(1).choice(np.array(["a", "b", "c", "x"]), (count, 6))
