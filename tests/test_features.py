"""The page of features: how it is made, and that tests only carry ids there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import features
from conftest import REPOSITORY


def known() -> dict[str, list[features.Row]]:
    return features.groups(features.ROWS.read_text(encoding="utf-8"))


def test_ids_are_unique_and_have_a_priority() -> None:
    rows = [row for group in known().values() for row in group]
    assert len({row.id for row in rows}) == len(rows) > 300
    assert {row.priority for row in rows} == set(features.PRIORITIES)
    assert all(re.fullmatch(r"[A-Z]{3}-\d\d", row.id) and row.title for row in rows)


def test_every_id_a_test_carries_is_a_row() -> None:
    rows = {row.id for group in known().values() for row in group}
    for test in features.tests(REPOSITORY):
        assert set(test.ids) <= rows, f"{test.file}: {test.name}"


def test_the_page_lists_every_row() -> None:
    text = features.PAGE.read_text(encoding="utf-8")
    for group in known().values():
        for row in group:
            assert f"| {row.title} | {features.PRIORITIES[row.priority]} |" in text
            assert row.id not in text


def test_names_of_tests_are_sentences_without_ids() -> None:
    """Ids stand in markers: `@pytest.mark.feature("IMP-22")`, or `// feature: IMP-22` in Rust."""
    files = [*REPOSITORY.glob("tests/**/*.py"), *REPOSITORY.glob("crates/**/*.rs")]
    for path in files:
        for name in re.findall(
            r"^\s*(?:def (test_\w+)|fn (\w+))", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert not features.ID_IN_NAME.search("".join(name).removeprefix("test_")), f"{path}: {name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('@pytest.mark.feature("IMP-22")\ndef test_a(): ...', [("test_a", ("IMP-22",))]),
        ('@pytest.mark.feature("A-1", "A-2")\n@given()\ndef test_a(): ...', [("test_a", ("A-1", "A-2"))]),
        ("def test_a(): ...", [("test_a", ())]),
        ('@pytest.mark.feature("IMP-22")\ndef helper(): ...', []),
    ],
)
def test_ids_of_python_stand_in_markers(text: str, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert list(features.python_tests(text)) == expected


def test_ids_of_rust_stand_in_a_comment_above_the_test() -> None:
    text = (
        "// feature: IMP-03, IMP-04\n#[test]\n/// Text.\nfn both() {}\n"
        "fn other() {}\n    // feature: IMP-05\n    #[test]\n    fn within() {}\n"
    )
    assert list(features.rust_tests(text)) == [("both", ("IMP-03", "IMP-04")), ("within", ("IMP-05",))]


@pytest.mark.feature("MSC-20")
def test_the_page_follows_the_tests(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "crates").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        '@pytest.mark.feature("IMP-01")\ndef test_it_reads():\n    pass\ndef test_other():\n    pass\n'
    )
    (tmp_path / "crates" / "a.rs").write_text("// feature: IMP-03, IMP-04\n#[test]\nfn both() {}\n")
    rows = features.groups("# One\nIMP-01 M first\nIMP-02 S second\n# Two\nIMP-03 C third\nIMP-04 M fourth\n")
    text = features.page(rows, features.tests(tmp_path))
    assert "| must | 2 | 2 | 0 |" in text and "| should | 1 | 0 | 1 |" in text
    assert "| first | must | done | [it reads](../tests/test_a.py) |" in text
    assert "| second | should | **not done** |  |" in text
    assert text.count("[both](../crates/a.rs)") == 2
