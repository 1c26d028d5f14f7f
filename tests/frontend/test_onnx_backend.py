"""A sample of ONNX's own node tests; `python tests/frontend/onnx_backend.py` runs all of them."""

from __future__ import annotations

import json

import pytest

from conftest import slow_except
from frontend.onnx_backend import LIST, cases_of, outcome
from frontend.onnx_lowered import ALIKE
from frontend.onnx_outcomes import is_wrong, regressed

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


@pytest.mark.parametrize("operator", slow_except(set(SAMPLE) - {"gru", "lstm", "rotaryembedding"}, SAMPLE))
@pytest.mark.slow
def test_no_node_test_does_worse_than_the_list_says(operator: str) -> None:
    listed = json.loads(LIST.read_text())
    for name, case in cases_of(operator).items():
        found = outcome(case)
        assert not is_wrong(found), f"{name}: {found}"
        assert not regressed(found, listed[name]), f"{name}: {found}, listed as {listed[name]}"


def test_no_node_test_is_wrong() -> None:
    listed = json.loads(LIST.read_text())
    assert not [name for name, found in listed.items() if is_wrong(found)]
    assert len(listed) > 1900


def test_most_node_tests_are_right_in_floats_and_alike_in_integers() -> None:
    listed = json.loads(LIST.read_text()).values()
    assert sum(str(found.get("float32")).startswith(("whole", "host")) for found in listed) > 1500
    assert sum(found.get("program") == "equal" for found in listed) > 1000
    for dtype in ("int16", "int8"):
        measured = [found[dtype] for found in listed if isinstance(found.get(dtype), float)]
        assert sum(cosine >= ALIKE for cosine in measured) > 0.9 * len(measured)
