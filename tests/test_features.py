"""The page of features: how it is made, that tests carry known ids, and that what it tells to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import feature_uses
import features
from conftest import REPOSITORY
from tpuflow.config import Config
from tpuflow.config.cfg import parse_cfg

# They read the repository and run nothing of the package.
pytestmark = pytest.mark.slow

RECORDS = [record for group in features.groups().values() for record in group]
TESTS = features.tests(REPOSITORY)
ANSWERED = features.answers(TESTS)


def test_ids_are_unique_and_have_a_priority() -> None:
    assert len({record.id for record in RECORDS}) == len(RECORDS) > 300
    assert len({record.title for record in RECORDS}) > 0.97 * len(RECORDS)
    assert {record.priority for record in RECORDS} == set(features.PRIORITIES)
    assert all(re.fullmatch(r"[A-Z]{3}-\d\d", record.id) and record.title for record in RECORDS)


def test_every_id_a_test_carries_is_a_record() -> None:
    known = {record.id for record in RECORDS}
    for test in TESTS:
        assert set(test.ids) <= known, f"{test.file}: {test.name}"


def test_a_record_says_what_is_true_and_how_to_use_it_or_what_is_missing() -> None:
    """What has a test has a sentence and a use; what has none says what is missing, in one sentence each."""
    for record in RECORDS:
        told = (bool(record.sentence), bool(record.use), bool(record.missing))
        assert told == ((True, True, False) if record.id in ANSWERED else (False, False, True)), record.id
        text = record.sentence or record.missing
        assert text[0].isupper() and text.endswith(".") and ". " not in text.removesuffix("."), record.id
        assert len(text) >= 20, record.id


def test_records_of_a_sentence_are_told_apart() -> None:
    texts = [record.sentence or record.missing for record in RECORDS]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("record", [each for each in RECORDS if each.use], ids=lambda each: each.title)
def test_what_a_use_names_exists(record: features.Record) -> None:
    spans = feature_uses.spans(record.use)
    assert spans and not re.sub(r"`[^`]+`|, ", "", record.use), record.use
    for span in spans:
        assert not feature_uses.problem(span), f"{span}: {feature_uses.problem(span)}"
    for text in feature_uses.settings(record.use):
        Config.parse(parse_cfg(text, record.title))


@pytest.mark.parametrize(
    ("span", "wrong"),
    [
        ("tpuflow build model.onnx -O5 --calib x.npz", ""),
        ("tpuflow --memory-limit 2G npz diff a b -o c", ""),
        ("tpuflow build model.onnx --faster", "no option --faster"),
        ("tpuflow assemble x", "no command assemble"),
        ("tpuflow npz view x", "no command view"),
        ("tpuflow.load(model, batch=4)", ""),
        ("tpuflow.load(model, batches=4)", "tpuflow.load takes no batches"),
        ("tpuflow.convert(model)", "no tpuflow.convert"),
        ("tpu_framework.Network.from_model", "no tpu_framework.Network.from_model"),
        ("[quantize] weight_bits = 4", ""),
        ("[quantize] strategy = mse", "no field strategy in quantize"),
        ("[[layers]] weight_bits = 4", ""),
        ("[[layers]] headroom_16 = 1", "not by layer"),
        ("weight_bitz = 4", "no field weight_bitz in any section"),
        ("./start demo", ""),
        ("./start show", "not a word of ./start"),
        ("TPUFLOW_MEMORY_LIMIT", ""),
        ("TPUFLOW_SPEED", "not a variable the sources read"),
        ("tpuflow_program_unload()", "not in the header for C"),
        ("(anything else)", "neither a command nor an expression nor a field"),
    ],
)
def test_uses_that_name_nothing_are_found(span: str, wrong: str) -> None:
    assert feature_uses.problem(span) == wrong


def test_the_page_is_fresh_and_names_no_id() -> None:
    text = features.PAGE.read_text(encoding="utf-8")
    assert text == features.page(features.groups(), TESTS), "run ./start features"
    assert not [record.id for record in RECORDS if record.id in text]


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
    heading, one = features.group(
        'heading = "One"\n[IMP-01]\npriority = "must"\ntitle = "first"\n'
        'sentence = "It reads."\nuse = "`a|b`"\n'
        '[IMP-02]\npriority = "should"\ntitle = "second"\nmissing = "It is not there."\n'
    )
    two = [features.Record(f"IMP-0{n}", "could", f"number {n}", "Both.", "`c`") for n in (3, 4)]
    text = features.page({heading: one, "Two": two}, features.tests(tmp_path))
    assert "| must | 1 | 1 | 0 |" in text and "| should | 1 | 0 | 1 |" in text
    assert r"| first | must | It reads. | `a\|b` | [it reads](../tests/test_a.py) |" in text
    assert "| second | should | **Not done.** It is not there. |  |  |" in text
    assert text.count("[both](../crates/a.rs)") == 2


@pytest.mark.feature("MSC-15")
def test_no_page_copies_the_documents_this_package_follows(shared: Path) -> None:
    """No twelve words in a row; names, listings and numbers are left out, since they have to be the same."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *features.RECORDS.glob("*.toml")]
    theirs = {row for path in (shared / "seeds").glob("0*.txt") for row in runs(path.read_text("utf-8"))}
    assert len(theirs) > 10_000
    for path in pages:
        assert not theirs & runs(path.read_text(encoding="utf-8")), path


def runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]{2,}", re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.DOTALL).lower())
    return {tuple(words[at : at + 12]) for at in range(len(words) - 11)}
