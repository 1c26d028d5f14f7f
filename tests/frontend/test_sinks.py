"""Scores of no key beside those of keys: masks stand behind the concatenation, with onnxruntime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from frontend.graphs import array, graph, integers, normalized, operators
from tpuflow.frontend.values import integers_of, sliced

ROWS, KEYS = 5, 7


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("form", ["add kept", "add hidden", "where", "no mask"])
def test_a_mask_is_chosen_behind_the_sinks(form: str, shifted: bool, first: bool) -> None:  # noqa: FBT001
    constants: dict[str, Any] = {
        "sinks": array(1, 3, ROWS, 1, seed=1), "half": np.float32(0.5), "low": np.float32(-1e9),
        "none": np.float32(0), "axes": integers(3),
    }  # fmt: skip
    nodes: list[Any] = [
        ("Greater", "seen half", "kept"),
        ("Less", "seen half", "hidden"),
        ("Where", "kept none low", "added"),
        ("Where", "hidden low none", "also_added"),
        ("Add", "x added", "masked") if form == "add kept" else
        ("Add", "also_added x", "masked") if form == "add hidden" else
        ("Where", "kept x low", "masked") if form == "where" else ("Identity", "x", "masked"),
        ("Concat", "sinks masked" if first else "masked sinks", "all", {"axis": 3}),
    ]  # fmt: skip
    if shifted:
        nodes += [("ReduceMax", "all axes", "most", {"keepdims": 1}), ("Sub", "all most", "low_all")]
    nodes.append(("Softmax", "low_all" if shifted else "all", "y", {"axis": -1}))
    used = {name for node in nodes for name in node[1].split()}
    kept = {name: value for name, value in constants.items() if name in used}
    inputs = {"x": [1, 3, ROWS, KEYS], "seen": [1, 1, ROWS, KEYS]}
    proto = graph(nodes, inputs, ["y"], kept, opset=18)
    found = operators(normalized(proto, 1e-5))
    assert not {"ReduceMax", "Sub", "Add"} & set(found)
    assert found.get("Where", 0) == (0 if form == "no mask" else 1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_updates_are_placed_by_computed_indices(axis: int, count: int) -> None:
    shape = [4, 6]
    wanted = [count if k == axis else size for k, size in enumerate(shape)]
    nodes: list[Any] = [("ArgMax", f"s{k}", f"i{k}", {"axis": axis, "keepdims": 1}) for k in range(count)]
    nodes += [
        ("Concat", " ".join(f"i{k}" for k in range(count)), "i", {"axis": axis}),
        ("ScatterElements", "x i u", "y", {"axis": axis}),
    ]
    inputs = {"x": shape, "u": wanted, **{f"s{k}": shape for k in range(count)}}
    found = operators(normalized(graph(nodes, inputs, ["y"], {}, opset=18)))
    assert "ScatterElements" not in found
    assert found["Where"] == count


def test_numbers_without_bounds_are_no_ends_of_slices() -> None:
    """A choice of minus infinity has it where a slice has its ends."""
    low = ir.Value(name="low", const_value=ir.tensor(np.array([-np.inf], np.float32)), shape=ir.Shape((1,)))
    x = ir.Value(name="x", shape=ir.Shape((3, 4)), type=ir.TensorType(ir.DataType.FLOAT))
    assert sliced(ir.Node("", "Where", [x, x, low])) is None
    assert integers_of(low) is None
