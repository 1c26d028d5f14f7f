"""Seconds from samples to a quantised network: `tpuflow build` beside onnxruntime's `quantize_static`.

    python benches/peers/quantizers.py MODEL.onnx:SAMPLES.npz ... [--rounds 5]

Both run as a user starts them, in a process of their own, in turn. `build` is the whole of it: calibration,
equalisation, tuning, correction, warnings, the program of level 1 and its proof; `quantize_static` prepares
the model, calibrates by extrema and writes QDQ with int8 weights per channel. Samples are an array for every
input, `[samples, ...]`, the same for both. Printed are medians of wall seconds and their ratio.

Needs `onnx` and `onnxruntime`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STATIC = """
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

model, samples, folder = sys.argv[1:]
arrays = dict(np.load(samples))
count = len(next(iter(arrays.values())))

class Samples(CalibrationDataReader):
    def __init__(self):
        self.rows = iter({name: array[i : i + 1] for name, array in arrays.items()} for i in range(count))
    def get_next(self):
        return next(self.rows, None)

quant_pre_process(model, folder + "/prepared.onnx")
quantize_static(folder + "/prepared.onnx", folder + "/qdq.onnx", Samples(), quant_format=QuantFormat.QDQ,
                per_channel=True, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)
"""


def seconds(command: list[str]) -> float:
    """Wall seconds of a process.

    Raises:
        SystemExit: It failed.
    """
    start = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} ...: {run.stderr.strip().splitlines()[-1:]}")
    return time.perf_counter() - start


def main() -> None:
    """Times all networks and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="MODEL.onnx:SAMPLES.npz")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ratios = []
    print(f"{'network':24} {'build, s':>9} {'static, s':>9} {'ratio':>6}", flush=True)
    for pair in arguments.networks:
        model, _, samples = pair.rpartition(":")
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "program.tpu")
            build = [sys.executable, "-m", "tpuflow", "build", model, "--calib", samples, "-O1", "-o", out]
            static = [sys.executable, "-c", STATIC, model, samples, folder]
            times = [(seconds(build), seconds(static)) for _ in range(arguments.rounds)]
        ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        ratios.append(ours / theirs)
        name = Path(model).parent.name if Path(model).stem == "model" else Path(model).stem
        print(f"{name:24} {ours:9.2f} {theirs:9.2f} {ours / theirs:6.2f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean of {len(ratios)}: {mean:.2f}")


if __name__ == "__main__":
    main()
