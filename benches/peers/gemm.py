"""Products of 1024 cubed, int8 in one thread: ours beside loops written by hand in C, one run, ratios.

    python benches/peers/gemm.py [--isa avx512vnni amx] [--rounds 40]

Needs `cc` and `cargo`. Each program runs in a process of its own and they take turns (`gemm.c`, and the
example `cube` with sums of 32 bits, which the loops give, too, and with codes, which layers give). Printed
are thousands of millions of multiply-accumulates a second, of the median and of the least time, and what
shares of the loop's they are; on a busy machine only the latter say something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

PRODUCTS = 1024**3
"""Multiply-accumulates of a run."""
RUNS = 10
"""Runs of a program per turn."""
FOLDER = Path(__file__).parent
FLAGS = ["-O3", "-fno-strict-aliasing", "-mavx512f", "-mavx512bw", "-mavx512vnni", "-mamx-tile", "-mamx-int8"]


class Worker:
    """A program that runs as often as it is told to."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.times: list[float] = []
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args!r} ended with exit code {self.process.wait()}")
        return line

    def turn(self) -> None:
        """A few runs."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{RUNS}\n")
        self.process.stdin.flush()
        self.times += json.loads(self._line())

    def speeds(self) -> tuple[float, float]:
        """Ends the process: products a nanosecond of the median and of the least time."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        return PRODUCTS / statistics.median(self.times), PRODUCTS / min(self.times)


def built(folder: Path) -> tuple[Path, Path]:
    """The loops and the example, compiled."""
    loops = folder / "gemm"
    subprocess.run(["cc", *FLAGS, str(FOLDER / "gemm.c"), "-o", str(loops)], check=True)
    package = ["-p", "tpuflow-benches", "--example", "cube"]
    cargo = ["cargo", "build", "--release", *package, "--message-format=json"]
    told = subprocess.run(cargo, check=True, stdout=subprocess.PIPE, text=True, cwd=FOLDER).stdout
    made = [json.loads(line).get("executable") for line in told.splitlines()]
    return loops, Path([path for path in made if path][-1])


def main() -> None:
    """Prints three lines per instruction set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", nargs="+", default=["avx512vnni", "amx"], choices=["avx512vnni", "amx"])
    parser.add_argument("--rounds", type=int, default=40, help=f"turns of {RUNS} runs each")
    arguments = parser.parse_args()
    print(f"{'GMAC/s':<24} {'median':>8} {'best':>8} {'share':>8} {'share':>8}")
    with tempfile.TemporaryDirectory() as folder:
        loops, ours = built(Path(folder))
        for isa in arguments.isa:
            commands = {
                "loop in C": [str(loops), isa],
                "sums": [str(ours), isa, "sums"],
                "codes": [str(ours), isa, "codes"],
            }
            workers = {name: Worker(command) for name, command in commands.items()}
            for _ in range(arguments.rounds):
                for worker in workers.values():
                    worker.turn()
            speeds = {name: worker.speeds() for name, worker in workers.items()}
            loop = speeds["loop in C"]
            for name, speed in speeds.items():
                cells = [*speed, *(own / theirs for own, theirs in zip(speed, loop, strict=True))]
                print(f"{isa + ' ' + name:<24} {' '.join(f'{cell:8.2f}' for cell in cells)}", flush=True)


if __name__ == "__main__":
    main()
