"""One engine in one process: reads a number of runs per line, answers with the seconds each took.

Engines are kept apart so that none of them disturbs another's threads, and run only when they are asked, so
that the machine belongs to one of them at a time. Threads that have done their work may go on looking for
more for a while, on a processor the next engine needs: an answer is given once they sleep.

    python worker.py tpuflow|onnxruntime|litert FILE THREADS
"""

# Engines are imported where they are used, since any of them may be missing.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module


def tpuflow(path: str, threads: int) -> Callable[[], object]:
    """The integer graph in the interpreter, on random codes."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    from pathlib import Path

    import numpy as np

    from tpuflow._core import Graph

    graph = Graph.load(Path(path))
    graph.prepare()
    tensors = graph.tensors
    generator = np.random.default_rng(1)
    ports = [tensors[number] for number in graph.inputs]
    inputs = {port.name: generator.integers(-128, 128, port.shape).astype(port.dtype) for port in ports}
    return lambda: graph.run(inputs)


def onnxruntime(path: str, threads: int) -> Callable[[], object]:
    """The quantised model in onnxruntime, on random images."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(1)
    inputs = {p.name: generator.standard_normal(p.shape).astype(np.float32) for p in session.get_inputs()}
    return lambda: session.run(None, inputs)


def litert(path: str, threads: int) -> Callable[[], object]:
    """The integers of the graph in LiteRT, on random codes."""
    import numpy as np

    interpreter = import_module("ai_edge_litert.interpreter").Interpreter(path, num_threads=threads)
    interpreter.allocate_tensors()
    generator = np.random.default_rng(1)
    for port in interpreter.get_input_details():
        codes = generator.integers(-128, 128, port["shape"]).astype(port["dtype"])
        interpreter.set_tensor(port["index"], codes)
    invoke: Callable[[], object] = interpreter.invoke
    return invoke


QUIET = 0.02
"""Seconds in which threads that sleep take next to none of the processors' time."""


def settle() -> None:
    """Waits until all threads of this process sleep, a second at most."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(QUIET)
        if time.process_time() - before < QUIET / 10:
            return


def main() -> None:
    """Runs as often as each line of the input says."""
    engine, path, threads = sys.argv[1:]
    run = {"tpuflow": tpuflow, "onnxruntime": onnxruntime, "litert": litert}[engine](path, int(threads))
    for _ in range(3):
        run()
    settle()
    print("ready", flush=True)
    for line in sys.stdin:
        times: dict[str, list[float]] = {"wall": [], "processor": []}
        for _ in range(int(line)):
            wall, processor = time.perf_counter(), time.process_time()
            run()
            times["processor"].append(time.process_time() - processor)
            times["wall"].append(time.perf_counter() - wall)
        settle()
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
