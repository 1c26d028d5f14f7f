"""The main job on the digits network: build, simulate 500 held-out samples, compare with float.

    ./start demo

Every step is a command of `tpuflow`, printed as it would be typed; what this file adds is the reading of the
results. All output lies in examples/digits/out.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
SHOWN = 5
SHADES = " .:-=+*#@"


def tpuflow(*words: str | Path) -> None:
    """Prints a `tpuflow` command as it would be typed here and runs it; where it fails, the demo ends."""
    here = Path.cwd()
    typed = [
        str(word.relative_to(here)) if isinstance(word, Path) and word.is_relative_to(here) else str(word)
        for word in words
    ]
    print(f"\n$ tpuflow {shlex.join(typed)}", flush=True)
    status = subprocess.run([Path(sys.executable).with_name("tpuflow"), *typed], check=False).returncode
    if status:
        sys.exit(status)


def pictures(images: NDArray[np.float32]) -> list[str]:
    """Images [n,1,8,8] in 0..1 beside each other, one line of text per row of pixels."""
    codes = np.rint(images[:, 0] * (len(SHADES) - 1)).astype(int)
    lines = (("".join(SHADES[code] * 2 for code in row) for row in line) for line in codes.swapaxes(0, 1))
    return ["  ".join(line).rstrip() for line in lines]


def main() -> None:
    """Runs the commands, then prints predictions, paired accuracy, cycles and where the report lies."""
    OUT.mkdir(exist_ok=True)
    with np.load(HERE / "digits.npz") as samples:
        images, labels = samples["image"], samples["labels"]
    np.savez(OUT / "inputs.npz", image=images)

    for level in (1, 5):
        program, outputs = OUT / f"digits_o{level}.tpu", OUT / f"outputs_o{level}.npz"
        figures = OUT / f"simulate_o{level}.json"
        calibration = HERE / "calibration.npz"
        tpuflow("build", HERE / "digits.onnx", f"-O{level}", "--calib", calibration, "-o", program)
        report = ("--report", OUT / "report.html") if level == 5 else ()
        simulate = ("simulate", program, "--inputs", OUT / "inputs.npz", "--outputs", outputs)
        tpuflow(*simulate, "--json", figures, *report)

    with np.load(OUT / "outputs_o1.npz") as first, np.load(OUT / "outputs_o5.npz") as second:
        if not np.array_equal(first["logits"], second["logits"]):
            sys.exit("the programs of -O1 and -O5 disagree: this is a defect of tpuflow")
        predicted = second["logits"].argmax(1)
    (logits,) = ort.InferenceSession(HERE / "digits.onnx").run(["logits"], {"image": images})
    floating = np.asarray(logits).argmax(1)

    print(f"\n{SHOWN} of the {len(labels)} samples, none of them seen in training\n")
    shown = [int(np.flatnonzero(labels == digit)[0]) for digit in range(SHOWN)]
    print("\n".join(pictures(images[shown])))
    for name, row in (("label", labels), ("float", floating), ("tpu", predicted)):
        print("  ".join(f"{name:>7} {digit!s:<8}" for digit in row[shown]).rstrip())

    right, right_float = int((predicted == labels).sum()), int((floating == labels).sum())
    lost = int(((floating == labels) & (predicted != labels)).sum())
    won = int(((floating != labels) & (predicted == labels)).sum())
    print(f"\naccuracy  float {right_float / len(labels):.1%}, tpu {right / len(labels):.1%}", end=" ")
    print(f"({lost} right in float only, {won} right on the tpu only)")
    cycles = [json.loads((OUT / f"simulate_o{level}.json").read_text())["cycles"] for level in (1, 5)]
    print(f"cycles    -O1 {cycles[0]:,}, -O5 {cycles[1]:,}: {cycles[0] / cycles[1]:.2f} times faster")
    print(f"report    {OUT / 'report.html'}")


if __name__ == "__main__":
    main()
