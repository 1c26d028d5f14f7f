"""How a value of the model lies in a stored tensor, without moving anything.

A stored tensor is a dense row-major array. A `View` says where element `(i0, i1, ...)` of a model's value
lies in it: every axis is a short list of loops `(extent, stride)`, outermost first, and the element's
position is `offset + sum(index * stride)` over all loops. Transposition permutes axes, slicing moves the
offset, broadcasting is a stride of zero, and reshaping regroups loops, so whole chains of such operators
compose into one view; only an operator that must see its operand in a certain order turns the view into one
`Rearrange`.

    value [1, 8, 4, 4] of a convolution, stored as [1, 4, 4, 8]:   axes () (8,1) (4,32) (4,8)
    reshaped to [1, 128]:                                          axes () (8,1)(4,32)(4,8)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Loop", "View"]

Loop = tuple[int, int]
"""Extent and stride in elements."""


def _normal(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Without loops of one step, neighbours that form one longer loop joined."""
    joined: list[Loop] = []
    for extent, stride in loops:
        if extent == 1:
            continue
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = (joined[-1][0] * extent, stride)
        else:
            joined.append((extent, stride))
    return tuple(joined)


def _cut(loops: Sequence[Loop], start: int, step: int, count: int) -> tuple[tuple[Loop, ...], int] | None:
    """The loops over indices `start + i * step` of nested loops, and by how much the first element moves."""
    if not loops:  # an axis of extent 1, whose only index may be taken more than once
        return ((count, 0),), 0
    *outer, (extent, stride) = loops
    if not outer:
        return ((count, stride * step),), start * stride
    row, place = divmod(start, extent)
    if count == 1 or step % extent == 0:
        # The inner loop stands still.
        found = _cut(outer, row, step // extent, count)
        return None if found is None else (found[0], found[1] + place * stride)
    if step > 0 and extent % step == 0 and place < step and count * step % extent == 0:
        # The same indices of every row.
        found = _cut(outer, row, 1, count * step // extent)
        if found is not None:
            return (*found[0], (extent // step, stride * step)), found[1] + place * stride
    return None


@dataclass(frozen=True)
class View:
    """A value seen in a stored tensor; immutable, every method returns a new view.

    Attributes:
        axes: Loops of each axis of the value, outermost first, normalised; an axis of extent 1 has none.
        offset: Position of the first element.
    """

    axes: tuple[tuple[Loop, ...], ...]
    offset: int = 0

    @classmethod
    def dense(cls, shape: Sequence[int], permutation: Sequence[int] | None = None) -> View:
        """A value of `shape` stored as `value.transpose(permutation)`."""
        order = tuple(range(len(shape))) if permutation is None else tuple(permutation)
        axes: list[tuple[Loop, ...]] = [()] * len(shape)
        stride = 1
        for axis in reversed(order):
            axes[axis] = _normal([(shape[axis], stride)])
            stride *= shape[axis]
        return cls(tuple(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the value."""
        return tuple(math.prod(extent for extent, _ in loops) for loops in self.axes)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops in the value's row-major order, neighbours joined."""
        return _normal([loop for loops in self.axes for loop in loops])

    def transpose(self, permutation: Sequence[int]) -> View:
        """The value with its axes permuted."""
        return View(tuple(self.axes[axis] for axis in permutation), self.offset)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The value in another shape of the same size; None where that needs the elements moved."""
        pending = list(reversed(self.loops))
        axes: list[tuple[Loop, ...]] = []
        for extent in shape:
            taken: list[Loop] = []
            remaining = extent
            while remaining > 1:
                size, stride = pending.pop()
                if remaining % size == 0:
                    taken.append((size, stride))
                    remaining //= size
                elif size % remaining == 0:
                    inner = size // remaining
                    taken.append((remaining, stride * inner))
                    pending.append((inner, stride))
                    remaining = 1
                else:
                    return None
            axes.append(_normal(taken))
        return View(tuple(axes), self.offset)

    def slice(self, axis: int, start: int, step: int, count: int) -> View | None:
        """`count` indices from `start` on along one axis; None where the axis' loops do not allow it."""
        cut = _cut(self.axes[axis], start, step, count)
        if cut is None:
            return None
        loops, moved = cut
        return View((*self.axes[:axis], _normal(loops), *self.axes[axis + 1 :]), self.offset + moved)

    def expand(self, shape: Sequence[int]) -> View:
        """The value broadcast to `shape`, NumPy rules; the value itself may have fewer axes."""
        lead = len(shape) - len(self.axes)
        axes = ((),) * lead + self.axes
        have = (1,) * lead + self.shape
        return View(
            tuple(
                loops if extent == size else ((extent, 0),)
                for loops, size, extent in zip(axes, have, shape, strict=True)
            ),
            self.offset,
        )

    def tile(self, axis: int, count: int) -> View:
        """The value repeated `count` times along one axis."""
        return View(
            (*self.axes[:axis], _normal([(count, 0), *self.axes[axis]]), *self.axes[axis + 1 :]), self.offset
        )

    def as_rows(self, axis: int) -> tuple[tuple[Loop, ...], View]:
        """Loops that write the value as dense rows along one axis, and the view of what they write.

        Along a row elements come as they lie: an image whose channels are last is one row as it is, though
        the value counts it channel by channel.
        """
        moves = [max((stride for _, stride in loops), default=0) for loops in self.axes]
        others = sorted((a for a in range(len(self.axes)) if a != axis), key=lambda a: -moves[a])
        walk = [(a, loop) for a in others for loop in range(len(self.axes[a]))]
        inner = self.axes[axis]
        walk += [(axis, loop) for loop in sorted(range(len(inner)), key=lambda loop: -inner[loop][1])]
        placed, dense = {}, 1
        for a, loop in reversed(walk):
            extent = self.axes[a][loop][0]
            placed[a, loop] = (extent, dense)
            dense *= extent
        axes = (_normal([placed[a, loop] for loop in range(len(loops))]) for a, loops in enumerate(self.axes))
        return _normal([self.axes[a][loop] for a, loop in walk]), View(tuple(axes))

    def positions(self) -> npt.NDArray[np.int64]:
        """Where each element of the value lies in the tensor, in the value's shape."""
        total = np.full((), self.offset, np.int64)
        for extent, stride in [loop for loops in self.axes for loop in loops]:
            total = total[..., None] + np.arange(extent, dtype=np.int64) * stride
        return total.reshape(self.shape)

    def covers(self, elements: int) -> bool:
        """Whether every element of a tensor of that many is seen exactly once."""
        stride = 1
        for extent, step in sorted((loop for loops in self.axes for loop in loops), key=lambda loop: loop[1]):
            if step != stride:
                return False
            stride *= extent
        return stride == elements and self.offset == 0

    def permutation(self, elements: int) -> tuple[int, ...] | None:
        """The axis order in which the value is the whole tensor, row-major; None where there is none.

        Axes of extent 1 may stand anywhere and come first.
        """
        if not self.covers(elements) or any(len(loops) > 1 for loops in self.axes):
            return None
        return tuple(
            sorted(range(len(self.axes)), key=lambda a: -self.axes[a][0][1] if self.axes[a] else -math.inf)
        )
