"""Networks nobody tuned a schedule for, with seeded random weights, written as ONNX without torch.

    PYTHONPATH=tests python benches/unfamiliar.py FOLDER [NAME ...]
    for each: tpuflow quantize FOLDER/NAME.onnx -o FOLDER/NAME.tpuq
    cargo run --release -p tpuflow-benches --example gap -- FOLDER/*.tpuq

They have the shapes of published networks and what those ask of a schedule: many small products with a
softmax between, chains of small layers, transposed convolutions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from models.builder import Builder


def _transformer(b: Builder, x: str, blocks: int, heads: int) -> str:
    """Pre-norm blocks as exporters write them: one product for q, k and v, cut afterwards."""
    _, tokens, width = b.shape(x)
    depth = width // heads
    for _ in range(blocks):
        joint = b.node(
            "Reshape", b.linear(b.layer_norm(x), 3 * width), b.integers(1, tokens, 3, heads, depth)
        )
        turned = b.node("Transpose", joint, perm=[2, 0, 3, 1, 4])
        q, k, v = (b.node("Gather", turned, b.constant(np.array(index)), axis=0) for index in range(3))
        scaled = b.node("Mul", q, b.constant(np.float32(1 / math.sqrt(depth))))
        scores = b.node("MatMul", scaled, b.node("Transpose", k, perm=[0, 1, 3, 2]))
        mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
        mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.integers(1, tokens, width))
        x = b.node("Add", x, b.linear(mixed, width))
        x = b.node("Add", x, b.linear(b.gelu(b.linear(b.layer_norm(x), 4 * width)), width))
    return b.layer_norm(x)


def deit_tiny() -> onnx.ModelProto:
    """A vision transformer: patches of 16, 197 tokens of 192, twelve blocks of three heads."""
    b = Builder("deit_tiny")
    x = b.conv(b.input("image", [1, 3, 224, 224]), 192, (16, 16), strides=[16, 16])
    x = b.node("Transpose", b.node("Reshape", x, b.integers(1, 192, 196)), perm=[0, 2, 1])
    x = b.node("Add", b.node("Concat", b.spread(1, 1, 192), x, axis=1), b.spread(1, 197, 192))
    x = b.node("Gather", _transformer(b, x, 12, 3), b.constant(np.array(0)), axis=1)
    b.output(b.linear(x, 1000))
    return b.model()


def bert_mini() -> onnx.ModelProto:
    """An encoder of 128 tokens of 256, four blocks of four heads."""
    b = Builder("bert_mini")
    b.output(_transformer(b, b.input("tokens", [1, 128, 256]), 4, 4))
    return b.model()


def speech() -> onnx.ModelProto:
    """An encoder of 1500 positions of 384, as of thirty seconds of speech: two blocks of six heads."""
    b = Builder("speech")
    b.output(_transformer(b, b.input("frames", [1, 1500, 384]), 2, 6))
    return b.model()


def pixels() -> onnx.ModelProto:
    """A block of eight heads over 64 x 64 pixels of 320 channels, as in diffusion networks."""
    b = Builder("pixels")
    b.output(_transformer(b, b.input("pixels", [1, 4096, 320]), 1, 8))
    return b.model()


def document() -> onnx.ModelProto:
    """An encoder of 8192 tokens of 256, one block of four heads."""
    b = Builder("document")
    b.output(_transformer(b, b.input("tokens", [1, 8192, 256]), 1, 4))
    return b.model()


def temporal() -> onnx.ModelProto:
    """Temporal convolutions: seven pairs with doubling dilation and a residual, 128 steps of 32 channels."""
    b = Builder("temporal")
    x = b.conv(b.input("signal", [1, 16, 1, 128]), 32, (1, 1))
    for level in range(7):
        reach = 2 * 2**level
        y = x
        for _ in range(2):
            y = b.node("Relu", b.conv(y, 32, (1, 3), pads=(0, reach, 0, 0), dilations=[1, 2**level]))
        x = b.node("Relu", b.node("Add", x, y))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 10))
    return b.model()


def unet() -> onnx.ModelProto:
    """Two levels down, two up by transposed convolutions, with skips."""
    b = Builder("unet")

    def double(x: str, channels: int) -> str:
        for _ in range(2):
            x = b.node("Relu", b.conv(x, channels, pads=(1, 1, 1, 1)))
        return x

    def up(x: str, channels: int) -> str:
        weight = b.weight(b.shape(x)[1], channels, 2, 2, fan_in=b.shape(x)[1])
        return b.node("ConvTranspose", x, weight, b.spread(channels), kernel_shape=[2, 2], strides=[2, 2])

    one = double(b.input("image", [1, 3, 128, 128]), 16)
    two = double(b.node("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), 32)
    x = double(b.node("MaxPool", two, kernel_shape=[2, 2], strides=[2, 2]), 64)
    x = double(b.node("Concat", two, up(x, 32), axis=1), 32)
    x = double(b.node("Concat", one, up(x, 16), axis=1), 16)
    b.output(b.conv(x, 2, (1, 1)))
    return b.model()


def generator() -> onnx.ModelProto:
    """Noise to an image of 64 x 64 by five transposed convolutions of stride 2."""
    b = Builder("generator")
    x = b.input("noise", [1, 100, 1, 1])
    for channels, strides, pads in ((512, 1, 0), (256, 2, 1), (128, 2, 1), (64, 2, 1), (3, 2, 1)):
        size = b.shape(x)[1]
        weight = b.weight(size, channels, 4, 4, fan_in=4 * size)
        x = b.node(
            "ConvTranspose",
            x,
            weight,
            b.spread(channels),
            kernel_shape=[4, 4],
            strides=[strides] * 2,
            pads=[pads] * 4,
        )
        x = b.node("Tanh" if channels == 3 else "Relu", x)
    b.output(x)
    return b.model()


def lstm() -> onnx.ModelProto:
    """A recurrent layer of 64 over 16 steps of 32 features, and a classifier."""
    b = Builder("lstm")
    x = b.input("steps", [16, 1, 32])
    w, r = b.weight(1, 256, 32, fan_in=64), b.weight(1, 256, 64, fan_in=128)
    _, last, _ = b.nodes("LSTM", [x, w, r, b.spread(1, 512)], 3, hidden_size=64)
    b.output(b.gemm(b.node("Squeeze", last, b.integers(0)), 10))
    return b.model()


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    each.__name__: each
    for each in (deit_tiny, bert_mini, speech, pixels, document, temporal, unet, generator, lstm)
}


def main() -> None:
    """Writes the networks named, or all."""
    folder, *names = sys.argv[1:]
    for name in names or NETWORKS:
        onnx.save(NETWORKS[name](), Path(folder) / f"{name}.onnx")


if __name__ == "__main__":
    main()
