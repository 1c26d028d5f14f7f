"""The types of operators in the stubs are those of Rust: every function, every field of every part."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from conftest import REPOSITORY
from tpuflow._core import Op
from tpuflow.errors import GraphError

STUBS = ast.parse((REPOSITORY / "python" / "tpuflow" / "_core.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
PARTS = {
    name: {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}  # type: ignore[union-attr]
    for name, node in CLASSES.items()
    if any(ast.unparse(base) == "TypedDict" for base in node.bases)
}
WINDOW = {"kernel": [1, 1], "stride": [1, 1], "dilation": [1, 1], "pads": [0, 0, 0, 0]}
REQUANT = {"multiplier": [1], "shift": [0], "zero_point": 0, "lo": -128, "hi": 127}
WRONG: dict[str, Any] = {"?": 0}

# An operator in which a part has a field that no part has.
USES: dict[str, tuple[str, dict[str, Any]]] = {
    "WindowFields": ("max_pool", {"input": 0, "window": WRONG}),
    "RequantFields": ("rescale", {"input": 0, "requant": WRONG}),
    "TableFields": ("unary", {"input": 0, "function": WRONG}),
    "FinishFields": ("rescale", {"input": 0, "requant": {"float": WRONG}}),
    "EpilogueFields": ("mat_mul", {"a": 0, "b": 1, "epilogue": WRONG}),
    "AverageFields": (
        "average_pool",
        {"input": 0, "window": WINDOW, "count_include_pad": True, "beyond": [0, 0], "average": WRONG},
    ),
    "DivisorFields": (
        "average_pool",
        {
            "input": 0, "window": WINDOW, "count_include_pad": True, "beyond": [0, 0],
            "average": {"divisors": [WRONG], "zero_point": 0, "lo": 0, "hi": 0},
        },
    ),
    "SlopeFields": ("p_relu", {"input": 0, "slopes": WRONG}),
    "NegativeSlopeFields": ("p_relu", {"input": 0, "slopes": {"float": WRONG}}),
    "ExponentialFields": ("softmax", {"input": 0, "exponentials": WRONG}),
    "NormFields": ("layer_norm", {"input": 0, "gamma": 1, "beta": 2, "center": True, "norm": WRONG}),
    "EpsilonFields": (
        "layer_norm", {"input": 0, "gamma": 1, "beta": 2, "center": True, "norm": {"float": WRONG}}
    ),
    "DivisionFields": ("reduce", {"input": 0, "kind": "sum", "axes": [0], "requant": {"float": WRONG}}),
    "LinearTapFields": ("resize_linear", {"input": 0, "rows": [WRONG], "columns": []}),
}  # fmt: skip


@pytest.mark.parametrize("part", USES)
def test_fields_of_a_part_are_those_of_rust(part: str) -> None:
    operator, fields = USES[part]
    with pytest.raises(GraphError, match="unknown field `\\?`") as caught:
        getattr(Op, operator)(**fields)
    expected = str(caught.value).partition("expected")[2]
    assert set(re.findall(r"`(\w+)`", expected)) == PARTS[part]


def test_every_part_is_compared_but_those_that_choose() -> None:
    """One of two arithmetics, or of two ways to pad: a single field whose name is the choice."""
    chosen = {"float", "constant", "value"}
    assert {part for part, fields in PARTS.items() if not fields <= chosen} == set(USES)
    pads = {"input": 0, "before": [0], "after": [0]}
    for mode in ({"constant": 1}, {"value": 0.5}, "reflect", "edge"):
        Op.pad(**pads, mode=mode)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="expected one of `constant`, `value`, `reflect`, `edge`"):
        Op.pad(**pads, mode={"?": 0})  # type: ignore[arg-type]


def test_there_is_a_function_for_every_operator() -> None:
    """Names of functions are names of operators, those of two operands under the one of their kind.

    Statistics of a softmax belong to programs: tilings make them, no file of a graph may have them.
    """
    text = (REPOSITORY / "crates" / "ir" / "src" / "op.rs").read_text(encoding="utf-8")
    variants = re.findall(r"^    (\w+) \{$", text.partition("pub enum Op {")[2], re.MULTILINE)
    snake = {re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower() for name in variants}
    listed = {node.name for node in CLASSES["Op"].body if isinstance(node, ast.FunctionDef)}
    assert listed == snake - {"softmax_statistics"} == {name for name in dir(Op) if not name.startswith("_")}
