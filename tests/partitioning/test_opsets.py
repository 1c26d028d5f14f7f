"""Host segments are written at an opset that has their nodes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tpuflow
from partitioning.networks import written
from tpuflow.frontend import FloatSession, generate_samples
from tpuflow.frontend.rewrites.opset import TARGET
from tpuflow.io.samples import Samples

CACHE = """
 cache (float[1,2,8,3] past, float[1,2,1,3] x, int64[1] at) => (float[1,2,8,4] y) {
   s = Sigmoid (x)  u = Mul (x, s)
   c = TensorScatter <axis = 2> (past, u, at)
   y = MatMul (c, w)
 }"""
BRANCH = """
 branch (float[1,2,8,3] past, float[1,2,1,3] x, int64[1] at, bool on) => (float[1,2,8,4] y) {
   c = If (on) <
     then_branch = yes () => (float[1,2,8,3] t) { t = TensorScatter <axis = 2> (past, x, at) },
     else_branch = no () => (float[1,2,8,3] e) { e = Relu (past) }
   >
   y = MatMul (c, w)
 }"""


@pytest.mark.parametrize("text", [CACHE, BRANCH], ids=["node", "body"])
def test_operators_that_came_after_the_usual_opset_run_on_the_host(text: str) -> None:
    source = written(text, opset=25, w=(3, 4))
    model = tpuflow.load(source, host=True)
    assert model.model.graph.opset_imports[""] == 24, "the oldest that has TensorScatter"
    parts = tpuflow.partition(model)
    assert [onnx.ModelProto.FromString(part.model).opset_import[0].version for part in parts.host] == [24]
    feeds = generate_samples(model, 2)
    for feed in feeds:
        feed["at"] = np.array([5], np.int64)
    samples = Samples.of_feeds(feeds, model.inputs)
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, samples))
    found = tpuflow.simulate(tpuflow.compile(graph, machine="128x128_asic", level=1), samples).outputs["y"]
    true = np.concatenate([FloatSession(source).run(feed)["y"] for feed in feeds])
    assert np.abs(found.reshape(true.shape) - true).max() < 0.05 * np.abs(true).max()


def test_a_model_that_needs_no_later_opset_keeps_the_usual_one() -> None:
    text = "g (float[1,3,4,4] x) => (int64[M,N] n) { y = Sigmoid (x)  z = Mul (x, y)  n = NonZero (z) }"
    assert tpuflow.load(written(text, opset=25), host=True).model.graph.opset_imports[""] == TARGET
