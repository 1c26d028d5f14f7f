"""Kills commands at random moments and checks what they leave: `python tests/kills.py --kills 500`.

Every round starts `build`, `calibrate`, `search`, `mixed` or `bundle combine` over the files of an earlier
round, kills it (SIGKILL) after a random part of the time the command takes, and checks that

* every output is one of the complete files that an undisturbed run gives,
* the journal of a command that keeps one holds every trial the command has told of, and those of the runs
  with the same inputs before it,
* `tpuflow check` accepts a program and its graph only if they are of one build,
* after the next undisturbed run the folder holds the outputs of that run and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from models.builder import Builder, samples

TPUFLOW = [sys.executable, "-P", "-m", "tpuflow"]
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Job:
    """A command that is given two inputs in turn, so that old and new outputs differ.

    Attributes:
        name: Of the command.
        words: Its words for each input; `OUT` stands for the folder of outputs.
        pair: Whether the outputs are a program and its graph.
        journal: Name of its journal, if it keeps one.
        told: What lines of its output hold that tell of a finished trial.
    """

    name: str
    words: tuple[tuple[str, ...], tuple[str, ...]]
    pair: bool = False
    journal: str = ""
    told: str = ""


class KillError(AssertionError):
    """A command left what it must not leave."""


def run(words: tuple[str, ...], out: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    given = [word.replace("OUT", str(out)) for word in words]
    return subprocess.run([*TPUFLOW, *given], capture_output=True, text=True, check=False)


def killed(words: tuple[str, ...], out: Path, after: float) -> tuple[bool, str]:
    """Starts a command and kills it after some seconds; whether it was still running, and what it told."""
    given = [word.replace("OUT", str(out)) for word in words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [*TPUFLOW, *given], stdout=told, stderr=subprocess.DEVNULL, env=environment
        )
        try:
            process.wait(after)
            running = False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            running = True
        told.seek(0)
        return running, told.read()


def contents(folder: Path) -> Contents:
    """Files of a folder by name, but for temporary ones and journals."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.startswith(".tpuflow-") and ".journal" not in path.name
    }


def noted(path: Path) -> int:
    """Finished trials of a journal; none where there is no journal, or one that has just been created."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def jobs(folder: Path) -> list[Job]:
    """The commands, with their inputs in `folder`."""
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 9, 7]), 8, pads=(1, 1, 1, 1)))
    b.output(b.gemm(x, 6))
    model = b.model()
    onnx.save(model, folder / "net.onnx")
    arrays = samples(model, 16)
    np.savez(folder / "one.npz", allow_pickle=False, **arrays)
    np.savez(folder / "two.npz", allow_pickle=False, **{name: array * 3 for name, array in arrays.items()})
    net, calib = str(folder / "net.onnx"), [str(folder / f"{name}.npz") for name in ("one", "two")]
    for at in (0, 1):
        made = run(("build", net, "--calib", calib[at], "-o", str(folder / f"p{at}.tpu")), folder)
        if made.returncode:
            raise KillError(made.stderr)

    def both(*words: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(word.replace("CALIB", calib[0]).replace("@", "0") for word in words), tuple(
            word.replace("CALIB", calib[1]).replace("@", "1") for word in words
        )

    return [
        Job("build", both("build", net, "--calib", "CALIB", "--no-verify", "-o", "OUT/m.tpu"), pair=True),
        Job("calibrate", both("calibrate", net, "--calib", "CALIB", "-o", "OUT/ranges.json")),
        Job(
            "search",
            both("search", net, "--calib", "CALIB", "-o", "OUT/m.tpuq", "--json", "OUT/m.json"),
            journal="m.tpuq.journal",
            told="expected top-1 disagreement",
        ),
        Job(
            "mixed",
            both("mixed", net, "--calib", "CALIB", "--budget", "cycles=1e9", "-o", "OUT/m.json"),
            journal="m.json.journal",
        ),
        Job("bundle", both("bundle", "combine", str(folder / "p@.tpu"), "-o", "OUT/b.tpub")),
    ]


def check_after_kill(job: Job, out: Path, whole: tuple[Contents, Contents]) -> None:
    """Checks what a killed run left.

    Raises:
        KillError: An output is neither old nor new, or a mixed pair is accepted.
    """
    found = contents(out)
    for name, content in found.items():
        if content not in (whole[0].get(name), whole[1].get(name)):
            raise KillError(f"{job.name}: {name} is neither the old nor the new file")
    if job.pair and {"m.tpu", "m.tpuq"} <= found.keys():
        mixed = all(any(found[name] != each[name] for name in ("m.tpu", "m.tpuq")) for each in whole)
        accepted = run(("check", "OUT/m.tpu"), out).returncode == 0
        if mixed and accepted:
            raise KillError(f"{job.name}: a program and a graph of different builds are accepted")


def check_journal(job: Job, out: Path, told: str, before: int) -> int:
    """Checks that no finished trial was lost; gives how many the journal holds.

    Raises:
        KillError: A trial that was told of, or found by an earlier run, is not there.
    """
    path = out / job.journal
    if not path.exists() and not before:
        return 0  # killed before it was made, or behind the end of all
    held = noted(path)
    least = max(before, sum(job.told in line for line in told.splitlines()) if job.told else 0)
    if path.exists() and held < least:
        raise KillError(f"{job.name}: the journal holds {held} trials of {least}")
    return held


def campaign(kills: int, seed: int, only: tuple[str, ...] = ()) -> dict[str, int]:
    """Kills commands at random moments; how often each was killed while it ran.

    Raises:
        KillError: A check failed; the message names command and seed.
    """
    generator, count = random.Random(seed), dict[str, int]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for job in (each for each in jobs(folder) if not only or each.name in only):
            whole, seconds = [], []
            for at in (0, 1):
                out = folder / f"{job.name}{at}"
                out.mkdir()
                start = time.perf_counter()
                done = run(job.words[at], out)
                seconds.append(time.perf_counter() - start)
                if done.returncode:
                    raise KillError(f"{job.name}: {done.stderr}")
                whole.append(contents(out))
            out, count[job.name] = folder / job.name, 0
            out.mkdir()
            trials = 0
            for number in range(max(1, kills // (len(only) or 5))):
                # What keeps a journal has the same inputs several times, to go on with it.
                turn, first = (number // 4, number % 4 == 0) if job.journal else (number, True)
                words = job.words[turn % 2]
                # Most moments lie near the end, where files are written.
                share = generator.uniform(0.5, 1.05) if generator.random() < 0.8 else generator.random()
                running, told = killed(words, out, share * min(seconds))
                count[job.name] += running
                check_after_kill(job, out, (whole[0], whole[1]))
                if job.journal:
                    trials = check_journal(job, out, told, 0 if first or not running else trials)
                if generator.random() < 0.2:
                    done, trials = run(words, out), 0
                    if done.returncode or {path.name for path in out.iterdir()} != whole[0].keys():
                        left = sorted(path.name for path in out.iterdir())
                        raise KillError(f"{job.name}: the next run leaves {left}: {done.stderr}")
            run(job.words[0], out)
            if {path.name: path.read_bytes() for path in out.iterdir()} != whole[0]:
                raise KillError(
                    f"{job.name}: the last run leaves {sorted(path.name for path in out.iterdir())}"
                )
    return count


def main() -> None:
    """Runs a campaign and says what was killed."""
    parser = argparse.ArgumentParser(description="Kill commands at random moments, check what they leave.")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands: build,calibrate,search,mixed,bundle")
    words = parser.parse_args()
    count = campaign(words.kills, words.seed, tuple(filter(None, words.only.split(","))))
    sys.stdout.write(f"killed while running: {count}; every output old or new, nothing left over\n")


if __name__ == "__main__":
    main()
