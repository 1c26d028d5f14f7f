"""Transposed convolutions, as convolutions of the operand as it is wherever that can be.

A transposed convolution of stride s is a convolution over the operand with s - 1 zeros between its cells.
Results whose places leave the same remainder by s, a *phase*, meet cells under the same taps and zeros under
the others. So every phase is a convolution of the operand itself with its own taps, and has the same sums
without a single zero:

    stride 2, taps a b c d         over zeros  x 0 y 0 z        even results  a c  over x y z
                                               a b c d          odd results   b d  over x y z

What phases give lies side by side as channels of one tensor, from which one movement puts it in its place.
Phases along an axis share a convolution where that takes the array less time: with few channels they fill
its columns together, at the price of zeros among the weights where one phase has no tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.lowering.layout import StoredValue
from tpuflow.lowering.nodes import attribute, shape_of
from tpuflow.lowering.operators import Op
from tpuflow.lowering.ops.linear import stated_scales, weight_name, weights_and_bias, window
from tpuflow.lowering.registry import UnsupportedNodeError, lowers
from tpuflow.lowering.sums import LinearParameters, Sums, sums
from tpuflow.lowering.view import View

if TYPE_CHECKING:
    from tpuflow.lowering.lowering import Lowering
    from tpuflow.lowering.plan import Step
    from tpuflow.lowering.scheme import Quant
    from tpuflow.lowering.sums import Codes, Weights

SIDE = 128
"""Rows and columns of the array that convolutions are compared for; on others the result is the same."""


@dataclass(frozen=True)
class Geometry:
    """A transposed convolution as a convolution over zeros, row and column first.

    Attributes:
        cells: Extents of the operand.
        results: Extents of the result.
        kernel: Extents of the kernel, whose taps are turned round.
        stride: Cells are so far apart among the zeros.
        dilation: Taps are so far apart.
        before: Padding in front.
        after: Padding behind.
    """

    cells: tuple[int, int]
    results: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    @classmethod
    def of(cls, step: Step, cells: Sequence[int], kernel: Sequence[int]) -> Geometry:
        """That of a node, given extents of operand and kernel."""
        node = step.node
        pads, extra = attribute(node, "pads", (0, 0, 0, 0)), attribute(node, "output_padding", (0, 0))
        dilation = tuple(attribute(node, "dilations", (1, 1)))
        reach = [dilation[axis] * (kernel[axis] - 1) for axis in range(2)]
        return cls(
            _pair(cells),
            _pair(shape_of(step.output)[2:]),
            _pair(kernel),
            _pair(attribute(node, "strides", (1, 1))),
            _pair(dilation),
            _pair([reach[axis] - pads[axis] for axis in range(2)]),
            _pair([reach[axis] - pads[axis + 2] + extra[axis] for axis in range(2)]),
        )


@dataclass(frozen=True)
class Phases:
    """Phases along an axis that one convolution computes.

    Attributes:
        taps: By phase and place in the window, the tap of the whole kernel; None where the phase has none.
        first: The cell under the first place for the first result.
        dilation: Cells from place to place.
    """

    taps: tuple[tuple[int | None, ...], ...]
    first: int
    dilation: int

    @property
    def extent(self) -> int:
        """Places of the window."""
        return len(self.taps[0])

    @property
    def is_whole(self) -> bool:
        """Whether every phase has a tap in every place."""
        return all(tap is not None for phase in self.taps for tap in phase)

    def padding(self, cells: int, count: int) -> tuple[int, int]:
        """Padding in front and behind for so many results of a phase; negative where cells are left out."""
        last = count - 1 + self.first + self.dilation * (self.extent - 1)
        return -self.first, last + 1 - cells


def _pair(extents: Sequence[int]) -> tuple[int, int]:
    first, second = extents
    return int(first), int(second)


def phases_along(geometry: Geometry, axis: int) -> list[Phases] | None:
    """The phases along an axis, each alone; None where one of them has no taps at all."""
    stride, dilation, before = geometry.stride[axis], geometry.dilation[axis], geometry.before[axis]
    found = []
    for phase in range(stride):
        taps = [
            tap for tap in range(geometry.kernel[axis]) if (phase + tap * dilation - before) % stride == 0
        ]
        if not taps:
            return None
        first = (phase + taps[0] * dilation - before) // stride
        found.append(Phases((tuple(taps),), first, dilation // math.gcd(stride, dilation)))
    return found


def merge_phases(phases: Sequence[Phases]) -> Phases:
    """All phases in one window: as they are where they meet the same cells, else over all cells they meet."""
    one = phases[0]
    if all((each.first, each.extent) == (one.first, one.extent) for each in phases):
        return Phases(tuple(each.taps[0] for each in phases), one.first, one.dilation)
    first = min(each.first for each in phases)
    end = max(each.first + each.dilation * (each.extent - 1) for each in phases) + 1
    taps = []
    for each in phases:
        at = {each.first + each.dilation * place: tap for place, tap in enumerate(each.taps[0])}
        taps.append(tuple(at.get(cell) for cell in range(first, end)))
    return Phases(tuple(taps), first, 1)


@dataclass(frozen=True)
class Division:
    """Which phases share a convolution: all rows with all columns of these lists."""

    rows: tuple[Phases, ...]
    columns: tuple[Phases, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no weight is a zero in a missing tap's place."""
        return all(each.is_whole for each in (*self.rows, *self.columns))

    def slots(self, pixels: int, channels: tuple[int, int]) -> int:
        """Cycles the array is held for so many results of each phase, by channels taken and given."""
        taken, given = channels
        held = 0
        for rows, columns in itertools.product(self.rows, self.columns):
            taps = rows.extent * columns.extent
            per_word = max(1, SIDE // (1 << (taken - 1).bit_length()))
            blocks = -(-taps // per_word) * -(-taken // SIDE)
            tiles = -(-len(rows.taps) * len(columns.taps) * given // SIDE)
            held += blocks * tiles * max(pixels, SIDE)
        return held


def best_division(
    geometry: Geometry, channels: tuple[int, int], *, joins: bool, zeros: bool
) -> Division | None:
    """The division into convolutions that holds the array for the fewest cycles, of equals the one in fewest.

    Phases share one only if it `joins` them, and lack taps only where `zeros` may stand for these. None where
    nothing but a convolution over zeros computes the result.
    """
    alone = [phases_along(geometry, axis) for axis in range(2)]
    if alone[0] is None or alone[1] is None:
        return None
    counts = [-(-geometry.results[axis] // geometry.stride[axis]) for axis in range(2)]
    ways = [
        [tuple(phases), (merge_phases(phases),)] if joins and len(phases) > 1 else [tuple(phases)]
        for phases in (alone[0], alone[1])
    ]
    found: list[tuple[int, int, int, Division]] = []
    for rows, columns in itertools.product(*ways):
        division = Division(rows, columns)
        if (zeros or division.is_whole) and _sees_cells(geometry, division, counts):
            slots = division.slots(counts[0] * counts[1], channels)
            found.append((slots, len(rows) * len(columns), len(found), division))
    return min(found)[-1] if found else None


def _sees_cells(geometry: Geometry, division: Division, counts: Sequence[int]) -> bool:
    """Whether every convolution has cells left where padding is negative."""
    for axis, phases in enumerate((division.rows, division.columns)):
        for each in phases:
            front, behind = each.padding(geometry.cells[axis], counts[axis])
            if geometry.cells[axis] + min(0, front) + min(0, behind) <= 0:
                return False
    return True


@lowers("ConvTranspose")
def transposed_convolution(context: Lowering, step: Step) -> None:
    """A convolution for each phase, or over zeros, with the weights turned round."""
    node = step.node
    channels = shape_of(step.output)[1]
    weights, bias = weights_and_bias(step, channels)
    groups = attribute(node, "group", 1)
    # ONNX holds [in, out / groups, kh, kw]; a convolution [out, kh, kw, in / groups], taps in reverse.
    size_in, per_group, kh, kw = weights.shape
    grouped = weights.reshape(groups, size_in // groups, per_group, kh, kw)[..., ::-1, ::-1]
    turned = grouped.transpose(0, 2, 3, 4, 1).reshape(channels, kh, kw, size_in // groups)
    stated = stated_scales(node.inputs[1], 1)
    if stated is not None:  # one scale per channel of a group, the same in all groups
        stated = np.tile(stated, groups)
    stored = context.images(context.operand(node, 0))
    made = sums(context, step, stored, LinearParameters(turned, 0, bias, stated))
    geometry = Geometry.of(step, stored.shape[1:3], (kh, kw))
    # A weight of zero times a cell is zero unless the cell is infinite or no number.
    zeros = made.scales is not None and made.zero_point == 0
    division = None
    if max(geometry.stride) > 1:
        division = best_division(geometry, (size_in, channels), joins=groups == 1, zeros=zeros)
    if division is None:
        _convolve_with_zeros(context, step, stored, geometry, made)
    else:
        _by_phases(context, step, stored, geometry, division, made)


def _by_phases(
    context: Lowering, step: Step, stored: StoredValue, geometry: Geometry, division: Division, made: Sums
) -> None:
    n, channels, height, width = shape_of(step.output)
    (sh, sw), target, nodes = geometry.stride, made.target, _names(step)
    rows, columns = (-(-geometry.results[axis] // geometry.stride[axis]) for axis in range(2))
    convolutions = list(itertools.product(division.rows, division.columns))
    parts = []
    for number, window_of in enumerate(convolutions):
        codes = _phase_kernels(made.weights, *window_of)
        name = weight_name(step) + (f"/phase{number}" if len(convolutions) > 1 else "")
        times = codes.shape[0] // channels
        constants = made.constants(context, step, name, codes, times=times)
        padding = [
            each.padding(geometry.cells[axis], (rows, columns)[axis]) for axis, each in enumerate(window_of)
        ]
        pads = [padding[0][0], padding[1][0], padding[0][1], padding[1][1]]
        cells = _crop_edges(context, step, stored, [max(0, -amount) for amount in pads])
        op = Op.conv(
            input=cells.tensor,
            weights=constants.weights,
            bias=constants.bias,
            window=window(
                [each.extent for each in window_of],
                (1, 1),
                [each.dilation for each in window_of],
                [max(0, amount) for amount in pads],
            ),
            groups=attribute(step.node, "group", 1),
            epilogue=constants.epilogue,
        )
        shape = (n, rows, columns, times * channels)
        parts.append(context.hidden_layer(f"{step.output.name}/phase{number}", op, shape, target, nodes))
    # Channels are in the order of phases by row and by column, or the other way round.
    order = (channels * sw, channels)
    if len(division.rows) < sh and len(division.columns) > 1:
        order = (channels, channels * sh)
    pixel = sh * sw * channels
    joined = parts[0]
    if len(parts) > 1:
        join = Op.concat(inputs=parts, axis=3, requants=[None] * len(parts))
        shape = (n, rows, columns, pixel)
        joined = context.hidden_layer(f"{step.output.name}/phases", join, shape, target, nodes)
    op = Op.rearrange(
        input=joined,
        dims=[n, rows, sh, columns, sw, channels],
        strides=[rows * columns * pixel, columns * pixel, order[0], pixel, order[1], 1],
        offset=0,
    )
    whole = (n, rows * sh, columns * sw, channels)
    if whole[1:3] != (height, width):
        tensor = context.hidden_layer(f"{step.output.name}/placed", op, whole, target, nodes)
        op = _crop(tensor, whole, (0, 0, whole[1] - height, whole[2] - width))
    _emit(context, step, op, target)


def _phase_kernels(weights: Codes | Weights, rows: Phases, columns: Phases) -> Any:
    """The kernels of the phases of a convolution, those of the first row and column first."""
    found = []
    for down, across in itertools.product(rows.taps, columns.taps):
        kernel = np.zeros((weights.shape[0], len(down), len(across), weights.shape[3]), weights.dtype)
        for (y, tap_y), (x, tap_x) in itertools.product(enumerate(down), enumerate(across)):
            if tap_y is not None and tap_x is not None:
                kernel[:, y, x] = weights[:, tap_y, tap_x]
        found.append(kernel)
    return np.concatenate(found)


def _convolve_with_zeros(
    context: Lowering, step: Step, stored: StoredValue, geometry: Geometry, made: Sums
) -> None:
    """Zeros between the operand's cells, then one convolution."""
    if max(geometry.stride) > 1:
        stored = _insert_zeros(context, step, stored, geometry.stride)
    pads = [*geometry.before, *geometry.after]
    stored = _crop_edges(context, step, stored, [max(0, -amount) for amount in pads])
    constants = made.constants(context, step, weight_name(step), made.weights)
    op = Op.conv(
        input=stored.tensor,
        weights=constants.weights,
        bias=constants.bias,
        window=window(geometry.kernel, (1, 1), geometry.dilation, [max(0, amount) for amount in pads]),
        groups=attribute(step.node, "group", 1),
        epilogue=constants.epilogue,
    )
    _emit(context, step, op, made.target)


def _emit(context: Lowering, step: Step, op: Op, target: Quant) -> None:
    n, channels, height, width = shape_of(step.output)
    view = View.dense((n, channels, height, width), (0, 2, 3, 1))
    context.emit(step, op, (n, height, width, channels), view, target)


def _names(step: Step) -> list[str]:
    return [node.name for node in step.nodes if node.name]


def _insert_zeros(context: Lowering, step: Step, stored: StoredValue, stride: tuple[int, int]) -> StoredValue:
    """The `[n, h, w, c]` tensor with zeros between its cells."""
    batch, rows, columns, depth = stored.shape
    spread = (batch, (rows - 1) * stride[0] + 1, (columns - 1) * stride[1] + 1, depth)
    op = Op.insert_zeros(input=stored.tensor, stride=list(stride))
    tensor = context.hidden_layer(
        f"{step.output.name}/zeros", op, spread, stored.grid, [step.node.name or ""]
    )
    return StoredValue(tensor, spread, View.dense((batch, depth, *spread[1:3]), (0, 2, 3, 1)), stored.quant)


def _crop_edges(context: Lowering, step: Step, stored: StoredValue, cut: Sequence[int]) -> StoredValue:
    """The `[n, h, w, c]` tensor without so many cells at top, left, bottom and right."""
    if not any(cut):
        return stored
    n, h, w, c = stored.shape
    rows, columns = h - cut[0] - cut[2], w - cut[1] - cut[3]
    if rows <= 0 or columns <= 0:
        raise UnsupportedNodeError("padding removes the whole operand", "pads")
    op = _crop(stored.tensor, (n, h, w, c), cut)
    tensor = context.hidden_layer(f"{step.output.name}/cropped", op, (n, rows, columns, c), stored.grid)
    return StoredValue(
        tensor, (n, rows, columns, c), View.dense((n, c, rows, columns), (0, 2, 3, 1)), stored.quant
    )


def _crop(tensor: int, shape: Sequence[int], cut: Sequence[int]) -> Op:
    """The operator that leaves so many cells of an image out at top, left, bottom and right."""
    n, h, w, c = shape
    rows, columns = h - cut[0] - cut[2], w - cut[1] - cut[3]
    return Op.rearrange(
        input=tensor,
        dims=[n, rows, columns * c],
        strides=[h * w * c, w * c, 1],
        offset=cut[0] * w * c + cut[1] * c,
    )
