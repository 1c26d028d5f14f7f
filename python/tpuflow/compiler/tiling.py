"""Layers computed in parts because the user says so: slices of single layers, runs of layers, whole networks.

    compile(graph, level=5, slicing_scheme={"conv1": ({TensorAxis.HEIGHT: Segment(0, 28)},
                                                      {TensorAxis.HEIGHT: Segment(28, 56)})})

or, in a configuration,

    [schedule]
    featuremap_tiling_param = "[(0,3,2,2)]"             # layers 0 to 3 in 2 x 2 parts
    slicing_scheme.conv1 = [{height = [0, 28]}, {height = [28, 56]}]

What is asked for is done exactly or refused; no integer changes. `docs/scheduling.md` says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from tpuflow.errors import TpuflowError

if TYPE_CHECKING:
    from tpuflow.config import ScheduleConfig

__all__ = ["Segment", "SlicingScheme", "TensorAxis", "Tiling", "TilingError", "tiling_of"]


class TilingError(TpuflowError, ValueError):
    """Parts that make no sense."""


class TensorAxis(Enum):
    """Axes along which layers may be sliced."""

    BATCH = 0
    HEIGHT = 1
    WIDTH = 2
    CHANNEL = 3


@dataclass(frozen=True)
class Segment:
    """Elements `start .. stop` of an axis."""

    start: int
    stop: int


SlicingScheme = Mapping[str, Sequence[Mapping[TensorAxis, Segment]]]
"""By name of a layer, its slices; an axis that a slice does not name is not cut."""


@dataclass(frozen=True)
class Tiling:
    """The layers to compute in parts.

    Attributes:
        slices: Slices of single layers; together all of each layer's result, every element once.
        runs: First and last layer by number, and the parts of what leaves them: from top to bottom, from left
            to right.
        columns: Parts from left to right of all layers that can be cut.
        rows: Parts from top to bottom.
        overlap: Where `columns` and `rows` cut: most of what parts compute or read that other parts do as
            well, in per cent, below 100.
    """

    slices: SlicingScheme = field(default_factory=dict)
    runs: Sequence[tuple[int, int, int, int]] = ()
    columns: int = 1
    rows: int = 1
    overlap: int = 50

    def __post_init__(self) -> None:
        for name, least, most in (("columns", 1, 4096), ("rows", 1, 4096), ("overlap", 0, 99)):
            if not least <= getattr(self, name) <= most:
                raise TilingError(
                    f"Tiling.{name} is {getattr(self, name)!r}, it must be a number from {least} to {most}"
                )
        for run in self.runs:
            first, last, rows, columns = run
            if not 0 <= first <= last or rows < 1 or columns < 1:
                raise TilingError(f"layers {first} to {last} in {rows} x {columns} parts make no sense")
        for layer, slices in self.slices.items():
            for axes in slices:
                for axis, segment in axes.items():
                    if not 0 <= segment.start < segment.stop:
                        name, wrong = axis.name.lower(), f"{segment.start} .. {segment.stop}"
                        raise TilingError(f'slicing scheme: layer "{layer}": {name} {wrong} is empty')

    def __bool__(self) -> bool:
        return bool(self.slices) or bool(self.runs) or self.rows > 1 or self.columns > 1

    def only(self, layers: Sequence[str]) -> Tiling:
        """Without slices of other layers than these."""
        return replace(self, slices={name: cut for name, cut in self.slices.items() if name in layers})

    def to_json(self) -> str:
        """As the scheduler reads it."""
        slices = {
            layer: [
                {axis.name.lower(): [segment.start, segment.stop] for axis, segment in axes.items()}
                for axes in cut
            ]
            for layer, cut in self.slices.items()
        }
        runs = [list(run) for run in self.runs]
        rest = {"columns": self.columns, "rows": self.rows, "overlap": self.overlap}
        return json.dumps({"slices": slices, "runs": runs, **rest})


def tiling_of(schedule: ScheduleConfig) -> Tiling:
    """The tiling that the section `schedule` of a configuration asks for.

    Raises:
        TilingError: Parts that make no sense.
    """
    scheme = {
        layer: [{TensorAxis[axis.upper()]: Segment(*range_) for axis, range_ in axes.items()} for axes in cut]
        for layer, cut in schedule.slicing_scheme.items()
    }
    return Tiling(
        scheme,
        schedule.featuremap_tiling_param,
        schedule.featuremap_splits_item_x,
        schedule.featuremap_splits_item_y,
        schedule.featuremap_splits_overlap_rate,
    )
