"""Elementwise operators, reductions, and what else computes number by number."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tpuflow.importers.graphdef.conversion import Context, ConversionError, converts
from tpuflow.importers.graphdef.messages import Message

__all__: list[str] = []

SAME = {
    "Abs": "Abs", "Acos": "Acos", "Acosh": "Acosh", "Add": "Add", "AddN": "Sum", "AddV2": "Add",
    "Asin": "Asin", "Asinh": "Asinh", "Atan": "Atan", "Atanh": "Atanh", "Ceil": "Ceil", "Cos": "Cos",
    "Cosh": "Cosh", "Div": "Div", "Elu": "Elu", "Equal": "Equal", "Erf": "Erf", "Exp": "Exp",
    "Floor": "Floor", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual", "Identity": "Identity",
    "IdentityN": "Identity", "Inv": "Reciprocal", "Less": "Less", "LessEqual": "LessOrEqual", "Log": "Log",
    "LogicalAnd": "And", "LogicalNot": "Not", "LogicalOr": "Or", "Maximum": "Max", "Minimum": "Min",
    "Mul": "Mul", "Neg": "Neg", "Pow": "Pow", "PreventGradient": "Identity", "RealDiv": "Div",
    "Reciprocal": "Reciprocal", "Relu": "Relu", "Rint": "Round", "Round": "Round", "Select": "Where",
    "SelectV2": "Where", "Selu": "Selu", "Sigmoid": "Sigmoid", "Sign": "Sign", "Sin": "Sin", "Sinh": "Sinh",
    "Snapshot": "Identity", "Softplus": "Softplus", "Softsign": "Softsign", "Sqrt": "Sqrt",
    "StopGradient": "Identity", "Sub": "Sub", "Tan": "Tan", "Tanh": "Tanh", "CheckNumerics": "Identity",
    "PlaceholderWithDefault": "Identity",
}  # fmt: skip
"""Operators that mean the same in both, by TensorFlow's name."""


@converts(*SAME)
def same(context: Context, node: Message) -> str:
    inputs = context.inputs_of(node)
    if node.op == "IdentityN" and len(inputs) > 1:
        names = [context.emit("Identity", [x], f"{node.name}:{i}") for i, x in enumerate(inputs)]
        return names[0]
    return context.emit(SAME[node.op], inputs, f"{node.name}:0")


@converts("Relu6", "ClipByValue")
def clip(context: Context, node: Message) -> str:
    source, *bounds = context.inputs_of(node)
    if node.op == "Relu6":
        kind = helper.tensor_dtype_to_np_dtype(context.onnx_type(node, "T", 1))
        bounds = [
            context.value(f"{node.name}/{label}", np.array(bound, kind))
            for label, bound in (("min", 0), ("max", 6))
        ]
    low = context.emit("Max", [source, bounds[0]], f"{node.name}/above")
    return context.emit("Min", [low, bounds[1]], f"{node.name}:0")


@converts("LeakyRelu")
def leaky_relu(context: Context, node: Message) -> str:
    alpha = context.number(node, "alpha", 0.2)
    return context.emit("LeakyRelu", context.inputs_of(node), f"{node.name}:0", alpha=alpha)


@converts("Rsqrt")
def reciprocal_root(context: Context, node: Message) -> str:
    root = context.emit("Sqrt", context.inputs_of(node), f"{node.name}/root")
    return context.emit("Reciprocal", [root], f"{node.name}:0")


@converts("Square")
def square(context: Context, node: Message) -> str:
    return context.emit("Mul", context.inputs_of(node) * 2, f"{node.name}:0")


@converts("SquaredDifference")
def squared_difference(context: Context, node: Message) -> str:
    difference = context.emit("Sub", context.inputs_of(node), f"{node.name}/difference")
    return context.emit("Mul", [difference, difference], f"{node.name}:0")


@converts("FloorDiv")
def floor_division(context: Context, node: Message) -> str:
    quotient = context.emit("Div", context.inputs_of(node), f"{node.name}/quotient")
    if context.onnx_type(node, "T", 3) in {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}:
        return context.emit("Floor", [quotient], f"{node.name}:0")
    return context.emit("Identity", [quotient], f"{node.name}:0")  # sizes, which are never negative


@converts("FloorMod", "Mod")
def remainder(context: Context, node: Message) -> str:
    return context.emit("Mod", context.inputs_of(node), f"{node.name}:0", fmod=0)


@converts("NotEqual")
def not_equal(context: Context, node: Message) -> str:
    equal = context.emit("Equal", context.inputs_of(node), f"{node.name}/equal")
    return context.emit("Not", [equal], f"{node.name}:0")


@converts("Softmax", "LogSoftmax")
def softmax(context: Context, node: Message) -> str:
    return context.emit(node.op, context.inputs_of(node), f"{node.name}:0", axis=-1)


REDUCTIONS = {
    "Mean": "ReduceMean",
    "Sum": "ReduceSum",
    "Max": "ReduceMax",
    "Min": "ReduceMin",
    "Prod": "ReduceProd",
}


@converts(*REDUCTIONS)
def reduction(context: Context, node: Message) -> str:
    keep = context.flag(node, "keep_dims") or context.flag(node, "keepdims")
    axes = context.int64(node, 1, "axes")
    given = context.constant(context.inputs_of(node)[1])
    x = context.inputs_of(node)[0]
    if given is not None and given.size == 0:  # over no axis at all
        return context.emit("Identity", [x], f"{node.name}:0")
    return context.emit(REDUCTIONS[node.op], [x, axes], f"{node.name}:0", keepdims=int(keep))


@converts("ArgMax", "ArgMin")
def extreme_index(context: Context, node: Message) -> str:
    axis = int(context.require_constant(node, 1, "the axis"))
    wanted = context.onnx_type(node, "output_type", 9)
    x, last = context.inputs_of(node)[0], f"{node.name}:0"
    name = last if wanted == TensorProto.INT64 else f"{node.name}/index"
    found = context.emit(node.op, [x], name, axis=axis, keepdims=0)
    return found if found == last else context.emit("Cast", [found], last, to=wanted)


@converts("Cast")
def cast(context: Context, node: Message) -> str:
    to = context.onnx_type(node, "DstT", 1)
    return context.emit("Cast", context.inputs_of(node), f"{node.name}:0", to=to)


@converts("Rank")
def rank(context: Context, node: Message) -> str:
    axes = context.rank(context.inputs_of(node)[0])
    if axes is None:
        raise ConversionError("the number of axes is not known")
    return context.emit("Identity", [context.value(f"{node.name}/rank", np.int32(axes))], f"{node.name}:0")
