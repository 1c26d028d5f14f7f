"""Trains the digits network and writes it with its samples: digits.onnx, calibration.npz, digits.npz.

The data are the 1797 handwritten digits that scikit-learn bundles (8x8 pixels, 0..16). The network is small,
yet has what real ones have: a dense, a depthwise and a pointwise convolution, a residual block, max pooling
and a dense layer. Back-propagation is written out in NumPy; no training framework is needed.

    ./start train

Same versions, same processor: same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.float32]

HERE = Path(__file__).resolve().parent
SEED = 0
EPOCHS = 60
BATCH = 32
HELD_OUT = 500
CALIBRATION = 128


@dataclass(eq=False)
class Parameter:
    """A trained array and its gradient, with the state of Adam (Kingma and Ba, 2015)."""

    value: Array
    gradient: Array = field(init=False)
    mean: Array = field(init=False)
    square: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient, self.mean, self.square = (np.zeros_like(self.value) for _ in range(3))

    def update(self, step: int, rate: float) -> None:
        """One step of Adam; `step` counts from 1."""
        self.mean = 0.9 * self.mean + 0.1 * self.gradient
        self.square = 0.999 * self.square + 0.001 * self.gradient**2
        mean, square = self.mean / (1 - 0.9**step), self.square / (1 - 0.999**step)
        self.value = (self.value - rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


class Layer(Protocol):
    """Maps a batch forwards, and the loss gradient backwards while it collects those of its parameters."""

    def forward(self, x: Array) -> Array:
        """The batch this layer makes of `x`; what `backward` needs of it is kept."""

    def backward(self, gradient: Array) -> Array:
        """From the gradient at the output of the last `forward` to that at its input."""

    def parameters(self) -> dict[str, Parameter]:
        """What is trained, by its name in the network."""


class Convolution:
    """Square, same-padded, stride 1. x[n,c,h,w], weight[o,c/groups,k,k] -> y[n,o,h,w]."""

    def __init__(
        self, rng: np.random.Generator, name: str, inputs: int, outputs: int, kernel: int, groups: int = 1
    ):
        fan_in = inputs // groups * kernel * kernel
        shape = (outputs, inputs // groups, kernel, kernel)
        self.name, self.kernel, self.groups = name, kernel, groups
        self.weight = Parameter((rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32))
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def _windows(self, x: Array) -> Array:
        """Every k x k window of the padded planes, by group: [n, g, c/g, h, w, k, k]."""
        n, c, h, w = x.shape
        pad, k = self.kernel // 2, self.kernel
        planes = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = sliding_window_view(planes, (k, k), axis=(2, 3))
        return windows.reshape(n, self.groups, c // self.groups, h, w, k, k)

    def _grouped(self, weight: Array) -> Array:
        """The weights by group: [g, o/g, c/g, k, k]."""
        return weight.reshape(self.groups, -1, *weight.shape[1:])

    def forward(self, x: Array) -> Array:
        self._seen = self._windows(x)
        y: Array = np.einsum(
            "ngchwij,gocij->ngohw", self._seen, self._grouped(self.weight.value), optimize=True
        )
        return y.reshape(len(x), -1, *x.shape[2:]) + self.bias.value[:, None, None]

    def backward(self, gradient: Array) -> Array:
        n, o, h, w = gradient.shape
        by_group = gradient.reshape(n, self.groups, o // self.groups, h, w)
        weight = np.einsum("ngchwij,ngohw->gocij", self._seen, by_group, optimize=True)
        self.weight.gradient = weight.reshape(self.weight.value.shape)
        self.bias.gradient = gradient.sum((0, 2, 3))
        # The transpose of a same-padded convolution is the same with its kernel turned around.
        turned = self._grouped(self.weight.value)[..., ::-1, ::-1]
        x: Array = np.einsum("ngohwij,gocij->ngchw", self._windows(gradient), turned, optimize=True)
        return x.reshape(n, -1, h, w)

    def parameters(self) -> dict[str, Parameter]:
        return {f"{self.name}.weight": self.weight, f"{self.name}.bias": self.bias}


class Relu:
    """max(x, 0)."""

    def forward(self, x: Array) -> Array:
        self._alive = x > 0
        return x * self._alive

    def backward(self, gradient: Array) -> Array:
        return gradient * self._alive

    def parameters(self) -> dict[str, Parameter]:
        return {}


class MaxPool:
    """2 x 2, stride 2."""

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        tiles = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = tiles.max((3, 5), keepdims=True)
        # A tie shares its gradient.
        self._share = (tiles == y) / (tiles == y).sum((3, 5), keepdims=True, dtype=np.float32)
        return np.asarray(y[:, :, :, 0, :, 0])

    def backward(self, gradient: Array) -> Array:
        spread: Array = gradient[:, :, :, None, :, None] * self._share
        n, c, h, _, w, _ = spread.shape
        return spread.reshape(n, c, 2 * h, 2 * w)

    def parameters(self) -> dict[str, Parameter]:
        return {}


class Dense:
    """Flattens. x[n,...], weight[o,k] -> y[n,o]."""

    def __init__(self, rng: np.random.Generator, name: str, inputs: int, outputs: int):
        self.name = name
        self.weight = Parameter(
            (rng.standard_normal((outputs, inputs)) * np.sqrt(1 / inputs)).astype(np.float32)
        )
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def forward(self, x: Array) -> Array:
        self._shape = x.shape
        self._seen = x.reshape(len(x), -1)
        return np.asarray(self._seen @ self.weight.value.T + self.bias.value)

    def backward(self, gradient: Array) -> Array:
        self.weight.gradient = gradient.T @ self._seen
        self.bias.gradient = gradient.sum(0)
        return np.asarray(gradient @ self.weight.value).reshape(self._shape)

    def parameters(self) -> dict[str, Parameter]:
        return {f"{self.name}.weight": self.weight, f"{self.name}.bias": self.bias}


class Sequence:
    """Layers one after the other."""

    def __init__(self, *layers: Layer):
        self.layers = layers

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, gradient: Array) -> Array:
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        return gradient

    def parameters(self) -> dict[str, Parameter]:
        return {name: value for layer in self.layers for name, value in layer.parameters().items()}


class Residual:
    """x + inner(x)."""

    def __init__(self, inner: Layer):
        self.inner = inner

    def forward(self, x: Array) -> Array:
        return x + self.inner.forward(x)

    def backward(self, gradient: Array) -> Array:
        return gradient + self.inner.backward(gradient)

    def parameters(self) -> dict[str, Parameter]:
        return self.inner.parameters()


def network(rng: np.random.Generator) -> Sequence:
    """The network as `export` writes it: 8x8x1 -> 8x8x16 -> 8x8x32 -> 4x4x32 -> 10."""
    return Sequence(
        Convolution(rng, "stem", 1, 16, 3),
        Relu(),
        Convolution(rng, "depthwise", 16, 16, 3, groups=16),
        Relu(),
        Convolution(rng, "pointwise", 16, 32, 1),
        Relu(),
        MaxPool(),
        Residual(
            Sequence(Convolution(rng, "block1", 32, 32, 3), Relu(), Convolution(rng, "block2", 32, 32, 3))
        ),
        Relu(),
        Dense(rng, "classifier", 4 * 4 * 32, 10),
    )


def train(net: Sequence, images: Array, labels: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Cross-entropy, Adam with a cosine rate, images shifted by up to one pixel."""
    parameters = list(net.parameters().values())
    steps = EPOCHS * (len(images) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        loss = 0.0
        for start in range(0, len(images) - BATCH + 1, BATCH):
            step += 1
            chosen = order[start : start + BATCH]
            down, right = (int(shift) for shift in rng.integers(0, 3, 2))
            padded = np.pad(images[chosen], ((0, 0), (0, 0), (1, 1), (1, 1)))
            logits = net.forward(padded[:, :, down : down + 8, right : right + 8])
            odds = np.exp(logits - logits.max(1, keepdims=True))
            odds /= odds.sum(1, keepdims=True)
            loss -= float(np.log(odds[np.arange(BATCH), labels[chosen]] + 1e-12).mean())
            odds[np.arange(BATCH), labels[chosen]] -= 1
            net.backward(odds / BATCH)
            for parameter in parameters:
                parameter.update(step, rate=2e-3 * 0.5 * (1 + float(np.cos(np.pi * step / steps))))
        print(f"epoch {epoch + 1:2}/{EPOCHS}: loss {loss / (len(images) // BATCH):.4f}")


def export(net: Sequence) -> onnx.ModelProto:
    """The trained network as ONNX: `image` [batch,1,8,8] in 0..1 -> `logits` [batch,10]."""
    nodes = []

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=f"/{output}", **attributes))
        return output

    def convolution(x: str, name: str, kernel: int, groups: int = 1) -> str:
        pads = [kernel // 2] * 4
        inputs = [x, f"{name}.weight", f"{name}.bias"]
        return node("Conv", inputs, name, kernel_shape=[kernel] * 2, pads=pads, group=groups)

    x = node("Relu", [convolution("image", "stem", 3)], "stem_relu")
    x = node("Relu", [convolution(x, "depthwise", 3, groups=16)], "depthwise_relu")
    x = node("Relu", [convolution(x, "pointwise", 1)], "pointwise_relu")
    trunk = node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = node("Relu", [convolution(trunk, "block1", 3)], "block1_relu")
    x = node("Add", [trunk, convolution(x, "block2", 3)], "residual")
    x = node("Flatten", [node("Relu", [x], "residual_relu")], "flatten")
    node("Gemm", [x, "classifier.weight", "classifier.bias"], "logits", transB=1)
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(parameter.value, name) for name, parameter in net.parameters().items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Splits the digits, trains, writes the three files and prints the accuracy on the held-out samples."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - the layers are of use without scikit-learn

    rng = np.random.default_rng(SEED)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    images = (pixels[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    train_images, held_out = images[HELD_OUT:], images[:HELD_OUT]

    net = network(rng)
    train(net, train_images, labels[HELD_OUT:], rng)
    correct = int((net.forward(held_out).argmax(1) == labels[:HELD_OUT]).sum())
    print(f"held out: {correct} of {HELD_OUT} right, {100 * correct / HELD_OUT:.1f} %")

    onnx.save(export(net), HERE / "digits.onnx")
    np.savez_compressed(HERE / "calibration.npz", image=train_images[:CALIBRATION])
    np.savez_compressed(HERE / "digits.npz", image=held_out, labels=labels[:HELD_OUT])


if __name__ == "__main__":
    main()
