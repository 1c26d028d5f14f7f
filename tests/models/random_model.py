"""Random small networks over the operator set: odd channels, strides, dilations, groups, pads, broadcasting.

A network grows by moves. A move takes the newest value and adds a few nodes to it, or declines when its shape
does not allow them; feature maps may also be joined with older values of the same plane. Half of the networks
end in a few moves on tokens (attention, normalisation, dense layers), the others in a classifier or in the
feature map.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from models.builder import Builder

Move = Callable[[Builder, str], str | None]
WINDOW = ("kernel_shape", "dilations", "strides")


def _chance(b: Builder, probability: float) -> bool:
    return bool(b.rng.random() < probability)


def _pick(b: Builder, *choices: int) -> int:
    return int(b.rng.choice(choices))


def _window(b: Builder, x: str, limit: int) -> dict[str, list[int]]:
    """Strides, dilations and a kernel up to `limit` that fits the plane of `x` without padding."""
    plane = b.shape(x)[2:]
    dilations = [_pick(b, 1, 1, 1, 2) for _ in plane]
    kernel = [
        _pick(b, *range(1, min(limit, (size - 1) // dilation + 1) + 1))
        for size, dilation in zip(plane, dilations, strict=True)
    ]
    strides = [_pick(b, 1, 1, 2, 3) if size > 4 else 1 for size in plane]
    return {"kernel_shape": kernel, "dilations": dilations, "strides": strides}


def _pads(b: Builder, kernel: list[int]) -> list[int]:
    """Asymmetric pads, each below its side of the kernel: top, left, bottom, right."""
    return [int(b.rng.integers(0, side)) for side in kernel * 2]


def _convolution(b: Builder, x: str) -> str:
    window = _window(b, x, 5)
    c = b.shape(x)[1]
    group = _pick(b, 1, 1, c, *(g for g in (2, 3, 5) if c % g == 0))
    outputs = group * _pick(b, 1, 2) if group > 1 else int(b.rng.integers(1, 24))
    kernel = window.pop("kernel_shape")
    pads = _pads(b, kernel)
    return b.conv(
        x,
        outputs,
        (kernel[0], kernel[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        bias=_chance(b, 0.7),
        group=group,
        **window,
    )


def _conv_transpose(b: Builder, x: str) -> str | None:
    c, h, w = b.shape(x)[1:]
    if h * w > 100:
        return None
    kernel, stride = [_pick(b, 2, 3, 4) for _ in "hw"], [_pick(b, 1, 2) for _ in "hw"]
    group = _pick(b, 1, 2) if c % 2 == 0 else 1
    outputs = int(b.rng.integers(1, 9))
    fan_in = max(1, c // group * math.prod(kernel) // math.prod(stride))
    inputs = [x, b.weight(c, outputs, *kernel, fan_in=fan_in)]
    if _chance(b, 0.5):
        inputs.append(b.spread(outputs * group))
    pads = [_pick(b, 0, 1) if size > 1 else 0 for size in (h, w)] * 2
    return b.node("ConvTranspose", *inputs, kernel_shape=kernel, strides=stride, pads=pads, group=group)


def _may_round_up(b: Builder, x: str, pads: list[int], window: dict[str, list[int]]) -> bool:
    """Whether no window of ceil mode starts in the padding: there onnx and onnxruntime count differently."""
    return all(
        math.ceil((size + before + after - (kernel - 1) * dilation - 1) / stride) * stride < size + before
        for size, before, after, kernel, dilation, stride in zip(
            b.shape(x)[2:], pads[:2], pads[2:], *(window[key] for key in WINDOW), strict=True
        )
    )


def _pool(b: Builder, x: str) -> str:
    window = _window(b, x, 3)
    pads = _pads(b, window["kernel_shape"])
    if _chance(b, 0.5):
        return b.node("MaxPool", x, pads=pads, ceil_mode=int(_may_round_up(b, x, pads, window)), **window)
    del window["dilations"]
    return b.node("AveragePool", x, pads=pads, count_include_pad=_pick(b, 0, 1), **window)


def _activation(b: Builder, x: str) -> str:
    def clip(x: str) -> str:
        low, high = (b.constant(np.float32(bound)) for bound in (b.rng.uniform(-2, 0), b.rng.uniform(1, 6)))
        return b.node("Clip", x, low, high)

    def prelu(x: str) -> str:
        slopes = (b.shape(x)[1], 1, 1) if len(b.shape(x)) == 4 else (b.shape(x)[-1],)
        return b.node("PRelu", x, b.spread(*slopes, low=0, high=0.5))

    choices: list[Callable[[str], str]] = [
        lambda x: b.node("Relu", x),
        clip,
        prelu,
        b.relu6,
        b.silu,
        b.gelu,
        lambda x: b.node("LeakyRelu", x, alpha=float(b.rng.uniform(0.01, 0.5))),
        lambda x: b.node("Sigmoid", x),
        lambda x: b.node("Tanh", x),
        lambda x: b.node("HardSwish", x),
        lambda x: b.node("HardSigmoid", x),
        lambda x: b.node("Elu", x, alpha=1.0),
        lambda x: b.node("Softplus", x),
    ]
    return choices[b.rng.integers(len(choices))](x)


def _with_constant(b: Builder, x: str) -> str:
    """Arithmetic with a constant that spans any subset of the axes, on either side."""
    shape = [size if _chance(b, 0.5) else 1 for size in b.shape(x)]
    while shape and shape[0] == 1 and _chance(b, 0.5):
        shape = shape[1:]
    operator = str(b.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min"]))
    if operator == "Div":
        return b.node("Div", x, b.spread(*shape, low=0.5, high=2))
    other = b.spread(*shape, low=-1.5, high=1.5)
    return b.node(operator, x, other) if _chance(b, 0.5) else b.node(operator, other, x)


def _gate(b: Builder, x: str) -> str:
    """Squeeze and excitation."""
    mean = b.node("GlobalAveragePool", x)
    return b.node("Mul", x, b.node("Sigmoid", b.conv(mean, b.shape(x)[1], (1, 1))))


def _rearrange(b: Builder, x: str) -> str | None:
    """Pad, Slice, Split with Concat, Resize, depth-space, Gather or channel shuffle."""
    _, c, h, w = b.shape(x)
    choice = int(b.rng.integers(8))
    if choice == 0:
        x = b.node("Pad", x, b.integers(0, 0, *b.rng.integers(0, 3, 2), 0, 0, *b.rng.integers(0, 3, 2)))
        # Never a pool next: onnxruntime folds Pad into it and then refuses pads as large as the kernel.
        return _convolution(b, x) if _chance(b, 0.5) else _activation(b, x)
    if choice == 1 and min(h, w) > 3:
        return b.node("Slice", x, b.integers(1, 0), b.integers(h, w - 1), b.integers(2, 3), b.integers(1, 2))
    if choice == 2 and c > 1:
        cut = int(b.rng.integers(1, c))
        first, second = b.nodes("Split", [x, b.integers(cut, c - cut)], 2, axis=1)
        return b.node("Concat", second, _activation(b, first), axis=1)
    if choice == 3 and h * w < 80:
        if _chance(b, 0.5):
            return b.node("Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
        mode = str(b.rng.choice(["asymmetric", "half_pixel", "align_corners"]))
        sizes = b.integers(1, c, h + _pick(b, 0, 1, h), w + _pick(b, 1, 2, w))
        return b.node("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode=mode)
    if choice == 4 and h % 2 == 0 and w % 2 == 0:
        return b.node("SpaceToDepth", x, blocksize=2)
    if choice == 5 and c % 4 == 0 and h * w < 80:
        return b.node("DepthToSpace", x, blocksize=2, mode=str(b.rng.choice(["DCR", "CRD"])))
    if choice == 6:
        axis = _pick(b, 1, 2, 3)
        return b.node(
            "Gather", x, b.integers(*b.rng.integers(0, b.shape(x)[axis], _pick(b, 2, 5))), axis=axis
        )
    if choice == 7 and c % 2 == 0:
        halves = b.node("Reshape", x, b.integers(1, 2, c // 2, h, w))
        return b.node("Reshape", b.node("Transpose", halves, perm=[0, 2, 1, 3, 4]), b.integers(1, c, h, w))
    return None


def _batch_norm(b: Builder, x: str) -> str:
    return b.batch_norm(x)


PLANE_MOVES: list[Move] = [
    _convolution,
    _convolution,
    _convolution,
    _activation,
    _activation,
    _pool,
    _conv_transpose,
    _with_constant,
    _gate,
    _rearrange,
    _rearrange,
    _batch_norm,
]


def _join(b: Builder, x: str, older: list[str]) -> str | None:
    """Joins `x` with an older value: by Concat on the same plane, by arithmetic on the same shape."""
    plane = [value for value in older if value != x and b.shape(value)[2:] == b.shape(x)[2:]]
    if not plane:
        return None
    other = plane[b.rng.integers(len(plane))]
    if b.shape(other) == b.shape(x) or b.shape(other)[1] == 1:
        return b.node(str(b.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), x, other)
    return b.node("Concat", other, x, axis=1)


def _dense(b: Builder, x: str) -> str:
    return b.linear(x, int(b.rng.integers(2, 30)))


def _layer_norm(b: Builder, x: str) -> str | None:
    # One or two channels normalise to a constant or a sign: nothing to compare.
    return b.layer_norm(x) if b.shape(x)[-1] > 2 else None


def _attention(b: Builder, x: str) -> str:
    width = _pick(b, 3, 8, 11)
    q, k, v = (b.linear(x, width) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    scaled = b.node("Mul", scores, b.constant(np.float32(width**-0.5)))
    return b.node("MatMul", b.node("Softmax", scaled, axis=-1), v)


def _reduce(b: Builder, x: str) -> str | None:
    if b.shape(x)[1] == 1:
        return None
    operator = str(b.rng.choice(["ReduceMean", "ReduceMax", "ReduceMin"]))
    return b.node("Add", x, b.node(operator, x, axes=[_pick(b, 1, 2)], keepdims=1))


TOKEN_MOVES: list[Move] = [_dense, _dense, _layer_norm, _attention, _activation, _with_constant, _reduce]


def _grow(b: Builder, x: str, moves: list[Move], count: int) -> str:
    """Applies `count` moves that do not decline; a feature map may be joined with older ones in between."""
    older = [x]
    while count:
        grown = moves[b.rng.integers(len(moves))](b, x)
        if grown is None:
            continue
        x = grown
        if len(b.shape(x)) == 4 and _chance(b, 0.3):
            x = _join(b, x, older) or x
        older.append(x)
        count -= 1
    return x


def random_model(seed: int, *, moves: int = 7) -> onnx.ModelProto:
    """A network of about `moves` random steps; the same seed gives the same bytes.

    One input `image` [1,c,h,w] with up to 9 channels and planes of 5 to 14, one or two outputs.
    """
    b = Builder(f"random_{seed}", seed)
    c, h, w = int(b.rng.integers(1, 10)), *(int(size) for size in b.rng.integers(5, 15, 2))
    x = _convolution(b, b.input("image", [1, c, h, w]))
    x = _grow(b, x, PLANE_MOVES, max(1, int(b.rng.integers(moves // 2, moves + 1))))
    outputs = []
    kind = int(b.rng.integers(4))
    if kind >= 2:
        if _chance(b, 0.3):
            outputs.append(x)
        c, h, w = b.shape(x)[1:]
        x = b.node("Transpose", b.node("Reshape", x, b.integers(1, c, h * w)), perm=[0, 2, 1])
        x = _grow(b, x, TOKEN_MOVES, max(1, moves // 2))
    elif kind == 1:
        x = b.gemm(x if _chance(b, 0.5) else b.node("GlobalMaxPool", x), int(b.rng.integers(2, 12)))
        if _chance(b, 0.3):
            x = b.node("Softmax", x, axis=-1)
    b.output(*outputs, x)
    return b.model()
