"""The figures by which docs/arithmetic.md argues against Winograd's transform on this array."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import REPOSITORY

DATA = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
KERNEL = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])  # twice the matrix, which has halves
RESULT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


def bits(largest: int) -> int:
    """Of signed numbers up to a magnitude, its negative included."""
    return (largest - 1).bit_length() + 1


def test_the_integer_transform_is_exact() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        d, g = rng.integers(-128, 128, (4, 4)), rng.integers(-127, 128, (3, 3))
        products = (DATA @ d @ DATA.T) * (KERNEL @ g @ KERNEL.T)
        direct = [[int(np.sum(d[i : i + 3, j : j + 3] * g)) for j in (0, 1)] for i in (0, 1)]
        np.testing.assert_array_equal(RESULT @ products @ RESULT.T, 4 * np.array(direct))


def test_its_operands_take_four_passes_of_byte_multipliers() -> None:
    data = int(np.outer(np.abs(DATA).sum(1), np.abs(DATA).sum(1)).max()) * 128
    kernel = int(np.outer(np.abs(KERNEL).sum(1), np.abs(KERNEL).sum(1)).max()) * 127
    assert (bits(data), bits(kernel)) == (10, 12)
    passes = -(-bits(data) // 8) * -(-bits(kernel) // 8)
    assert (passes * 16, 4 * 9) == (64, 36)
    assert bits(4 << 5) <= 8 and bits(9 * 7) <= 8  # 6-bit data and 4-bit weights
    text = (REPOSITORY / "docs" / "arithmetic.md").read_text(encoding="utf-8")
    assert f"{passes * 16 / 36:.2f} times the cycles" in text and f"{36 / 16} times fewer" in text


@pytest.mark.parametrize(("transform", "count"), [(DATA, 32), (RESULT, 24)])
def test_its_additions_are_counted(transform: np.ndarray, count: int) -> None:
    """Additions of one axis for every column, then of the other for every row that is left."""
    rows, columns = transform.shape
    of_one = int(np.abs(transform).sum(1).sum()) - rows
    assert of_one * columns + of_one * rows == count
