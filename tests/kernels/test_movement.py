"""What only moves codes, and concatenation: kernels against reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.strategies import LIMITS, agree, apply, codes, dtypes, operands, requants
from tpuflow.errors import GraphError
from tpuflow.kernels import Operand

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(st.data(), dtypes)
def test_rearrange(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    total = int(np.prod(shape))
    dims, strides, low, high = [], [], 0, 0
    for _ in range(data.draw(st.integers(1, 4))):
        extent = data.draw(st.integers(1, 4))
        reach = (total - 1 - (high - low)) // max(extent - 1, 1)
        stride = data.draw(st.integers(-reach, reach))
        dims.append(extent)
        strides.append(stride)
        low, high = low + min(0, (extent - 1) * stride), high + max(0, (extent - 1) * stride)
    offset = data.draw(st.integers(-low, total - 1 - high))
    op = {
        "op": "rearrange",
        "input": Operand(data.draw(codes(dtype, shape))),
        "dims": dims,
        "strides": strides,
        "offset": offset,
    }
    agree(op, shape=dims, dtype=dtype)


@given(st.data(), dtypes)
def test_transpose_is_a_rearrangement(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    order = data.draw(st.permutations(range(len(shape))))
    x = data.draw(codes(dtype, shape))
    steps = [int(np.prod(shape[axis + 1 :])) for axis in order]
    dims = [shape[axis] for axis in order]
    op = {"op": "rearrange", "input": Operand(x), "dims": dims, "strides": steps, "offset": 0}
    np.testing.assert_array_equal(apply(op, shape=dims, dtype=dtype), x.transpose(order))


@given(st.data(), dtypes, st.sampled_from(["constant", "reflect", "edge"]))
@pytest.mark.feature("NUM-25")
def test_pad_equals_the_reference(data: st.DataObject, dtype: str, mode: str) -> None:
    shape = data.draw(shapes)
    widths = [st.integers(0, n - 1 if mode == "reflect" else 3) for n in shape]
    before, after = data.draw(st.tuples(*widths)), data.draw(st.tuples(*widths))
    fill: Any = {"constant": data.draw(st.integers(*LIMITS[dtype]))} if mode == "constant" else mode
    op = {
        "op": "pad",
        "input": Operand(data.draw(codes(dtype, shape))),
        "before": list(before),
        "after": list(after),
        "mode": fill,
    }
    padded = [b + n + a for b, n, a in zip(before, shape, after, strict=True)]
    agree(op, shape=padded, dtype=dtype)


@given(st.data(), dtypes)
def test_gather(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    axis = data.draw(st.integers(0, len(shape) - 1))
    indices = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6))
    op = {"op": "gather", "input": Operand(data.draw(codes(dtype, shape))), "axis": axis, "indices": indices}
    agree(op, shape=[*shape[:axis], len(indices), *shape[axis + 1 :]], dtype=dtype)


@given(st.data(), dtypes)
def test_embedding(data: st.DataObject, dtype: str) -> None:
    rows, d = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    indices = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6)), np.int32)
    table = Operand(data.draw(codes(dtype, [rows, d])), constant=True)
    op = {"op": "embedding", "table": table, "indices": Operand(indices)}
    agree(op, shape=[len(indices), d], dtype=dtype)


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1])
def test_an_index_outside_the_table_is_named(index: int) -> None:
    table = Operand(np.zeros((3, 2), np.int8), constant=True)
    op = {"op": "embedding", "table": table, "indices": Operand(np.array([0, index], np.int32))}
    with pytest.raises(GraphError, match=f'layer "layer": index {index} is outside the 3 rows of'):
        apply(op, shape=[2, 2], dtype="int8")


@given(st.data(), dtypes)
@pytest.mark.feature("NUM-22")
def test_concat_equals_the_reference(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(shapes)
    axis = data.draw(st.integers(0, len(shape) - 1))
    inputs, chosen, total = [], [], 0
    for _ in range(data.draw(st.integers(1, 4))):
        extent = data.draw(st.integers(1, 4))
        total += extent
        changed = data.draw(st.booleans())
        x_type = data.draw(dtypes) if changed else dtype
        inputs.append(data.draw(operands(x_type, [*shape[:axis], extent, *shape[axis + 1 :]])))
        chosen.append(data.draw(requants(dtype, float(LIMITS[x_type][1]))) if changed else None)
    op = {"op": "concat", "inputs": inputs, "axis": axis, "requants": chosen}
    agree(op, shape=[*shape[:axis], total, *shape[axis + 1 :]], dtype=dtype)
