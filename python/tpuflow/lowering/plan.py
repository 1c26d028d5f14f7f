"""Which nodes become one layer. Decided here once, so that no later stage changes a bit by fusing or not.

A step is a node with what is computed on its way out:

    Conv, ConvTranspose, MatMul   [+ Add of a constant per column] [+ Relu, Clip or any function]
    Add, pools, means, ...        [+ Relu or Clip]
    Softmax                       [preceded by Where that leaves elements out, or Add of a constant mask]
    any function                  [+ the constant that makes it unsigned, see `tpuflow.ptq.shift_negative`]

Relu and Clip are clamps of the requantisation. A function behind a linear operator is a table that reads the
operator's 16-bit intermediate; what rounds to whole numbers is arithmetic of its own. A node is only absorbed
where nothing else reads what it absorbs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import MASKED, is_shifted
from tpuflow.lowering.functions import FUNCTIONS
from tpuflow.lowering.nodes import constant, float_constant, input_or_none, is_constant, shape_of, sole_user

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CLAMPS", "GATED", "LINEAR", "MASKED", "TO_WHOLE", "Step", "plan"]

LINEAR = frozenset({"Conv", "ConvTranspose", "MatMul"})
CLAMPS = frozenset({"Relu", "Clip"})
CLAMPING = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Max", "Min", "AveragePool", "GlobalAveragePool", "LayerNormalization",
        "RMSNormalization", "ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    }
)  # fmt: skip
"""Operators that end in a requantisation of their own, besides the linear ones."""

TO_WHOLE = frozenset({"Ceil", "Floor", "Round"})
"""Functions that make whole numbers of what they read, and errors of 1 of any that crosses one."""

GATED = frozenset({"HardSwish", "Silu", "Swish"})
"""Functions that are the product of their operand and a gate between 0 and 1."""


@dataclass(frozen=True)
class Step:
    """One node and the nodes computed together with it.

    Attributes:
        node: The operator.
        output: The value the step produces.
        bias: Constant added per column (MatMul).
        activation: Relu, Clip or a function computed on the way out.
        mask: Where or Add in front of a Softmax.
        nodes: Every node of the step, in order.
        shift: Constant added to a function's result within its table.
    """

    node: ir.Node
    output: ir.Value
    bias: ir.Value | None
    activation: ir.Node | None
    mask: ir.Node | None
    nodes: tuple[ir.Node, ...]
    shift: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all nodes and of the values they produce: what a configuration may match."""
        values = (value.name for node in self.nodes for value in node.outputs)
        return tuple(name for name in (*(node.name for node in self.nodes), *values) if name)

    @property
    def before_activation(self) -> ir.Value:
        """The value the activation reads, or the output where there is none."""
        if self.activation is None or self.activation.inputs[0] is None:
            return self.output
        return self.activation.inputs[0]


def plan(nodes: Iterable[ir.Node], *, fuse_tables: bool, gates_apart: bool = False) -> list[Step]:
    """The steps of a graph, in the order of their first nodes.

    Args:
        nodes: In topological order.
        fuse_tables: Functions may be computed on the way out of linear operators.
        gates_apart: Except `GATED` ones, which need their operand twice.
    """
    fused = frozenset(FUNCTIONS) - TO_WHOLE if fuse_tables else frozenset()
    if gates_apart:
        fused -= GATED
    steps: list[Step] = []
    absorbed: set[ir.Node] = set()
    ordered = list(nodes)
    masks = {node: _mask(node) for node in ordered if node.op_type == "Softmax"}
    absorbed.update(mask for mask in masks.values() if mask is not None)
    for node in ordered:
        if node in absorbed:
            continue
        mask = masks.get(node)
        members = [node] if mask is None else [mask, node]
        bias, activation = None, None
        if node.op_type == "MatMul":
            follower = sole_user(members[-1].outputs[0])
            bias = _column_bias(members[-1], follower)
            if bias is not None and follower is not None:
                members.append(follower)
        follower = sole_user(members[-1].outputs[0])
        if follower is not None and _is_activation(members[-1], node, follower, fused):
            activation = follower
            members.append(follower)
        shift = 0.0
        follower = sole_user(members[-1].outputs[0])
        if follower is not None and members[-1].op_type in FUNCTIONS and is_shifted(follower.outputs[0]):
            shift = float(np.asarray(constant(follower.inputs[1])).item())
            members.append(follower)
        absorbed.update(members)
        steps.append(Step(node, members[-1].outputs[0], bias, activation, mask, tuple(members), shift))
    return steps


def _is_activation(last: ir.Node, head: ir.Node, follower: ir.Node, fused: Collection[str]) -> bool:
    if follower.inputs[0] is not last.outputs[0]:
        return False
    if follower.op_type in CLAMPS:
        bounds = [input_or_none(follower, i) for i in (1, 2)]
        known = all(bound is None or is_constant(bound) for bound in bounds)
        return known and head.op_type in LINEAR | CLAMPING
    if follower.op_type == "Pow" and not is_scalar(follower.inputs[1]):
        return False
    return head.op_type in LINEAR and follower.op_type in fused


def is_scalar(value: ir.Value | None) -> bool:
    """Whether the value is a constant of one element."""
    array = constant(value)
    return array is not None and array.size == 1


def _column_bias(node: ir.Node, follower: ir.Node | None) -> ir.Value | None:
    """The constant that `follower` adds to every row of a matrix product."""
    if follower is None or follower.op_type != "Add" or not is_constant(node.inputs[1]):
        return None
    other = follower.inputs[1] if follower.inputs[0] is node.outputs[0] else follower.inputs[0]
    array = float_constant(other)
    if array is None or not shape_of(node.outputs[0]):
        return None
    columns = shape_of(node.outputs[0])[-1]
    whole_rows = array.size == 1 or (array.size == columns and array.shape[-1] == columns)
    same_shape = shape_of(follower.outputs[0]) == shape_of(node.outputs[0])
    return other if whole_rows and same_shape else None


def _mask(softmax: ir.Node) -> ir.Node | None:
    """The node in front of a softmax that does nothing but leave elements out."""
    source = softmax.inputs[0]
    node = None if source is None else source.producer()
    if source is None or node is None or sole_user(source) is not softmax:
        return None
    if node.op_type == "Where":
        value = float_constant(node.inputs[2])
        dynamic = node.inputs[1]
    elif node.op_type == "Add" and is_constant(node.inputs[0]) != is_constant(node.inputs[1]):
        first = is_constant(node.inputs[0])
        value = float_constant(node.inputs[0 if first else 1])
        dynamic = node.inputs[1 if first else 0]
        if value is not None and not np.any(value):
            return None
    else:
        return None
    # Only zeros (Add) and huge negative numbers: the mask then is a choice, not arithmetic.
    choice = value is not None and bool(np.all((value <= MASKED) | ((value == 0) & (node.op_type == "Add"))))
    whole = dynamic is not None and not is_constant(dynamic) and shape_of(dynamic) == shape_of(source)
    return node if choice and whole else None
