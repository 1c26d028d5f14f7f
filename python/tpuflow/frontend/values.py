"""Questions rewrites ask about values and nodes of a graph; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Attribute = int | float | str | Sequence[int] | Sequence[float]

__all__ = [
    "MASKED",
    "SEEN",
    "Attribute",
    "all_bodies",
    "array_of",
    "attributes_of",
    "axes_of",
    "bodies",
    "bound_of",
    "constant_and_other",
    "factors_of",
    "input_at",
    "integers_of",
    "is_mask",
    "is_shifted",
    "leaves_out",
    "maker_of",
    "mark_state",
    "produced_by",
    "reads",
    "scalar_of",
    "shape_of",
    "sliced",
    "sole_user",
    "state_bound",
    "state_factors",
    "state_output",
    "state_shape",
    "state_shifted",
    "state_steps",
    "stated_shape",
    "steps_of",
    "use_count",
]


MASKED = -1e4
"""A constant at or below this in front of a softmax leaves an element out."""


def is_mask(array: npt.NDArray[Any]) -> bool:
    """Whether numbers added in front of a softmax do nothing but leave elements out, at least one."""
    out = array <= MASKED
    return bool(np.any(out) and np.all(out | (array == 0)))


def leaves_out(value: ir.Value | None) -> bool:
    """Whether a value is a constant that leaves elements out wherever it stands in front of a softmax."""
    array = array_of(value)
    return array is not None and array.size > 0 and array.dtype.kind == "f" and bool(np.all(array <= MASKED))


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None when it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def array_of(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The elements of a constant; None for anything else."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def attributes_of(node: ir.Node) -> dict[str, Attribute]:
    """The attributes of a node by name, as numbers, strings and lists of them."""
    values = {name: attr.value for name, attr in node.attributes.data.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


STEPS = "tpuflow.steps"


def state_steps(value: ir.Value, steps: npt.NDArray[Any] | None) -> None:
    """Notes that every element of a constant is a whole multiple of its step; None forgets it.

    Args:
        value: The constant.
        steps: Positive float32 numbers of the constant's shape.
    """
    value.meta.pop(STEPS, None)
    if steps is not None:
        value.meta[STEPS] = steps


def steps_of(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The steps noted for a constant that still has the shape they were noted for; None without any."""
    steps: npt.NDArray[Any] | None = None if value is None else value.meta.get(STEPS)
    return steps if steps is not None and steps.shape == shape_of(value) else None


BOUND = "tpuflow.bound"
LARGEST_BOUND = 1 << 20
"""Above it what depends on an input is not written as a table."""


def state_bound(value: ir.Value, bound: int) -> None:
    """Notes that the integers of an input are at least 0 and below a bound; models that are saved keep it."""
    value.metadata_props[BOUND] = str(bound)


def bound_of(value: ir.Value) -> int | None:
    """The bound of an input's integers; None where none is noted."""
    text = value.metadata_props.get(BOUND, "") if value.is_graph_input() else ""
    stated = int(text) if text.isdecimal() and len(text) <= len(str(LARGEST_BOUND)) else 0
    return stated if 0 < stated <= LARGEST_BOUND else None


STATE = "tpuflow.state"


def mark_state(value: ir.Value, output: str) -> None:
    """Notes that the rows of an output belong behind those of an input, on the device, from run to run."""
    value.metadata_props[STATE] = output


def state_output(value: ir.Value) -> str | None:
    """The output whose rows belong behind those of an input; None where none is noted."""
    return value.metadata_props.get(STATE) if value.is_graph_input() else None


FACTORS = "tpuflow.factors"


def state_factors(value: ir.Value, factors: npt.NDArray[np.float64]) -> None:
    """Notes what a value of the user's model was divided by; an array that broadcasts to it."""
    value.meta[FACTORS] = factors


def factors_of(value: ir.Value) -> npt.NDArray[np.float64] | None:
    """The factors a value was divided by; None where it is the user's own."""
    found: npt.NDArray[np.float64] | None = value.meta.get(FACTORS)
    return found


SHIFTED = "tpuflow.shifted"


def state_shifted(value: ir.Value) -> None:
    """Notes that a value is a function's and a constant, to be computed as one function."""
    value.meta[SHIFTED] = True


def is_shifted(value: ir.Value) -> bool:
    """Whether that is noted."""
    return SHIFTED in value.meta


SHAPE = "tpuflow.shape"


def state_shape(value: ir.Value, shape: Sequence[int]) -> None:
    """Notes a shape that ONNX's inference cannot find, so that it outlives being inferred anew."""
    value.meta[SHAPE] = tuple(shape)
    value.shape = ir.Shape(shape)


def stated_shape(value: ir.Value) -> ir.Shape | None:
    """The shape noted for a value, None without any."""
    shape: Sequence[int] | None = value.meta.get(SHAPE)
    return None if shape is None else ir.Shape(shape)


def scalar_of(value: ir.Value | None) -> float | None:
    """The single element of a constant, of any rank; None for anything else."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    array = array_of(value)
    return None if array is None or array.dtype.kind in "cOSU" else float(array.item())


def integers_of(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant of whole numbers as a list; None for anything else."""
    array = array_of(value)
    if array is None or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return None
    return [int(element) for element in array.ravel()]


def sliced(node: ir.Node) -> tuple[ir.Value, int, range] | None:
    """Operand, axis (counted from the front) and indices of a Slice along one axis; None of other nodes."""
    if node.op_type != "Slice":
        return None
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    starts, ends, axes = (integers_of(input_at(node, place)) for place in (1, 2, 3))
    steps = [1] if input_at(node, 4) is None else integers_of(node.inputs[4])
    if x is None or not shape or not starts or not ends or not axes or not steps:
        return None
    if len(axes) > 1:
        return None
    axis = axes[0] % len(shape)
    return x, axis, range(shape[axis])[starts[0] : ends[0] : steps[0]]


WHOLE = frozenset({int})
"""Types of dimensions that are numbers as they stand."""
DENSE = frozenset({type(None), ir.TensorType})
"""Types of values that are tensors, or may be."""


def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value when all of it is known; None otherwise.

    ONNX's inference gives negative sizes to what nodes make that are not valid: they are as good as none. A
    sequence has the shape of what it holds, and a sparse tensor is not computed with: none of theirs counts.
    """
    if value is None or value.shape is None or type(value.type) not in DENSE:
        return None
    dims = value.shape.dims
    if WHOLE.issuperset(map(type, dims)):  # asked of every value over and over
        known = cast("tuple[int, ...]", dims)
    elif value.shape.is_static():
        known = tuple(int(d) for d in dims if isinstance(d, int))
    else:
        return None
    return known if min(known, default=0) >= 0 else None


def reads(node: ir.Node) -> list[ir.Value]:
    """The values a node reads, each once: its inputs, and what bodies of its attributes take from outside."""
    found = {value: None for value in node.inputs if value is not None}
    for body in bodies(node):
        inner = dict.fromkeys(value for each in body for value in reads(each))
        inner.update(dict.fromkeys(body.outputs))
        own = {*body.inputs, *body.initializers.values(), *(made for each in body for made in each.outputs)}
        found.update(dict.fromkeys(value for value in inner if value not in own))
    return list(found)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs among the attributes of a node: branches of If, bodies of Loop and Scan."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():  # behind a wrapper that takes ten times as long
        kind = attribute.type
        if kind == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif kind == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def all_bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graphs within a graph, at any depth, outer ones first."""
    for node in graph:
        for body in bodies(node):
            yield body
            yield from all_bodies(body)


SEEN = "tpuflow.seen"
"""Key under which a node keeps what was known when it was looked at, and what is wrong with it, or None."""


def maker_of(value: ir.Value | None) -> ir.Node | None:
    """The node that makes `value`, unless there is an objection to it (`tpuflow.frontend.validity`)."""
    node = None if value is None else value.producer()
    return None if node is None or node.meta.get(SEEN, (None, None))[1] is not None else node


def produced_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes `value` if it is one of these operators of ONNX's own domain, and valid."""
    node = maker_of(value)
    return node if node is not None and node.domain == "" and node.op_type in operators else None


def use_count(value: ir.Value) -> int:
    """How many node inputs read `value`; `uses` makes a list of them, which may be thousands."""
    return len(value._uses)  # noqa: SLF001 - there is no other way to count them


def sole_user(value: ir.Value) -> bool:
    """Whether exactly one node input reads `value`, and no graph output is it."""
    return use_count(value) == 1 and not value.is_graph_output()


def constant_and_other(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The constant and the other operand of a two-operand node; None unless exactly one is constant."""
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or (a.const_value is None) == (b.const_value is None):
        return None
    return (b, a) if a.const_value is None else (a, b)


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in increasing order."""
    return tuple(sorted(axis + rank if axis < 0 else axis for axis in axes))
