"""Views against NumPy: whatever NumPy does to an array, the view finds the same elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuflow.lowering.view import View


def seen(view: View, stored: np.ndarray) -> np.ndarray:
    """The value a view shows of a stored tensor."""
    return np.asarray(stored.ravel()[view.positions()])


def rearranged(view: View, stored: np.ndarray) -> np.ndarray:
    """The value by the loops a Rearrange gets."""
    total = np.full((), view.offset)
    for extent, stride in view.loops:
        total = total[..., None] + np.arange(extent) * stride
    return np.asarray(stored.ravel()[total].reshape(view.shape))


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@given(st.data())
def test_chains_of_views_equal_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    value = np.arange(math.prod(shape)).reshape(shape)
    stored = value.transpose(order).copy()
    view = View.dense(shape, order)
    assert view.covers(stored.size)
    assert np.array_equal(seen(view, stored), value)
    for _ in range(data.draw(st.integers(1, 5))):
        move = data.draw(st.sampled_from(["transpose", "reshape", "slice", "expand", "tile"]))
        axes = range(value.ndim)
        after: View | None
        if move == "transpose":
            permutation = data.draw(st.permutations(axes))
            after, value_after = view.transpose(permutation), value.transpose(permutation)
        elif move == "reshape":
            first = data.draw(st.sampled_from(divisors(value.size)))
            target = (first, value.size // first)
            after, value_after = view.reshape(target), value.reshape(target)
        elif move == "slice":
            axis = data.draw(st.sampled_from(list(axes)))
            start = data.draw(st.integers(0, value.shape[axis] - 1))
            step = data.draw(st.sampled_from([-2, -1, 1, 2]))
            room = start // -step if step < 0 else (value.shape[axis] - 1 - start) // step
            count = data.draw(st.integers(1, room + 1))
            after = view.slice(axis, start, step, count)
            value_after = value.take([start + i * step for i in range(count)], axis)
        elif move == "expand":
            wider = (2, *(2 if extent == 1 else extent for extent in value.shape))
            after, value_after = view.expand(wider), np.broadcast_to(value, wider)
        else:
            axis = data.draw(st.sampled_from(list(axes)))
            after, value_after = view.tile(axis, 2), np.concatenate([value, value], axis)
        if after is None:  # Would need the elements moved: then it may start from a dense tensor.
            stored = value.copy()
            view = View.dense(value.shape)
            continue
        view, value = after, value_after
        assert view.shape == value.shape
        assert np.array_equal(seen(view, stored), value)
        assert np.array_equal(rearranged(view, stored), value)
        if view.covers(stored.size):
            assert sorted(view.positions().ravel()) == list(range(stored.size))
            found = view.permutation(stored.size)
            assert found is None or np.array_equal(value.transpose(found).ravel(), stored.ravel())
        if value.size <= 4096:
            axis = data.draw(st.sampled_from(list(range(value.ndim))))
            loops, dense = view.as_rows(axis)
            written = stored.ravel()[View((loops,), view.offset).positions()]
            assert dense.covers(value.size)
            assert np.array_equal(seen(dense, written), value)
            # A row holds the elements along the axis, in some order.
            rows = np.sort(written.reshape(-1, value.shape[axis]))
            wanted = np.sort(np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis]))
            assert sorted(map(tuple, rows)) == sorted(map(tuple, wanted))


def test_flattened_image_keeps_its_place() -> None:
    flat = View.dense((1, 8, 4, 4), (0, 2, 3, 1)).reshape((1, 128))
    assert flat is not None
    assert flat.axes == ((), ((8, 1), (16, 8)))
    assert flat.covers(128)
    assert flat.permutation(128) is None


def test_channel_shuffle_and_split_is_one_stride() -> None:
    grouped = View.dense((1, 48, 44, 44), (0, 2, 3, 1)).reshape((1, 24, 2, 44, 44))
    assert grouped is not None
    half = grouped.transpose((0, 2, 1, 3, 4)).slice(1, 1, 1, 1)
    assert half is not None
    squeezed = half.reshape((1, 24, 44, 44))
    assert squeezed is not None
    assert squeezed.transpose((0, 2, 3, 1)).loops == ((24 * 44 * 44, 2),)
    assert squeezed.offset == 1


@pytest.mark.parametrize("target", [(2, 12), (4, 6), (24,)])
def test_reshape_splits_and_joins_loops(target: tuple[int, ...]) -> None:
    view = View.dense((2, 3, 4)).reshape(target)
    assert view == View.dense(target)


def test_reshape_that_cuts_across_loops_is_refused() -> None:
    assert View.dense((4, 3), (1, 0)).reshape((2, 6)) is not None
    assert View.dense((3, 4), (1, 0)).reshape((6, 2)) is not None
    assert View.dense((3, 4), (1, 0)).reshape((2, 6)) is None
