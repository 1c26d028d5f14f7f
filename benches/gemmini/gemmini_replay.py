"""Given tilings of convolutions, replayed tile by tile by the laws of a machine.

The instruction set computes all of K in one matrix instruction; Gemmini adds up parts of K in accumulators.
So its tilings cannot be written as programs, and this replays them by the laws that `docs/machine.md` states:
transfers (section 4), law 1 of the array (section 6), units that run beside each other and wait for buffers.
`Lacking` switches on what that text does not have, so that its weight can be measured.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

from tpuflow.compiler.machine import Machine


@dataclass(frozen=True)
class Layer:
    """A convolution: window, output, channels, stride; a product has rows as P and a Q of 1."""

    R: int
    S: int
    P: int
    Q: int
    C: int
    K: int
    stride: int = 1

    @property
    def ideal(self) -> int:
        """Multiply-accumulates of all outputs."""
        return self.R * self.S * self.P * self.Q * self.C * self.K


@dataclass(frozen=True)
class Tiling:
    """Sizes of a tile by dimension, and the order of the loops around it, the outermost first.

    Attributes:
        sizes: Of `RSPQCK`.
        order: Dimensions; those that are summed over come last.
        slots: Tiles that are in the scratchpad and in accumulator memory at a time.
        keep: Whether an operand that is there already is not loaded again.
    """

    sizes: Mapping[str, int]
    order: str = "PQKRSC"
    slots: int = 2
    keep: bool = False


@dataclass(frozen=True)
class Lacking:
    """What the machine of `docs/machine.md` lacks, each switched on by itself; constants are published.

    Attributes:
        requests: The DMA asks for aligned pieces of at most a line, `in_flight` at a time.
        cache: A second-level cache, of which a line that is there comes with the width of the bus.
        blocks: The array takes pixels of one output row in blocks, each of `least` cycles or more.
    """

    requests: bool = False
    cache: bool = False
    blocks: bool = False
    line: int = 64  # bytes of a line and of the longest request
    bus: int = 16  # bytes a cycle
    in_flight: int = 16  # requests under way at once
    cache_bytes: int = 512 << 10
    least: int = 4  # cycles of a block


NOTHING = Lacking()
ALL = Lacking(requests=True, cache=True, blocks=True)


def packets(offset: int, count: int, lacking: Lacking = ALL) -> list[int]:
    """Sizes of the requests for bytes `offset .. offset + count`: aligned powers of two, bus to line.

    Of those that bring most of what is left, the smallest is taken.
    """
    sizes = [lacking.bus << i for i in range((lacking.line // lacking.bus).bit_length())]
    found = []
    while count > 0:
        size = max(sizes, key=lambda size: (min(size - offset % size, count), -size))
        brought = min(size - offset % size, count)
        found.append(size)
        offset, count = offset + brought, count - brought
    return found


def pieces(total: int, size: int) -> list[tuple[int, int]]:
    """First element and length of the pieces of `total` elements."""
    return [(first, min(size, total - first)) for first in range(0, total, size)]


@dataclass
class SecondLevel:
    """What is in a cache: pieces of tensors, the least recently used of which goes first."""

    capacity: int
    held: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)
    used: int = 0

    def misses(self, key: Hashable, size: int) -> bool:
        """Touches a piece; whether it was not there."""
        if key in self.held:
            self.held.move_to_end(key)
            return False
        self.held[key] = size
        self.used += size
        while self.used > self.capacity:
            self.used -= self.held.popitem(last=False)[1]
        return True


@dataclass(frozen=True)
class Rows:
    """`count` pieces of `width` bytes in external memory, `stride` bytes apart from `first` on."""

    count: int
    first: int
    width: int
    stride: int

    def lines(self, line: int) -> range:
        """Lines of the first piece."""
        return range(self.first // line, (self.first + self.width - 1) // line + 1)


class Replay:
    """One layer, one tiling, one machine."""

    def __init__(self, machine: Machine, layer: Layer, tiling: Tiling, lacking: Lacking = NOTHING) -> None:
        parameters = machine.parameters
        if layer.Q == 1:  # a product: its rows are the pixels of one row
            layer = Layer(1, 1, 1, layer.P, layer.C, layer.K)
            tiling = replace(tiling, sizes={**tiling.sizes, "P": 1, "Q": tiling.sizes["P"]})
        self.layer, self.tiling, self.lacking = layer, tiling, lacking
        self.rate = parameters["ddr.word_bytes"] * parameters["ddr.clock_hz"] / parameters["clock_hz"]
        self.page = int(parameters["ddr.page_bytes"])
        self.miss = math.ceil(parameters["ddr.page_miss_ns"] * parameters["clock_hz"] / 1e9)
        self.startup = int(parameters["dma.start"] + parameters["dma.latency"])
        self.latency = int(parameters["dma.latency"])
        self.word = int(parameters["cache.word_bytes"])
        self.size = int(parameters["array.rows"])
        self.columns = int(parameters["array.columns"])
        self.drain = self.size + self.columns + 1
        self.second = SecondLevel(lacking.cache_bytes)
        self.requested = cache(self._requested)
        self.page_runs = cache(self._page_runs)

    def _page_runs(self, rows: Rows) -> int:
        """Cycles of a transfer's page runs (section 4): its pieces, joined or cut at borders of pages."""
        if rows.width == rows.stride:
            rows = Rows(1, rows.first, rows.width * rows.count, rows.width * rows.count)
        cycles, page = 0, -1
        for start in range(rows.first, rows.first + rows.count * rows.stride, rows.stride):
            at = start
            while at < start + rows.width:
                end = min(start + rows.width, (at // self.page + 1) * self.page)
                words = math.ceil((end - at) / self.word)
                cycles += (
                    max(math.ceil((end - at) / self.rate), words) + (at // self.page != page) * self.miss
                )
                page, at = at // self.page, end
        return cycles

    def _requested(self, rows: Rows) -> tuple[float, float]:
        """Cycles of the requests for these rows if all are in the second-level cache, and if none is."""
        lacking = self.lacking
        least = self.latency / lacking.in_flight
        period = lacking.line // math.gcd(rows.stride, lacking.line)
        there = absent = 0.0
        for row in range(min(period, rows.count)):
            times = len(range(row, rows.count, period))
            for first, width in pieces(rows.width, lacking.line):
                for size in packets(rows.first + row * rows.stride + first, width, lacking):
                    there += times * max(size / lacking.bus, least)
                    absent += times * max(size / lacking.bus, least, lacking.line / self.rate)
        return there, absent

    def transfer(self, name: Hashable, rows: Rows) -> float:
        """Cycles of the channel for a transfer of a part of a tensor."""
        if not self.lacking.requests:
            return self.startup + self.page_runs(rows)
        there, absent = self.requested(rows)
        if not self.lacking.cache:
            return absent
        lines = rows.lines(self.lacking.line)
        share = min(self.lacking.line, rows.stride) * rows.count
        missing = sum(self.second.misses((name, line), share) for line in lines) / len(lines)
        return there * (1 - missing) + absent * missing

    def array(self, tile: Mapping[str, int]) -> int:
        """Cycles of the array for a tile: by law 1 as many as pixels for its weights, or their rows."""
        weights = (
            tile["R"] * tile["S"] * math.ceil(tile["C"] / self.size) * math.ceil(tile["K"] / self.columns)
        )
        if not self.lacking.blocks:
            return weights * max(tile["P"] * tile["Q"], self.size)
        blocks = [max(pixels, self.lacking.least) for _, pixels in pieces(tile["Q"], self.size)]
        return weights * (tile["P"] * sum(blocks) + max(0, self.size - blocks[-1]))

    def tiles(self) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """First elements and lengths of the tiles in their order."""
        parts = {name: pieces(getattr(self.layer, name), self.tiling.sizes[name]) for name in "RSPQCK"}
        for chosen in product(*(parts[name] for name in self.tiling.order)):
            named = dict(zip(self.tiling.order, chosen, strict=True))
            yield (
                {name: at for name, (at, _) in named.items()},
                {name: size for name, (_, size) in named.items()},
            )

    def loads(self, first: Mapping[str, int], tile: Mapping[str, int], before: set[Hashable]) -> float:
        """Cycles of the channel for what a tile reads; `before` is what the tile before has read."""
        layer = self.layer
        height, width = (
            (tile[out] - 1) * layer.stride + tile[taps]
            if getattr(layer, taps) >= layer.stride
            else tile[out] * layer.stride
            for out, taps in (("P", "R"), ("Q", "S"))
        )
        pixels = Rows(height * width, first["C"], tile["C"], layer.C)
        taps = Rows(tile["R"] * tile["S"] * tile["C"], first["K"], tile["K"], layer.K)
        found: list[tuple[Hashable, Hashable, Rows]] = [
            (("input", first["P"], first["Q"]), ("input", *(first[name] for name in "PQRSC")), pixels),
            (
                ("weights", first["R"], first["S"], first["C"]),
                ("weights", *(first[name] for name in "RSCK")),
                taps,
            ),
        ]
        kept = before if self.tiling.keep else set()
        cycles = sum(self.transfer(name, rows) for name, whole, rows in found if whole not in kept)
        before.clear()
        before.update(whole for _, whole, _ in found)
        return cycles

    def cycles(self) -> float:
        """From the first request to the last result in memory.

        The channel serves loads in the order of tiles, and stores between them; a tile is loaded once the one
        that had its buffers is computed, and computed once it is loaded and its first weights are in the
        array; its sums wait for accumulators, its store for the last of them to leave the array.
        """
        layer, slots = self.layer, self.tiling.slots
        channel = 0.0
        computed, stored = [0.0] * slots, [0.0] * slots
        waiting: tuple[float, float] | None = None
        before: set[Hashable] = set()
        for first, tile in self.tiles():
            loaded = channel = max(channel, computed[-slots]) + self.loads(first, tile, before)
            if waiting is not None:
                channel = max(channel, waiting[0]) + waiting[1]
                stored.append(channel)
                waiting = None
            starts = max(computed[-1], loaded + self.size)
            if all(first[name] == 0 for name in "RSC"):
                starts = max(starts, stored[-slots])
            computed.append(starts + self.array(tile))
            if all(first[name] + tile[name] == getattr(layer, name) for name in "RSC"):
                rows = Rows(tile["P"] * tile["Q"], first["K"], tile["K"], layer.K)
                waiting = computed[-1] + self.drain, self.transfer(("output", first["P"], first["Q"]), rows)
        return channel if waiting is None else max(channel, waiting[0]) + waiting[1]
