"""Mutation testing of the Rust core: small changes, each of which a test of its own crate should notice.

    python benches/mutants/mutants.py list [STRATUM]          # draws list.jsonl, or a stratum of it, anew
    python benches/mutants/mutants.py run [STRATUM] [-n N]    # the next N, from where the last run stopped
    python benches/mutants/mutants.py table                   # what became of every stratum, and why

Of the 64 candidates of a stratum the first 32 that compile count. Results go to results.jsonl, one line each.
All candidates of a stratum are compiled together: a function holds its mutants' bodies beside its own, and an
environment variable chooses. Those in a `const fn`, outside of functions, or whose line is gone do not count.
A survivor that does the same as the code it changes has a `reason` in its line there, written by hand.
A run works in a worktree of its own below target/mutants, so that the checkout may be edited meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import time
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
TARGET = REPOSITORY / "target" / "mutants-target"
VARIABLE = "TPUFLOW_MUTANT"
FUNCTION = re.compile(r"^(\s*)((?:pub(?:\([a-z ]+\))? )?(?:const |unsafe |async )*)fn ")
CHOICE = f"""
fn mutant_is_chosen(number: u32) -> bool {{
    static CHOSEN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("{VARIABLE}").ok()?.parse().ok()) == Some(number)
}}
"""

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
            "crates/simulator/src/{access_pattern,bank,dma,feeder,machine,matrix,queue,stream}.rs",
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


MISSED = [
    (
        "timing",
        "crates/ir/src/timing.rs",
        "let wide = u64::from(pool.input.dtype.bytes() as u32);",
        "let wide = 1;",
    ),
    ("timing", "crates/ir/src/timing.rs", "view.dtype.bytes() == 4 { 2 }", "view.dtype.bytes() == 4 { 1 }"),
    ("timing", "crates/ir/src/timing.rs", "rate + output.function", "rate + 0 * output.function"),
    ("timing", "crates/ir/src/timing.rs", "rows.max(u64::from(machine.array.rows))", "rows"),
    ("timing", "crates/simulator/src/checked_program.rs", "self.descriptors == program.descriptors", "true"),
    (
        "timing",
        "crates/simulator/src/values/matrix.rs",
        "(packed.input, &packed.descriptor) ==",
        "(m.input.dtype, d) ==",
    ),
    (
        "timing",
        "crates/simulator/src/values/matrix.rs",
        "Ok(self.parameters(m.parameters, parameters.len())? ==",
        "Ok(parameters ==",
    ),
    (
        "timing",
        "crates/simulator/src/check.rs",
        "window_rows(&m.input, &m.output, &d.window, m.first_pixel / m.output.width, last / m.output.width)",
        "Ok(())",
    ),
    ("kernels", "crates/kernels/src/linear.rs", " + bias.get(j).map_or(0, |bias| bias.unsigned_abs())", ""),
    (
        "timing",
        "crates/simulator/src/timeline/ports.rs",
        "geometry.weight_words(tile, self.rows - 1)",
        "geometry.weight_words(tile, 0)",
    ),
    (
        "kernels",
        "crates/kernels/src/pool.rs",
        "window.pads[axis + 2] - beyond[axis]",
        "window.pads[axis + 2]",
    ),
    (
        "kernels",
        "crates/kernels/src/softmax.rs",
        "first + round_shift((i64::from(T2[i + 1]) - first) * f, 8)",
        "first + (((i64::from(T2[i + 1]) - first) * f) >> 8)",
    ),
    (
        "kernels",
        "crates/kernels/src/softmax.rs",
        "else { round_shift(value, k as u32) }",
        "else { value >> k }",
    ),
    ("kernels", "crates/kernels/src/normalize.rs", ".clamp(-32768, 32767) as i64", " as i64"),
    (
        "kernels",
        "crates/kernels/src/normalize.rs",
        "normalized.isqrt() as i64",
        "normalized.isqrt() as i64 + 1",
    ),
    (
        "bounds",
        "crates/bounds/src/lib.rs",
        "array: last_store_end(after(array, fill",
        "array: last_store_end(after(array * 21 / 20, fill",
    ),
    (
        "bounds",
        "crates/bounds/src/lib.rs",
        "segment: last_store_end(chains.makespan(), machine)",
        "segment: last_store_end(chains.makespan() * 21 / 20, machine)",
    ),
    (
        "bounds",
        "crates/bounds/src/lib.rs",
        "path: last_store_end(chains.ends(), machine)",
        "path: last_store_end(chains.ends() + 200, machine)",
    ),
]
"""Changes that tests once missed, run first: stratum, file, a piece of its only line, what replaces it."""


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


def missed_once(stratum: str) -> list[Mutant]:
    """The changes of a stratum that tests once missed, as far as their lines are still there."""
    found = []
    for own, path, piece, instead in MISSED:
        lines = (REPOSITORY / path).read_text(encoding="utf-8").splitlines() if own == stratum else []
        matching = [(number, line) for number, line in enumerate(lines, 1) if piece in line]
        if len(matching) == 1:
            number, line = matching[0]
            found.append(Mutant(stratum, path, number, line, line.replace(piece, instead)))
    return found


def draw(only: str | None) -> None:
    """Writes the list, or one stratum of it anew: as many candidates of each, in the order of their runs."""
    chosen: list[Mutant] = []
    for stratum, (_, patterns) in STRATA.items():
        if only not in (None, stratum):
            chosen.extend(mutant for mutant in listed() if mutant.stratum == stratum)
            continue
        everything = [mutant for path in files(patterns) for mutant in mutants(stratum, path)]
        count = min(CANDIDATES, len(everything))
        chosen.extend(missed_once(stratum))
        chosen.extend(random.Random(f"{SEED} {stratum}").sample(everything, count))
    LIST.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in chosen), encoding="utf-8")


def listed() -> list[Mutant]:
    """The list as it was drawn."""
    return [Mutant(**json.loads(line)) for line in LIST.read_text(encoding="utf-8").splitlines()]


def recorded() -> list[dict[str, str | None]]:
    """Lines of the results."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def results() -> dict[str, str]:
    """Outcomes of the mutants that were run, by name."""
    return {str(record["mutant"]): str(record["result"]) for record in recorded()}


def reasons() -> dict[str, str]:
    """Why mutants that survive compute the same as the code they change, by name."""
    return {str(record["mutant"]): str(record["reason"]) for record in recorded() if record.get("reason")}


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


def found_at(lines: list[str], mutant: Mutant) -> int | None:
    """The line, counted from 0, that a mutant changes: where it was listed, or the only one like it."""
    if mutant.line <= len(lines) and lines[mutant.line - 1] == mutant.before:
        return mutant.line - 1
    alike = [number for number, line in enumerate(lines) if line == mutant.before]
    return alike[0] if len(alike) == 1 else None


def body_around(lines: list[str], at: int) -> tuple[int, int] | None:
    """First and last line between the braces of the function around a line, as rustfmt writes functions."""
    for start in range(at, -1, -1):
        head = FUNCTION.match(lines[start])
        if head is None or len(head[1]) >= len(lines[at]) - len(lines[at].lstrip()):
            continue
        if "const" in head[2]:
            return None  # its body cannot ask which mutant is chosen
        indent = head[1]
        opened = next(number for number in range(start, len(lines)) if lines[number].endswith("{"))
        closed = next(number for number in range(opened + 1, len(lines)) if lines[number] == indent + "}")
        return (opened + 1, closed - 1) if opened < at < closed else None
    return None


def with_mutants(text: str, chosen: list[tuple[int, Mutant]]) -> tuple[str, list[int]]:
    """A file whose functions ask which mutant is chosen and then compute as that mutant does.

    Returns:
        The text, and for each of its lines the number of the mutant it is part of, or -1.
    """
    lines = text.split("\n")
    bodies: dict[tuple[int, int], list[tuple[int, int, Mutant]]] = {}
    for number, mutant in chosen:
        at = found_at(lines, mutant)
        body = None if at is None else body_around(lines, at)
        if at is not None and body is not None:
            bodies.setdefault(body, []).append((number, at, mutant))
    nested = {inner for inner in bodies for outer in bodies if outer[0] < inner[0] and inner[1] < outer[1]}
    bodies = {body: own for body, own in bodies.items() if body not in nested}
    whole = [(line, -1) for line in lines]
    for (first, last), own in sorted(bodies.items(), reverse=True):
        written: list[tuple[str, int]] = []
        for index, at, mutant in own:
            changed = [mutant.after if line == at else lines[line] for line in range(first, last + 1)]
            written.append((f"if mutant_is_chosen({index}) {{", index))
            written += [(line, index) for line in changed]
            written.append(("} else {", index))
        written += [*whole[first : last + 1], ("}" * len(own), -1)]
        whole[first : last + 1] = written
    if bodies:
        whole.append((CHOICE, -1))
    return "\n".join(line for line, _ in whole), [number for _, number in whole]


def built(place: Path, crate: str, chosen: dict[int, Mutant]) -> tuple[list[Path], set[int]]:
    """Builds a crate's tests with many mutants at once, of which an environment variable chooses one.

    Returns:
        The test programs, and the mutants they hold: those that compile.
    """
    viable = dict(chosen)
    paths = {mutant.path for mutant in chosen.values()}
    originals = {path: (place / path).read_text(encoding="utf-8") for path in paths}
    options = ["--no-run", "--message-format=json", "--profile", "checked", "--locked"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "--cap-lints=warn"}
    try:
        while True:
            owners: dict[str, list[int]] = {}
            for path, text in originals.items():
                own = [(number, mutant) for number, mutant in viable.items() if mutant.path == path]
                changed, owners[path] = with_mutants(text, own)
                (place / path).write_text(changed, encoding="utf-8")
            held = {number for lines in owners.values() for number in lines if number >= 0}
            command = ["cargo", "test", *options, "-p", crate]
            done = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, check=False
            )
            messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode == 0:
                tests = [m["executable"] for m in messages if m.get("executable") and m["profile"]["test"]]
                return [Path(test) for test in tests], held
            broken = {
                owners[span["file_name"]][span["line_start"] - 1]
                for message in messages
                if message["reason"] == "compiler-message" and message["message"]["level"] == "error"
                for span in message["message"]["spans"]
                if span["file_name"] in owners
            } - {-1}
            if not broken:
                raise SystemExit(f"{crate} does not compile:\n{done.stderr[-3000:]}")
            for number in broken:
                del viable[number]
    finally:
        for path, text in originals.items():
            (place / path).write_text(text, encoding="utf-8")


def fails(place: Path, crate: str, test: Path, number: int | None, seconds: float | None) -> bool:
    """Whether a test program fails, or takes far too long, as a mutant."""
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(place / "crates" / crate.removeprefix("tpuflow-"))}
    environment["TPUFLOW_MEMORY_LIMIT"] = "4G"
    if number is not None:
        environment[VARIABLE] = str(number)
    try:
        done = subprocess.run(
            [test, "--quiet", "--test-threads", "2"],
            cwd=environment["CARGO_MANIFEST_DIR"],
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def run(stratum: str | None, most: int) -> None:
    """Runs the next mutants of every stratum, or of one, until 32 of each are viable."""
    known = results()
    place = worktree()
    for name, (crate, _) in STRATA.items():
        if stratum not in (None, name):
            continue
        own = [(number, mutant) for number, mutant in enumerate(listed()) if mutant.stratum == name]
        viable = sum(known.get(mutant.name) in ("killed", "survived") for _, mutant in own)
        waiting = {number: mutant for number, mutant in own if mutant.name not in known}
        if viable >= WANTED or not waiting:
            continue
        tests, held = built(place, crate, waiting)
        times = {}
        for test in tests:
            began = time.monotonic()
            if fails(place, crate, test, None, None):
                raise SystemExit(f"{test.name} of {crate} fails without any mutant")
            times[test] = time.monotonic() - began
        ordered = sorted(times, key=times.__getitem__)
        for number, mutant in waiting.items():
            if most == 0 or viable >= WANTED:
                break
            if number in held:
                failing = (
                    test for test in ordered if fails(place, crate, test, number, 30 + 10 * times[test])
                )
                killer = next(failing, None)
                result = "survived" if killer is None else "killed"
                viable += 1
            else:
                killer, result = None, "unviable"
            most -= 1
            by = killer and killer.name.rpartition("-")[0]
            record = {"mutant": mutant.name, "result": result, "by": by}
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{result:9} {mutant.name}", flush=True)


def table() -> None:
    """Prints how many mutants of every stratum were run and what became of them, and the survivors."""
    known, equal = results(), reasons()
    print("| stratum | run | killed | survived | of these equivalent | not viable | still to run |")
    print("|---|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    survivors = []
    for stratum in STRATA:
        own = [mutant.name for mutant in listed() if mutant.stratum == stratum and mutant.name in known]
        found = Counter(known[name] for name in own)
        found["equivalent"] = sum(name in equal for name in own)
        found["viable"] = found["killed"] + found["survived"]
        found["left"] = max(0, WANTED - found["viable"])
        columns = ("viable", "killed", "survived", "equivalent", "unviable", "left")
        print("| " + " | ".join([stratum, *(str(found[column]) for column in columns)]) + " |")
        survivors += [name for name in own if known[name] == "survived"]
        total += found
    killed, viable = total["killed"], total["viable"]
    different = viable - total["equivalent"]
    print(f"killed: {share(killed, viable)}; without the equivalent ones {share(killed, different)}")
    for name in survivors:
        print(f"survived: {name} ({equal.get(name, 'no reason known')})")


def share(part: int, of: int) -> str:
    """A count and what it is in percent."""
    return f"{part} of {of} ({100 * part / max(of, 1):.1f} %)"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    subparsers = {name: commands.add_parser(name) for name in ("list", "run")}
    for command in subparsers.values():
        command.add_argument("stratum", nargs="?", choices=list(STRATA))
    subparsers["run"].add_argument("-n", type=int, default=5 * WANTED, help="how many at most")
    arguments = parser.parse_args()
    if arguments.command == "list":
        draw(arguments.stratum)
    elif arguments.command == "table":
        table()
    else:
        run(arguments.stratum, arguments.n)


if __name__ == "__main__":
    main()
