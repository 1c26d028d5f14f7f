"""Tensors of a graph from what a program wrote of them: parts of layers joined, operands that lie in place.

A layer that is computed part by part leaves boxes of its tensor, some elements several times where parts
overlap. A layer that only moves elements may have no instruction for some operands or for all, because they
already lie where its reader looks for them: those elements are the operands' as the program left these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.execution.debug.written import MOVEMENT

if TYPE_CHECKING:
    from tpuflow import _core

__all__ = ["TensorCheck", "check_tensors"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Boxes = Sequence[tuple[int, Sequence[tuple[int, int]]]]

PART = re.compile(r"#\d+$")
"""Suffix of names of parts, behind that of their layer."""


@dataclass(frozen=True)
class TensorCheck:
    """A tensor of the graph, and what the program left of it.

    Attributes:
        name: Its name in the graph.
        layer: The layer that makes it.
        op: Its operator.
        nodes: Nodes of the model that the layer stands for: tensors between them exist nowhere.
        parts: Boxes it was computed in; 1 for a layer computed as a whole.
        elements: Of the tensor.
        compared: Elements that the program wrote, for this tensor or an operand in place, each counted once.
        wrong: Of these, those that differ from the graph's.
        reason: Why elements are missing, or which operands they are without an instruction; else empty.
        codes: The tensor as the program left it; None where elements are missing.
    """

    name: str
    layer: str
    op: str
    nodes: tuple[str, ...]
    parts: int
    elements: int
    compared: int
    wrong: int
    reason: str
    codes: Array | None

    def to_json(self) -> dict[str, Any]:
        """Everything but the codes as plain values."""
        found = {key: value for key, value in self.__dict__.items() if key != "codes"}
        return found | {"nodes": list(self.nodes)}


@dataclass
class _Piece:
    """A box of a tensor: what is known of it, and the operands that it is where no instruction writes it."""

    layer: str
    codes: Array
    known: Mask
    operands: tuple[str, ...] = ()


def check_tensors(
    graph: _core.Graph,
    parts: _core.Graph,
    boxes: Boxes,
    inputs: Mapping[str, Array],
    left: Mapping[str, tuple[Array, Mask]],
) -> list[TensorCheck]:
    """Every tensor that a layer of the graph makes, compared with the graph's.

    Args:
        graph: The graph.
        parts: The same with layers in parts, as the program has them.
        boxes: By tensor of `parts`, which of the graph's it is a box of, and from where to where.
        inputs: Codes of the inputs by name.
        left: By name of a tensor of `parts`, its codes and which of them the program wrote.
    """
    truth = graph.run(inputs, all_tensors=True)
    pieces = _pieces(parts, inputs, left)
    held: dict[int, list[tuple[tuple[slice, ...], _Piece]]] = {}
    for tensor, (of, box) in zip(parts.tensors, boxes, strict=True):
        if tensor.name in pieces:
            place = tuple(slice(start, end) for start, end in box)
            held.setdefault(of, []).append((place, pieces[tensor.name]))
    tensors = graph.tensors
    return [
        _check_tensor(
            layer, tensors[layer.output].name, truth[tensors[layer.output].name], held[layer.output]
        )
        for layer in graph.layers
    ]


def _pieces(
    parts: _core.Graph, inputs: Mapping[str, Array], left: Mapping[str, tuple[Array, Mask]]
) -> dict[str, _Piece]:
    """The tensor that each layer of the program left, by name."""
    makers = {parts.tensors[layer.output].name: layer.name for layer in parts.layers}
    pieces = {name: _Piece(makers[name], *found) for name, found in left.items()}
    settled = dict(inputs) | {name: each.codes for name, each in pieces.items() if each.known.all()}
    tensors = parts.tensors
    moved = [
        layer
        for layer in parts.layers
        if layer.op in MOVEMENT and not pieces[tensors[layer.output].name].known.all()
    ]
    made = parts.run_apart(settled) if moved else {}
    for layer in moved:
        name = tensors[layer.output].name
        operands = tuple(tensors[index].name for index in layer.operands if not tensors[index].is_constant)
        if all(operand in settled for operand in operands):
            piece = pieces[name]
            settled[name] = np.where(piece.known, piece.codes, made[name])
            pieces[name] = _Piece(layer.name, settled[name], np.ones_like(piece.known), operands)
    return pieces


def _check_tensor(
    layer: _core.Layer, name: str, truth: Array, held: Sequence[tuple[tuple[slice, ...], _Piece]]
) -> TensorCheck:
    codes = np.zeros_like(truth)
    known, wrong, copied = (np.zeros(truth.shape, np.bool_) for _ in range(3))
    bits = np.dtype(f"u{truth.itemsize}")  # equal codes have equal bits, NaN too
    for place, piece in held:
        # Of an element that several parts computed, a wrong one stays.
        codes[place] = np.where(piece.known & ~wrong[place], piece.codes, codes[place])
        wrong[place] |= piece.known & (piece.codes.view(bits) != truth[place].view(bits))
        known[place] |= piece.known
        copied[place] |= piece.known & (not piece.operands)
    count = int(known.sum())
    if count and count < truth.size:
        reason = f"{truth.size - count} elements are never computed: no layer reads them"
    elif count < truth.size:
        reason = "no instruction writes it, nor all of its operands"
    elif copied.all():
        reason = ""
    else:
        operands = {operand for _, piece in held for operand in piece.operands}
        reason = f"no copy, in place: {', '.join(sorted(operands))}"
    return TensorCheck(
        name=name,
        layer=layer.name,
        op=layer.op,
        nodes=tuple(layer.nodes),
        parts=sum(layer.name in (piece.layer, PART.sub("", piece.layer)) for _, piece in held),
        elements=truth.size,
        compared=count,
        wrong=int(wrong.sum()),
        reason=reason,
        codes=codes if count == truth.size else None,
    )
