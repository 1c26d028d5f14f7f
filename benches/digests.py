"""Whether two installed trees make the same programs: the digests of `tpuflow inspect`, network by network.

    python benches/digests.py BEFORE AFTER [MODEL.onnx|FOLDER ...] [--keep DIR]

BEFORE and AFTER are checkouts in which `./start build` (or `maturin develop`) has put the extension. Each
turns every network into programs of levels 1 and 5 with its own code; samples are those of NAME.npz beside
NAME.onnx, else generated ones. The small networks of tests/models always take part, larger ones where they
are named. A digest covers descriptors, instructions, addresses, constants and predicted cycles, not names.

Prints a table, and exits with 1 where one digest differs. `--keep` keeps what was found for a tree by the
contents of its package, so that a tree is measured once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import onnx

TESTS = Path(__file__).resolve().parent.parent / "tests"
LEVELS = (1, 5)

# Runs in a process of each tree, with its package: a line of paths in, a line of digests out.
WORKER = """
import json, sys
import tpuflow
from tpuflow.partitioning import device_networks

for line in sys.stdin:
    model, samples = json.loads(line)
    try:
        graph = tpuflow.build(model, samples).graph
        programs = {level: tpuflow.compile(graph, level=level) for level in (1, 5)}
        found = {
            level: " ".join(part.digest()[:16] for part in device_networks(program))
            for level, program in programs.items()
        }
    except tpuflow.TpuflowError as error:
        found = {level: f"not built: {error}" for level in (1, 5)}
    print(json.dumps(found), flush=True)
"""


class Tree:
    """An installed tree, and what is known of the programs it makes."""

    def __init__(self, root: Path, keep: Path) -> None:
        self.root = root
        self.known = keep / fingerprint(root)
        self.known.mkdir(parents=True, exist_ok=True)
        self.worker: subprocess.Popen[str] | None = None

    def digests(self, model: Path) -> list[str]:
        """By level, the digests of the programs of a network, or why there are none."""
        # By contents: models in folders of their own may all have one file name.
        contents = hashlib.sha256(model.read_bytes()).hexdigest()[:16]
        kept = self.known / f"{model.stem}-{contents}.json"
        if not kept.exists():
            kept.write_text(self._asked(model), encoding="utf-8")
        found = json.loads(kept.read_text(encoding="utf-8"))
        return [found[str(level)] for level in LEVELS]

    def _asked(self, model: Path) -> str:
        if self.worker is None:
            python = self.root / ".venv" / "bin" / "python"
            self.worker = subprocess.Popen(
                [str(python) if python.exists() else sys.executable, "-c", WORKER],
                env={**os.environ, "PYTHONPATH": str(self.root / "python")},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self.worker.stdin is not None and self.worker.stdout is not None
        samples = model.with_suffix(".npz")
        asked = [str(model), str(samples) if samples.exists() else None]
        self.worker.stdin.write(json.dumps(asked) + "\n")
        self.worker.stdin.flush()
        answer = self.worker.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.root}: ended with status {self.worker.wait()} at {model.name}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self.worker is not None:
            self.worker.communicate()


def fingerprint(root: Path) -> str:
    """Of everything in the package of a tree that decides what it makes."""
    package = root / "python" / "tpuflow"
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in {".py", ".so", ".pyd", ".toml"}:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def networks(named: list[Path], folder: Path) -> Iterator[Path]:
    """The files of all networks, the small ones written first."""
    sys.path.insert(0, str(TESTS))
    from models.make_models import MODELS  # noqa: PLC0415

    for name, make in MODELS.items():
        onnx.save(make(), folder / f"{name}.onnx")
        yield folder / f"{name}.onnx"
    for each in named:
        yield from sorted(each.glob("*.onnx")) if each.is_dir() else [each]


def main() -> int:
    """Prints the table; 1 where a digest differs or a network cannot be built."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("before", type=Path)
    words.add_argument("after", type=Path)
    words.add_argument("networks", type=Path, nargs="*", metavar="MODEL.onnx|FOLDER")
    words.add_argument("--keep", type=Path, help="folder for what was found, by tree")
    asked = words.parse_args()
    count = unequal = 0
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as ending:
        keep: Path = asked.keep or Path(temporary) / "known"
        trees = [Tree(root.resolve(), keep) for root in (asked.before, asked.after)]
        for tree in trees:
            ending.callback(tree.close)
        print("| network | level | before | after | |\n|---|--:|---|---|---|", flush=True)
        for model in networks(asked.networks, Path(temporary)):
            made = model.parent == Path(temporary)
            name = model.stem if made else f"{model.parent.name}/{model.stem}"
            for level, before, after in zip(LEVELS, *(tree.digests(model) for tree in trees), strict=True):
                same = before == after and not before.startswith("not built")
                count, unequal = count + 1, unequal + (not same)
                print(f"| {name} | {level} | {before} | {after} | {'equal' if same else 'DIFFERENT'} |")
            sys.stdout.flush()
    print(f"\n{count} programs, {unequal} not equal")
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main())
