"""The page of features: which rows of `features.txt` are answered by which tests.

    python tests/features.py            # writes docs/features.md again

A test answers rows by naming their ids: `@pytest.mark.feature("IMP-22")` in Python, the comment
`// feature: IMP-22` above the attributes of a test in Rust; several ids are separated by commas. The page
itself names features, not ids. A row without a test counts as not done, whatever the code can do.
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
RUST_TEST = re.compile(
    r"^\s*// feature: (?P<ids>.+)\n(?:\s*(?:///|#\[).*\n)*\s*fn\s+(?P<name>\w+)\s*\(", re.MULTILINE
)
ID_IN_NAME = re.compile(r"(?:^|_)[a-z]{3}_\d\d(?:_|$)")


@dataclass(frozen=True)
class Row:
    """One feature: its id, such as `IMP-22`, its priority (M, S or C) and what it is."""

    id: str
    priority: str
    title: str


@dataclass(frozen=True, order=True)
class Test:
    """A test function that names ids."""

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


def python_tests(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Test functions of a Python file, each with the ids of its markers."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield (
                node.name,
                tuple(
                    ast.literal_eval(argument)
                    for decorator in node.decorator_list
                    if isinstance(decorator, ast.Call)
                    and ast.unparse(decorator.func) == "pytest.mark.feature"
                    for argument in decorator.args
                ),
            )


def rust_tests(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Test functions of a Rust file below a comment with ids."""
    for match in RUST_TEST.finditer(text):
        yield match["name"], tuple(match["ids"].split(", "))


def tests(root: Path) -> list[Test]:
    """Every test below `tests` and `crates` that names ids, in the order of files and names."""
    readers = dict.fromkeys(root.glob("tests/**/test_*.py"), python_tests)
    readers |= dict.fromkeys(root.glob("crates/**/*.rs"), rust_tests)
    return sorted(
        Test(path.relative_to(root).as_posix(), name, found)
        for path, reader in readers.items()
        for name, found in reader(path.read_text(encoding="utf-8"))
        if found
    )


def sentence(name: str) -> str:
    """The name of a test as words."""
    return name.removeprefix("test_").replace("_", " ")


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
        "Which features have a test that answers them. Made from the markers of the tests by",
        "`./start features`; a feature without a test counts as not done.",
        "",
        "| priority | features | done | not done |",
        "|---|--:|--:|--:|",
    ]
    for letter, word in PRIORITIES.items():
        of_it = [row for row in everything if row.priority == letter]
        done = sum(row.id in answered for row in of_it)
        lines.append(f"| {word} | {len(of_it)} | {done} | {len(of_it) - done} |")
    for heading, group in rows.items():
        done = sum(row.id in answered for row in group)
        lines += ["", f"## {heading}", "", f"{done} of {len(group)} done.", ""]
        lines += ["| feature | priority | state | tests |", "|---|---|---|---|"]
        for row in group:
            state = "done" if row.id in answered else "**not done**"
            links = "<br>".join(
                f"[{sentence(test.name)}](../{test.file})" for test in answered.get(row.id, [])
            )
            lines.append(f"| {row.title} | {PRIORITIES[row.priority]} | {state} | {links} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(groups(ROWS.read_text(encoding="utf-8")), tests(REPOSITORY)), encoding="utf-8")


if __name__ == "__main__":
    main()
