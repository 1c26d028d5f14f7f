"""The page of features: what each does, how it is used, and the tests that prove it.

    python tests/features.py            # writes docs/features.md again

The records stand in `feature_records`, a TOML file per group. A record that has a test says what is true
(`sentence`) and how to use it (`use`); one without a test says what is missing (`missing`), whatever the code
can do. A test answers records by naming their ids: `@pytest.mark.feature("IMP-22")` in Python, the comment
`// feature: IMP-22` above the attributes of a test in Rust; several ids are separated by commas. The page
itself names features, not ids.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDS = Path(__file__).with_name("feature_records")
PAGE = REPOSITORY / "docs" / "features.md"

PRIORITIES = ("must", "should", "could")
RUST_TEST = re.compile(
    r"^\s*// feature: (?P<ids>.+)\n(?:\s*(?:///|#\[).*\n)*\s*fn\s+(?P<name>\w+)\s*\(", re.MULTILINE
)
ID_IN_NAME = re.compile(r"(?:^|_)[a-z]{3}_\d\d(?:_|$)")


@dataclass(frozen=True)
class Record:
    """One feature.

    Attributes:
        id: Such as `IMP-22`; it stands in markers and records alone.
        priority: One of `PRIORITIES`.
        title: A short name.
        sentence: What is true, where a test proves it.
        use: A command, a call or a key of a configuration, as Markdown.
        missing: What there is not, where no test proves the feature.
    """

    id: str
    priority: str
    title: str
    sentence: str = ""
    use: str = ""
    missing: str = ""


@dataclass(frozen=True, order=True)
class Test:
    """A test function that names ids."""

    file: str
    name: str
    ids: tuple[str, ...]


def group(text: str) -> tuple[str, list[Record]]:
    """The heading of a file of records, and the records in their order."""
    content = tomllib.loads(text)
    return content.pop("heading"), [Record(key, **fields) for key, fields in content.items()]


def groups(folder: Path = RECORDS) -> dict[str, list[Record]]:
    """Records by heading, in the order of the files' names."""
    return dict(group(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml")))


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


def answers(found: list[Test]) -> dict[str, list[Test]]:
    """Tests by the id they answer."""
    answered: dict[str, list[Test]] = {}
    for test in found:
        for each in test.ids:
            answered.setdefault(each, []).append(test)
    return answered


def name_in_words(name: str) -> str:
    """The name of a test as words."""
    return name.removeprefix("test_").replace("_", " ")


def row(record: Record, found: list[Test]) -> str:
    """A record as a row of its table."""
    links = "<br>".join(f"[{name_in_words(test.name)}](../{test.file})" for test in found)
    text = record.sentence if found else f"**Not done.** {record.missing}"
    cells = (record.title, record.priority, text, record.use, links)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def page(records: Mapping[str, list[Record]], found: list[Test]) -> str:
    """The page as Markdown."""
    answered = answers(found)
    everything = [record for group in records.values() for record in group]
    lines = [
        "# Features",
        "",
        "What each feature does, how it is used, and the tests that prove the sentence; made by",
        "`./start features` from the records in `tests/feature_records` and the markers of tests. A feature",
        "without a test counts as not done. `[section] key` is a field of a configuration file",
        "([configuration.md](configuration.md)).",
        "",
        "| priority | features | done | not done |",
        "|---|--:|--:|--:|",
    ]
    for priority in PRIORITIES:
        of_it = [record for record in everything if record.priority == priority]
        done = sum(record.id in answered for record in of_it)
        lines.append(f"| {priority} | {len(of_it)} | {done} | {len(of_it) - done} |")
    for heading, group in records.items():
        done = sum(record.id in answered for record in group)
        lines += ["", f"## {heading}", "", f"{done} of {len(group)} done.", ""]
        lines += ["| feature | priority | what it does | use | tests |", "|---|---|---|---|---|"]
        lines += [row(record, answered.get(record.id, [])) for record in group]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(groups(), tests(REPOSITORY)), encoding="utf-8")


if __name__ == "__main__":
    main()
