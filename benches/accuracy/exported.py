"""How far exported ONNX is from its graph: outputs of `tpuflow export` in onnxruntime, in steps of the graph.

    python benches/accuracy/exported.py [NAME ...] [--qdq-only] [--calibration 16] [--samples 20]

Every network is quantised as `tpuflow build` does without a configuration, with outputs in 8 and in 16 bits.
Prints a markdown table: the share of output values that are the graph's, one step and more away, and the
seconds one sample takes in onnxruntime on one thread.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnxruntime
from material import Network, shared_data

from tpuflow.calibration import calibrate
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel
from tpuflow.export import quantized_onnx, scales
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.ptq import better_equalized, correct_output_bias


def session(content: bytes) -> onnxruntime.InferenceSession:
    """A session on one thread, with onnxruntime's integer kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def apart(network: Network, output: str, calibration: int, samples: int, *, exact: bool) -> tuple[str, float]:
    """Shares of steps as a cell of the table, and seconds per sample."""
    config = Config.parse({"quantize": {"output_dtype": output}})
    chosen = Samples.of({network.port: network.calibration[:calibration]}, network.model.inputs)
    model = better_equalized(network.model, chosen, config)
    graph = lower(model, correct_output_bias(model, calibrate(model, chosen, config), chosen, config), config)
    exported = session(quantized_onnx(network.model, graph, exact=exact).SerializeToString())
    level, steps, seconds = GraphLevel(graph), scales(graph)["outputs"], 0.0
    found = []
    for image in network.images[:samples]:
        feed = {network.port: image[np.newaxis]}
        ours = level.run(feed)
        started = time.perf_counter()
        theirs = exported.run(network.outputs, feed)
        seconds += time.perf_counter() - started
        for name, array in zip(network.outputs, theirs, strict=True):
            found.append(np.abs(np.rint((array - ours[name]) / steps[name]["scale"])).ravel())
    every = np.concatenate(found)
    shares = [(every == 0).mean(), (every == 1).mean(), (every > 1).mean()]
    shown = " / ".join(f"{share:.2%}" if 0 < share < 1 else f"{share:.0%}" for share in shares)
    return shown, seconds / samples


def main() -> None:
    """Measures what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, all by default")
    parser.add_argument("--qdq-only", action="store_true", help="the model's operators and quantisers alone")
    parser.add_argument("--calibration", type=int, default=16, help="calibration samples")
    parser.add_argument("--samples", type=int, default=20, help="evaluation samples")
    given = parser.parse_args()
    folder = shared_data()
    names = given.names or sorted(path.parent.name for path in folder.glob("*/model.onnx"))
    print("| network | 8 bits: 0 / 1 / more | 16 bits: 0 / 1 / more | ms |")
    print("| --- | --- | --- | --- |")
    for name in names:
        network = Network(folder, name, floats=False)
        cells = [
            apart(network, output, given.calibration, given.samples, exact=not given.qdq_only)
            for output in ("int8", "int16")
        ]
        print(f"| {name} | {cells[0][0]} | {cells[1][0]} | {1000 * cells[0][1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
