"""A decoder from its file to text: `build --context`, `evaluate --metric perplexity`, `generate`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import tpuflow
from cli.conftest import Command
from frontend.decoders import VOCABULARY, decoder
from tpuflow.errors import FileError, SampleError
from tpuflow.evaluation.perplexity import losses, paired_perplexity
from tpuflow.execution.tokens import open_tokenizer
from tpuflow.pipeline.bundle import load_bundle
from tpuflow.pipeline.decoders import build_decoder, open_decoder, phases_of, rows_of_at_least
from tpuflow.pipeline.request import Request

CHARACTERS = "abcdefghijklmnopqrstuvw"


@pytest.mark.feature("IMP-36")
@pytest.mark.slow
def test_a_decoder_from_its_file_to_text(command: Command, tmp_path: Path) -> None:
    model, ids, words, file = (tmp_path / name for name in ("d.onnx", "ids.npz", "words.json", "d.tpub"))
    onnx.save(decoder("exported", layers=1), model)
    np.savez(ids, ids=np.random.default_rng(0).integers(0, VOCABULARY, (10, 16)))
    words.write_text(json.dumps({"chars": list(CHARACTERS)}))
    done = command(
        "build", model, "--prefill", "4", "--context", "8,16", "--calib", ids, "-o", file, "--no-verify"
    )
    assert done.status == 0, done.err
    names = ["prefill4_context8", "decode1_context8", "prefill4_context16", "decode1_context16"]
    held = load_bundle(file)
    assert list(held.programs) == list(held.graphs) == names
    grids = []
    for name in names:
        graph = held.graph(name)
        assert isinstance(graph, tpuflow.Graph)
        grids.append(
            {
                tensor.name: (tensor.scale, tensor.zero_point)
                for tensor in graph.tensors
                if tensor.name in {"past_key_values.0.key", "past_key_values.0.value"}
            }
        )
    assert all(each == grids[0] for each in grids)

    done = command(
        "evaluate",
        file,
        "--data",
        ids,
        "--metric",
        "perplexity(4)",
        "--float",
        model,
        "--json",
        tmp_path / "e",
    )
    assert done.status == 0, done.err
    figures = json.loads((tmp_path / "e").read_text())
    assert figures["tokens"] == 110
    assert abs(figures["change"]) < 0.2
    assert figures["standard_error"] > 0

    texts = []
    for extra in ((), ("--simulate",)):
        done = command(
            "generate", file, "--prompt", "abcde", "--tokens", "6", "--tokenizer", words,
            "--json", tmp_path / "g", *extra,
        )  # fmt: skip
        assert done.status == 0, done.err
        figures = json.loads((tmp_path / "g").read_text())
        texts.append(figures["tokens"])
        assert sum(each["tokens"] for each in figures["phases"]) == 10
        assert all(each["cycles_per_token"] > 0 for each in figures["phases"])
    assert texts[0] == texts[1]

    for arguments, message in (
        (("generate", file, "--prompt", "a!", "--tokenizer", words), 'holds "!", which is none of the 23'),
        (("generate", file, "--prompt", "", "--tokenizer", words), "a text needs a first token"),
        (("generate", file, "--prompt", "ab", "--tokens", "40", "--tokenizer", words), "beyond the context"),
        (("generate", file, "--prompt", "a", "--tokenizer", tmp_path / "none.json"), "no such file"),
        (("generate", model, "--prompt", "a"), "is a model, not a bundle: build one of a decoder"),
        (("evaluate", file, "--data", ids, "--metric", "top1"), "is scored by perplexity(PROMPT)"),
        (("build", model, "--prefill", "4"), "--prefill needs --context"),
        (("build", model, "--context", "4,x"), "write positive numbers, separated by commas"),
        (("build", model, "--context", "8", "-o", tmp_path / "d.tpu"), "name it .tpub"),
        (("build", model, "--context", "8", "--calib", words, "-o", file), "words.json"),
    ):
        wrong = command(*arguments)
        assert wrong.status in {1, 2}, arguments
        assert message in wrong.err, (arguments, wrong.err)


def test_short_rows_are_continued_by_those_after_them() -> None:
    rows = np.arange(12).reshape(3, 4)
    assert rows_of_at_least(rows, 4) is rows
    assert rows_of_at_least(rows, 7).tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [4, 5, 6, 7, 8, 9, 10, 11],
        [8, 9, 10, 11, 0, 1, 2, 3],
    ]
    assert rows_of_at_least(rows[:1], 9).tolist() == [[0, 1, 2, 3] * 3]


@pytest.mark.slow
def test_a_prompt_longer_than_the_calibration_rows(tmp_path: Path) -> None:
    model, ids = tmp_path / "d.onnx", tmp_path / "ids.npz"
    onnx.save(decoder("exported", layers=1), model)
    np.savez(ids, ids=np.random.default_rng(0).integers(0, VOCABULARY, (3, 4)))
    built = build_decoder(Request(model, calibration=ids, verify=False), phases_of(8, 1, [16]))
    assert list(built.parts) == ["prefill8_context16", "decode1_context16"]


def test_pairs_have_a_smaller_error_than_texts() -> None:
    floats = np.array([[1.0, 3.0], [2.0, 6.0]])
    found = paired_perplexity(floats + 0.01, floats)
    assert found.change == pytest.approx(np.expm1(0.01))
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)
    assert paired_perplexity(floats).value == pytest.approx(np.exp(3.0))
    assert paired_perplexity(floats + np.array([[0.0], [0.02]]), floats).standard_error == pytest.approx(
        0.01 * np.exp(0.01)
    )


def test_rows_are_refused_before_they_are_run() -> None:
    class Short:
        longest = 8

    with pytest.raises(SampleError, match="rows of 12 tokens exceed the context of 8"):
        losses(Short(), np.zeros((2, 12), np.int64), 4)  # type: ignore[arg-type]
    with pytest.raises(SampleError, match="longer than the prompt of 12"):
        losses(Short(), np.zeros((2, 12), np.int64), 12)  # type: ignore[arg-type]


def test_tokens_without_a_file_are_code_points(tmp_path: Path) -> None:
    assert open_tokenizer(None).encode("ab") == [97, 98]
    assert open_tokenizer(None).decode([97, 98]) == "ab"
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(FileError, match="cannot be read as JSON"):
        open_tokenizer(tmp_path / "t.json")


def test_a_file_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.tpub").write_bytes(b"no")
    with pytest.raises(FileError, match="not a bundle"):
        open_decoder(tmp_path / "x.tpub")
