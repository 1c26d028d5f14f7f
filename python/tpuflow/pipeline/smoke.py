"""A quick look at whether everything works here: a tiny network through every stage, in a few seconds.

It is made on the spot, calibrated, quantised, compiled at both levels, simulated, run on a device and raw;
every step must agree with the one before in every bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.errors import VerificationError
from tpuflow.evaluation.similarity import cosine
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatModel, FloatSession, generated, load
from tpuflow.lowering import lower
from tpuflow.runtime import Device, convert_to_raw

__all__ = ["SMALL", "smoke", "tiny_model"]

SMALL = 0.98
"""Least cosine of integers and floats."""


def tiny_model() -> onnx.ModelProto:
    """A convolution, a depthwise one, an addition, pooling and a product: every computing unit once."""
    generator = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        fan_in = int(np.prod(shape[1:]))
        return numpy_helper.from_array(
            (generator.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32), name
        )

    constants = [weights("w1", 16, 3, 3, 3), weights("w2", 16, 1, 3, 3), weights("w3", 16, 16, 1, 1)]
    constants += [weights("w4", 10, 16), weights("b4", 10)]
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], name="conv1", **same),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="depthwise", group=16, **same),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], name="pointwise", kernel_shape=[1, 1]),
        helper.make_node("Add", ["c3", "r1"], ["sum"], name="add"),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"], name="pool"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w4", "b4"], ["logits"], name="dense", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "smoke",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def smoke(machine: str = "128x128_asic", say: Callable[[str], None] | None = None) -> None:
    """Runs it.

    Args:
        machine: Preset or TOML file.
        say: Told after every step what was found.

    Raises:
        VerificationError: Two steps that must agree do not.
        TpuflowError: A step cannot do its work.
    """
    say = say or (lambda _: None)
    model = load(tiny_model())
    samples = generated(model, 8, 0)
    say(f"import      {len(model.model.graph)} nodes")
    ranges = calibrate(model, samples)
    graph = lower(model, ranges)
    say(f"quantise    {len(ranges.tensors)} ranges, {len(graph.layers)} layers")
    feed = next(samples.batches()).arrays
    expected = GraphLevel(graph).run(feed)["logits"]
    closeness = cosine(_float(model, feed), expected)
    _require(closeness >= SMALL, f"integers and floats have a cosine of {closeness:.3f} only")
    say(f"interpret   cosine to floats {closeness:.4f}")
    programs = {level: compile_graph(graph, machine, level, strict=True) for level in (1, 5)}
    for level, program in programs.items():
        run = simulate(program, feed)
        _equal(run.outputs["logits"], expected, f"the program of -O{level} and the graph")
        say(f"simulate    -O{level}: {run.cycles:,} cycles, every bit as the graph's")
    with tempfile.TemporaryDirectory() as folder:
        path, raw = Path(folder) / "smoke.tpu", Path(folder) / "smoke.raw.tpu"
        programs[5].save(path)
        codec = convert_to_raw(path, raw)
        with Device.open(machine) as device:
            with device.load(path) as loaded, loaded.inference() as inference:
                _equal(inference.sync(feed)["logits"], expected, "the device and the graph")
            with device.load(raw) as loaded, loaded.inference() as inference:
                found = codec.decode(inference.sync(codec.encode(feed)))["logits"]
                _equal(found, expected, "raw mode and the graph")
    say(f"device      {Device.open(machine).info.name}: every bit as the graph's, raw mode too")


def _float(model: FloatModel, feed: dict[str, NDArray[Any]]) -> NDArray[Any]:
    return FloatSession(model.origin).run(feed)["logits"]


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - the condition itself
    if not condition:
        raise VerificationError(f"smoke test: {what}")


def _equal(found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    _require(found.tobytes() == wanted.tobytes(), f"{what} differ")
