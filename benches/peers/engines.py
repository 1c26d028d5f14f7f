"""The integer graph engine against onnxruntime and LiteRT: the same networks in int8, one run, ratios.

    python benches/peers/engines.py MODEL.onnx ... [--threads 1 2] [--rounds 15] [--isa NAME] [--folder DIR]

Every engine runs in a process of its own; they take turns, a few runs each, so that a disturbance meets
all of them. onnxruntime gets its own static quantisation (QDQ, activations uint8, weights int8), LiteRT the
integers of our graph (`lite.py`). Printed are medians in milliseconds and, beside each peer, our time over
its: of medians, and of the least processor time a run took, which a busy machine disturbs least but which
counts waiting threads, too. What is not installed is named and left out:

    pip install onnxruntime onnx ai-edge-litert
"""

# Engines are imported where they are used, since any of them may be missing.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 3
"""Runs of an engine per turn."""
SAMPLES = 4
"""Random images that ranges are taken from: what is measured is time, not accuracy."""


class Worker:
    """A process of `worker.py`."""

    def __init__(self, engine: str, path: Path, threads: int, isa: str | None) -> None:
        environment = dict(os.environ)
        if isa is not None:
            environment["TPUFLOW_ISA"] = isa
        command = [
            sys.executable,
            str(Path(__file__).with_name("worker.py")),
            engine,
            str(path),
            str(threads),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.engine = engine
        self.wall: list[float] = []
        self.processor: list[float] = []
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine} ended with exit code {self.process.wait()}")
        return line

    def turn(self) -> None:
        """A few runs."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{RUNS}\n")
        self.process.stdin.flush()
        times = json.loads(self._line())
        self.wall += times["wall"]
        self.processor += times["processor"]

    def close(self) -> tuple[float, float]:
        """Ends the process: median seconds and least processor seconds of a run."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        return statistics.median(self.wall), min(self.processor)


def integer_graph(model: Path, folder: Path) -> Path:
    """`model` as an integer graph of tpuflow, int8 throughout."""
    target = folder / f"{model.stem}.graph"
    if _is_fresh(target, model):
        return target
    import tpuflow
    from tpuflow.config import Config, QuantizeConfig
    from tpuflow.io.samples import Samples

    network = tpuflow.load(model)
    ports = network.inputs
    arrays = {port.name: _images(port.shape) for port in ports}
    # No pixels side by side: LiteRT has no form for them, and a processor no columns to fill.
    config = Config(quantize=QuantizeConfig(array_columns=1))
    graph = tpuflow.quantize(network, tpuflow.calibrate(network, Samples.of(arrays, ports)), config)
    graph.save(target)
    return target


def qdq(model: Path, folder: Path) -> Path:
    """`model` as onnxruntime quantises it: static QDQ, activations uint8, weights int8 per channel."""
    target = folder / f"{model.stem}.qdq.onnx"
    if _is_fresh(target, model):
        return target
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = folder / f"{model.stem}.prepared.onnx"
    quant_pre_process(str(model), str(prepared))
    inputs = onnxruntime.InferenceSession(str(prepared), providers=["CPUExecutionProvider"]).get_inputs()

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            arrays = {port.name: _images(tuple(port.shape)) for port in inputs}
            feeds = [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(SAMPLES)]
            self.rows = iter(feeds)

        def get_next(self) -> Any:
            return next(self.rows, None)

    quantize_static(
        str(prepared), str(target), Images(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()
    return target


def lite(graph: Path) -> Path:
    """The integers of a graph as a LiteRT file."""
    target = graph.with_suffix(".tflite")
    if not _is_fresh(target, graph):
        script = Path(__file__).with_name("lite.py")
        subprocess.run([sys.executable, str(script), str(graph), str(target)], check=True)
    return target


def _images(shape: tuple[Any, ...]) -> np.ndarray:
    whole = (SAMPLES, *shape[1:])
    return np.random.default_rng(0).standard_normal(whole).astype(np.float32)


def _is_fresh(target: Path, model: Path) -> bool:
    return target.exists() and target.stat().st_mtime > model.stat().st_mtime


def compare(model: Path, threads: int, arguments: argparse.Namespace) -> None:
    """Prints the line of one network: medians, ratios of medians and of least processor times."""
    folder = Path(arguments.folder)
    files = {"tpuflow": integer_graph(model, folder), "onnxruntime": qdq(model, folder)}
    if arguments.litert:
        files["litert"] = lite(files["tpuflow"])
    workers = [Worker(engine, path, threads, arguments.isa) for engine, path in files.items()]
    for _ in range(arguments.rounds):
        for worker in workers:
            worker.turn()
    times = {worker.engine: worker.close() for worker in workers}
    ours = times.pop("tpuflow")
    cells = [f"{ours[0] * 1e3:8.2f}"]
    for median, least in times.values():
        cells += [f"{median * 1e3:8.2f}", f"{ours[0] / median:6.2f}", f"{ours[1] / least:6.2f}"]
    print(f"{model.stem:<24} {threads:>7} {' '.join(cells)}", flush=True)


def main() -> None:
    """Prints a line per network and number of threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="float networks in ONNX")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15, help=f"turns of {RUNS} runs each")
    parser.add_argument("--isa", help="what TPUFLOW_ISA is set to")
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "tpuflow-peers"))
    arguments = parser.parse_args()
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    arguments.litert = importlib.util.find_spec("ai_edge_litert") is not None
    heads = ["tpuflow", "onnxrt", "ratio", "cpu"] + (["litert", "ratio", "cpu"] if arguments.litert else [])
    if not arguments.litert:
        print("LiteRT is not installed (pip install ai-edge-litert): left out")
    columns = " ".join(f"{head:>{6 if head in ('ratio', 'cpu') else 8}}" for head in heads)
    print(f"{'network (ms)':<24} {'threads':>7} {columns}")
    for model in arguments.models:
        for threads in arguments.threads:
            compare(model, threads, arguments)


if __name__ == "__main__":
    main()
