"""Models of one random node: any operator of ONNX or onnxruntime, with operands that may or may not fit it.

Types follow the operator's schema, mostly; shapes are drawn so that they often agree (the same, a suffix, one
axis) and often do not; attributes have the schema's types and small, odd or named values. An elementwise
operator in front or behind lets rewrites look at more than one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["random_node"]

Random = np.random.Generator

CONTRIBUTED = (
    "GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "QGemm", "QLinearAdd", "QLinearAveragePool",
    "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid",
    "QLinearSoftmax", "RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "FastGelu", "BiasGelu", "QuickGelu", "FusedMatMul", "Gelu", "MultiHeadAttention",
)  # fmt: skip
"""Operators that onnxruntime has beside ONNX's own."""
WORDS = (
    "NOTSET", "SAME_UPPER", "VALID", "linear", "nearest", "cubic", "constant", "reflect", "edge", "wrap",
    "align_corners", "asymmetric", "half_pixel", "DCR", "CRD", "forward", "reverse", "bidirectional", "none",
    "add", "mul", "max", "mean", "sum", "avg", "ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "i,i->",
    "Tanh", "Sigmoid", "tanh", "floor", "border", "circular", "",
)  # fmt: skip
NUMBERS = {
    "tensor(float)": TensorProto.FLOAT, "tensor(int64)": TensorProto.INT64, "tensor(bool)": TensorProto.BOOL,
    "tensor(uint8)": TensorProto.UINT8, "tensor(int8)": TensorProto.INT8, "tensor(int32)": TensorProto.INT32,
    "tensor(float16)": TensorProto.FLOAT16, "tensor(double)": TensorProto.DOUBLE,
}  # fmt: skip
"""Element types that operands are drawn of, the first an operator takes being the likeliest."""
OPSETS = (7, 9, 11, 13, 17, 18, 21, 23, 24)


@cache
def _schemas(version: int) -> dict[str, Any]:
    """The operators of ONNX's own in one opset, by name."""
    names = {each.name for each in onnx.defs.get_all_schemas() if not each.domain}
    found = {}
    for name in sorted(names):
        try:
            found[name] = onnx.defs.get_schema(name, version, "")
        except onnx.defs.SchemaError:
            continue
    return found


@cache
def _contributed() -> dict[str, Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # noqa: PLC0415 - takes a second

    every = {each.name: each for each in runtime.get_all_operator_schema() if each.domain == "com.microsoft"}
    return {name: every[name] for name in CONTRIBUTED if name in every}


def random_node(random: Random) -> tuple[str, onnx.ModelProto, list[str]]:
    """The operator's name, the model, and the shapes and kinds of its operands."""
    version = int(random.choice(OPSETS))
    domain, schemas = ("com.microsoft", _contributed()) if random.random() < 0.15 else ("", _schemas(version))
    name = list(schemas)[int(random.integers(len(schemas)))]
    schema = schemas[name]
    graph = helper.make_graph([], name, [], [])
    operands, notes = _operands(graph, schema, random)
    outputs = [f"y{k}" for k in range(_count(schema.outputs, schema.max_output, random))]
    node = graph.node.add(op_type=name, domain=domain, name="node", input=operands, output=outputs)
    for attribute in schema.attributes.values():
        if attribute.required or random.random() < 0.4:
            _attribute(node, attribute, random)
    if outputs and random.random() < 0.4:
        after = _pick(random, ["Relu", "Neg", "Transpose", "Sigmoid", "Cast", "QuantizeLinear", "Shape"])
        behind = graph.node.add(op_type=after, name="behind", input=[outputs[0]], output=["z"])
        if after == "Cast":
            behind.attribute.append(helper.make_attribute("to", int(_pick(random, list(NUMBERS.values())))))
        if after == "QuantizeLinear":
            graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "step"))
            behind.input.append("step")
        outputs = ["z", *outputs[1:]]
    graph.output.extend(onnx.ValueInfoProto(name=output) for output in outputs)
    for output in graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    imports = [helper.make_opsetid("", version)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    return name, helper.make_model(graph, opset_imports=imports, ir_version=8), notes


def _pick(random: Random, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def _count(formal: Sequence[Any], most: int, random: Random) -> int:
    """How many inputs or outputs to state of those an operator has."""
    if not formal:
        return 0
    least = sum(each.option.name == "Single" for each in formal)
    if formal[-1].option.name == "Variadic":
        return int(random.integers(least, least + 4))
    return int(random.integers(max(least, 1), min(len(formal), most) + 1))


def _operands(graph: onnx.GraphProto, schema: Any, random: Random) -> tuple[list[str], list[str]]:
    rank = int(random.choice([0, 1, 2, 3, 3, 4, 4, 4, 5]))
    first = [int(random.choice([0, 1, 1, 2, 2, 3, 4, 8, 16], p=[0.02, *[0.1225] * 8])) for _ in range(rank)]
    types: dict[str, int] = {}
    names, notes = [], []
    for index in range(_count(schema.inputs, schema.max_input, random)):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if formal.option.name == "Optional" and random.random() < 0.3:
            names.append("")
            continue
        shape = first if index == 0 else _shape(first, random)
        kind = types.setdefault(
            formal.type_str if hasattr(formal, "type_str") else formal.typeStr, _kind(formal, random)
        )
        constant = random.random() < (0.2 if index == 0 else 0.7)
        names.append(_operand(graph, f"x{index}", shape, kind, random, constant=constant))
        notes.append(f"{'constant' if constant else 'input'} {shape} of {kind}")
    return names, notes


def _kind(formal: Any, random: Random) -> int:
    taken = [kind for name, kind in NUMBERS.items() if name in formal.types]
    if not taken or random.random() < 0.03:
        return int(_pick(random, list(NUMBERS.values())))
    return taken[0] if random.random() < 0.7 else int(_pick(random, taken))


def _shape(first: Sequence[int], random: Random) -> list[int]:
    way = int(random.integers(8))
    if way <= 1:
        return list(first)
    if way == 2:
        return []
    if way == 3 and first:
        return list(first[int(random.integers(len(first))) :])
    if way == 4:
        return [len(first)]
    if way == 5 and first:
        return [int(_pick(random, first))]
    if way == 6:
        return [1]
    return [int(random.choice([1, 2, 3, 4, 8])) for _ in range(int(random.integers(5)))]


def _operand(
    graph: onnx.GraphProto, name: str, shape: Sequence[int], kind: int, random: Random, *, constant: bool
) -> str:
    if not constant:
        graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind in "iu":
        array = random.integers(0 if dtype.kind == "u" else -2, int(random.choice([2, 4, 9])), shape).astype(
            dtype
        )
    elif dtype.kind == "b":
        array = random.random(shape) < 0.5
    else:
        scale = float(random.choice([1.0, 1.0, 1e-3, 0.0, 1e6]))
        with np.errstate(over="ignore"):
            array = (random.normal(size=shape) * scale).astype(dtype)
    graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def _attribute(node: onnx.NodeProto, attribute: Any, random: Random) -> None:
    kind = getattr(attribute.type, "name", str(attribute.type))
    count = int(random.integers(5))
    small = (-2, -1, 0, 1, 1, 2, 2, 3, 4, 8)
    values: dict[str, Any] = {
        "INT": int(_pick(random, small)),
        "INTS": [int(_pick(random, small)) for _ in range(count)],
        "FLOAT": float(_pick(random, (0.0, 0.5, 1.0, -1.0, 1e-5, 1e6))),
        "FLOATS": [float(_pick(random, (0.0, 0.5, 1.0, -1.0))) for _ in range(count)],
        "STRING": _pick(random, WORDS),
        "STRINGS": [_pick(random, WORDS) for _ in range(count)],
        "TENSOR": numpy_helper.from_array(random.normal(size=count).astype(np.float32), "value"),
    }
    if kind in values:
        code = onnx.AttributeProto.AttributeType.Value(kind)
        node.attribute.append(helper.make_attribute(attribute.name, values[kind], attr_type=code))
