"""What quantisation costs in accuracy, by ours and other toolkits: three figures per network and method.

    python benches/accuracy [NAME ...] [--methods default search onnxruntime-minmax ...] [--page FILE.md]

Every method is calibrated with all calibration samples of a network and measured on its evaluation set,
beside float on the same samples: signal to noise of the first output, agreement of decisions, and the
network's own metric with the samples that became wrong and right. `programs.py` beside this file compares
programs with their graphs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from material import Figures, Network, imported, shared_data
from methods import METHODS

TITLES = (
    "network",
    "method",
    "SQNR dB",
    "agreement",
    "metric",
    "float",
    "quantised",
    "lost / won",
    "seconds",
)


def row(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def shown(name: str, method: str, found: Figures, seconds: float) -> str:
    """A network under a method as a line of the table."""
    return row(
        name,
        method,
        f"{found.sqnr_db:.1f}",
        "" if found.agreement is None else f"{found.agreement:.1%}",
        found.metric,
        f"{found.floating:.1%}",
        f"{found.quantized:.1%}",
        "" if found.lost is None else f"{found.lost} / {found.won}",
        f"{seconds:.0f}",
    )


def side_by_side(cells: dict[str, dict[str, Figures]]) -> list[str]:
    """A method per line, a network per column: SQNR in dB with agreement or score; points lost on average."""
    names = list(dict.fromkeys(name for found in cells.values() for name in found))
    lines = [row("method", *names, "points lost"), row(*["---"] * (len(names) + 2))]
    for method, found in cells.items():
        texts = []
        for figures in map(found.get, names):
            if figures is None:
                texts.append("")
                continue
            share = figures.quantized if figures.agreement is None else figures.agreement
            texts.append(f"{figures.sqnr_db:.1f} / {100 * share:.1f}")
        lost = [100 * (each.floating - each.quantized) for each in found.values()]
        lines.append(row(method, *texts, f"{sum(lost) / len(lost):.2f}" if lost else ""))
    return lines


def main() -> None:
    """Measures what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, all by default")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the table there as well")
    asked = parser.parse_args()
    folder = shared_data()
    lines = [row(*TITLES), row(*["---"] * len(TITLES))]
    cells: dict[str, dict[str, Figures]] = {method: {} for method in asked.methods}
    print(*lines, sep="\n", flush=True)
    for name in asked.names or imported(folder / "evalnets.py").names():
        network = Network(folder, name)
        for method in asked.methods:
            start = time.perf_counter()
            try:
                forward = METHODS[method](network)
            except Exception as error:  # noqa: BLE001 - a peer's failure is a result
                lines.append(row(name, method, f"fails: {str(error).splitlines()[0][:80]}", *[""] * 6))
            else:
                seconds = time.perf_counter() - start
                found = cells[method][name] = network.scored(network.run(forward))
                lines.append(shown(name, method, found, seconds))
            print(lines[-1], flush=True)
    lines += ["", *side_by_side(cells)]
    print(*side_by_side(cells), sep="\n", flush=True)
    if asked.page is not None:
        asked.page.write_text(page(lines), encoding="utf-8")


def page(lines: list[str]) -> str:
    """The table with how it was made."""
    command = " ".join(["python benches/accuracy", *sys.argv[1:]])
    machine = f"{platform.machine()}, {os.cpu_count()} processors"
    return f"# Accuracy\n\nMade by `{command}` ({machine}).\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
