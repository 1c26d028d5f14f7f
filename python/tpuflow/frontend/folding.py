"""Folding: what depends on constants and static shapes only is evaluated, and shapes are inferred.

onnxscript does it. It evaluates nodes one by one, by ONNX's reference implementation, and importing all of
that takes longer than normalising a plain image classifier in which nothing is to be folded: whether there
is anything to do is seen before. That implementation is wrong for some operators (GlobalMaxPool of other than
four axes, LpNormalization of order 1), so it is asked for elementary ones alone; onnxruntime evaluates the
others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from tpuflow.errors import ModelError
from tpuflow.frontend.rewrites import opset, stated
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.validity import objection
from tpuflow.frontend.values import bodies, shape_of

__all__ = ["fold_constants", "fold_in_onnxruntime", "is_fully_folded", "lift_constants"]

ELEMENTARY = frozenset(
    {
        "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "Cast",
        "CastLike", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos", "Cosh", "CumSum", "Div",
        "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
        "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less",
        "LessOrEqual", "Log", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot",
        "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round",
        "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax",
        "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Tile", "TopK", "Transpose",
        "Trilu", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
"""Operators that ONNX's reference implementation evaluates as onnxruntime does."""
LARGEST_FOLDED = 1 << 27  # elements a folded constant may have
LARGEST_GROWN = 1 << 25  # elements one may have that is made of few
DRAWN = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
"""Operators with inputs whose result is not the same each time."""
REARRANGING = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose result has as many elements as their first operand."""
GROWING = {"ConstantOfShape", "Expand", "Pad", "Range", "Resize", "Tile", "Upsample"}
"""Operators that make much of little, and so must say how much before they are evaluated."""


def fold_constants(model: ir.Model) -> bool:
    """Evaluates what depends on constants and static shapes only, and infers shapes on the way."""
    try:
        changed = not is_fully_folded(model) and _fold_once(model)
    except (RuntimeError, ValueError):  # a node that cannot be evaluated, which is listed as not supported
        changed = False
    lift_constants(model)
    return changed


def lift_constants(model: ir.Model) -> None:
    """Makes initialisers of constants that are nodes."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _fold_once(model: ir.Model) -> bool:
    from onnxscript.optimizer import fold_constants_ir  # noqa: PLC0415 - plain networks do without

    result = fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=LARGEST_FOLDED,
        output_size_limit=LARGEST_FOLDED,
        should_fold=lambda node: (
            node.op_type in ELEMENTARY
            and objection(node, model.graph.opset_imports) is None
            and not (
                stated.keeps_integers(node) or "Sequence" in node.op_type or _is_of_text(node) or _grows(node)
            )
        ),
    )
    return bool(result.modified)


def _grows(node: ir.Node) -> bool:
    """Whether a node makes more of little than may be folded, or more than is known."""
    if node.op_type not in GROWING:
        return False
    sizes = shape_of(node.outputs[0])
    return sizes is None or math.prod(sizes) > LARGEST_GROWN


def _is_of_text(node: ir.Node) -> bool:
    """Whether a node takes or makes text, constants of which the passes cannot compare."""
    made = node.attributes.get("to")
    to_text = made is not None and made.value == ir.DataType.STRING
    values = (*node.inputs, *node.outputs)
    return to_text or any(value is not None and value.dtype == ir.DataType.STRING for value in values)


def fold_in_onnxruntime(model: ir.Model) -> bool:
    """Evaluates in onnxruntime what still depends on constants only."""
    constant = dict.fromkeys(model.graph.initializers.values())
    nodes: dict[ir.Node, None] = {}
    for node in model.graph:
        if _depends_on(node, constant) and objection(node, model.graph.opset_imports) is None:
            constant |= dict.fromkeys(node.outputs)
            nodes[node] = None
    read = [value for node in nodes for value in node.outputs if _is_read_outside(value, nodes)]
    if not read:
        return False
    inputs = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    taken = [value for value in inputs if value.is_initializer()]
    imports = model.graph.opset_imports
    part = ir.GraphView((), read, nodes=tuple(nodes), initializers=taken, opset_imports=imports)
    functions = [function.clone() for function in model.functions.values()]
    alone = ir.Model(part.clone(), ir_version=model.ir_version or 10, functions=functions)
    alone.graph.name = "constants"
    alone.graph.opset_imports[""] = opset.needed_opset(alone)
    try:
        found = FloatSession(alone, once=True).run({})
    except ModelError:  # operators that onnxruntime does not know either, which are listed
        return False
    arrays = {value: np.asarray(found[value.name or ""]) for value in read}
    numbers = {value: array for value, array in arrays.items() if array.dtype.kind in "fiub"}
    for value, array in numbers.items():
        _replace(model.graph, value, array)
    lift_constants(model)
    return bool(numbers)


def _depends_on(node: ir.Node, constant: Collection[ir.Value]) -> bool:
    """Whether a node computes the same each time, of constants alone, and no more than may be folded."""
    if not node.inputs or node.op_type in DRAWN or "Sequence" in node.op_type or bodies(node):
        return False
    if stated.keeps_integers(node) or any(value and value not in constant for value in node.inputs):
        return False
    sizes = [shape_of(value) for value in node.outputs]
    if _grows(node):
        return False
    # Weights of any size may be laid out differently: there are no more of them than the file has.
    most = LARGEST_FOLDED
    if node.op_type in REARRANGING and node.inputs[0] is not None:
        most = max(most, math.prod(shape_of(node.inputs[0]) or ()))
    return all(size is None or math.prod(size) <= most for size in sizes)


def _is_read_outside(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _replace(graph: ir.Graph, value: ir.Value, array: npt.NDArray[Any]) -> None:
    """Puts a constant in the place of what a node computes, under its name."""
    node = ir.node("Constant", [], {"value": ir.tensor(array)}, name=value.name)
    made = node.outputs[0]
    made.type, made.shape = value.type or ir.TensorType(ir.tensor(array).dtype), ir.Shape(array.shape)
    made.name, value.name = value.name, f"{value.name}/unfolded"
    maker = value.producer()
    if maker is not None:
        graph.insert_before(maker, node)
    value.replace_all_uses_with(made, replace_graph_outputs=True)


def is_fully_folded(model: ir.Model) -> bool:
    """Whether folding would leave a model as it is: all nodes compute floats of known shapes from inputs."""
    return not model.functions and all(_is_folded_node(node) for node in model.graph)


def _is_folded_node(node: ir.Node) -> bool:
    if any(attribute.type in _BODIES for attribute in node.attributes.data.values()):
        return False
    if any(value.dtype != ir.DataType.FLOAT or shape_of(value) is None for value in node.outputs):
        return False
    if all(value is None or value.const_value is not None for value in node.inputs):
        return False
    return SIMPLIFIED.get(node.op_type, _as_it_is)(node)


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _as_it_is(_: ir.Node) -> bool:
    return True


def _never(_: ir.Node) -> bool:
    return False


def _changes_shape(node: ir.Node) -> bool:
    taken = node.inputs[0]
    return taken is not None and shape_of(taken) not in (None, shape_of(node.outputs[0]))


def _joins(node: ir.Node) -> bool:
    shapes = [None if value is None else shape_of(value) for value in node.inputs]
    return len(shapes) > 1 and all(shape is not None and 0 not in shape for shape in shapes)


SIMPLIFIED: Mapping[str, Callable[[ir.Node], bool]] = {
    # Of floats nothing is done to these: they are followed for the sake of sizes.
    "Abs": _as_it_is,
    "Add": _as_it_is,
    "Gather": _as_it_is,
    "Squeeze": _as_it_is,
    "Concat": _joins,
    "Expand": _changes_shape,
    "Reshape": _changes_shape,
} | dict.fromkeys(
    (
        "Cast",
        "CastLike",
        "ConcatFromSequence",
        "Dropout",
        "Identity",
        "If",
        "SequenceAt",
        "SequenceConstruct",
        "Shape",
        "Size",
        "SplitToSequence",
    ),
    _never,
)
"""Operators that onnxscript simplifies beyond constants, and when it leaves a node of floats alone."""
