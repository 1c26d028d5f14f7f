"""The page of features: which rows of `features.txt` are answered by which tests.

    python tests/features.py            # writes docs/features.md again

A test answers a row by carrying its id in front of its name: `test_imp_22_output_selection` in Python,
`imp_22_output_selection` in Rust; several ids may follow one another. A row without a test counts as not
done, whatever the code can do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ROWS = Path(__file__).with_name("features.txt")
PAGE = REPOSITORY / "docs" / "features.md"

PRIORITIES = {"M": "must", "S": "should", "C": "could"}
IDS = re.compile(r"(?:test_)?((?:[a-z]{3}_\d\d(?:_|$))+)")
RUST_TEST = re.compile(r"^\s*fn\s+((?:[a-z]{3}_\d\d_)+\w+)\s*\(", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One feature: its id, such as `IMP-22`, its priority (M, S or C) and what it is."""

    id: str
    priority: str
    title: str


@dataclass(frozen=True, order=True)
class Test:
    """A test function that carries ids."""

    file: str
    name: str
    ids: tuple[str, ...]


def groups(text: str) -> dict[str, list[Row]]:
    """Rows by heading, in the order of the file."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
            found[heading] = []
        else:
            found[heading].append(Row(*line.split(" ", 2)))
    return found


def ids(name: str) -> tuple[str, ...]:
    """The ids a test's name begins with."""
    match = IDS.match(name)
    if match is None:
        return ()
    return tuple(f"{kind.upper()}-{number}" for kind, number in re.findall(r"([a-z]{3})_(\d\d)", match[1]))


def names(path: Path) -> Iterator[str]:
    """Names of all test functions of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".rs":
        yield from RUST_TEST.findall(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name


def tests(root: Path) -> list[Test]:
    """Every test below `tests` and `crates` that carries ids, in the order of files and names."""
    files = [*root.glob("tests/**/test_*.py"), *root.glob("crates/**/*.rs")]
    return sorted(
        Test(path.relative_to(root).as_posix(), name, found)
        for path in files
        for name in names(path)
        if (found := ids(name))
    )


def page(rows: Mapping[str, list[Row]], found: list[Test]) -> str:
    """The page as Markdown."""
    answered: dict[str, list[Test]] = {}
    for test in found:
        for each in test.ids:
            answered.setdefault(each, []).append(test)
    everything = [row for group in rows.values() for row in group]
    lines = [
        "# Features",
        "",
        "Which features have a test that answers them. Made from the names of the tests by",
        "`python tests/features.py`; a row without a test counts as not done.",
        "",
        "| priority | rows | done | not done |",
        "|---|--:|--:|--:|",
    ]
    for letter, word in PRIORITIES.items():
        of_it = [row for row in everything if row.priority == letter]
        done = sum(row.id in answered for row in of_it)
        lines.append(f"| {word} | {len(of_it)} | {done} | {len(of_it) - done} |")
    for heading, group in rows.items():
        done = sum(row.id in answered for row in group)
        lines += ["", f"## {heading}", "", f"{done} of {len(group)} done.", ""]
        lines += ["| row | priority | feature | state | tests |", "|---|---|---|---|---|"]
        for row in group:
            state = "done" if row.id in answered else "**not done**"
            links = "<br>".join(f"[{test.name}](../{test.file})" for test in answered.get(row.id, []))
            lines.append(f"| {row.id} | {PRIORITIES[row.priority]} | {row.title} | {state} | {links} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(groups(ROWS.read_text(encoding="utf-8")), tests(REPOSITORY)), encoding="utf-8")


if __name__ == "__main__":
    main()
