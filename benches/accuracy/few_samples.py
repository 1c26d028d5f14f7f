"""Output SQNR of networks calibrated with few samples, beside onnxruntime with the same samples.

    nice python benches/accuracy/few_samples.py [NAME ...] [--results FILE.jsonl] [--page FILE.md]

Every network is calibrated with 1, 2, 4, 8, 16 and 32 of its calibration samples, drawn five times by a seed,
and evaluated on evaluation samples: by `default` (`tpuflow.quantize` with samples), by onnxruntime's
`quantize_static` with MinMax and, where asked for, by `search`. Each run is a line of the results file as
soon as it is done; a run whose line stands there is not repeated, so the script goes on where it was ended.

What is asked for, and stated below the tables: the mean of the draws at most 0.5 dB below onnxruntime's, no
draw more than 1.5 dB below; from 8 samples on the evaluation figure at most 2 dB below the lower end of the
interval that the build states in at least 90 % of the runs; with 32 samples intervals at most 4 dB wide.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from material import Array, Network, shared_data
from methods import METHODS, Forward

from tpuflow.execution.levels import GraphLevel
from tpuflow.io.samples import Samples
from tpuflow.partitioning import device_networks
from tpuflow.ptq import CalibrationData, Recipe, search

NAMES = (
    "kws_dscnn",
    "lenet5_mnist",
    "resnet8_cifar10",
    "mobilenetv2_cifar10",
    "vit_mnist",
    "ultraface_rfb320",
    "squeezenet1_1",
    "fastestdet",
)
"""Those that onnxruntime's quantiser takes with its default options."""

PEER = "onnxruntime-minmax"
COUNTS = (1, 2, 4, 8, 16, 32)
MEAN_DB, DRAW_DB, BELOW_DB, WIDTH_DB = 0.5, 1.5, 2.0, 4.0
"""The figures asked for."""

Run = dict[str, Any]
Key = tuple[str, str, int, int, int]


def key_of(run: Run) -> Key:
    """What tells one run from another."""
    return run["network"], run["method"], run["samples"], run["draw"], run["scored"]


def drawn(calibration: Array, count: int, draw: int) -> Array:
    """So many of the calibration samples, another choice for every draw."""
    generator = np.random.default_rng([count, draw])
    return calibration[np.sort(generator.choice(len(calibration), count, replace=False))]


def ours(network: Network) -> tuple[Forward, dict[str, Any]]:
    """The whole recipe, and the interval it states for the first output."""
    recipe = Recipe()
    data = CalibrationData(Samples.of({network.port: network.calibration}, network.model.inputs))
    state = recipe.calibrate(network.model, data)
    graph = recipe.graph(state)
    stated = None if state.estimate is None else state.estimate.outputs.get(network.outputs[0])
    return GraphLevel(device_networks(graph)[0]).run, {"interval": stated and [stated.low_db, stated.high_db]}


def found_by_search(network: Network) -> tuple[Forward, dict[str, Any]]:
    """What `tpuflow search` finds, and the interval it states for the first output."""
    samples = Samples.of({network.port: network.calibration}, network.model.inputs)
    found = search(network.model, samples, remark=lambda _: None)
    stated = None if found.estimate is None else found.estimate.outputs.get(network.outputs[0])
    interval = stated and [stated.low_db, stated.high_db]
    return GraphLevel(device_networks(found.graph)[0]).run, {"interval": interval}


def peer(network: Network) -> tuple[Forward, dict[str, Any]]:
    """Onnxruntime with the same samples."""
    return METHODS[PEER](network), {}


WAYS = {"default": ours, "search": found_by_search, PEER: peer}


def measured(network: Network, method: str, count: int, draw: int) -> Run:
    """One run: figures on the evaluation samples of a network calibrated with a draw."""
    whole = network.calibration
    network.calibration = drawn(whole, count, draw)
    start = time.perf_counter()
    try:
        forward, stated = WAYS[method](network)
    finally:
        network.calibration = whole
    seconds = time.perf_counter() - start
    found = network.scored(network.run(forward))
    return {
        "network": network.name,
        "method": method,
        "samples": count,
        "draw": draw,
        "scored": network.samples,
        "sqnr_db": found.sqnr_db,
        "agreement": found.agreement,
        "seconds": round(seconds, 1),
        **stated,
    }


def table(runs: Sequence[Run], method: str) -> list[str]:
    """Per network and number of samples: both means, the draw that is furthest behind, the intervals."""
    titles = ("network", "samples", f"{method} dB", "onnxruntime dB", "worst draw", "interval", "within")
    lines = [row(titles), row(["---"] * len(titles))]
    for name, count in dict.fromkeys((run["network"], run["samples"]) for run in runs):
        pairs = paired(runs, method, name, count)
        if not pairs:
            continue
        own, other = (np.array([pair[side]["sqnr_db"] for pair in pairs]) for side in (0, 1))
        stated = [pair[0] for pair in pairs if pair[0].get("interval")]
        width = np.mean([run["interval"][1] - run["interval"][0] for run in stated]) if stated else None
        low = np.mean([run["interval"][0] for run in stated]) if stated else None
        lines.append(
            row(
                (
                    name,
                    count,
                    f"{own.mean():.1f}",
                    f"{other.mean():.1f}",
                    f"{(own - other).min():+.1f}",
                    "not estimated" if low is None else f"{low:.1f} to {low + width:.1f}",
                    f"{sum(map(holds, stated))} of {len(stated)}" if stated else "",
                )
            )
        )
    return [*lines, "", *verdicts(runs, method), ""]


def paired(runs: Iterable[Run], method: str, name: str, count: int) -> list[tuple[Run, Run]]:
    """Runs of a method and of the peer with the same draw and evaluated by the same samples."""
    found = {key_of(run): run for run in runs}
    return [
        (run, found[other])
        for run in found.values()
        if (run["network"], run["method"], run["samples"]) == (name, method, count)
        and (other := (name, PEER, count, run["draw"], run["scored"])) in found
    ]


def holds(run: Run) -> bool:
    """Whether the evaluation figure is not far below the interval that was stated."""
    return bool(run["sqnr_db"] >= run["interval"][0] - BELOW_DB)


def verdicts(runs: Sequence[Run], method: str) -> list[str]:
    """What is asked for, held against all runs of a method."""
    cells = dict.fromkeys((run["network"], run["samples"]) for run in runs if run["method"] == method)
    gaps = {
        cell: [own["sqnr_db"] - other["sqnr_db"] for own, other in paired(runs, method, *cell)]
        for cell in cells
    }
    stated = [run for run in runs if run["method"] == method and run.get("interval")]
    widths = [run["interval"][1] - run["interval"][0] for run in stated if run["samples"] >= COUNTS[-1]]
    behind = [cell for cell, own in gaps.items() if own and np.mean(own) < -MEAN_DB]
    worst = [cell for cell, own in gaps.items() if own and min(own) < -DRAW_DB]
    kept = sum(map(holds, stated))
    return [
        f"- mean more than {MEAN_DB} dB below onnxruntime: {told(behind)}",
        f"- a draw more than {DRAW_DB} dB below: {told(worst)}",
        f"- at most {BELOW_DB:g} dB below the interval: {kept} of {len(stated)} runs",
        f"- widest interval with {COUNTS[-1]} samples: "
        + (f"{max(widths):.1f} dB (at most {WIDTH_DB:g})" if widths else "none stated"),
    ]


def told(cells: Sequence[tuple[str, int]]) -> str:
    """Networks with their numbers of samples."""
    return ", ".join(f"{name} with {count}" for name, count in cells) or "none"


def row(cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measures what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, all by default")
    parser.add_argument("--methods", nargs="+", choices=WAYS, default=["default", PEER], metavar="METHOD")
    parser.add_argument("--samples", nargs="+", type=int, default=list(COUNTS), metavar="N")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--scored", type=int, default=0, help="evaluation samples, evenly spread; 0: all")
    parser.add_argument("--results", type=Path, default=Path("few_samples.jsonl"), metavar="FILE.jsonl")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the tables there as well")
    asked = parser.parse_args()
    runs: list[Run] = []
    if asked.results.exists():
        runs = [json.loads(line) for line in asked.results.read_text(encoding="utf-8").splitlines()]
    done = {key_of(run) for run in runs}
    for name in asked.names or NAMES:
        network: Network | None = None
        for count in asked.samples:
            for draw, method in ((draw, method) for draw in range(asked.draws) for method in asked.methods):
                network = network or Network(shared_data(), name, most=asked.scored)
                if (name, method, count, draw, network.samples) in done:
                    continue
                runs.append(measured(network, method, count, draw))
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(json.dumps(runs[-1]), flush=True)
    lines = [line for method in asked.methods if method != PEER for line in table(runs, method)]
    print(*lines, sep="\n")
    if asked.page is not None:
        asked.page.write_text("# Few samples\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
