"""Counting cycles against SCALE-Sim: the same convolutions on the same array, one run, one thread each.

    python benches/peers/scale_sim.py

Needs `scalesim` (PyPI) and a numpy it works with: version 3.0.0 takes scalars from arrays of one element,
which numpy refuses since 2.4. Processor seconds; of ours the least of several runs of the finished program.
SCALE-Sim counts fewer things than we do (its memories have no banks and its weights no instructions), so
the two counts of cycles differ: the seconds for a layer are compared, and simulated cycles a second.
"""

from __future__ import annotations

import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tpuflow
from tpuflow.io.samples import Samples

LAYERS = {
    "1x1, 14x14, 1024 to 256": (14, 1, 1024, 256),
    "3x3, 14x14, 256 to 256": (14, 3, 256, 256),
    "1x1, 7x7, 512 to 2048": (7, 1, 512, 2048),
}
"""Of ResNet-50: extent of the image, of the window, channels of operand and result."""

CONFIG = """
[general]
run_name = peer
[architecture_presets]
ArrayHeight : 128
ArrayWidth : 128
IfmapSramSzkB : 6144
FilterSramSzkB : 6144
OfmapSramSzkB : 2048
IfmapOffset : 0
FilterOffset : 10000000
OfmapOffset : 20000000
Dataflow : ws
Bandwidth : 50
ReadRequestBuffer : 32
WriteRequestBuffer : 32
[layout]
IfmapCustomLayout : False
IfmapSRAMBankBandwidth : 10
IfmapSRAMBankNum : 10
IfmapSRAMBankPort : 2
FilterCustomLayout : False
FilterSRAMBankBandwidth : 10
FilterSRAMBankNum : 10
FilterSRAMBankPort : 2
[sparsity]
SparsitySupport : false
SparseRep : ellpack_block
OptimizedMapping : false
BlockSize : 8
RandomNumberGeneratorSeed : 40
[run_presets]
InterfaceBandwidth : USER
UseRamulatorTrace : False
"""

RUNS = 20
"""Runs of ours."""


def write_layer(extent: int, kernel: int, inputs: int, outputs: int, path: Path) -> Path:
    """Writes a convolution as a model."""
    weights = np.random.default_rng(0).standard_normal((outputs, inputs, kernel, kernel)).astype(np.float32)
    shape, window = [1, inputs, extent, extent], [kernel, kernel]
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", kernel_shape=window, pads=[kernel // 2] * 4)
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs, extent, extent])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def ours(extent: int, kernel: int, inputs: int, outputs: int, folder: Path) -> tuple[int, float]:
    """Cycles and seconds of the compiled convolution, cycles alone."""
    model = tpuflow.load(write_layer(extent, kernel, inputs, outputs, folder / "layer.onnx"))
    drawn = np.random.default_rng(1).standard_normal((2, inputs, extent, extent)).astype(np.float32)
    samples = Samples.of({"x": drawn}, model.inputs)
    program = tpuflow.compile(tpuflow.quantize(model, tpuflow.calibrate(model, samples)), level=5)
    least, cycles = float("inf"), 0
    for _ in range(RUNS):
        start = time.process_time()
        cycles = tpuflow.simulate(program, values=False).cycles
        least = min(least, time.process_time() - start)
    return cycles, least


def theirs(extent: int, kernel: int, inputs: int, outputs: int, folder: Path) -> tuple[int, float]:
    """Cycles and seconds of SCALE-Sim; its operands come with their padding."""
    scalesim = import_module("scalesim.scale_sim").scalesim

    padded = extent + kernel // 2 * 2
    files: dict[str, Any] = {
        "config": CONFIG,
        "topology": f"head\nlayer,{padded},{padded},{kernel},{kernel},{inputs},{outputs},1,\n",
        "layout": "head\nlayer," + "1," * 20 + "\n",
    }
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    start = time.process_time()
    paths = {name: str(folder / f"{name}.csv") for name in files}
    simulator = scalesim(save_disk_space=True, verbose=False, input_type_gemm=False, **paths)
    simulator.run_scale(top_path=str(folder))
    seconds = time.process_time() - start
    return int(simulator.runner.single_layer_sim_object_list[0].get_compute_report_items()[0]), seconds


def main() -> None:
    """Prints a line per layer."""
    print(
        f"{'layer':<26} {'cycles':>9} {'ms':>9} {'SCALE-Sim':>9} {'ms':>9} {'seconds':>12} {'cycles/s':>12}"
    )
    for name, layer in LAYERS.items():
        with tempfile.TemporaryDirectory() as folder:
            cycles, seconds = ours(*layer, Path(folder))
            peer_cycles, peer_seconds = theirs(*layer, Path(folder))
        faster = peer_seconds / seconds
        cells = f"{cycles:9} {seconds * 1e3:9.3f} {peer_cycles:9} {peer_seconds * 1e3:9.0f}"
        ratios = f"{faster:7.0f} to 1 {faster * cycles / peer_cycles:7.0f} to 1"
        print(f"{name:<26} {cells} {ratios}", flush=True)


if __name__ == "__main__":
    main()
