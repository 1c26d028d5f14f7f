"""Replays published tilings on the machine of `gemmini.toml` beside cycles measured on an FPGA.

    python benches/gemmini/gemmini_compare.py ROWS.csv [--own N]

One line per model: correlation of ranks and mean relative error, over all rows, over a seeded half of the
layers, and over the other half. `--own N` compiles the N smallest layers at level 5, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from gemmini_replay import ALL, NOTHING, Lacking, Layer, Replay
from gemmini_rows import MACHINE, Row, relative_error, rows, spearman
from onnx import TensorProto, helper, numpy_helper

import tpuflow
from tpuflow.compiler.machine import Machine

MODELS: dict[str, Lacking] = {
    "laws of docs/machine.md": NOTHING,
    "and requests of lines": replace(NOTHING, requests=True),
    "and a second-level cache": replace(NOTHING, requests=True, cache=True),
    "and blocks of pixels": ALL,
    "laws and blocks, no requests": replace(NOTHING, blocks=True),
}


def table(title: str, found: Sequence[Row], columns: dict[str, list[float]], measured: list[float]) -> None:
    """Prints correlation and error of every column, over all rows and by half."""
    print(f"\n{title}, {len(found)} rows\n")
    print("| model | Spearman | error | first half | | second half | | median measured / found |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, values in columns.items():
        cells = []
        for half in (None, 0, 1):
            chosen = [i for i, row in enumerate(found) if half in {None, row.half}]
            pair = [values[i] for i in chosen], [measured[i] for i in chosen]
            cells += [f"{spearman(*pair):.3f}", f"{100 * relative_error(*pair):.1f} %"]
        ratio = median(b / a for a, b in zip(values, measured, strict=True))
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} |")


def replayed(found: Sequence[Row], base: Machine, lacking: Lacking, *, mapped: bool = False) -> list[float]:
    """Cycles of all rows."""
    return [Replay(base, row.layer, row.mapped if mapped else row.auto, lacking).cycles() for row in found]


def convolution(layer: Layer) -> onnx.ModelProto:
    """The layer as a network, with seeded weights and the window inside its input."""
    shape = [layer.K, layer.C, layer.R, layer.S]
    weights = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    size = [(out - 1) * layer.stride + taps for out, taps in ((layer.P, layer.R), (layer.Q, layer.S))]
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[layer.stride] * 2)
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, layer.C, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, layer.K, layer.P, layer.Q])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def own(layer: Layer, machine: Machine) -> int:
    """Cycles of the program of level 5."""
    model = tpuflow.load(convolution(layer))
    size = [(out - 1) * layer.stride + taps for out, taps in ((layer.P, layer.R), (layer.Q, layer.S))]
    samples = {"x": np.random.default_rng(2).standard_normal((1, layer.C, *size), dtype=np.float32)}
    program = tpuflow.compile(tpuflow.quantize(model, samples=samples), machine=machine, level=5)
    return int(tpuflow.simulate(program, samples).cycles)


def own_lines(found: Sequence[Row], base: Machine, count: int) -> None:
    """Prints our programs of the smallest layers beside what was measured."""
    print("\n| layer | accumulators, scratchpad | ideal | level 5 | measured / level 5 | with the mapping |")
    print("|---|--:|--:|--:|--:|--:|")
    seen: set[str] = set()
    for row in sorted(found, key=lambda row: row.layer.ideal):
        if row.name in seen or len(seen) == count:
            continue
        seen.add(row.name)
        cycles = own(row.layer, row.machine(base))
        cells = (
            row.name,
            f"{row.accumulators}, {row.scratchpad}",
            f"{row.layer.ideal // 256}",
            f"{cycles}",
            f"{row.measured / cycles:.2f}",
            f"{row.measured_mapped / cycles:.2f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--own", type=int, default=0, metavar="N")
    chosen = parser.parse_args()
    found = rows(chosen.rows)
    base = Machine.load(MACHINE)
    analytical = {"analytical, with the data": [row.analytical for row in found]}
    columns = {name: replayed(found, base, lacking) for name, lacking in MODELS.items()}
    table("tilings of Gemmini's tiler", found, analytical | columns, [row.measured for row in found])
    columns = {name: replayed(found, base, lacking, mapped=True) for name, lacking in MODELS.items()}
    table("the other mappings", found, analytical | columns, [row.measured_mapped for row in found])
    if chosen.own:
        own_lines(found, base, chosen.own)


if __name__ == "__main__":
    main()
