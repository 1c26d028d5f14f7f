"""Makes a folder of small files of every kind, with the outputs the version that makes them computes.

Run it once a release, with that release's own Python, before anything changes: what it wrote is never
written again.

    python tests/formats/make.py tests/formats/VERSION
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from models.builder import Builder

TPUFLOW = str(Path(sys.executable).with_name("tpuflow"))


def network() -> Builder:
    """Every unit of the machine: array, pooling, depthwise convolution, tables, elementwise, softmax."""
    b = Builder("every_unit")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 8, pads=(1, 1, 1, 1)))
    y = b.node("Sigmoid", b.conv(x, 8, group=8, pads=(1, 1, 1, 1)))
    z = b.node("MaxPool", b.node("Add", x, y), kernel_shape=[2, 2], strides=[2, 2])
    b.output(b.node("Softmax", b.gemm(b.node("GlobalAveragePool", z), 6), axis=-1))
    return b


def in_segments() -> Builder:
    """A classifier whose three best classes the host finds."""
    b = Builder("top_scores")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 8, 8]), 8, pads=(1, 1, 1, 1)))
    scores = b.node("Sigmoid", b.gemm(b.node("GlobalAveragePool", x), 10))
    b.output(*b.nodes("TopK", [scores, b.integers(3)], 2))
    return b


def tpuflow(*words: str | Path) -> None:
    """Runs the command."""
    subprocess.run([TPUFLOW, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def main(folder: Path) -> None:
    """Writes everything into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(7)
    samples, inputs = folder / "samples.npz", folder / "inputs.npz"
    np.savez_compressed(samples, image=generator.standard_normal((4, 3, 8, 8)).astype(np.float32))
    np.savez_compressed(inputs, image=generator.standard_normal((2, 3, 8, 8)).astype(np.float32))
    machine = subprocess.run(
        [TPUFLOW, "machine", "show", "32x32_fpga"], check=True, capture_output=True, text=True
    )
    toml = folder / "machine.toml"
    toml.write_text(machine.stdout, encoding="utf-8")
    model, parts = folder / "network.onnx", folder / "segments.onnx"
    model.write_bytes(network().model().SerializeToString())
    parts.write_bytes(in_segments().model().SerializeToString())
    ranges, statistics = folder / "network.ranges.json", folder / "network.statistics.json"
    tpuflow("calibrate", model, "--calib", samples, "-o", ranges, "--save-statistics", statistics)
    for dtype in ("int8", "int16", "f16"):
        for level in (1, 5):
            program = folder / f"{dtype}.o{level}.tpu"
            extra = () if dtype == "f16" else ("--ranges", ranges)
            tpuflow(
                "build", model, *extra, "--dtype", dtype, "-O", str(level), "--machine", toml, "-o", program
            )
            if level == 5:
                program.with_suffix(".layers.json").unlink()
                program.with_suffix(".tpuq").unlink()
        graph = folder / f"{dtype}.o1.tpuq"
        graph.rename(folder / f"{dtype}.tpuq")
        (folder / f"{dtype}.o1.layers.json").rename(folder / f"{dtype}.layers.json")
    tpuflow("build", parts, "--calib", samples, "-O", "5", "--machine", toml, "-o", folder / "segments.tpu")
    tpuflow("disasm", folder / "int8.o5.tpu", "-o", folder / "int8.o5.tpuasm")
    tpuflow(
        "raw",
        folder / "int8.o5.tpu",
        "-o",
        folder / "int8.o5.raw.tpu",
        "--codec",
        folder / "int8.o5.codec.json",
    )
    tpuflow(
        "bundle", "combine", folder / "int8.o1.tpu", folder / "f16.o5.tpu", "-o", folder / "combined.bundle"
    )
    tpuflow("bundle", "record", folder / "int16.o5.tpu", "--inputs", inputs, "-o", folder / "recorded.bundle")
    cycles = {}
    for program in sorted(folder.glob("*.tpu")):
        if ".raw" in program.name:
            continue
        outputs, figures = folder / f"{program.stem}.outputs.npz", folder / "figures.json"
        tpuflow("simulate", program, "--inputs", inputs, "--outputs", outputs, "--json", figures)
        cycles[program.name] = json.loads(figures.read_text(encoding="utf-8"))["cycles"]
        figures.unlink()
    (folder / "cycles.json").write_text(json.dumps(cycles, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
