"""Integer arithmetic at run time, written with float32.

What depends on shapes and constants only is folded long before; what is left are positions, masks and
counts that come from an integer input. Such an operator is computed in float32 between two casts, and a Cast
to integers and back is dropped where its operand is a whole number anyway.

Float32 holds every whole number below 2^24, and quotients are exact for operands below 2^23; that is the
limit of this rewrite for 32- and 64-bit integers. Integers of 8 and 16 bits wrap around as they should.

    a / b     ->  sign(a) sign(b) floor((|a| + 1/2) / |b|)
    a mod b   ->  a - b floor((a + sign(b) / 2) / b)         with the sign of b
    fmod      ->  a - b trunc(a / b)                         with the sign of a

The half keeps a quotient that is whole from falling below it by rounding; there is none for floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, input_at, maker_of, produced_by

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["LATE", "RULES"]

FLOAT = int(ir.DataType.FLOAT)
NARROW = {
    ir.DataType.INT8: 8, ir.DataType.UINT8: 8, ir.DataType.INT16: 16, ir.DataType.UINT16: 16,
}  # fmt: skip
"""Bits of the types that wrap around."""
INTEGERS = {*NARROW, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64}
MOST_NODES = 24  # nodes looked at to find out whether a number is whole

MOVES = (
    "Reshape", "Transpose", "Slice", "Concat", "Expand", "Tile", "Pad", "Gather", "Where", "Identity",
)  # fmt: skip
WHOLE = (
    *MOVES, "Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign", "Relu", "Clip", "MatMul", "ReduceSum",
    "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool",
)  # fmt: skip
"""Operators that make whole numbers of whole numbers."""
GROWING = ("Add", "Sub", "Mul", "Neg", "Abs", "MatMul", "ReduceSum", "CumSum")
"""Those whose result may leave the type."""
WHOLE_RESULT = ("Floor", "Ceil", "Round", "Sign")
OPERATORS = (
    "Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign", "Relu", "Clip", "MatMul", "ReduceSum",
    "ReduceMax", "ReduceMin", "ReduceProd", "Less", "LessOrEqual", "Equal", "MaxPool", "Where", "Pad",
    "PRelu", "CumSum", "CumProd",
)  # fmt: skip
"""Operators on integers that are the same on whole floats."""


def _integer(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in INTEGERS


def _float(value: ir.Value | None, emit: Emitter, label: str) -> ir.Value | None:
    """The number as float32; small whole constants at once."""
    constant = array_of(value)
    if constant is not None:
        return emit.constant(constant.astype(np.float32), label)
    return None if value is None else emit("Cast", value, attributes={"to": FLOAT}, label=label)


def _back(value: ir.Value, kind: ir.DataType, emit: Emitter) -> ir.Value:
    return emit("Cast", value, attributes={"to": int(kind)}, label="integers")


def _data_inputs(node: ir.Node) -> range:
    """Inputs that hold numbers rather than axes, pads and the like."""
    if node.op_type == "Where":
        return range(1, 3)
    if node.op_type.startswith("Reduce") or node.op_type in {"CumSum", "CumProd", "MaxPool"}:
        return range(1)
    return range(len(node.inputs))


def in_float(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Computes an operator on integers in float32."""
    numbers = _data_inputs(node)
    x, y = node.inputs[numbers.start], node.outputs[0]
    if not _integer(x) or y.dtype is None or x is None or x.dtype is None or len(node.outputs) > 1:
        return None
    bits = NARROW.get(x.dtype)
    if bits == 16 and node.op_type in {"Mul", "MatMul", "ReduceProd", "CumProd"}:
        return None  # the product need not be a float32
    constants = [array_of(node.inputs[index]) for index in numbers]
    if all(array_of(value) is not None for value in node.inputs if value is not None):
        return None
    if any(c is not None and np.abs(c.astype(np.float64)).max(initial=0) >= 2**24 for c in constants):
        return None
    operands = [
        value
        if index not in numbers or (node.op_type == "Pad" and index in {1, 3})
        else _float(value, emit, f"operand{index}")
        for index, value in enumerate(node.inputs)
    ]
    result = emit(node.op_type, *operands, attributes=attributes_of(node))
    if not _integer(y):
        return result
    if bits is not None and node.op_type in GROWING:
        result = _wrap(result, bits, x.dtype, emit)
    return _back(result, y.dtype, emit)


def _wrap(value: ir.Value, bits: int, kind: ir.DataType, emit: Emitter) -> ir.Value:
    """The number modulo 2^bits, within the type."""
    least = 0.0 if kind in {ir.DataType.UINT8, ir.DataType.UINT16} else -(2.0 ** (bits - 1))
    shifted = emit("Add", value, emit.constant(-least, "shift", like=value), label="shifted")
    turns = emit("Floor", emit("Mul", shifted, emit.constant(2.0**-bits, "turn", like=value)))
    return emit(
        "Sub", value, emit("Mul", turns, emit.constant(2.0**bits, "range", like=value)), label="wrapped"
    )


def quotient(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Divides integers, rounding towards zero."""
    a, b, kind = node.inputs[0], node.inputs[1], node.outputs[0].dtype
    if not _integer(a) or kind is None or (array_of(a) is not None and array_of(b) is not None):
        return None
    x, y = _float(a, emit, "dividend"), _float(b, emit, "divisor")
    return _back(_truncated_quotient(x, y, emit), kind, emit)


def _truncated_quotient(x: ir.Value | None, y: ir.Value | None, emit: Emitter) -> ir.Value:
    half = emit("Add", emit("Abs", x), emit.constant(np.float32(0.5), "half"))
    whole = emit("Floor", emit("Div", half, emit("Abs", y, label="size")))
    sign = emit("Mul", emit("Sign", x), emit("Sign", y, label="sign_of_divisor"), label="signs")
    return emit("Mul", whole, sign)


def remainder(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes Mod with Floor."""
    a, b, kind = node.inputs[0], node.inputs[1], node.outputs[0].dtype
    if a is None or kind is None or (array_of(a) is not None and array_of(b) is not None):
        return None
    truncated = node.attributes.get_int("fmod", 0) != 0
    if not _integer(a):
        divisor = array_of(b)
        if divisor is None or not np.all(np.isfinite(divisor)) or not np.all(divisor):
            return None
        ratio = emit("Div", a, b)
        if truncated:
            times = emit("Mul", emit("Floor", emit("Abs", ratio)), emit("Sign", ratio))
        else:
            times = emit("Floor", ratio)
        return emit("Sub", a, emit("Mul", b, times))
    x, y = _float(a, emit, "dividend"), _float(b, emit, "divisor")
    if truncated:
        times = _truncated_quotient(x, y, emit)
    else:
        half = emit("Mul", emit("Sign", y), emit.constant(np.float32(0.5), "half"))
        times = emit("Floor", emit("Div", emit("Add", x, half), y))
    return _back(emit("Sub", x, emit("Mul", y, times, label="multiple")), kind, emit)


def back_and_forth(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops casts to integers and back of whole numbers; of other numbers they cut the fraction off."""
    inner = produced_by(node.inputs[0], "Cast")
    if inner is None or node.attributes.get_int("to", 0) != FLOAT or not _integer(node.inputs[0]):
        return None
    x = inner.inputs[0]
    kind = ir.DataType(inner.attributes.get_int("to", 0))
    if x is None or x.dtype != ir.DataType.FLOAT or kind in NARROW:
        return None
    if _holds_integers(x):
        return x
    return emit("Mul", emit("Floor", emit("Abs", x)), emit("Sign", x))


def between_integers(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Drops a Cast between wide integers in front of a Cast to float."""
    inner = produced_by(node.inputs[0], "Cast")
    if inner is None or node.attributes.get_int("to", 0) != FLOAT:
        return None
    source, middle = inner.inputs[0], node.inputs[0]
    wide = INTEGERS - set(NARROW)
    if source is None or middle is None or source.dtype not in wide or middle.dtype not in wide:
        return None
    return emit("Cast", source, attributes={"to": FLOAT})


def _holds_integers(value: ir.Value) -> bool:
    """Whether a float tensor is known to hold whole numbers only."""
    seen: set[ir.Value] = set()
    open_: list[ir.Value] = [value]
    while open_:
        current = open_.pop()
        if current in seen:
            continue
        seen.add(current)
        constant = array_of(current)
        node = maker_of(current)
        if constant is not None:
            if not np.all(constant == np.rint(constant)):
                return False
        elif node is None or node.domain or len(seen) > MOST_NODES:
            return False
        elif node.op_type == "Cast":
            source = input_at(node, 0)
            if source is None or source.dtype not in {*INTEGERS, ir.DataType.BOOL}:
                return False
        elif node.op_type in WHOLE:
            open_ += [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
        elif node.op_type not in WHOLE_RESULT:
            return False
    return True


RULES: Rules = {"Cast": [back_and_forth, between_integers]}

LATE: Rules = {
    **{name: [in_float] for name in OPERATORS},
    "Div": [quotient],
    "Mod": [remainder],
}
"""To be applied once nothing else is left to fold, lest a shape be computed in float32."""
