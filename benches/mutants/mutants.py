"""Mutation testing of the Rust core: small changes, each of which a test of its own crate should notice.

    python benches/mutants/mutants.py list                    # writes list.jsonl anew, seeded
    python benches/mutants/mutants.py run [STRATUM] [-n N]    # the next N, from where the last run stopped
    python benches/mutants/mutants.py table                   # what became of every stratum

Of the 64 candidates of a stratum the first 32 that compile count. Results go to results.jsonl, one line each.
A run works in a worktree of its own below target/mutants, so that the checkout may be edited meanwhile.
Mutants whose line has changed since the list was made are left out and said to be stale.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LIST = HERE / "list.jsonl"
RESULTS = HERE / "results.jsonl"
SEED = 20261123
CANDIDATES = 64
WANTED = 32
SECONDS = 900

STRATA: dict[str, tuple[str, list[str]]] = {
    "kernels": (
        "tpuflow-kernels",
        [
            "crates/kernels/src/{conv,depthwise,elementwise,linear,movement,normalize,pool,reduce,resize,softmax,table}.rs",
            "crates/kernels/src/{depthwise,elementwise,gemm}/*.rs",
        ],
    ),
    "checker": ("tpuflow-checker", ["crates/checker/src/*.rs"]),
    "timing": (
        "tpuflow-simulator",
        [
            "crates/simulator/src/{bank,dma,feeder,machine,matrix,queue,stream,walk}.rs",
            "crates/simulator/src/timeline/*.rs",
            "crates/ir/src/timing.rs",
        ],
    ),
    "bounds": ("tpuflow-bounds", ["crates/bounds/src/*.rs"]),
    "requantisation": (
        "tpuflow-kernels",
        ["crates/kernels/src/{epilogue,requant}.rs", "crates/kernels/src/epilogue/*.rs"],
    ),
}
"""What is mutated and which crate's tests are asked."""

CHANGES = [
    (r"(?<= )<(?= )", "<="),
    (r"(?<= )<=(?= )", "<"),
    (r"(?<= )>(?= )", ">="),
    (r"(?<= )>=(?= )", ">"),
    (r"(?<= )==(?= )", "!="),
    (r"(?<= )!=(?= )", "=="),
    (r"(?<= )&&(?= )", "||"),
    (r"(?<= )\|\|(?= \S)", "&&"),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
    (r"(?<= )\*(?= )", "+"),
    (r"(?<= )/(?= )", "*"),
    (r"(?<= )%(?= )", "/"),
    (r"(?<= )\+=(?= )", "-="),
    (r"(?<= )<<(?= )", ">>"),
    (r"(?<= )>>(?= )", "<<"),
    (r"\.max\((?=\S)", ".min("),
    (r"\.min\((?=\S)", ".max("),
    (r"\.all\((?=\|)", ".any("),
    (r"\.any\((?=\|)", ".all("),
    (r"\bif !", "if "),
    (r"(?<=[ (])0(?=[,);])", "1"),
    (r"(?<=[ (])1(?=[,);])", "0"),
    (r"\.\.=", ".."),
]
"""Patterns and what takes their place; spaces around operators keep generics and references out."""


@dataclass(frozen=True)
class Mutant:
    """One change: line `line` of `path`, counted from 1, `before` becomes `after`."""

    stratum: str
    path: str
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """What results call it."""
        return f"{self.path}:{self.line}: {self.after.strip()}"


def files(patterns: list[str]) -> list[Path]:
    """The files of patterns with alternatives in braces."""
    found: set[Path] = set()
    for pattern in patterns:
        head, _, rest = pattern.partition("{")
        names, _, tail = rest.partition("}")
        each = [f"{head}{name}{tail}" for name in names.split(",")] if rest else [pattern]
        found.update(path for one in each for path in REPOSITORY.glob(one))
    return sorted(found)


def mutants(stratum: str, path: Path) -> list[Mutant]:
    """Every change of a file's code, but for its tests, comments, attributes and assertions."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("#[cfg(test)]"):
            break
        if text.startswith(("//", "#", "assert", "debug_assert", "use ", "fn ", "pub fn ", "impl", "where")):
            continue
        code = line.split(" //")[0]
        for pattern, replacement in CHANGES:
            for match in re.finditer(pattern, code):
                after = line[: match.start()] + replacement + line[match.end() :]
                found.append(Mutant(stratum, str(path.relative_to(REPOSITORY)), number, line, after))
    return found


def draw() -> None:
    """Writes the list: of every stratum as many candidates, in the order in which they are run."""
    lines: list[str] = []
    for stratum, (_, patterns) in STRATA.items():
        everything = [mutant for path in files(patterns) for mutant in mutants(stratum, path)]
        chosen = random.Random(f"{SEED} {stratum}").sample(everything, min(CANDIDATES, len(everything)))
        lines.extend(json.dumps(asdict(mutant)) for mutant in chosen)
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


def listed() -> list[Mutant]:
    """The list as it was drawn."""
    return [Mutant(**json.loads(line)) for line in LIST.read_text(encoding="utf-8").splitlines()]


def results() -> dict[str, str]:
    """What became of the mutants that were run, by name."""
    if not RESULTS.is_file():
        return {}
    records = (json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines())
    return {record["mutant"]: record["result"] for record in records}


def worktree() -> Path:
    """A checkout of the current commit for mutants alone."""
    place = REPOSITORY / "target" / "mutants"
    if not (place / "Cargo.toml").is_file():
        command = ["git", "worktree", "add", "--detach", "--force", str(place), "HEAD"]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    command = ["git", "checkout", "--force", "--detach", head()]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return place


def head() -> str:
    """The current commit."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


def tested(place: Path, crate: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a crate's tests in the worktree."""
    command = ["cargo", "test", "--profile", "checked", "--locked", "-p", crate, *arguments]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(REPOSITORY / "target" / "mutants-target")}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def outcome(place: Path, mutant: Mutant) -> str:
    """What the tests of the mutant's crate say of it: killed, survived, unviable or stale."""
    path = place / mutant.path
    original = path.read_text(encoding="utf-8")
    lines = original.split("\n")
    if mutant.line > len(lines) or lines[mutant.line - 1] != mutant.before:
        return "stale"
    lines[mutant.line - 1] = mutant.after
    path.write_text("\n".join(lines), encoding="utf-8")
    crate = STRATA[mutant.stratum][0]
    try:
        if tested(place, crate, "--no-run").returncode != 0:
            return "unviable"
        return "killed" if tested(place, crate).returncode != 0 else "survived"
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(original, encoding="utf-8")


def run(stratum: str | None, most: int) -> None:
    """Runs the next mutants of every stratum, or of one, until 32 of each are viable."""
    known = results()
    place = worktree()
    sound: set[str] = set()
    for mutant in listed():
        if most == 0:
            return
        own = [other for other in listed() if other.stratum == mutant.stratum]
        viable = sum(known.get(other.name) in ("killed", "survived") for other in own)
        if mutant.name in known or stratum not in (None, mutant.stratum) or viable >= WANTED:
            continue
        crate = STRATA[mutant.stratum][0]
        if crate not in sound and tested(place, crate).returncode != 0:
            raise SystemExit(f"tests of {crate} fail without any mutant")
        sound.add(crate)
        known[mutant.name] = outcome(place, mutant)
        most -= 1
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": mutant.name, "result": known[mutant.name]}) + "\n")
        print(f"{known[mutant.name]:9} {mutant.name}", flush=True)


def table() -> None:
    """Prints how many mutants of every stratum were run and what became of them, and the survivors."""
    known = results()
    print("| stratum | run | killed | survived | unviable or stale | still to run |")
    print("|---|---|---|---|---|---|")
    for stratum in STRATA:
        own = [mutant for mutant in listed() if mutant.stratum == stratum and mutant.name in known]
        found = Counter(known[mutant.name] for mutant in own)
        viable = found["killed"] + found["survived"]
        other = found["unviable"] + found["stale"]
        figures = [stratum, viable, found["killed"], found["survived"], other, max(0, WANTED - viable)]
        print("| " + " | ".join(map(str, figures)) + " |")
    for name, result in known.items():
        if result == "survived":
            print(f"survived: {name}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("table")
    command = commands.add_parser("run")
    command.add_argument("stratum", nargs="?", choices=list(STRATA))
    command.add_argument("-n", type=int, default=5 * WANTED, help="how many at most")
    arguments = parser.parse_args()
    if arguments.command == "list":
        draw()
    elif arguments.command == "table":
        table()
    else:
        run(arguments.stratum, arguments.n)


if __name__ == "__main__":
    main()
