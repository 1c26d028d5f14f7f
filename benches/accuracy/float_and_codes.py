"""What quantisation costs in accuracy: every trained network of the shared material, float beside integers.

    python benches/accuracy/float_and_codes.py [NAME ...] [--dtype int8 int16] [--programs 50] [--json FILE]

Each network is calibrated with default settings on its calibration samples and run, as an integer graph, on
its whole evaluation set; the difference to float is paired. The compiled program then runs on the first
samples and must give the same integers. Prints a markdown table; exit status 1 if a program differs from its
graph in any bit.

The material lies in the folder `TPUFLOW_SHARED` names, else in `shared` beside the repository; see its
README for the networks, their data and the metrics, which its own `evalnets.py` computes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from material import decision, imported, shared_data
from numpy.typing import NDArray

from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, QuantizeConfig
from tpuflow.evaluation.scores import pair
from tpuflow.execution.levels import GraphLevel, ProgramLevel
from tpuflow.frontend import FloatSession, load
from tpuflow.lowering import lower

Array = NDArray[Any]
Outputs = list[list[Array]]


@dataclass(frozen=True)
class Row:
    """A network with one element type.

    Attributes:
        metric: Name of the score.
        floating: Score of the float network.
        integer: Score of the integer graph.
        lost: Samples right in float only; None where a sample is neither right nor wrong.
        won: Samples right in integers only.
        sqnr_db: First output against float, over all samples.
        agreement: Share of samples with the same arg-max (of a detector: the same class); None where a sample
            has no one answer.
        equal: Samples on which program and graph gave the same integers.
        programs: Samples on which the program ran.
        cycles: Of one inference.
        seconds: Of everything.
    """

    name: str
    dtype: str
    metric: str
    samples: int
    floating: float
    integer: float
    lost: int | None
    won: int | None
    sqnr_db: float
    agreement: float | None
    equal: int
    programs: int
    cycles: int
    seconds: float


def measured(nets: Any, folder: Path, name: str, dtype: str, programs: int, level: int) -> Row:
    """Builds and scores one network."""
    start = time.perf_counter()
    model = load(folder / name / "model.onnx")
    port = model.inputs[0]
    config = Config(quantize=QuantizeConfig.model_validate({"dtype": dtype}))
    ranges = calibrate(model, {port.name: nets.load(name, "calib")[0]}, config)
    graph = GraphLevel(lower(model, ranges, config))
    images, labels = nets.load(name, "eval")

    names = [output.name for output in model.outputs]
    session = FloatSession(model.original)
    feeds = [{port.name: image[np.newaxis]} for image in images]
    float_outputs: Outputs = []
    outputs: Outputs = []
    for feed in feeds:
        theirs, ours = session.run(feed), graph.run(feed)
        float_outputs.append([theirs[output] for output in names])
        outputs.append([ours[output] for output in names])
    scores = [nets.metric(name, found, labels, images) for found in (float_outputs, outputs)]
    metric = next(key for key in ("f1_vs_float", *scores[0]) if key in scores[0])
    decide = decision(name, nets)
    lost = won = agreement = None
    if decide is not None:
        floating, integer = decide(float_outputs), decide(outputs)
        agreement = float((floating == integer).mean())
        lost = int(((floating == labels) & (integer != labels)).sum())
        won = int(((floating != labels) & (integer == labels)).sum())
    first = [np.stack([sample[0] for sample in found]) for found in (float_outputs, outputs)]

    program = ProgramLevel(compile_graph(graph.graph, level=level))
    equal = 0
    for feed in feeds[:programs]:
        ours, theirs = graph.compute(feed).codes, program.compute(feed).codes
        equal += all(np.array_equal(ours[output], theirs[output]) for output in names)
    cycles = program.cycles()
    return Row(
        name,
        dtype,
        metric,
        len(images),
        scores[0][metric],
        scores[1][metric],
        lost,
        won,
        pair(first[0], first[1]).sqnr_db,
        agreement,
        equal,
        min(programs, len(feeds)),
        cycles,
        time.perf_counter() - start,
    )


TITLES = (
    "network", "type", "metric", "samples", "float", "integers", "points", "lost / won", "SQNR dB",
    "agreement", "program = graph", "cycles", "seconds",
)  # fmt: skip


def markdown(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def shown(row: Row) -> str:
    """A row as a line of the table."""
    return markdown(
        row.name,
        row.dtype,
        row.metric,
        row.samples,
        f"{row.floating:.1%}",
        f"{row.integer:.1%}",
        f"{100 * (row.integer - row.floating):+.1f}",
        "" if row.lost is None else f"{row.lost} / {row.won}",
        f"{row.sqnr_db:.1f}",
        "" if row.agreement is None else f"{row.agreement:.1%}",
        f"{row.equal} of {row.programs}",
        f"{row.cycles:,}",
        f"{row.seconds:.0f}",
    )


def main() -> None:
    """Measures what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, all by default")
    parser.add_argument("--dtype", nargs="+", choices=("int8", "int16"), default=["int8", "int16"])
    parser.add_argument("--programs", type=int, default=50, metavar="N", help="samples the program runs on")
    parser.add_argument("--level", type=int, choices=(1, 5), default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    folder = shared_data()
    nets = imported(folder / "evalnets.py")
    rows = []
    print(markdown(*TITLES), markdown(*["---"] * len(TITLES)), sep="\n", flush=True)
    for name in asked.names or nets.names():
        for dtype in asked.dtype:
            rows.append(measured(nets, folder, name, dtype, asked.programs, asked.level))
            print(shown(rows[-1]), flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    sys.exit(any(row.equal < row.programs for row in rows))


if __name__ == "__main__":
    main()
