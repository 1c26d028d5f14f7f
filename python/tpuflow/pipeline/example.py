"""A small network to try everything with: its model, samples with labels, and commands that use them.

The task is to say which of eight ways stripes run in a noisy picture. The convolutions are filters for
stripes and seeded random mixtures; the last layer is fitted to seeded samples (linear discriminant analysis),
so the network behaves as a trained one: quantisation costs it something, and accuracy means something.
Everything follows from one seed; fitted weights are rounded to a coarse grid, so that the last bits of a
computer's linear algebra make no other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tpuflow.errors import FileError
from tpuflow.frontend import FloatSession
from tpuflow.io.files import make_folder, publication

__all__ = ["WALK", "write_example"]

Array = NDArray[np.float32]
SEED = 2
WAYS, SIZE, FEATURES = 8, 16, 24
NOISE = 0.9
GRID = 256
"""Fitted weights are multiples of its reciprocal."""

WALK = (
    ("tpuflow check stripes.onnx", "operators and shapes that are not supported, before any work"),
    ("tpuflow build stripes.onnx -O5 --calib calibration.npz -o stripes.tpu", "import to schedule"),
    ("tpuflow simulate stripes.tpu --report report.html", "cycles, utilisation, stalls by cause"),
    ("tpuflow explain stripes.tpu", "the slowest layers, and what would help"),
    ("tpuflow compare stripes.onnx stripes.tpu --inputs calibration.npz", "tensor by tensor"),
    ("tpuflow evaluate stripes.tpu --data stripes.npz --metric top1 --float stripes.onnx", "accuracy"),
    ("tpuflow inspect stripes.tpu", "layers, constants, memory map"),
    ("tpuflow golden stripes.tpu --layer stem --inputs calibration.npz -o vectors", "for a testbench"),
    ("tpuflow alloc buffers.csv --capacity 28672", "the allocator alone"),
)
"""Commands to try, and what each shows."""

BUFFERS = "id,lower,upper,size\n1,0,3,8192\n2,1,5,4096\n3,2,4,12288\n4,3,8,8192\n5,5,9,12288\n6,6,9,4096\n"


def write_example(folder: Path) -> tuple[str, ...]:
    """Writes model, samples, a small instance for the allocator and README.txt, all or nothing.

    Returns:
        Names of the files.

    Raises:
        FileError: The folder holds another file of one of these names, or cannot be written.
    """
    names = ("stripes.onnx", "calibration.npz", "stripes.npz", "buffers.csv", "README.txt")
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise FileError(f"{folder / taken[0]}: is there already: remove it, or name another folder")
    generator = np.random.default_rng(SEED)
    images, labels = pictures(generator, 1024)
    model = network(images, labels)
    calibration, _ = pictures(generator, 64)
    held_out, wanted = pictures(generator, 400)
    make_folder(folder)
    with publication() as files:
        files.stage(folder / names[0]).write_bytes(model.SerializeToString(deterministic=True))
        np.savez(files.stage(folder / names[1]), allow_pickle=False, image=calibration)
        np.savez(files.stage(folder / names[2]), allow_pickle=False, image=held_out, labels=wanted)
        files.stage(folder / names[3]).write_text(BUFFERS, encoding="utf-8")
        files.stage(folder / names[4]).write_text(_readme(), encoding="utf-8")
    return names


def pictures(generator: np.random.Generator, count: int) -> tuple[Array, NDArray[np.int64]]:
    """Pictures `[count, 1, 16, 16]` of stripes in noise, and which of eight ways the stripes run."""
    labels = generator.integers(0, WAYS, count)
    angles = labels * np.pi / WAYS + generator.normal(0, 0.05, count)
    waves = generator.uniform(0.9, 1.3, count)
    phases = generator.uniform(0, 2 * np.pi, count)
    y, x = np.mgrid[:SIZE, :SIZE]
    across = np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y
    stripes = np.cos(waves[:, None, None] * across + phases[:, None, None])
    noisy = 0.5 + 0.25 * (stripes + generator.normal(0, NOISE, stripes.shape))
    return np.clip(noisy, 0, 1).astype(np.float32)[:, None], labels


def network(images: Array, labels: NDArray[np.int64]) -> onnx.ModelProto:
    """The network: convolutions of filters for stripes, and a last layer fitted to samples."""
    weights = _filters(np.random.default_rng(SEED + 1))
    session = FloatSession(_model(weights, "features", [FEATURES]))
    features = session.run({"image": images})["features"]
    dense, bias = _fit_discriminant(features.astype(np.float64), labels)
    return _model({**weights, "dense.weight": dense, "dense.bias": bias}, "logits", [WAYS])


def _filters(generator: np.random.Generator) -> dict[str, Array]:
    """Weights of the convolutions."""
    y, x = np.mgrid[-2:3, -2:3]
    stem = []
    for way in range(WAYS):
        across = np.cos(way * np.pi / WAYS) * x + np.sin(way * np.pi / WAYS) * y
        window = np.exp(-(x**2 + y**2) / 4)
        for wave in (np.cos(1.1 * across), np.sin(1.1 * across)):
            made = window * (wave - (window * wave).sum() / window.sum())
            stem.append(made / np.abs(made).sum() * 4)
    channels = len(stem)

    def normal(*shape: int, spread: float) -> NDArray[np.float64]:
        return generator.normal(0, spread, shape)

    blur = np.outer([1, 2, 1], [1, 2, 1]) / 16
    return {
        name: value.astype(np.float32)
        for name, value in {
            "stem.weight": np.array(stem)[:, None],
            "stem.bias": normal(channels, spread=0.05),
            "depthwise.weight": blur + normal(channels, 1, 3, 3, spread=0.03),
            "pointwise.weight": normal(FEATURES, channels, 1, 1, spread=channels**-0.5),
            "pointwise.bias": normal(FEATURES, spread=0.1),
            "block.weight": normal(FEATURES, FEATURES, 3, 3, spread=0.3 * (9 * FEATURES) ** -0.5),
            "block.bias": normal(FEATURES, spread=0.1),
        }.items()
    }


def _fit_discriminant(features: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[Array, Array]:
    """Linear discriminant analysis: weights `[ways, features]` and biases."""
    means = np.stack([features[labels == way].mean(axis=0) for way in range(WAYS)])
    rest = features - means[labels]
    spread = rest.T @ rest / len(features) + 1e-3 * np.eye(FEATURES)
    weights = np.linalg.solve(spread, means.T).T
    biases = -0.5 * (weights * means).sum(axis=1)
    # Logits of a common size; the ways stay in the same order.
    scale = np.abs(weights).max()
    made = (np.rint(each / scale * 4 * GRID) / GRID for each in (weights, biases - biases.mean()))
    dense, bias = (each.astype(np.float32) for each in made)
    return dense, bias


def _model(weights: dict[str, Array], output: str, shape: Sequence[int]) -> onnx.ModelProto:
    """The network up to its features or its logits."""
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    wide: dict[str, Any] = {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Conv", ["image", "stem.weight", "stem.bias"], "stem", wide),
        ("Relu", ["stem"], "stem_relu", {}),
        ("Conv", ["stem_relu", "depthwise.weight"], "depthwise", {**same, "group": 2 * WAYS}),
        ("Conv", ["depthwise", "pointwise.weight", "pointwise.bias"], "pointwise", {"kernel_shape": [1, 1]}),
        ("Relu", ["pointwise"], "pointwise_relu", {}),
        ("MaxPool", ["pointwise_relu"], "pool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["pool", "block.weight", "block.bias"], "block", same),
        ("Add", ["block", "pool"], "residual", {}),
        ("Relu", ["residual"], "residual_relu", {}),
        ("GlobalAveragePool", ["residual_relu"], "mean", {}),
        ("Flatten", ["mean"], "features", {}),
    ]
    if output == "logits":
        nodes.append(("Gemm", ["features", "dense.weight", "dense.bias"], "logits", {"transB": 1}))
    graph = helper.make_graph(
        [
            helper.make_node(operator, inputs, [made], name=f"/{made}", **attributes)
            for operator, inputs, made, attributes in nodes
        ],
        "stripes",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIZE, SIZE])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *shape])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _readme() -> str:
    commands = "\n\n".join(f"{meaning}:\n  {command}" for command, meaning in WALK)
    return (
        "A small network that says which of eight ways stripes run in a noisy picture.\n\n"
        "stripes.onnx      the network: image [batch, 1, 16, 16], pixels 0 to 1 -> logits [batch, 8]\n"
        "calibration.npz   64 pictures without labels, to find ranges from\n"
        "stripes.npz       400 other pictures with labels, to score with\n"
        "buffers.csv       lifetimes and sizes of six buffers, for the allocator\n\n"
        f"To be tried in this folder, in this order:\n\n{commands}\n"
    )
