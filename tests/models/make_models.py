"""Tiny ONNX networks for end-to-end tests, by name in `MODELS` or at random from `random_model(seed)`.

Each is a few nodes with the structure of a family of real networks and odd sizes that fit no array evenly.
Weights are seeded and scaled by their fan-in, so that activations stay near 1 at any depth; every model runs
in onnxruntime. `samples` makes inputs for any of them.

    PYTHONPATH=tests python -m models.make_models FOLDER    # writes all of MODELS there
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from models.builder import Builder, samples
from models.random_model import random_model

__all__ = ["MODELS", "Builder", "random_model", "samples"]


def plain() -> onnx.ModelProto:
    """Convolution, batch norm, ReLU, pooling, dense; symbolic batch."""
    b = Builder("plain")
    x = b.node("Relu", b.batch_norm(b.conv(b.input("image", ["batch", 3, 13, 11]), 10, bias=False)))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Relu", b.batch_norm(b.conv(x, 19, pads=(1, 1, 1, 1), strides=[2, 2], bias=False)))
    x = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1], count_include_pad=1)
    b.output(b.gemm(x, 7))
    return b.model()


def depthwise() -> onnx.ModelProto:
    """Depthwise and pointwise convolutions with ReLU6 and a linear bottleneck, as in MobileNet."""
    b = Builder("depthwise")
    x = b.relu6(b.conv(b.input("image", [1, 3, 15, 15]), 9, strides=[2, 2], pads=(0, 0, 1, 1)))
    y = b.relu6(b.conv(x, 21, (1, 1)))
    y = b.relu6(b.conv(y, 21, group=21, pads=(1, 1, 1, 1)))
    x = b.node("Add", x, b.conv(y, 9, (1, 1)))
    x = b.relu6(b.conv(x, 18, (5, 3), group=9, pads=(2, 1, 2, 1), strides=[2, 1]))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 5))
    return b.model()


def residual() -> onnx.ModelProto:
    """Two residual blocks, the second with a strided projection, as in ResNet."""
    b = Builder("residual")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 12, 12]), 16, pads=(1, 1, 1, 1)))
    y = b.conv(b.node("Relu", b.conv(x, 16, pads=(1, 1, 1, 1))), 16, pads=(1, 1, 1, 1))
    x = b.node("Relu", b.node("Add", x, y))
    y = b.node("Relu", b.conv(x, 33, strides=[2, 2], pads=(1, 1, 1, 1)))
    y = b.conv(y, 33, pads=(2, 2, 2, 2), dilations=[2, 2])
    x = b.node("Relu", b.node("Add", b.conv(x, 33, (1, 1), strides=[2, 2]), y))
    b.output(b.gemm(b.node("ReduceMean", x, axes=[2, 3], keepdims=1), 10))
    return b.model()


def fire() -> onnx.ModelProto:
    """Squeeze, two expansions, Concat, and a convolution as classifier, as in SqueezeNet."""
    b = Builder("fire")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 17, 17]), 8, strides=[2, 2]))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    squeezed = b.node("Relu", b.conv(x, 5, (1, 1)))
    wide = b.node("Relu", b.conv(squeezed, 12, pads=(1, 1, 1, 1)))
    x = b.node("Concat", b.node("Relu", b.conv(squeezed, 11, (1, 1))), wide, axis=1)
    x = b.node("GlobalAveragePool", b.node("Relu", b.conv(x, 6, (1, 1))))
    b.output(b.node("Softmax", b.node("Flatten", x), axis=1))
    return b.model()


def attention() -> onnx.ModelProto:
    """A pre-norm transformer block of three heads with GELU and a masked softmax, on 7 tokens."""
    tokens, heads, width = 7, 3, 8
    b = Builder("attention")
    x = b.input("tokens", [1, tokens, heads * width])
    normal = b.layer_norm(x)

    def head_first(projection: str, *permutation: int) -> str:
        split = b.node("Reshape", projection, b.integers(0, tokens, heads, width))
        return b.node("Transpose", split, perm=list(permutation))

    q, v = (head_first(b.linear(normal, heads * width), 0, 2, 1, 3) for _ in range(2))
    scores = b.node("MatMul", q, head_first(b.linear(normal, heads * width), 0, 2, 3, 1))
    scores = b.node("Div", scores, b.constant(np.float32(math.sqrt(width))))
    hidden = np.triu(np.full((tokens, tokens), -10_000, np.float32), 1)
    odds = b.node("Softmax", b.node("Add", scores, b.constant(hidden)), axis=-1)
    mixed = b.node("Transpose", b.node("MatMul", odds, v), perm=[0, 2, 1, 3])
    mixed = b.linear(b.node("Reshape", mixed, b.integers(0, tokens, heads * width)), heads * width)
    x = b.node("Add", x, mixed)
    x = b.node("Add", x, b.linear(b.gelu(b.linear(b.layer_norm(x), 50)), heads * width))
    b.output(b.linear(b.layer_norm(x), 4))
    return b.model()


def squeeze_excite() -> onnx.ModelProto:
    """Channels weighted by a global gate, as EfficientNet (SiLU) and MobileNetV3 (HardSwish) do."""
    b = Builder("squeeze_excite")
    x = b.silu(b.conv(b.input("image", [1, 3, 10, 10]), 14, pads=(1, 1, 1, 1)))
    gate = b.silu(b.conv(b.node("GlobalAveragePool", x), 4, (1, 1)))
    x = b.node("Mul", x, b.node("Sigmoid", b.conv(gate, 14, (1, 1))))
    x = b.node("HardSwish", b.conv(x, 20, (5, 5), group=2, pads=(2, 2, 2, 2), strides=[2, 2]))
    gate = b.node("Relu", b.conv(b.node("ReduceMean", x, axes=[2, 3], keepdims=1), 6, (1, 1)))
    x = b.node("Mul", x, b.node("HardSigmoid", b.conv(gate, 20, (1, 1)), alpha=1 / 6, beta=0.5))
    b.output(b.conv(x, 3, (1, 1)))
    return b.model()


def upsample() -> onnx.ModelProto:
    """A feature pyramid: nearest and linear Resize, joined with the finer level."""
    b = Builder("upsample")
    fine = b.node("Relu", b.conv(b.input("image", [1, 3, 12, 8]), 6, pads=(1, 1, 1, 1)))
    coarse = b.node("Relu", b.conv(fine, 10, strides=[2, 2], pads=(1, 1, 1, 1)))
    twice = b.constant(np.array([1, 1, 2, 2], np.float32))
    near = b.node(
        "Resize",
        coarse,
        "",
        twice,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    joined = b.node("Concat", near, fine, axis=1)
    smooth = b.node("Resize", coarse, "", twice, mode="linear", coordinate_transformation_mode="half_pixel")
    b.output(b.conv(joined, 4, pads=(1, 1, 1, 1)), b.conv(smooth, 5, (1, 1)))
    return b.model()


def transposed() -> onnx.ModelProto:
    """ConvTranspose that doubles the plane, one with output padding and one with groups, as in generators."""
    b = Builder("transposed")
    x = b.node("Relu", b.conv(b.input("latent", [1, 12, 3, 4]), 10, (1, 1)))
    weight = b.weight(10, 6, 4, 4, fan_in=40)
    x = b.node(
        "ConvTranspose", x, weight, b.spread(6), kernel_shape=[4, 4], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    x = b.node("Relu", x)
    weight = b.weight(6, 2, 3, 3, fan_in=8)
    x = b.node(
        "ConvTranspose", x, weight, kernel_shape=[3, 3], strides=[2, 2], output_padding=[1, 0], group=3
    )
    b.output(b.node("Tanh", x))
    return b.model()


def slopes() -> onnx.ModelProto:
    """LeakyRelu, PRelu by channel and PRelu with one slope, as in face recognition networks."""
    b = Builder("slopes")
    x = b.node("LeakyRelu", b.conv(b.input("image", [1, 3, 9, 9]), 8), alpha=0.1)
    x = b.node("PRelu", b.conv(x, 13, pads=(1, 1, 1, 1)), b.spread(13, 1, 1, low=0.05, high=0.4))
    x = b.node("PRelu", b.conv(x, 5), b.spread(1, low=0.25, high=0.25))
    b.output(b.gemm(x, 6))
    return b.model()


def several() -> onnx.ModelProto:
    """Two inputs, three outputs, one output computed from another; Split, Slice, Pad, Gather."""
    b = Builder("several")
    left, right = b.input("left", [1, 6, 5, 7]), b.input("right", [1, 6, 1, 7])
    x = b.node("Sub", b.node("Mul", left, b.spread(6, 1, 1, low=0.5, high=2)), right)
    first, second = b.nodes("Split", [x, b.integers(2, 4)], 2, axis=1)
    second = b.node("Slice", second, b.integers(1, 0), b.integers(4, 7), b.integers(1, 3), b.integers(1, 2))
    padded = b.node("Pad", first, b.integers(0, 0, 0, 1, 0, 0, 1, 0), mode="constant")
    picked = b.node("Gather", padded, b.integers(3, 0, 3), axis=2)
    floored = b.node("Max", picked, b.constant(np.float32(0.1)))
    b.output(picked, floored, b.node("Relu", b.conv(second, 4, (2, 2))))
    return b.model()


def embedding() -> onnx.ModelProto:
    """Token and position embedding by Gather, then dense layers: an integer input."""
    b = Builder("embedding")
    ids = b.input("ids", [1, 9], TensorProto.INT64)
    table = b.constant(b.rng.standard_normal((23, 15)).astype(np.float32), "table")
    x = b.node("Add", b.node("Gather", table, ids, axis=0), b.spread(9, 15))
    x = b.node("Relu", b.linear(b.layer_norm(x), 31))
    b.output(b.linear(x, 23))
    return b.model()


def arithmetic() -> onnx.ModelProto:
    """Broadcasting arithmetic, unary functions, reductions, ArgMax, and moves between depth and space."""
    b = Builder("arithmetic")
    x, row = b.input("plane", [1, 4, 6, 6]), b.input("row", [1, 1, 1, 6])
    x = b.node("Min", b.node("Add", x, row), b.spread(4, 1, 1, low=1, high=2))
    positive = b.node("Add", b.node("Abs", x), b.constant(np.float32(0.5)))
    x = b.node("Div", x, b.node("Sqrt", positive))
    x = b.node("Sub", b.node("Elu", x, alpha=1.0), b.node("Softplus", b.node("Neg", x)))
    x = b.node("SpaceToDepth", x, blocksize=2)
    x = b.node("DepthToSpace", b.conv(x, 12, (1, 1)), blocksize=2, mode="CRD")
    total = b.node("ReduceSum", x, b.integers(2), keepdims=0)
    b.output(b.node("ReduceMax", x, axes=[1], keepdims=1), total, b.node("ArgMax", total, axis=1, keepdims=0))
    return b.model()


def experts() -> onnx.ModelProto:
    """Two mixtures of experts: of one row, two of whose experts are picked, and of more rows than experts."""
    b = Builder("experts")
    rows = b.node("Reshape", b.input("rows", [1, 5, 24]), b.integers(5, 24))
    row = b.node("Slice", rows, b.integers(2), b.integers(3), b.integers(0))
    made = []
    for x in (rows, row):
        count = b.shape(x)[0]
        shares = b.node("Softmax", b.linear(x, 6), axis=-1)
        values, chosen = b.nodes("TopK", [shares, b.integers(2)], 2)
        column = b.node("Reshape", chosen, b.integers(-1, 1))
        repeated = b.node("Expand", b.node("Reshape", x, b.integers(count, 1, 24)), b.integers(count, 2, 24))
        y = b.node("Reshape", repeated, b.integers(-1, 24, 1))
        for inner, outer in ((24, 20), (20, 24)):
            picked = b.node("GatherND", b.weight(6, outer, inner, fan_in=inner), column)
            y = b.node("MatMul", picked, y)
            y = b.node("Relu", y) if outer == 20 else y
        whole = b.node("Reshape", y, b.integers(count, 2, 24))
        weighed = b.node("Mul", whole, b.node("Reshape", values, b.integers(count, 2, 1)))
        made.append(b.node("Add", x, b.node("ReduceSum", weighed, b.integers(1), keepdims=0)))
    b.output(*made)
    return b.model()


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    model.__name__: model
    for model in (
        plain,
        depthwise,
        residual,
        fire,
        attention,
        squeeze_excite,
        upsample,
        transposed,
        slopes,
        several,
        embedding,
        arithmetic,
        experts,
    )
}


def main() -> None:
    """Writes every named model into the folder given."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        onnx.save(make(), folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
