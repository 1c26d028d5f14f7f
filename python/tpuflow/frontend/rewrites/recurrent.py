"""Recurrent networks, unrolled: RNN, GRU and LSTM over a static number of steps.

The projections of the inputs of all steps are one MatMul, unless the inputs are the steps of another such
layer; a step then multiplies its state by the recurrence matrix, adds, and applies the activations, which are
tables. With Z = H R for the state H before the step:

    RNN     h = f(x + Z)
    GRU     z, r = f(x + Z);    c = g(x + (r H) R)   or   g(x + r Z);    h = (1 - z) c + z H
    LSTM    i, o, f = f(x + Z + peepholes);  c' = f c + i g(x + Z);      h = o h(c')

Sequences of different, constant lengths keep their state once they have ended, and give zeros.

Source: RNN, GRU and LSTM of https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.values import input_at, integers_of, produced_by, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["MOST_STEPS", "RECURRENCE", "RULES", "STEPWISE"]

MOST_STEPS = 2048
"""Steps a network is unrolled over."""

MOST_WEIGHTS = 40_960
"""Weights of an input's projection up to which a layer on top of another one has a projection for every step.

It then follows the other layer step by step, while the array takes these weights once a step: beside the
instructions of a step, which the elementwise unit starts one by one, so many take no longer.
"""

STEPWISE = "tpuflow.stepwise"
"""Mark of such a projection: steps of both layers are to be listed in turns."""

RECURRENCE = "tpuflow.recurrence"
"""Mark of what a step computes, the same at every step: such values share a grid, and so their constants."""

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}),
    "affine": ("Affine", {"alpha": 1.0, "beta": 0.0}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": 1.0}),
    "scaledtanh": ("ScaledTanh", {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("Elu", {"alpha": 1.0}),
    "softsign": ("Softsign", {}),
    "softplus": ("Softplus", {}),
}
"""Operator and parameters with their defaults, by name in lower case."""


@dataclass(frozen=True)
class Activation:
    """A function of one variable with its parameters."""

    operator: str
    parameters: dict[str, float]

    def __call__(self, x: ir.Value, emit: Emitter) -> ir.Value:
        alpha, beta = self.parameters.get("alpha", 1.0), self.parameters.get("beta", 0.0)
        if self.operator == "Affine":
            scaled = emit("Mul", x, emit.constant(np.float32(alpha), "alpha"))
            return emit("Add", scaled, emit.constant(np.float32(beta), "beta"))
        if self.operator == "ScaledTanh":
            inner = emit("Tanh", emit("Mul", x, emit.constant(np.float32(beta), "beta")))
            return emit("Mul", inner, emit.constant(np.float32(alpha), "alpha"))
        attributes: dict[str, Attribute] = dict(self.parameters)
        return emit(self.operator, x, attributes=attributes)


def _activations(node: ir.Node, directions: int) -> list[list[Activation]] | None:
    """The functions of each direction; None where one is unknown."""
    count = len(DEFAULTS[node.op_type])
    names = [str(name).lower() for name in node.attributes.get_strings("activations", [])]
    names = names or list(DEFAULTS[node.op_type]) * directions
    stated = {
        "alpha": list(node.attributes.get_floats("activation_alpha", [])),
        "beta": list(node.attributes.get_floats("activation_beta", [])),
    }
    if len(names) != count * directions or any(name not in ACTIVATIONS for name in names):
        return None
    made = []
    for name in names:
        operator, parameters = ACTIVATIONS[name]
        own = {key: stated[key].pop(0) if stated[key] else value for key, value in parameters.items()}
        made.append(Activation(operator, own))
    return [made[k * count : (k + 1) * count] for k in range(directions)]


class _Cell:
    """The step of one direction."""

    def __init__(self, node: ir.Node, emit: Emitter, hidden: int, functions: Sequence[Activation]) -> None:
        self.node, self.emit, self.hidden, self.functions = node, emit, hidden, functions
        self.clip = node.attributes.get_float("clip", 0.0)
        self.recurrence: ir.Value
        self.candidate: ir.Value | None = None
        self.bias: ir.Value | None = None
        self.peepholes: Sequence[ir.Value] = ()

    def gate(self, x: ir.Value, first: int, count: int = 1) -> ir.Value:
        """`count` gates of [1, batch, gates hidden]."""
        return self.emit.slice(x, 2, range(first * self.hidden, (first + count) * self.hidden), "gate")

    def activate(self, index: int, x: ir.Value) -> ir.Value:
        """An activation of what is limited beforehand."""
        if self.clip > 0:
            limits = [self.emit.constant(np.float32(sign * self.clip), "limit") for sign in (-1, 1)]
            x = self.emit("Clip", x, *limits)
        return self.functions[index](x, self.emit)

    def step(self, x: ir.Value, h: ir.Value, c: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
        """States after a step with projected input `x` [1, batch, gates hidden]."""
        emit = self.emit
        if self.node.op_type == "GRU":
            return self._gru(x, h), None
        total = emit("Add", x, emit("MatMul", h, self.recurrence))
        if self.node.op_type == "RNN" or c is None:
            return self.activate(0, total), None
        return self._lstm(total, c)

    def _lstm(self, total: ir.Value, c: ir.Value) -> tuple[ir.Value, ir.Value]:
        emit = self.emit
        if self.peepholes or self.node.attributes.get_int("input_forget", 0) != 0:
            return self._lstm_by_gates(total, c)
        # One instruction for the three gates of one function; the fourth beside them takes no time.
        gates = self.activate(0, total)
        enter, leave, keep = (self.gate(gates, k) for k in range(3))
        added = emit("Mul", enter, self.activate(1, self.gate(total, 3)))
        new = emit("Add", emit("Mul", keep, c), added, label="cell")
        return emit("Mul", leave, self.functions[2](new, emit), label="hidden"), new

    def _lstm_by_gates(self, total: ir.Value, c: ir.Value) -> tuple[ir.Value, ir.Value]:
        """With peepholes, or with a forget gate that follows from the input gate."""
        emit = self.emit
        parts = [self.gate(total, k) for k in range(4)]
        if self.peepholes:
            parts[0] = emit("Add", parts[0], emit("Mul", self.peepholes[0], c))
            parts[2] = emit("Add", parts[2], emit("Mul", self.peepholes[2], c))
        enter = self.activate(0, parts[0])
        if self.node.attributes.get_int("input_forget", 0):
            keep = emit("Sub", emit.constant(np.float32(1), "one"), enter)
        else:
            keep = self.activate(0, parts[2])
        new = emit("Add", emit("Mul", keep, c), emit("Mul", enter, self.activate(1, parts[3])), label="cell")
        if self.peepholes:
            parts[1] = emit("Add", parts[1], emit("Mul", self.peepholes[1], new))
        leave = self.activate(0, parts[1])
        return emit("Mul", leave, self.functions[2](new, emit), label="hidden"), new

    def _gru(self, x: ir.Value, h: ir.Value) -> ir.Value:
        emit = self.emit
        update_reset = emit("Add", self.gate(x, 0, 2), emit("MatMul", h, self.recurrence))
        gates = self.activate(0, update_reset)
        reset, update = self.gate(gates, 0), self.gate(gates, 1)
        # Known before the candidate, which is waited for.
        kept = emit("Mul", update, h)
        share = emit("Sub", emit.constant(np.float32(1), "one"), update)
        if self.node.attributes.get_int("linear_before_reset", 0):
            inner = emit("MatMul", h, self.candidate)
            if self.bias is not None:
                inner = emit("Add", inner, self.bias)
            inner = emit("Mul", reset, inner)
        else:
            inner = emit("MatMul", emit("Mul", reset, h), self.candidate)
        candidate = self.activate(1, emit("Add", self.gate(x, 2), inner))
        return emit("Add", emit("Mul", share, candidate), kept, label="hidden")


def _part(value: ir.Value, index: int, shape: Sequence[int], emit: Emitter, label: str) -> ir.Value:
    """`value[index]` along the first axis, in another shape."""
    taken = emit.slice(value, 0, range(index, index + 1), label)
    return emit.reshape(taken, shape, f"{label}_shape")


def _columns(value: ir.Value, first: int, last: int, emit: Emitter, label: str) -> ir.Value:
    return emit.slice(value, value.shape.rank() - 1 if value.shape else 0, range(first, last), label)


def _reset_first(value: ir.Value, hidden: int, emit: Emitter, label: str) -> ir.Value:
    """The columns of update, reset and candidate with those of reset in front.

    The reset gate is waited for, and what begins a word need not be moved to where a word begins.
    """
    bounds = ((hidden, 2 * hidden), (0, hidden), (2 * hidden, 3 * hidden))
    parts = [_columns(value, *each, emit, label) for each in bounds]
    axis = value.shape.rank() - 1 if value.shape else 0
    return emit("Concat", *parts, attributes={"axis": axis}, label=f"{label}_order")


def _cell(
    node: ir.Node, index: int, functions: Sequence[Activation], hidden: int, emit: Emitter
) -> tuple[_Cell, ir.Value, ir.Value | None]:
    """The cell of a direction, its input matrix [inputs, gates hidden], and the bias of the projection."""
    gates = GATES[node.op_type]
    weights, recurrence, bias = node.inputs[1], node.inputs[2], input_at(node, 3)
    if weights is None or recurrence is None:
        raise ValueError("a required input is missing")
    inputs = (shape_of(weights) or (0, 0, 0))[2]
    cell = _Cell(node, emit, hidden, functions)
    turned = {"perm": [1, 0]}
    w = emit("Transpose", _part(weights, index, (gates * hidden, inputs), emit, "w"), attributes=turned)
    r = emit("Transpose", _part(recurrence, index, (gates * hidden, hidden), emit, "r"), attributes=turned)
    if node.op_type == "GRU":
        w, r = (_reset_first(value, hidden, emit, label) for value, label in ((w, "w"), (r, "r")))
    cell.recurrence = r
    total = of_input = of_state = None
    if bias is not None:
        both = _part(bias, index, (2, gates * hidden), emit, "bias")
        of_input, of_state = (_part(both, k, (gates * hidden,), emit, f"bias{k}") for k in (0, 1))
        if node.op_type == "GRU":
            of_input, of_state = (_reset_first(value, hidden, emit, "bias") for value in (of_input, of_state))
        total = emit("Add", of_input, of_state)
    if node.op_type == "GRU":
        cell.recurrence = _columns(r, 0, 2 * hidden, emit, "gates")
        cell.candidate = _columns(r, 2 * hidden, 3 * hidden, emit, "candidate")
        if (
            of_input is not None
            and of_state is not None
            and node.attributes.get_int("linear_before_reset", 0) != 0
        ):
            cell.bias = _columns(of_state, 2 * hidden, 3 * hidden, emit, "candidate_bias")
            outer = _columns(total if total is not None else of_input, 0, 2 * hidden, emit, "outer")
            inner = _columns(of_input, 2 * hidden, 3 * hidden, emit, "inner")
            total = emit("Concat", outer, inner, attributes={"axis": 0})
    peepholes = input_at(node, 7)
    if node.op_type == "LSTM" and peepholes is not None:
        three = _part(peepholes, index, (3, hidden), emit, "peepholes")
        cell.peepholes = [_part(three, k, (hidden,), emit, f"peephole{k}") for k in range(3)]
    return cell, w, total


def _earlier_steps(x: ir.Value, steps: int, size: int) -> list[ir.Value] | None:
    """What `steps` values of `size` elements `x` is made of, one behind the other; None if it is not."""
    maker = produced_by(x, "Concat", "Reshape", "Squeeze", "Unsqueeze", "Transpose")
    while maker is not None and (maker.op_type != "Concat" or len(maker.inputs) == 1):
        source = maker.inputs[0]
        if source is None or (maker.op_type == "Transpose" and not _keeps_order(maker)):
            return None
        x, maker = source, produced_by(source, "Concat", "Reshape", "Squeeze", "Unsqueeze", "Transpose")
    shape = shape_of(x)
    if maker is None or shape is None or len(maker.inputs) != steps:
        return None
    rows = [row for row in maker.inputs if row is not None and math.prod(shape_of(row) or (0,)) == size]
    outermost = math.prod(shape[: maker.attributes.get_int("axis", 0) % len(shape)]) == 1
    return rows if outermost and len(rows) == steps else None


def _keeps_order(transpose: ir.Node) -> bool:
    """Whether only axes of extent 1 change their places."""
    shape, order = shape_of(transpose.inputs[0]), transpose.attributes.get_ints("perm", [])
    moved = [axis for axis in order if shape is not None and shape[axis] > 1]
    return bool(order) and shape is not None and moved == sorted(moved)


def _projections(
    x: ir.Value, shape: Sequence[int], w: ir.Value, bias: ir.Value | None, emit: Emitter
) -> list[ir.Value]:
    """The inputs `[steps, batch, width]` of all steps times `w`, and added to."""
    steps, batch, width = shape
    columns = (shape_of(w) or (0, 0))[1]
    earlier = _earlier_steps(x, steps, batch * width)
    if earlier is None or width * columns > MOST_WEIGHTS:
        projected = emit("MatMul", emit.reshape(x, (steps * batch, width), "inputs"), w, label="projected")
        if bias is not None:
            projected = emit("Add", projected, bias, label="biased")
        projected = emit.reshape(projected, (steps, batch, columns), "projections")
        return [_part(projected, t, (1, batch, columns), emit, f"step{t}") for t in range(steps)]
    found = []
    for row in earlier:
        projected = emit("MatMul", emit.reshape(row, (1, batch, width), "input"), w, label="projected")
        maker = projected.producer()
        if maker is not None:
            maker.metadata_props[STEPWISE] = ""
        found.append(projected if bias is None else emit("Add", projected, bias, label="biased"))
    return found


def unroll(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Writes a recurrent operator step by step."""
    x, shape, weights = node.inputs[0], shape_of(node.inputs[0]), shape_of(input_at(node, 1))
    if x is None or shape is None or weights is None or input_at(node, 2) is None:
        return None
    if any(value is not None and shape_of(value) is None for value in node.inputs):
        return None
    by_batch = bool(node.attributes.get_int("layout", 0))
    if by_batch:
        x = emit("Transpose", x, attributes={"perm": [1, 0, 2]}, label="steps")
        shape = (shape[1], shape[0], shape[2])
    steps, batch, _ = shape
    directions, hidden = weights[0], weights[1] // GATES[node.op_type]
    functions = _activations(node, directions)
    lengths = integers_of(input_at(node, 4))
    if functions is None or steps > MOST_STEPS or not steps:
        return None
    if lengths is None and input_at(node, 4) is not None:
        return None
    if lengths is not None and all(length >= steps for length in lengths):
        lengths = None
    direction = node.attributes.get_string("direction", "forward")
    runs: list[_Run] = []
    for index in range(directions):
        cell, w, bias = _cell(node, index, functions[index], hidden, emit)
        projections = _projections(x, shape, w, bias, emit)
        h, c = (_initial(node, k, index, batch, hidden, emit, by_batch=by_batch) for k in (5, 6))
        order = range(steps)[:: -1 if direction == "reverse" or index == 1 else 1]
        label = f"{node.outputs[0].name or node.name}/{index}"
        runs.append(_Run(label, cell, projections, order, lengths, h, c))
    # Side by side, so that the units have the other direction's step to do while they wait for one.
    for _ in range(steps):
        for run in runs:
            run.step(emit)
    ends: list[list[ir.Value]] = [[], [], []]
    for run in runs:
        rows = emit(
            "Concat", *(run.outputs[t] for t in range(steps)), attributes={"axis": 0}, label="sequence"
        )
        ends[0].append(emit.reshape(rows, (steps, 1, batch, hidden), "row"))
        ends[1].append(run.h)
        if run.c is not None:
            ends[2].append(run.c)
    results = [
        emit("Concat", *values, attributes={"axis": axis})
        for values, axis in zip(ends, (1, 0, 0), strict=True)
        if values
    ]
    if by_batch:
        turns = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        results = [
            emit("Transpose", value, attributes={"perm": perm})
            for value, perm in zip(results, turns, strict=False)
        ]
    return results[: len(node.outputs)]


def _initial(
    node: ir.Node, place: int, index: int, batch: int, hidden: int, emit: Emitter, *, by_batch: bool
) -> ir.Value | None:
    """The state a direction begins with; None for a cell state there is none of."""
    if place == 6 and node.op_type != "LSTM":
        return None
    given = input_at(node, place)
    if given is None:
        return emit.constant(np.zeros((1, batch, hidden), np.float32), "zeros")
    if by_batch:
        given = emit("Transpose", given, attributes={"perm": [1, 0, 2]}, label="initial")
    return _part(given, index, (1, batch, hidden), emit, f"initial{place}")


class _Run:
    """The steps of one direction: outputs so far by time, and the last states."""

    def __init__(
        self,
        label: str,
        cell: _Cell,
        projections: Sequence[ir.Value],
        order: Iterable[int],
        lengths: Sequence[int] | None,
        h: ir.Value | None,
        c: ir.Value | None,
    ) -> None:
        if h is None:
            raise ValueError("a shape is missing")
        self.label = label
        self.cell, self.projections, self.order, self.lengths = cell, projections, iter(order), lengths
        self.h, self.c = h, c
        self.outputs: dict[int, ir.Value] = {}

    def step(self, emit: Emitter) -> None:
        """The next step in the direction's order."""
        t = next(self.order)
        h, c = self.h, self.c
        first = len(emit.nodes)
        new, cell_state = self.cell.step(self.projections[t], h, c)
        output = new
        if self.lengths is not None:
            going: npt.NDArray[Any] = np.array([[t < length] for length in self.lengths])
            condition = emit.constant(going, f"going{t}")
            new = emit("Where", condition, new, h)
            cell_state = None if cell_state is None or c is None else emit("Where", condition, cell_state, c)
            output = emit("Where", condition, output, emit.constant(np.float32(0), "zero"))
        self.outputs[t], self.h, self.c = output, new, cell_state
        for place, made in enumerate(emit.nodes[first:]):
            made.metadata_props[RECURRENCE] = f"{self.label}/{place}"


RULES: Rules = {"RNN": [unroll], "GRU": [unroll], "LSTM": [unroll]}
