"""Words that do not occur, because the field has others: in names of Python and Rust, and in prose.

`NAMES` are parts of identifiers (`load_judged`, `HeldOutJudge`), `PROSE` is searched in whole lines of
sources and pages. A word that belongs here and is still in use is added together with its removal.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conftest import REPOSITORY

# They read the repository and run nothing of the package.
pytestmark = pytest.mark.slow

NAMES = {
    "judge": "evaluator, score",
    "judged": "evaluated, scored",
    "judging": "evaluation",
    "likeness": "similarity",
    "culprit": "first failing, first wrong",
    "culprits": "first failing, first wrong",
    "woven": "list scheduled, interleaved",
    "weave": "list schedule",
    "loom": "ListScheduler",
    "housed": "assigned to a memory space",
    "homes": "memory spaces",
    "manner": "variant",
    "grain": "granularity",
    "grains": "granularity",
    "rooms": "free space; packages",
    "spelt": "decomposed; spelling",
    "doors": "importers",
    "tally": "histogram, counts",
    "tallies": "histograms, counts",
    "knob": "parameter, option",
    "story": "explanation",
    "stories": "explanations",
}
"""A word of an identifier and what the field says."""

CLASSES = {
    "Answer": "result",
    "Book": "log",
    "Chosen": "result",
    "Found": "result, outputs",
    "Learned": "learned layer",
    "Measured": "measurement",
    "Met": "non-finite",
    "Raised": "result",
    "Rounded": "rounded weights",
    "Sampled": "sampled function",
    "Searched": "search result",
    "Seen": "fidelity, statistics",
    "Spare": "tensor pool",
    "Stored": "stored value",
    "Tried": "trial",
}
"""Participles that are no names of types."""

PROSE = {
    r"\b(?:this|each|one file per|one crate per) rooms?\b": "package, module, crate",
    r"\bother doors\b|\bthe door\b": "importers",
    r"\bis no (?:folder|list of|file of|method|name of|order of|regular expression)\b": "is not a ...",
    r"\btakes? back (?:their|its) mean errors?\b": "bias correction",
    r"\b[Ss]pelt out\b": "decomposed",
    r"\bwithout manners\b|\*manners\*": "variants",
    r"\b(?:one|a) judge\b": "evaluator",
    r"\bwide_(?:tails|sums|norms|softmax)\b": "int16_heads, int16_residual_additions, ...",
    r"\blikeness\b": "similarity",
    r"\b[Ww]hat of\b": "the part of",
    r"^\s*(?:///?|\"\"\")\s*What (?:became of|came of)\b": "what the thing is or does",
}
ALLOWED = {
    r"wide_": {
        "CHANGELOG.md",
        "python/tpuflow/config/quantization.py",
        "tests/config/test_registry.py",
        "docs/configuration.md",
    },
}
"""Where old keys are read."""

BRITISH = re.compile(
    r"(?<!no)(?<!deno)(?<!ra)(?<!pra)(?<!prom)(?<!prec)(?<!surpr)(?<!exerc)(?<!adv)(?<!ar)(?<!comprom)"
    r"(?<=[a-z]{3})(?<!w)is(?:e|ed|es|er|ers|ing|ation|ations)$"
    r"|colour|centre|neighbour|behaviour|honour|artefact|labelled|modelled|cancelled|licence|catalogue"
)
"""Spellings that names do not have: ONNX, NumPy and Rust write `normalize` and `color`."""
FOREIGN = {"CancelledError"}
"""Names of libraries."""

SKIPPED = {"tests/test_vocabulary.py"}
FOLDERS = ("python", "tests", "benches", "examples", "crates", "docs")


@cache
def files(*suffixes: str) -> list[Path]:
    found = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*")]
    found += REPOSITORY.glob("*.md")
    return sorted(
        path
        for path in found
        if path.suffix in suffixes
        and path.relative_to(REPOSITORY).as_posix() not in SKIPPED
        and "target" not in path.parts
        and "crates/checker/tests" not in path.as_posix()
    )


@cache
def names(path: Path) -> frozenset[str]:
    """Identifiers of a source file, without those in texts and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return frozenset(token.string for token in tokens if token.type == tokenize.NAME)
    code = re.sub(r"//.*|\"(?:[^\"\\]|\\.)*\"", "", text)
    return frozenset(re.findall(r"\b[A-Za-z_]\w*", code))


def words(name: str) -> list[str]:
    """`HeldOutJudge` and `held_out_judge` as their words."""
    return [
        part.lower() for part in re.split(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", name) if part
    ]


@pytest.mark.slow
def test_names_are_words_of_the_field() -> None:
    wrong = set()
    for path in files(".py", ".pyi", ".rs"):
        for name in names(path):
            place = f"{path.relative_to(REPOSITORY)}: {name}"
            wrong |= {f"{place} (say: {NAMES[word]})" for word in words(name) if word in NAMES}
            wrong |= {f"{place} (say: {CLASSES[name]})" for _ in [0] if name in CLASSES}
    assert not wrong, "\n".join(sorted(wrong))


def test_names_have_one_spelling() -> None:
    wrong = {
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in files(".py", ".pyi", ".rs")
        for name in {*names(path), path.stem} - FOREIGN
        for word in words(name)
        if BRITISH.search(word)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_british_spellings_are_found() -> None:
    british = ["normalise", "quantisers", "colour", "requantised", "neighbours", "equalisation", "cancelled"]
    american = [
        "normalize",
        "basis",
        "size",
        "optimizer",
        "noise",
        "denoised",
        "otherwise",
        "raises",
        "precise",
    ]
    assert all(BRITISH.search(word) for word in british)
    assert not any(BRITISH.search(word) for word in american)


PARTICIPLE = re.compile(
    r"_?[a-z]+ed|_?(?:found|given|held|joined|kept|known|made|met|said|seen|sent|shown|taken|told|tried)"
)
"""Names of functions that are one word, what something has become."""
OTHERS = {"need", "seed", "feed", "speed", "mixed", "packed"}
"""Verbs and nouns, a command, and a method of the extension."""


def participles(path: Path) -> Iterator[str]:
    """Functions of a file named by a participle alone; properties and questions (`-> bool`) may be."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and PARTICIPLE.fullmatch(node.name):
            is_property = any(
                "property" in ast.dump(each) or "setter" in ast.dump(each) for each in node.decorator_list
            )
            is_question = node.returns is not None and ast.unparse(node.returns) == "bool"
            if not is_property and not is_question and node.name.strip("_") not in OTHERS:
                yield f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}"


def test_functions_say_what_they_do_or_give() -> None:
    """`quantize_request` and `topological_order`, not `quantized` and `ordered`; rewrites are left out."""
    package = REPOSITORY / "python" / "tpuflow"
    paths = [path for path in package.rglob("*.py") if "frontend" not in path.relative_to(package).parts]
    assert not sorted(name for path in paths for name in participles(path))


def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    """ "The result of a build.", not "What a build made."; a word such as "What" leads to riddles."""
    package = REPOSITORY / "python" / "tpuflow"
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in package.rglob("*.py")
        if "frontend" not in path.relative_to(package).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and (ast.get_docstring(node) or "").startswith("What ")
    ]
    assert not wrong


def test_names_of_files_are_words_of_the_field() -> None:
    wrong = [path for path in files(".py", ".rs", ".md") if NAMES.keys() & set(words(path.stem))]
    assert not wrong


@pytest.mark.parametrize("pattern", PROSE)
def test_prose_has_no_private_words(pattern: str) -> None:
    allowed = {place for key, places in ALLOWED.items() if key in pattern for place in places}
    for path in files(".py", ".pyi", ".rs", ".md"):
        place = path.relative_to(REPOSITORY).as_posix()
        if place in allowed:
            continue
        text = path.read_text(encoding="utf-8")
        # What no line of a file holds the file as a whole does not hold either, and that is searched faster.
        if not re.search(pattern, text, re.MULTILINE):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            assert not re.search(pattern, line), f"{place}:{number}: {line.strip()} (say: {PROSE[pattern]})"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HeldOutJudge", ["held", "out", "judge"]),
        ("load_judged", ["load", "judged"]),
        ("DDRBus", ["ddr", "bus"]),
    ],
)
def test_names_are_taken_apart(name: str, expected: list[str]) -> None:
    assert words(name) == expected
