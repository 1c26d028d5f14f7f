"""Device and host alternate: which node runs in which segment, with as few segments as can be.

A node is bound to the device, bound to the host, or free. A segment is all that one side computes before it
hands over; the sides alternate, and a node runs in the segment of the last value it reads, or a later one.

```text
 conv -> relu -> topk -> scale -> gather       device: conv, relu | host: topk, scale, gather
 bound   free    host    free     host
```

The earliest segment of every node, one sweep from the inputs, gives the least number of segments: no order
can have fewer, since along every chain each change of side costs one. The latest segment, one sweep from the
outputs, says how far a free node may wait. Within that interval free nodes go to the device; but what would
be an island of free nodes there, without a bound node, goes to the host that surrounds it.

Everything is linear in nodes and edges and depends on the order of the nodes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Segmentation", "Side", "islands", "segmentation"]

Side = Literal["device", "host"]


@dataclass(frozen=True)
class Segmentation:
    """Who computes what when.

    Attributes:
        first: The side that begins.
        of: The segment of every node.
        count: Number of segments; each has at least one node.
    """

    first: Side
    of: tuple[int, ...]
    count: int

    def side(self, segment: int) -> Side:
        """The side of a segment."""
        return _side(self.first, segment)


def segmentation(predecessors: Sequence[Sequence[int]], sides: Sequence[Side | None]) -> Segmentation:
    """Gives every node its segment.

    Args:
        predecessors: For every node the nodes whose values it reads, all of them before it.
        sides: For every node the side it is bound to; None where both can compute it.

    Returns:
        The least number of segments, the device first where both ways to begin give it.
    """
    choices: list[tuple[Side, list[int]]] = [
        (first, _earliest(predecessors, sides, first)) for first in ("device", "host")
    ]
    first, earliest = min(choices, key=lambda choice: max(choice[1], default=0))
    count = max(earliest, default=0) + 1
    latest = _latest(predecessors, sides, first, count)
    chosen: list[int] = []
    for node, before in enumerate(predecessors):
        segment = max((chosen[other] for other in before), default=0)
        wanted = sides[node] or "device"
        if _side(first, segment) != wanted and (sides[node] is not None or segment < latest[node]):
            segment += 1
        chosen.append(segment)
    _absorb_islands(predecessors, sides, first, count, chosen)
    return Segmentation(first, tuple(chosen), count)


def islands(predecessors: Sequence[Sequence[int]], groups: Sequence[int]) -> list[int]:
    """For every node the first node of its island: nodes of one group, joined by edges within the group."""
    parent = list(range(len(groups)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node, before in enumerate(predecessors):
        for other in before:
            if groups[other] == groups[node]:
                low, high = sorted((root(other), root(node)))
                parent[high] = low
    return [root(node) for node in range(len(groups))]


def _side(first: Side, segment: int) -> Side:
    other: Side = "host" if first == "device" else "device"
    return first if segment % 2 == 0 else other


def _earliest(predecessors: Sequence[Sequence[int]], sides: Sequence[Side | None], first: Side) -> list[int]:
    found: list[int] = []
    for node, before in enumerate(predecessors):
        segment = max((found[other] for other in before), default=0)
        found.append(segment + (sides[node] is not None and _side(first, segment) != sides[node]))
    return found


def _latest(
    predecessors: Sequence[Sequence[int]], sides: Sequence[Side | None], first: Side, count: int
) -> list[int]:
    found = [count - 1] * len(sides)
    for node in reversed(range(len(sides))):
        found[node] -= sides[node] is not None and _side(first, found[node]) != sides[node]
        for other in predecessors[node]:
            found[other] = min(found[other], found[node])
    return found


def _absorb_islands(
    predecessors: Sequence[Sequence[int]],
    sides: Sequence[Side | None],
    first: Side,
    count: int,
    chosen: list[int],
) -> None:
    """Moves islands of free nodes on the device to the host's segment before, or else after."""
    roots = islands(predecessors, chosen)
    bound = {roots[node] for node, side in enumerate(sides) if side == "device"}
    for node, root in enumerate(roots):
        segment = chosen[node]
        if count > 1 and root not in bound and _side(first, segment) == "device":
            chosen[node] = segment - 1 if segment else segment + 1
