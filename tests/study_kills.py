"""Kills studies of `tpuflow explore` at random moments: `python tests/study_kills.py --kills 50`.

A study is run whole once. Others of the same inputs are killed (SIGKILL) after a random part of that time,
again and again until they are done, and after every kill

* the file holds every row it held before, unchanged: nothing is lost or done twice,
* every row is one of the whole study, to the bit.

A study that is done has all rows of the whole one, and a finished one that is run again changes none.
"""

from __future__ import annotations

import argparse
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

from cli.conftest import tiny
from models.builder import samples

TPUFLOW = [sys.executable, "-P", "-m", "tpuflow"]
Rows = dict[str, tuple[int, str, float]]


class KillError(AssertionError):
    """A study lost, changed or repeated a row."""


def rows(path: Path) -> Rows:
    """Number, content and seconds of what a study has noted, by key."""
    if not path.exists():
        return {}
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("SELECT key, number, content, seconds FROM trials").fetchall()
    except sqlite3.OperationalError:  # killed before the tables were made
        return {}
    finally:
        connection.close()
    return {key: (number, content, seconds) for key, number, content, seconds in found}


def plain(found: Rows) -> dict[str, tuple[int, str]]:
    """Rows without their seconds."""
    return {key: (number, content) for key, (number, content, _) in found.items()}


def words(folder: Path, study: Path, workers: int) -> list[str]:
    """The command of a study."""
    varied = ("array.size=32,64,128", "cache.bytes=65536,262144,1048576", "ddr.channels=1,2")
    vary = [word for field in varied for word in ("--vary", field)]
    given = ["--calib", str(folder / "tiny.npz"), "--workers", str(workers), "-o", str(study)]
    return [*TPUFLOW, "explore", str(folder / "tiny.onnx"), *vary, *given]


def campaign(kills: int, seed: int) -> tuple[int, int]:
    """Kills studies so often; how many kills met a running study, and how many studies were finished.

    Raises:
        KillError: A check failed.
    """
    generator, hit, finished, before = random.Random(seed), 0, 0, Rows()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = tiny()
        onnx.save(model, folder / "tiny.onnx")
        np.savez(folder / "tiny.npz", allow_pickle=False, **samples(model, 4))
        start = time.perf_counter()
        subprocess.run(words(folder, folder / "whole.db", 1), check=True, capture_output=True)
        seconds, whole = time.perf_counter() - start, rows(folder / "whole.db")
        number, study = 0, folder / "0.db"
        while number < kills:
            study = folder / f"{finished}.db"
            process = subprocess.Popen(
                words(folder, study, 1 + finished % 2), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
            try:
                _, told = process.communicate(timeout=generator.uniform(0.2, 1.1) * seconds)
                running = False
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                _, told = process.communicate()
                running, number = True, number + 1
            hit += running
            found = rows(study)
            if any(found.get(key) != row for key, row in before.items()):
                raise KillError(f"seed {seed}, kill {number}: a row was lost, changed or made again")
            if any(plain(whole).get(key) != row for key, row in plain(found).items()):
                raise KillError(f"seed {seed}, kill {number}: a row is none of the whole study")
            before = found
            if not running:
                if process.returncode or plain(found) != plain(whole):
                    raise KillError(f"seed {seed}, kill {number}: not as the whole study: {told.decode()}")
                finished, before = finished + 1, Rows()
        subprocess.run(words(folder, study, 1), check=True, capture_output=True)
        if plain(rows(study)) != plain(whole):
            raise KillError(f"seed {seed}: the last study is not as the whole one")
    return hit, finished + 1


def main() -> None:
    """Runs a campaign and says what was killed."""
    parser = argparse.ArgumentParser(description="Kill studies at random moments, check what they keep.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    hit, finished = campaign(given.kills, given.seed)
    sys.stdout.write(f"{hit} kills while running, {finished} studies: no row lost, changed or made again\n")


if __name__ == "__main__":
    main()
