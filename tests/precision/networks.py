"""A small trained-like network with labels of its own, and trials of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from models.builder import Builder
from tpuflow.calibration import calibrate
from tpuflow.config import Config
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.ptq.precision import Trials

COUNT = 10
Array = npt.NDArray[Any]


def chain(*, loud: str = "") -> onnx.ModelProto:
    """Three convolutions and a dense layer.

    With `loud`, one channel of that convolution is far larger than the others and read by nobody, so that 8
    bits leave little for the channels that matter.
    """
    b = Builder("chain", seed=3)
    x = b.input("image", [1, 3, 8, 8])
    for _ in range(3):
        x = b.node("Relu", b.conv(x, 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 10))
    model = b.model()
    if loud:
        convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
        place = [node.name for node in convolutions].index(loud)
        _change(model, convolutions[place].input[1], lambda w: w[0].__imul__(400))
        behind = convolutions[place + 1 :]
        gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
        _change(model, (behind[0] if behind else gemm).input[1], lambda w: w[:, 0].__imul__(0))
    return model


def _change(model: onnx.ModelProto, name: str, change: Any) -> None:
    for value in model.graph.initializer:
        if value.name == name:
            array = numpy_helper.to_array(value).copy()
            change(array)
            value.CopyFrom(numpy_helper.from_array(array, name))


@cache
def usual(metric: str = "top1", loud: str = "") -> Trials:
    """Trials as configured by default; what they remember changes nothing."""
    return trials(metric=metric, loud=loud)


def images(count: int = COUNT, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def decisions(model: FloatModel, x: Array) -> Array:
    """What the float network says of every image: labels by which it is never wrong."""
    session = FloatSession(model.original)
    return np.array([session.run({"image": row[np.newaxis]})["gemm_8"].argmax() for row in x])


def trials(
    config: dict[str, Any] | None = None, metric: str = "top1", *, loud: str = "", **more: Any
) -> Trials:
    model = load(chain(loud=loud))
    samples = Samples.of({"image": images()}, model.inputs)
    seen = Samples.of({"image": images(seed=2)}, model.inputs)
    evaluator = Evaluator(model, samples, labels=decisions(model, images()), metric_text=metric)
    return Trials(model, Config.parse(config or {}), lambda c: calibrate(model, seen, c), evaluator, **more)
