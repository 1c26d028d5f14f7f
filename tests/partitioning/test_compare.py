"""All levels of a network whose segments share tensors, such as a mixture of experts, are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import tpuflow
from partitioning.networks import written
from tpuflow.evaluation.comparison import Pair, compare_levels
from tpuflow.frontend import generate_samples
from tpuflow.io.samples import Samples

EXPERTS = """
 experts (float[1,8,16] x) => (float[1,8,16] y) <int64[1] k = {2}> {
   r = MatMul (x, gate)  p = Softmax <axis = -1> (r)
   best, which = TopK <axis = -1> (p, k)
   zero = Sub (p, p)
   weight = ScatterElements <axis = -1> (zero, which, best)
   a = MatMul (x, first)  b = MatMul (x, second)  c = Relu (a)  d = Tanh (b)
   least = ReduceMin <axes = [2]> (weight)  most = ReduceMax <axes = [2]> (weight)
   e = Mul (c, most)  f = Mul (d, least)
   s = Add (e, f)  t = Add (s, x)
   v, i = TopK <axis = -1, largest = 0> (x, k)
   m = ReduceMean <axes = [2]> (v)
   y = Mul (t, m)
 }"""


def test_a_tensor_read_by_device_and_host_is_the_same_for_both(tmp_path: Path) -> None:
    """The host reads the input after a device segment took it, in codes."""
    source = written(EXPERTS, gate=(16, 4), first=(16, 16), second=(16, 16))
    onnx.checker.check_model(source)
    model = tpuflow.load(source, host=True)
    parts = tpuflow.partition(model)
    host_reads = {name for part in parts.host for name in part.inputs}
    first_device = next(index for index, part in enumerate(parts.segments) if part in parts.device)
    later = {
        name for part in parts.segments[first_device + 1 :] if part in parts.host for name in part.inputs
    }
    assert "x" in host_reads & later & set(parts.device[0].inputs), "read by the device, then by the host"
    feeds = generate_samples(model, 3)
    graph = tpuflow.quantize(parts, tpuflow.calibrate(parts, Samples.of_feeds(feeds, model.inputs)))
    program = tpuflow.compile(graph, machine="128x128_asic", level=1)
    inputs = tmp_path / "x.npz"
    np.savez(inputs, allow_pickle=False, x=np.concatenate([feed["x"] for feed in feeds]))
    found = compare_levels(model, Pair.of(program, graph, "experts"), inputs, count=3)
    assert found.bit_equal is True
    assert found.failures(None) == ""
    # What crosses between segments, the output, and what a segment keeps to itself.
    leaving = {name for part in parts.segments for name in part.outputs}
    compared = {tensor.name for tensor in found.tensors if tensor.equal}
    assert compared > leaving | {"y"}
