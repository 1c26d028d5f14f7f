"""Pictures of networks: every node, every arrow, what failed in red."""

from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuflow.report import Mark, Node, dot_text, host_node, join_segments, svg_picture
from tpuflow.report.picture import edges

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def networks(draw: st.DrawFn) -> list[Node]:
    """Networks of up to 14 nodes in which every node reads what stands before it."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 14))):
        reads = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        kind = "layer" if reads else "input"
        name = draw(st.sampled_from(["conv", 'a "b"', "<&>", "x\\y", ""])) + str(number)
        nodes.append(Node(name, ("op",), kind, tuple(f"t{i}" for i in reads), (f"t{number}",)))
    return nodes


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        assert box is not None
        x, y, width, height = (float(box.get(key, "")) for key in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


@settings(max_examples=25)
@given(networks(), st.sets(st.integers(0, 13)))
@pytest.mark.feature("VIS-10")
def test_every_node_and_arrow_is_drawn_and_boxes_lie_apart(nodes: list[Node], failed: set[int]) -> None:
    marks = {f"t{number}": Mark(f"cos 0.{number}", number in failed) for number in range(len(nodes))}
    reads = {(name, number) for number, node in enumerate(nodes) for name in node.reads}
    svg, dot = svg_picture(nodes, marks), dot_text(nodes, marks)
    found = boxes(svg)
    assert len(found) == len(nodes) == len(re.findall(r"^  n\d+ \[", dot, re.MULTILINE))
    assert len(edges(nodes)) == len(reads) == dot.count(" -> ") == svg.count("marker-end")
    red = {number for number in failed if number < len(nodes)}
    assert svg.count('class="failed"') == len(red)
    assert {int(n) for n in re.findall(r"^  n(\d+) \[.*#f8c9c4", dot, re.MULTILINE)} == red
    for i, a in enumerate(found):
        for b in found[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for giver, reader in edges(nodes):
        assert found[giver][3] < found[reader][1]


def test_segments_are_joined_by_the_tensors_between_them() -> None:
    first = [Node("x", (), "input", (), ("x",)), Node("conv", (), "layer", ("x",), ("y",))]
    second = [Node("z", (), "input", (), ("z",)), Node("add", (), "layer", ("z",), ("out",))]
    nodes = join_segments([first, [host_node("host1", "no Sort", ["y"], ["z"])], second])
    assert [node.name for node in nodes] == ["x", "conv", "host1", "add"]
    assert edges(nodes) == [(0, 1), (1, 2), (2, 3)]


def test_graphviz_reads_the_text() -> None:
    dot = shutil.which("dot")
    if dot is None:
        pytest.skip("graphviz is not installed")
    nodes = [Node('a "b"\\', ("<x>",), "input", (), ("t",)), Node("c", (), "layer", ("t",), ("u",))]
    text = dot_text(nodes, {"u": Mark("cos 0.1", failed=True)})
    done = subprocess.run([dot, "-Tsvg"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.count('class="node"') == 2
