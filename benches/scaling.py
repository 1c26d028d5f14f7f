"""How the time of every stage grows with the number of nodes.

    python benches/scaling.py [--nodes 1000 10000 100000] [--schedule 10000] [--shape chain grid] [--passes]

A chain is nodes one after the other; a grid is nodes that each add what two neighbours before them give, with
as many values alive as the grid is wide; a star is nodes that all read one value; concatenations each put one
value behind all before it; moves turn what they are given round and round, with an activation now and then.
They mix operators that normalisation leaves alone with ones it must fold or drop. Prints processor seconds
per stage and, between two sizes, the exponent: 1 is linear; n log n shows as a little more than 1. `--passes`
breaks normalisation down by its stages. The schedule (level 1, with its proof) is timed up to `--schedule`
nodes.

Exit status 1 if an exponent between the two largest sizes is above 1.3 where the stage takes over a second.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from tpuflow.calibration import Range, Ranges
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config
from tpuflow.frontend import load
from tpuflow.frontend import normalize as normalizing
from tpuflow.lowering import lower

CHANNELS = 4
SIZE = 4
WORST_EXPONENT = 1.3
WORTH_FITTING_SECONDS = 1.0


class Builder:
    """Nodes and constants of a model in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node and returns its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name

    def constant(self, *shape: int) -> str:
        """Adds a constant of small normal numbers and returns its name."""
        name = f"c{len(self.constants)}"
        values = self._generator.standard_normal(shape, dtype=np.float32) / CHANNELS
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def model(self, output: str) -> onnx.ModelProto:
        """The whole model, from `x` to `output`."""
        shape = (1, CHANNELS, SIZE, SIZE)
        graph = helper.make_graph(
            self.nodes,
            "scaling",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(nodes: int) -> onnx.ModelProto:
    """Convolution, scale to be folded, activation, transposes to be cancelled; and again."""
    builder, x = Builder(), "x"
    while len(builder.nodes) < nodes:
        x = builder.node("Conv", x, builder.constant(CHANNELS, CHANNELS, 1, 1), kernel_shape=[1, 1])
        x = builder.node("Mul", x, builder.constant(CHANNELS, 1, 1))
        x = builder.node("Relu", x)
        x = builder.node("Transpose", x, perm=[0, 2, 3, 1])
        x = builder.node("Sigmoid", x)
        x = builder.node("Transpose", x, perm=[0, 3, 1, 2])
    return builder.model(x)


def grid(nodes: int) -> onnx.ModelProto:
    """A square of additions and activations, each node fed by its left and its upper neighbour."""
    builder = Builder()
    width = max(1, math.isqrt(nodes // 2))
    row = ["x"] * width
    for _ in range(width):
        left = row[0]
        for column in range(width):
            left = builder.node("Relu", builder.node("Add", left, row[column]))
            row[column] = left
    return builder.model(row[-1])


def star(nodes: int) -> onnx.ModelProto:
    """Convolutions that all read the same value and the same bias, scaled and joined in the end."""
    builder = Builder()
    x, bias = builder.node("Relu", "x"), builder.constant(CHANNELS)
    rays = []
    while len(builder.nodes) < nodes:
        ray = builder.node("Conv", x, builder.constant(CHANNELS, CHANNELS, 1, 1), bias, kernel_shape=[1, 1])
        rays.append(builder.node("Mul", ray, builder.constant(CHANNELS, 1, 1)))
    return builder.model(builder.node("Concat", *rays, axis=2))


def concatenations(nodes: int) -> onnx.ModelProto:
    """Each puts the same channels behind what the one before it gave, and elements grow as a square."""
    builder = Builder()
    x = row = builder.node("Relu", "x")
    while len(builder.nodes) < nodes:
        row = builder.node("Concat", row, x, axis=1)
    return builder.model(row)


def moves(nodes: int) -> onnx.ModelProto:
    """Transposes that do not cancel, with activations between some of them."""
    builder, x = Builder(), "x"
    while len(builder.nodes) < nodes:
        x = builder.node("Transpose", x, perm=[0, 2, 3, 1])
        x = builder.node("Relu", x)
        x = builder.node("Transpose", x, perm=[0, 1, 3, 2])
        x = builder.node("Sigmoid", x)
    return builder.model(x)


SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "grid": grid,
    "star": star,
    "concatenations": concatenations,
    "moves": moves,
}


def normalized_by_stage(model: onnx.ModelProto, seconds: dict[str, float]) -> None:
    """Normalises a copy and adds up the seconds of every stage."""
    stages = dict(normalizing.STAGES)

    def timed(name: str, stage: Callable[[ir.Model], bool]) -> Callable[[ir.Model], bool]:
        def run(target: ir.Model) -> bool:
            start = time.process_time()
            changed = stage(target)
            seconds[f"  {name}"] = seconds.get(f"  {name}", 0.0) + time.process_time() - start
            return changed

        return run

    try:
        normalizing.STAGES = {name: timed(name, stage) for name, stage in stages.items()}
        load(model)
    finally:
        normalizing.STAGES = stages


def measured(shape: str, nodes: int, schedule_limit: int, *, passes: bool) -> dict[str, float]:
    """Seconds by stage."""
    model = SHAPES[shape](nodes)
    seconds: dict[str, float] = {}

    start = time.process_time()
    loaded = load(model)
    seconds["import, normalise"] = time.process_time() - start
    if passes:
        normalized_by_stage(model, seconds)

    values = [*loaded.model.graph.inputs, *(output for node in loaded.model.graph for output in node.outputs)]
    ranges = Ranges({value.name: Range(-4.0, 4.0) for value in values if value.name}, 1, "given")
    start = time.process_time()
    graph = lower(loaded.model, ranges, Config())
    seconds["quantise"] = time.process_time() - start

    if nodes <= schedule_limit:
        start = time.process_time()
        compile_graph(graph, level=1)
        seconds["schedule, check"] = time.process_time() - start
    return seconds


def main() -> None:
    """Measures what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument(
        "--schedule", type=int, default=10_000, metavar="N", help="largest network to schedule"
    )
    parser.add_argument("--shape", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--passes", action="store_true", help="break normalisation down")
    asked = parser.parse_args()
    bad = False
    print("| network | stage | nodes | seconds | exponent |\n| --- | --- | ---: | ---: | ---: |", flush=True)
    for shape in asked.shape:
        before: dict[str, float] = {}
        for index, nodes in enumerate(asked.nodes):
            found = measured(shape, nodes, asked.schedule, passes=asked.passes)
            for stage, seconds in found.items():
                exponent = ""
                if stage in before:
                    growth = math.log(nodes / asked.nodes[index - 1])
                    value = math.log(seconds / before[stage]) / growth
                    exponent = f"{value:.2f}"
                    last = index == len(asked.nodes) - 1 or (
                        stage.startswith("schedule") and nodes == asked.schedule
                    )
                    bad |= last and value > WORST_EXPONENT and seconds > WORTH_FITTING_SECONDS
                print(f"| {shape} | {stage} | {nodes:,} | {seconds:.2f} | {exponent} |", flush=True)
            before = found
    sys.exit(bad)


if __name__ == "__main__":
    main()
