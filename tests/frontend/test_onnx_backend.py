"""A sample of ONNX's own node tests; `python tests/frontend/onnx_backend.py` runs all of them."""

from __future__ import annotations

import json

import pytest

from frontend.onnx_backend import LIST, cases_of, outcome, regressed

SAMPLE = (
    "cumsum",
    "einsum",
    "gathernd",
    "gru",
    "lstm",
    "mod",
    "onehot",
    "rotaryembedding",
    "scatternd",
    "where",
)


@pytest.mark.parametrize("operator", SAMPLE)
def test_no_node_test_does_worse_than_the_list_says(operator: str) -> None:
    listed = json.loads(LIST.read_text())
    for name, case in cases_of(operator).items():
        result = outcome(case)
        assert not regressed(result, listed[name]), f"{name}: {result}, listed as {listed[name]}"


def test_no_node_test_is_wrong() -> None:
    listed = json.loads(LIST.read_text())
    assert not [name for name, result in listed.items() if result.startswith("wrong")]
    assert len(listed) > 1900
