"""Points of a design space a second beside ZigZag: the same convolutions, one machine, processor seconds.

    python benches/peers/points.py --zigzag /path/of/an/environment/bin/python

The environment needs `zigzag-dse`, `six` and `cerberus` (PyPI). A point is what `tpuflow explore` makes of a
machine: a checked program at level 1, or at level 5 without search, its simulated cycles and its energy.
ZigZag's is the mapping of least latency that its default search finds for its own TPU-like machine, and the
energy of that: an analytical model of one layer without a program, so seconds are compared, not cycles.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

RUNS = 5

WORKER = """
import json, logging, os, sys, time
import zigzag
from zigzag.api import get_hardware_performance_zigzag
logging.disable(logging.CRITICAL)
inputs = os.path.join(os.path.dirname(zigzag.__file__), "inputs")
seconds = []
for path in sys.argv[1:]:
    start = time.process_time()
    get_hardware_performance_zigzag(
        path, f"{inputs}/hardware/tpu_like.yaml", f"{inputs}/mapping/tpu_like.yaml", opt="latency",
        dump_folder=os.path.dirname(path), loma_show_progress_bar=False,
    )
    seconds.append(time.process_time() - start)
print(json.dumps(seconds))
"""
"""Runs in the other environment: a line of JSON, seconds by model."""


def least_seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of the quickest of several runs."""
    found = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def ours(path: Path) -> list[float]:
    """Seconds of a point at level 1, and at level 5 without search."""
    import numpy as np  # noqa: PLC0415 - the other environment need not have ours

    import tpuflow  # noqa: PLC0415
    from tpuflow.compiler.machine import Machine  # noqa: PLC0415
    from tpuflow.explore.measure import Workload, measure_point  # noqa: PLC0415
    from tpuflow.io.samples import Samples  # noqa: PLC0415

    model = tpuflow.load(path)
    shape = (2, *model.inputs[0].shape[1:])
    samples = Samples.of(
        {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}, model.inputs
    )
    graph = path.with_suffix(".tpuq")
    tpuflow.quantize(model, tpuflow.calibrate(model, samples)).save(str(graph))
    workloads, machine = [Workload("layer", graph)], Machine.preset("128x128_asic")
    point = partial(measure_point, machine, workloads, "45nm")
    return [least_seconds(partial(point, level, 0, 0)) for level in (1, 5)]


def main() -> None:
    """Prints a line per layer."""
    parser = argparse.ArgumentParser(description="Points a second beside ZigZag.")
    parser.add_argument("--zigzag", required=True, help="interpreter of an environment with zigzag-dse")
    words = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    layers = import_module("scale_sim")

    with tempfile.TemporaryDirectory() as folder:
        paths = [
            layers.write_layer(*layer, Path(folder) / f"layer{number}.onnx")
            for number, layer in enumerate(layers.LAYERS.values())
        ]
        command = [words.zigzag, "-c", WORKER, *map(str, paths)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        theirs = json.loads(done.stdout.splitlines()[-1])
        print(f"{'layer':<26} {'ZigZag, s':>10} {'-O1, ms':>9} {'-O5, ms':>9} {'points a second':>24}")
        for name, path, seconds in zip(layers.LAYERS, paths, theirs, strict=True):
            own = ours(path)
            ratios = " and ".join(f"{seconds / each:.0f}" for each in own)
            cells = f"{own[0] * 1e3:9.2f} {own[1] * 1e3:9.2f} {ratios + ' to 1':>24}"
            print(f"{name:<26} {seconds:10.2f} {cells}", flush=True)


if __name__ == "__main__":
    main()
