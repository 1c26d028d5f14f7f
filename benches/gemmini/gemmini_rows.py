"""The rows of the published measurements: layers, tilings, cycles; and how well one figure tells another."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmini_replay import Layer, Tiling

from tpuflow.compiler.machine import Machine

MACHINE = Path(__file__).parent / "gemmini.toml"


@dataclass(frozen=True)
class Row:
    """One layer on one pair of memories.

    Attributes:
        accumulators: Rows of accumulator memory.
        scratchpad: Rows of the scratchpad.
        auto: Tiling of Gemmini's own tiler.
        mapped: The other tiling.
        analytical: Cycles of the model that the data came with, for the other tiling.
        measured: Cycles with the tiling of its own tiler.
        measured_mapped: Cycles with the other one.
    """

    layer: Layer
    accumulators: int
    scratchpad: int
    auto: Tiling
    mapped: Tiling
    analytical: float
    measured: float
    measured_mapped: float

    @property
    def half(self) -> int:
        """0 or 1, the same for all rows of a layer: seeded by its name."""
        return hashlib.sha256(f"gemmini-1_{self.name}".encode()).digest()[-1] % 2

    @property
    def name(self) -> str:
        """As in the data, without batch: window, output, channels, stride."""
        layer = self.layer
        return "_".join(
            str(value) for value in (layer.R, layer.S, layer.P, layer.Q, layer.C, layer.K, layer.stride)
        )

    def machine(self, base: Machine) -> Machine:
        """The machine with this row's memories."""
        words = self.scratchpad // int(base.parameters["cache.banks"])
        return base.replace({"array.accumulators": self.accumulators, "cache.words": words}, name="gemmini")


def auto_tiling(text: str) -> Tiling:
    """From the factors of `RSPQCKN`; loops over pixels, then K, and sums innermost."""
    return Tiling(dict(zip("RSPQCK", map(int, text.split("_")), strict=False)))


def mapped_tiling(text: str, accumulators: int, scratchpad: int, layer: Layer) -> Tiling:
    """From a mapping: behind the first bar is a tile, before it are the loops around, the outermost first.

    Sums come innermost, as the accumulators keep them. A memory is double-buffered where two tiles fit.
    """
    outer, *inner = (level.split("] ")[1].split() for level in text.split(" - "))
    sizes = dict.fromkeys("RSPQCK", 1)
    for factor in (factor for level in inner for factor in level if factor[0] in sizes):
        sizes[factor[0]] *= int(factor[1:].removesuffix("X"))
    named = [factor[0] for factor in outer if factor[0] in sizes]
    order = "".join(sorted(dict.fromkeys([*named, *sizes]), key=lambda name: name in "RSC"))
    pixels = ((sizes["P"] - 1) * layer.stride + sizes["R"]) * ((sizes["Q"] - 1) * layer.stride + sizes["S"])
    blocks = math.ceil(sizes["C"] / 16), math.ceil(sizes["K"] / 16)
    operands = pixels * blocks[0] + sizes["R"] * sizes["S"] * sizes["C"] * blocks[1]
    sums = sizes["P"] * sizes["Q"] * blocks[1]
    double_buffered = 2 * operands <= scratchpad and 2 * sums <= accumulators
    return Tiling(sizes, order, slots=2 if double_buffered else 1, keep=True)


def rows(path: Path) -> list[Row]:
    """All rows of the file."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            layer = Layer(*(int(line[f"prob.{name}"]) for name in [*"RSPQCK", "Wstride"]))
            memories = int(line["arch.mem1_depth"]), int(line["arch.mem2_depth"])
            mapped = mapped_tiling(line["mapping.mapping"], *memories, layer)
            cycles = (
                float(line[f"target.{name}"]) for name in ("cycle", "gemmini_auto_cycle", "gemmini_cycle")
            )
            found.append(Row(layer, *memories, auto_tiling(line["dse.auto_tiling"]), mapped, *cycles))
    return found


def ranks(values: Sequence[float]) -> list[float]:
    """Their places in order, from 0; the mean place for equal ones."""
    places: Mapping[float, list[int]] = {value: [] for value in values}
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of ranks."""
    mean = (len(a) - 1) / 2
    x, y = ([rank - mean for rank in ranks(values)] for values in (a, b))
    return sum(i * j for i, j in zip(x, y, strict=True)) / math.sqrt(
        sum(i * i for i in x) * sum(j * j for j in y)
    )


def relative_error(found: Sequence[float], measured: Sequence[float]) -> float:
    """Mean of |found - measured| / measured."""
    return sum(abs(a - b) / b for a, b in zip(found, measured, strict=True)) / len(found)
