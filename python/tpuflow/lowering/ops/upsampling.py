"""Images enlarged linearly by a whole factor, as convolutions.

Every cell of the operand gives as many places of the result, and where these lie beside it is the same for
all cells. A place is the sum of two neighbours, whose weights 8 bits hold exactly:

    4 places a cell, half pixels       cells      a               b               c
                                       places  . .  . .        . .  . .        . .  . .
                                                     5a+3b   1a+7b         over 8

One convolution makes the places between rows, another those between columns. The array makes all places of a
cell with all their channels at once, where the elementwise unit takes four cycles for 64 elements: with few
channels, as behind a segmentation head, the array is done long before. Rows and columns at the border are
repeated first. Between the convolutions 8-bit codes have 16 bits, so that they are rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.linear import window
from tpuflow.lowering.scheme import Quant
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from tpuflow.lowering.layout import StoredValue
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step

__all__ = ["Places", "is_quicker", "places_of", "upsample"]

LARGEST_WEIGHT = 127
"""Weights have 8 bits."""
LANES = 64
"""Elements the elementwise unit takes at once."""
LINEAR = 4
"""Cycles it takes for them, of an image resized linearly."""
WORD = 128
"""Bytes of a word of the cache."""
MARGIN = 1.5
"""How much quicker convolutions should be: other layers of theirs may wait for the array."""
MOST_AT_ONCE = 8
"""Cells whose places one row of the array makes."""
TERMS = 2
"""Products a place is the sum of; others are with zeros."""

Kernels = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Places:
    """The places along an axis that belong to one cell.

    Attributes:
        weights: By place, those of the cells `first`, `first + 1`, ..
        first: The first of these cells, counted from the one the places belong to.
        whole: What the weights of a place add up to.
    """

    weights: tuple[tuple[int, ...], ...]
    first: int
    whole: int

    @property
    def factor(self) -> int:
        """Places of a cell."""
        return len(self.weights)

    def kernels(self, count: int) -> Kernels:
        """Weights by place of so many neighbouring cells, and by cell that one of them sees."""
        found = np.zeros((count, self.factor, self.reach + count - 1), np.int8)
        for cell in range(count):
            found[cell, :, cell : cell + self.reach] = self.weights
        return found.reshape(count * self.factor, -1)

    @property
    def reach(self) -> int:
        """Cells any of them sees."""
        return len(self.weights[0])

    @property
    def border(self) -> tuple[int, int]:
        """Cells in front of the first and behind the last that some place sees."""
        return -self.first, self.first + self.reach - 1


def places_of(sources: Sequence[Fraction], cells: int) -> Places | None:
    """The places of a cell, if they are the same for every one and 8 bits hold their weights.

    Args:
        sources: Of every place, where it lies among the cells.
        cells: How many there are.
    """
    factor, left = divmod(len(sources), cells)
    if left or not factor:
        return None
    distances = sources[:factor]
    if any(place != at // factor + distances[at % factor] for at, place in enumerate(sources)):
        return None
    floors = [math.floor(distance) for distance in distances]
    parts = [distance - floor for distance, floor in zip(distances, floors, strict=True)]
    whole = math.lcm(*(part.denominator for part in parts))
    first = min(0, *floors)
    reach = max(0, *(floor + (part > 0) for floor, part in zip(floors, parts, strict=True))) - first + 1
    if whole > LARGEST_WEIGHT or -first > cells or reach + first - 1 > cells:
        return None
    weights = np.zeros((factor, reach), np.int64)
    for place, (floor, part) in enumerate(zip(floors, parts, strict=True)):
        weights[place, floor - first] = int(whole * (1 - part))
        if part:
            weights[place, floor - first + 1] = int(whole * part)
    return Places(tuple(tuple(int(weight) for weight in row) for row in weights), first, whole)


def is_quicker(context: Lowering, stored: StoredValue, rows: Places, columns: Places) -> bool:
    """Whether the array is done before the elementwise unit would be, the weights of both loaded.

    The elementwise unit moves what lies between the convolutions, and what is behind them where channels do
    not fill their pixels.
    """
    side = context.columns
    n, height, width, channels = stored.shape
    size = np.dtype(stored.grid.dtype).itemsize
    across, between = width + sum(columns.border), 2 if rows.factor > 1 < columns.factor else size
    results = n * height * rows.factor * width * columns.factor
    moved = n * (height + sum(rows.border)) * across * channels
    array, weights = 0.0, 0
    if rows.factor > 1:
        weights += rows.factor * rows.reach
        array += _cycles(n * height * across, rows, 1, (channels, size, side))
        moved += n * height * rows.factor * across * channels
    if columns.factor > 1:
        pixels, form = n * height * rows.factor * width, (channels, between, side)
        count = _at_once(width, columns, form)
        weights += count * columns.factor * (columns.reach + count - 1)
        array += _cycles(pixels, columns, count, form)
    array += weights * channels**2 / context.bytes_worth_a_cycle
    if (channels * size) & (channels * size - 1):
        moved += results * channels
    linear = LINEAR * results * _pixel_bytes(channels * size) / size / LANES
    return MARGIN * max(array, moved / LANES) < linear


def _at_once(width: int, columns: Places, form: tuple[int, int, int]) -> int:
    """Cells of a row whose places are computed side by side in the fewest cycles."""
    counts = [count for count in range(1, MOST_AT_ONCE + 1) if width % count == 0]
    return min(counts, key=lambda count: _cycles(width, columns, count, form))


def _cycles(pixels: int, places: Places, count: int, form: tuple[int, int, int]) -> float:
    """Cycles of the array for the places of so many cells, `count` in a row of it."""
    channels, size, side = form
    pixel, reach = _pixel_bytes(channels * size), places.reach + count - 1
    blocks = math.ceil(reach * pixel / side) if pixel < side else reach * (pixel // side)
    # Operands of 16 bits take two passes.
    return pixels / count * blocks * size * math.ceil(count * places.factor * channels / side)


def _pixel_bytes(size: int) -> int:
    """Bytes of a pixel of `size`: a power of two, or whole words."""
    return 1 << (size - 1).bit_length() if size < WORD else math.ceil(size / WORD) * WORD


def upsample(context: Lowering, step: Step, stored: StoredValue, rows: Places, columns: Places) -> None:
    """Lowers a linear resize to one convolution an axis.

    Args:
        context: The walk.
        step: The resize.
        stored: Its operand `[n, h, w, c]`, of codes.
        rows: Places of its rows.
        columns: Places of its columns.
    """
    n, height, width, channels = stored.shape
    quant, name = stored.grid, step.output.name or "resized"
    cells = _with_border(context, name, stored, rows.border, columns.border)
    if columns.factor == 1:
        op = _convolution(
            context, name, cells, (quant, quant), rows, _spread(rows.kernels(1), channels, axis=1)
        )
        axes = View.dense((n, height, width, rows.factor, channels)).axes
        view = View((axes[0], axes[4], (*axes[1], *axes[3]), axes[2]))
        context.emit(step, op, (n, height, width, rows.factor * channels), view, quant)
        context.builder.terms(TERMS)
        return
    grid = quant
    if rows.factor > 1:
        grid = _between(quant)
        cells = _places_of_rows(
            context, step, cells, (n, height, width + sum(columns.border), channels), rows, (quant, grid)
        )
    size = np.dtype(grid.dtype).itemsize
    count = _at_once(width, columns, (channels, size, context.columns))
    kernels = _spread(columns.kernels(count), channels, axis=2)
    op = _convolution(context, name, cells, (grid, quant), columns, kernels, stride=count)
    shape = (n, height * rows.factor, width // count, count * columns.factor * channels)
    view = View.dense((n, channels, shape[1], width * columns.factor), (0, 2, 3, 1))
    context.emit(step, op, shape, view, quant)
    context.builder.terms(TERMS)


def _with_border(
    context: Lowering, name: str, stored: StoredValue, rows: tuple[int, int], columns: tuple[int, int]
) -> int:
    """The tensor with its outermost rows and columns repeated so many times."""
    if not any((*rows, *columns)):
        return stored.tensor
    before, after = ([0, rows[end], columns[end], 0] for end in (0, 1))
    shape = tuple(sum(parts) for parts in zip(before, stored.shape, after, strict=True))
    op = Op.pad(input=stored.tensor, before=before, after=after, mode="edge")
    return context.hidden_layer(f"{name}/border", op, shape, stored.grid)


def _places_of_rows(
    context: Lowering,
    step: Step,
    cells: int,
    shape: tuple[int, int, int, int],
    rows: Places,
    grids: tuple[Quant, Quant],
) -> int:
    """The image `shape` without the border it has above and below, with all places of its rows."""
    n, height, across, channels = shape
    name = f"{step.output.name}/rows"
    op = _convolution(context, name, cells, grids, rows, _spread(rows.kernels(1), channels, axis=1))
    pixel = rows.factor * channels
    made = context.hidden_layer(name, op, (n, height, across, pixel), grids[1], step.names)
    context.builder.terms(TERMS)
    op = Op.rearrange(
        input=made,
        dims=[n * height, rows.factor, across, channels],
        strides=[across * pixel, channels, pixel, 1],
        offset=0,
    )
    return context.hidden_layer(f"{name}/arranged", op, (n, height * rows.factor, across, channels), grids[1])


def _between(quant: Quant) -> Quant:
    """A grid of 16 bits with 128 steps for one of 8 bits: the difference of any two codes fits."""
    if quant.dtype == "int16":
        return quant
    return Quant("int16", float(np.float32(quant.scale / 128)), 0, -(1 << 15), (1 << 15) - 1)


def _spread(kernels: Kernels, channels: int, *, axis: int) -> Kernels:
    """Weights `[places, cells]` for each of so many channels alone: `[places x channels, h, w, channels]`."""
    places, cells = kernels.shape
    each = np.eye(channels, dtype=np.int8)
    spread = kernels[:, np.newaxis, :, np.newaxis] * each[np.newaxis, :, np.newaxis, :]
    return np.expand_dims(spread.reshape(places * channels, cells, channels), 3 - axis)


def _convolution(
    context: Lowering,
    name: str,
    cells: int,
    grids: tuple[Quant, Quant],
    places: Places,
    kernels: Kernels,
    stride: int = 1,
) -> Op:
    """The convolution with `kernels`, from one grid to the other, that steps over `stride` cells of a row."""
    source, target = grids
    wide = source.dtype == "int16"
    bias = np.zeros(kernels.shape[0], np.int64 if wide else np.int32)
    factor = source.scale / places.whole / target.scale
    return Op.conv(
        input=cells,
        weights=context.shared_constant(f"{name}/weights", kernels, [1.0 / places.whole]),
        bias=context.shared_constant(f"{name}/bias", bias),
        window=window(kernels.shape[1:3], (1, stride), (1, 1), (0, 0, 0, 0)),
        groups=1,
        epilogue={"requant": context.requant([factor], target, wide=wide).fields()},
    )
