"""A network as a picture: inputs, layers and host segments, tensors between them, marks of a comparison.

    nodes = graph_nodes(graph)     -> dot_text(nodes, marks)      for Graphviz
                                   -> svg_picture(nodes, marks)   drawn here, for any browser

The own drawing is in rows (Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical
system structures", IEEE SMC 1981): a node stands below all it reads, long arrows pass each row at a place of
their own, and a few sweeps put every node near the middle of its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuflow import _core

__all__ = ["Mark", "Node", "dot_text", "edges", "graph_nodes", "host_node", "join_segments", "svg_picture"]

SWEEPS = 6
BOX, LINE, ACROSS, DOWN, EDGE = 230, 14, 24, 34, 12
FILLS = {"input": "#e8eef8", "layer": "#ffffff", "host": "#fdf3dc", "failed": "#f8c9c4"}
RED = "#b3261e"
LETTERS = 38
BOLD = ' font-weight="bold"'


@dataclass(frozen=True)
class Mark:
    """The result of a comparison for a tensor.

    Attributes:
        text: Its similarity, in a few words.
        failed: Whether it is not as it must be.
    """

    text: str
    failed: bool


@dataclass(frozen=True)
class Node:
    """A box.

    Attributes:
        name: What it is called in the network.
        text: What it does, a line each.
        kind: input, layer or host.
        reads: Tensors it reads; those no node gives are not drawn.
        gives: Tensors it gives, by name.
    """

    name: str
    text: tuple[str, ...]
    kind: str
    reads: tuple[str, ...]
    gives: tuple[str, ...]


def graph_nodes(graph: _core.Graph) -> list[Node]:
    """Inputs and layers of a graph, tensors under the names they have in the model."""
    tensors = graph.tensors

    def tensor_name(index: int) -> str:
        source = tensors[index].source_json
        return str(json.loads(source)["name"]) if source is not None else tensors[index].name

    def storage_text(index: int) -> str:
        return f"{tensors[index].dtype} {'x'.join(map(str, tensors[index].shape))}"

    nodes = [Node(tensor_name(i), (storage_text(i),), "input", (), (tensor_name(i),)) for i in graph.inputs]
    for layer in graph.layers:
        reads = tuple(tensor_name(index) for index in layer.operands if not tensors[index].is_constant)
        nodes.append(
            Node(
                layer.name,
                (layer.op, storage_text(layer.output)),
                "layer",
                reads,
                (tensor_name(layer.output),),
            )
        )
    return nodes


def host_node(name: str, reason: str, reads: Sequence[str], gives: Sequence[str]) -> Node:
    """A part the host computes."""
    return Node(name, ("on the host", reason), "host", tuple(reads), tuple(gives))


def edges(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Numbers of the node that gives a tensor and of the one that reads it: the last before it that does."""
    given: dict[str, int] = {}
    found = []
    for number, node in enumerate(nodes):
        found += [(given[name], number) for name in dict.fromkeys(node.reads) if name in given]
        given |= dict.fromkeys(node.gives, number)
    return found


def join_segments(parts: Sequence[Sequence[Node]]) -> list[Node]:
    """Nodes of segments that run one after another: an input an earlier one gives is no input."""
    found: list[Node] = []
    given: set[str] = set()
    for part in parts:
        found += [node for node in part if node.kind != "input" or not given.issuperset(node.gives)]
        given |= {name for node in part for name in node.gives}
    return found


def _node_lines(node: Node, marks: Mapping[str, Mark]) -> tuple[list[str], bool]:
    """The lines of a node, and whether any tensor it gives failed."""
    own = [marks[name] for name in node.gives if name in marks]
    return [node.name, *node.text, *(mark.text for mark in own)], any(mark.failed for mark in own)


def dot_text(nodes: Sequence[Node], marks: Mapping[str, Mark] | None = None, name: str = "network") -> str:
    """The picture in Graphviz's language; what failed is red.

    Args:
        nodes: In the order they run.
        marks: What a comparison says, by tensor.
        name: Of the picture.
    """

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    lines = [
        f"digraph {quote(name)} {{",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=10];',
    ]
    for number, node in enumerate(nodes):
        text, failed = _node_lines(node, marks or {})
        fill = FILLS["failed" if failed else node.kind]
        red = f', color="{RED}", penwidth=2' if failed else ""
        label = quote("\n".join(text))
        lines.append(f'  n{number} [label={label}, fillcolor="{fill}"{red}];')
    lines += [f"  n{giver} -> n{reader};" for giver, reader in edges(nodes)]
    return "\n".join([*lines, "}"]) + "\n"


def _places(count: int, arrows: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of nodes from above, and every arrow as the nodes it passes.

    Numbers from `count` on are places where arrows pass a row.
    """
    depth = [0] * count
    for giver, reader in arrows:  # givers come before readers
        depth[reader] = max(depth[reader], depth[giver] + 1)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node, level in enumerate(depth):
        rows[level].append(node)
    ways, places = [], count
    for giver, reader in arrows:
        way = [giver]
        for level in range(depth[giver] + 1, depth[reader]):
            rows[level].append(places)
            way.append(places)
            places += 1
        ways.append([*way, reader])
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for way in ways:
        for upper, lower in pairwise(way):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    for sweep in range(SWEEPS):
        at = {node: (place + 0.5) / len(row) for row in rows for place, node in enumerate(row)}
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            middle = {node: _mean([at[each] for each in near.get(node, [node])]) for node in row}
            row.sort(key=middle.__getitem__)
            at |= {node: (place + 0.5) / len(row) for place, node in enumerate(row)}
    return rows, ways


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def svg_picture(nodes: Sequence[Node], marks: Mapping[str, Mark] | None = None) -> str:
    """The picture as an SVG document; what failed is red.

    Args:
        nodes: In the order they run.
        marks: What a comparison says, by tensor.
    """
    rows, ways = _places(len(nodes), edges(nodes))
    texts = [_node_lines(node, marks or {}) for node in nodes]

    def wide(node: int) -> int:
        return BOX if node < len(nodes) else EDGE

    spans = [sum(map(wide, row)) + ACROSS * (len(row) + 1) for row in rows]
    width = max(spans, default=2 * ACROSS)
    place: dict[int, tuple[float, float, float]] = {}  # middle, top and bottom
    top = float(DOWN)
    for row, span in zip(rows, spans, strict=True):
        high = max([LINE * len(texts[node][0]) + 10 for node in row if node < len(nodes)], default=LINE)
        x = (width - span) / 2 + ACROSS
        for node in row:
            own = LINE * len(texts[node][0]) + 10 if node < len(nodes) else high
            place[node] = (x + wide(node) / 2, top, top + own)
            x += wide(node) + ACROSS
        top += high + DOWN
    drawn = [_arrow([place[node] for node in way]) for way in ways]
    for number, (text, failed) in enumerate(texts):
        x, upper, lower = place[number]
        fill = FILLS["failed" if failed else nodes[number].kind]
        edge = f'stroke="{RED}" stroke-width="2"' if failed else 'stroke="#5d6878"'
        tspans = "".join(
            f'<text x="{x:.0f}" y="{upper + LINE * (line + 1) + 1:.0f}"{BOLD if line == 0 else ""}>'
            f"{escape(_cut(words))}</text>"
            for line, words in enumerate(text)
        )
        drawn.append(
            f'<g class="{"failed" if failed else nodes[number].kind}">'
            f"<title>{escape(chr(10).join(text))}</title>"
            f'<rect x="{x - BOX / 2:.0f}" y="{upper:.0f}" width="{BOX}" height="{lower - upper:.0f}" rx="5" '
            f'fill="{fill}" {edge}/>{tspans}</g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top:.0f}" '
        f'viewBox="0 0 {width} {top:.0f}" font-family="sans-serif" font-size="11" text-anchor="middle">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8Z" fill="#5d6878"/></marker></defs>'
        f'<rect width="100%" height="100%" fill="#f6f7f9"/>{"".join(drawn)}</svg>\n'
    )


def _arrow(points: Sequence[tuple[float, float, float]]) -> str:
    """A curve from the first place's bottom through the others to the last one's top."""
    x, _, y = points[0]
    path = [f"M{x:.0f} {y:.0f}"]
    for number, (next_x, upper, lower) in enumerate(points[1:], 2):
        middle = (y + upper) / 2
        path.append(f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {upper:.0f}")
        if number < len(points):
            path.append(f"V{lower:.0f}")
        x, y = next_x, lower
    return f'<path d="{"".join(path)}" fill="none" stroke="#5d6878" marker-end="url(#head)"/>'


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else "…" + text[-(LETTERS - 1) :]
