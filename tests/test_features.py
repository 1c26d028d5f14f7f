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
            assert f"| {row.id} | {features.PRIORITIES[row.priority]} | {row.title} |" in text


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_imp_22_output_selection", ("IMP-22",)),
        ("test_sub_01_sub_05_head_and_tail", ("SUB-01", "SUB-05")),
        ("sch_25_exact", ("SCH-25",)),
        ("test_qmo_33", ("QMO-33",)),
        ("test_the_imp_22", ()),
        ("test_imp_2_short", ()),
        ("imports", ()),
    ],
)
def test_ids_stand_in_front_of_names(name: str, ids: tuple[str, ...]) -> None:
    assert features.ids(name) == ids


def test_msc_20_the_page_follows_the_tests(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "crates").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "def test_imp_01_reads():\n    pass\ndef helper_imp_02_():\n    pass\n"
    )
    (tmp_path / "crates" / "a.rs").write_text("#[test]\nfn imp_03_imp_04_both() {}\nfn other() {}\n")
    rows = features.groups("# One\nIMP-01 M first\nIMP-02 S second\n# Two\nIMP-03 C third\nIMP-04 M fourth\n")
    text = features.page(rows, features.tests(tmp_path))
    assert "| must | 2 | 2 | 0 |" in text and "| should | 1 | 0 | 1 |" in text
    assert "| IMP-01 | must | first | done | [test_imp_01_reads](../tests/test_a.py) |" in text
    assert "| IMP-02 | should | second | **not done** |  |" in text
    assert text.count("[imp_03_imp_04_both](../crates/a.rs)") == 2
