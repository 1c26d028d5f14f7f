"""Choices of random shapes: operands, condition and result broadcast, repeat, and lie in any order."""

from __future__ import annotations

import numpy as np
import pytest

from lowering.quantized import lowered, normal
from models.builder import Builder
from tpuflow import _core
from tpuflow.compiler.program import compile as compile_graph

NETWORKS = 6
"""Per seed."""


def part_of(random: np.random.Generator, shape: list[int]) -> list[int]:
    """The last axes of a shape, some of them of extent 1."""
    own = shape[int(random.integers(0, len(shape))) :]
    return [1 if random.random() < 0.4 else extent for extent in own]


def network(random: np.random.Generator) -> Builder:
    """One choice between a computed value and another one or a constant, read in some order."""
    out = [int(extent) for extent in random.integers(2, 7, size=int(random.integers(1, 6)))]
    given, other = part_of(random, out), part_of(random, out)
    pattern = np.zeros(1, bool)
    while pattern.all() or not pattern.any():
        condition = part_of(random, out)
        # Along some axes it repeats, though it has their extent.
        varies = [1 if random.random() < 0.3 else extent for extent in condition]
        pattern = np.broadcast_to(random.random(varies) > 0.4, condition)
    b = Builder("choice")
    order = random.permutation(len(given))
    x = b.node("Tanh", b.node("Transpose", b.input("x", given), perm=order.tolist()))
    x = b.node("Transpose", x, perm=np.argsort(order).tolist())
    kind = random.integers(0, 3)
    if kind == 0:
        other, y = [], b.constant(np.array(0.5, np.float32))
    elif kind == 1:
        y = b.constant(random.standard_normal(other).astype(np.float32))
    else:
        y = b.input("y", other)
    where = b.constant(pattern)
    z = b.node("Where", where, x, y) if random.random() < 0.5 else b.node("Where", where, y, x)
    rank = len(np.broadcast_shapes(given, other, pattern.shape))
    b.output(b.node("Transpose", z, perm=random.permutation(rank).tolist()))
    return b


@pytest.mark.parametrize("seed", range(8))
def test_programs_choose_as_the_reference_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(NETWORKS):
        b = network(random)
        feeds = normal(b, 2)
        made = lowered(b.model(), feeds, {"quantize": {"dtype": "int8" if seed % 2 else "int16"}})
        made.equals_reference(feeds[1])
        assert all(found.sqnr > 20 for found in made.compare(feeds[0]).values())
        given = made.inputs(feeds[1])
        expected = list(made.graph.run(given).values())
        program = compile_graph(made.graph, machine="32x32_fpga", level=5)
        found = _core.simulate(program, list(given.values())).outputs
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
