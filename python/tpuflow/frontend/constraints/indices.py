"""Constraints of ONNX on the indices, axes and lengths of a node: they must fit its operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

__all__ = [
    "FATAL",
    "SINGLE",
    "Constraint",
    "Objection",
    "axes_fit",
    "centered_axes_fit",
    "elements_fit",
    "heads_fit",
    "indices_fit",
    "lengths_fit",
    "matrices",
    "one_number",
    "pair_of_values",
    "permutation_fit",
    "places_fit",
    "points_fit",
    "rows_fit",
    "running_axis_fits",
    "shaped",
    "slices_fit",
    "some_elements",
    "updates_fit",
]

Objection = tuple[str | None, str]
"""An attribute or input, and what is wrong with it."""
Constraint = Callable[[ir.Node], Iterator[Objection]]
"""Given a node, what is wrong with it."""


SINGLE: Mapping[str, Sequence[int]] = {
    "Range": (0, 1, 2), "TopK": (1,), "CumSum": (1,), "CumProd": (1,), "Trilu": (1,),
    "SequenceAt": (1,), "SequenceInsert": (2,), "SequenceErase": (1,), "NonMaxSuppression": (2, 3, 4),
    "Dropout": (1, 2), "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4), "STFT": (1, 3),
}  # fmt: skip
"""Inputs that are one number each, which onnxruntime reads without a look at how many there are."""


def one_number(*indices: int) -> Constraint:
    """These inputs hold one number each."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        for index in indices:
            shape = shape_of(input_at(node, index))
            if shape is not None and math.prod(shape) != 1:
                yield f"input {index}", f"must be one number, has the shape {list(shape)}"

    return constraint


def pair_of_values(node: ir.Node) -> Iterator[Objection]:
    """The numbers of a OneHot for off and on are two."""
    shape = shape_of(input_at(node, 2))
    if shape is not None and shape != (2,):
        yield "input 2", f"must be a pair of values, has the shape {list(shape)}"


def some_elements(node: ir.Node) -> Iterator[Objection]:
    """There is something to look through."""
    shape = shape_of(input_at(node, 0))
    if shape is not None and 0 in shape:
        yield "input 0", f"must have elements, has the shape {list(shape)}"


def running_axis_fits(node: ir.Node) -> Iterator[Objection]:
    """The axis that is summed along is one of the operand's."""
    x, axis = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if x == ():
        yield "input 0", "has no axes"
    elif x is not None and axis and not -len(x) <= axis[0] < len(x):
        yield "input 1", f"{axis[0]} is not an axis of {shaped(x)}"


def matrices(node: ir.Node) -> Iterator[Objection]:
    """A triangle is one of rows and columns."""
    shape = shape_of(input_at(node, 0))
    if shape is not None and len(shape) < 2:
        yield "input 0", f"has the shape {list(shape)}: rows and columns are needed"


FATAL = (
    "is not finite",
    "must be one number",
    "must be a pair of values",
    "never ends",
    "channels are named",
    "is left out",
    "must have elements",
    "is above high",
    "is not above 0",
)
"""Words of the objections to nodes that onnxruntime does not survive or finish either."""


def shaped(shape: Sequence[int] | None) -> str:
    """An operand in a message, by its shape where that is known."""
    return "the input" if shape is None else f"an input of the shape {list(shape)}"


def slices_fit(node: ir.Node) -> Iterator[Objection]:
    """Starts, ends, axes and steps of a slice are of one number, the axes exist, no step is 0."""
    x = shape_of(input_at(node, 0))
    lists = [integers_of(input_at(node, index)) for index in (1, 2, 3, 4)]
    counts = {len(each) for each in lists if each is not None}
    if len(counts) > 1:
        yield "input 1", "starts, ends, axes and steps differ in number"
    axes, steps = lists[2], lists[3]
    if axes is not None and x is not None:
        if any(not -len(x) <= axis < len(x) for axis in axes):
            yield "input 3", f"{axes} are not axes of the shape {list(x)}"
        elif len({axis % len(x) for axis in axes}) < len(axes):
            yield "input 3", f"the axes {axes} repeat"
    if x is not None and axes is None and counts and max(counts) > len(x):
        yield "input 1", f"{max(counts)} axes are sliced of the shape {list(x)}"
    if steps is not None and 0 in steps:
        yield "input 4", "a step is 0"


def indices_fit(node: ir.Node) -> Iterator[Objection]:
    """Indices of one axis lie on it."""
    x, array = shape_of(input_at(node, 0)), array_of(input_at(node, 1))
    if x is None or array is None or not array.size or array.dtype.kind not in "iu":
        return
    axis = node.attributes.get_int("axis", 0)
    if not x or not -len(x) <= axis < len(x):
        yield "axis", f"{axis} is not an axis of the shape {list(x)}"
    elif not -x[axis] <= int(array.min()) <= int(array.max()) < x[axis]:
        yield "input 1", f"holds an index outside the axis of size {x[axis]}"


def elements_fit(node: ir.Node) -> Iterator[Objection]:
    """Indices of as many axes as the data has, and no longer along the others."""
    x, indices = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if x is None or indices is None:
        return
    axis = node.attributes.get_int("axis", 0) % max(len(x), 1)
    fits = len(x) == len(indices) and all(
        a <= b for place, (a, b) in enumerate(zip(indices, x, strict=True)) if place != axis
    )
    if not fits:
        yield "input 1", f"indices of the shape {list(indices)} do not fit {shaped(x)}"


def points_fit(node: ir.Node) -> Iterator[Objection]:
    """Indices of the leading axes, behind those of the batch."""
    x, shape, indices = shape_of(input_at(node, 0)), shape_of(input_at(node, 1)), array_of(input_at(node, 1))
    batch = node.attributes.get_int("batch_dims", 0)
    if x is None or shape is None:
        return
    if not shape or not 0 <= batch < min(len(x), len(shape)) or shape[-1] > len(x) - batch:
        yield "input 1", f"indices of the shape {list(shape)} do not fit {shaped(x)}"
    elif shape[:batch] != x[:batch]:
        yield "input 1", f"indices of the shape {list(shape)} have another batch than {list(x)}"
    elif indices is not None and indices.size:
        sizes = np.array(x[batch : batch + shape[-1]])
        if np.any(indices < -sizes) or np.any(indices >= sizes):
            yield "input 1", f"holds an index outside the axes of {shaped(x)}"


def lengths_fit(node: ir.Node) -> Iterator[Objection]:
    """One length for each sequence of the batch."""
    x, lengths = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    axes = [node.attributes.get_int(name, k) for name, k in (("time_axis", 0), ("batch_axis", 1))]
    if x is None:
        return
    if len(x) < 2 or sorted(axes) != [0, 1]:
        yield "time_axis", f"time {axes[0]} and batch {axes[1]} are not the first axes of {shaped(x)}"
    elif lengths is not None and len(lengths) != x[axes[1]]:
        yield "input 1", f"{len(lengths)} lengths are given for {x[axes[1]]} sequences"
    elif lengths is not None and not all(0 <= length <= x[axes[0]] for length in lengths):
        yield "input 1", f"{lengths} are not lengths of sequences of at most {x[axes[0]]}"


def axes_fit(node: ir.Node) -> Iterator[Objection]:
    """Axes that are reduced or dropped exist."""
    x, axes = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if axes is None and "axes" in node.attributes:
        axes = list(node.attributes.get_ints("axes", []))
    if x is None or not axes:
        return
    rank = len(x) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    attribute = "axes" if "axes" in node.attributes else "input 1"
    if any(not -rank <= axis < rank for axis in axes):
        yield attribute, f"{axes} are not axes of {shaped(x)}"
    elif node.op_type in {"Squeeze", "Unsqueeze"} and len({axis % rank for axis in axes}) < len(axes):
        yield attribute, f"the axes {axes} repeat"


def centered_axes_fit(node: ir.Node) -> Iterator[Objection]:
    """Axes that a mean is taken over exist, those of images unless others are stated."""
    x, axes = shape_of(input_at(node, 0)), node.attributes.get_ints("axes", [0, 2, 3])
    if x is None:
        return
    if any(not -len(x) <= axis < len(x) for axis in axes):
        yield "axes", f"{list(axes)} are not axes of {shaped(x)}"
    elif len({axis % len(x) for axis in axes}) < len(axes):
        yield "axes", f"the axes {list(axes)} repeat"


def places_fit(node: ir.Node) -> Iterator[Objection]:
    """Indices and updates of single elements are of one shape, with as many axes as what they go to."""
    x, indices, updates = (shape_of(input_at(node, index)) for index in range(3))
    if x is None or indices is None:
        return
    if len(indices) != len(x) or (updates is not None and indices != updates):
        given = "the updates" if updates is None else list(updates)
        yield "input 1", f"indices of the shape {list(indices)} do not fit {shaped(x)} and {given}"


def rows_fit(node: ir.Node) -> Iterator[Objection]:
    """Rows that are written into a cache are as those of the cache, and no more than it holds."""
    cache, rows = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    first = shape_of(input_at(node, 2))
    if cache is None:
        return
    axis = node.attributes.get_int("axis", -2)
    if not -len(cache) <= axis < len(cache) or axis % len(cache) == 0:
        yield "axis", f"{axis} is not an axis of {shaped(cache)} behind the batch"
        return
    if first is not None and first != cache[:1]:
        yield "input 2", f"has the shape {list(first)}, not one number for each of {cache[0]} sequences"
    axis %= len(cache)
    if rows is not None and (
        len(rows) != len(cache)
        or any(a != b for place, (a, b) in enumerate(zip(rows, cache, strict=True)) if place != axis)
        or rows[axis] > cache[axis]
    ):
        yield "input 1", f"rows of the shape {list(rows)} do not fit {shaped(cache)}"


def heads_fit(node: ir.Node) -> Iterator[Objection]:
    """Queries, keys and values are of one batch and size; each head of keys has as many of queries."""
    q, k, v = (shape_of(input_at(node, index)) for index in range(3))
    if q is None or k is None or v is None:
        return
    if not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        yield "input 1", f"keys of the shape {list(k)} do not fit {shaped(q)}"
        return
    if len(q) == 3:
        counts = [
            node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")
        ]
        for name, count, shape in zip(
            ("q_num_heads", "kv_num_heads", "kv_num_heads"), counts, (q, k, v), strict=True
        ):
            if count < 1 or shape[2] % count:
                yield name, f"{count} heads do not divide {shaped(shape)}"
                return
        q, k, v = (
            (shape[0], count, shape[1], shape[2] // count)
            for shape, count in zip((q, k, v), counts, strict=True)
        )
    if not q[0] == k[0] == v[0] or k[1:3] != v[1:3] or q[3] != k[3]:
        yield (
            "input 1",
            f"keys of the shape {list(k)} and values of {list(v)} do not fit queries of {list(q)}",
        )
    elif k[1] < 1 or q[1] % k[1]:
        yield "input 1", f"{k[1]} heads of keys do not divide {q[1]} heads of queries"


def updates_fit(node: ir.Node) -> Iterator[Objection]:
    """Places of the leading axes, and an update of all other axes for each."""
    x, places, updates = (shape_of(input_at(node, index)) for index in range(3))
    if x is None or places is None:
        return
    if not x or not places or places[-1] > len(x):
        yield "input 1", f"indices of the shape {list(places)} do not fit {shaped(x)}"
    elif updates is not None and updates != (*places[:-1], *x[places[-1] :]):
        yield (
            "input 2",
            f"updates of the shape {list(updates)} do not fit indices of {list(places)} in {list(x)}",
        )


def permutation_fit(node: ir.Node) -> Iterator[Objection]:
    """A permutation names each axis once."""
    x, order = shape_of(input_at(node, 0)), node.attributes.get_ints("perm", None)
    if order is not None and sorted(order) != list(range(len(order if x is None else x))):
        yield "perm", f"{list(order)} does not order the axes of {shaped(x)}"
