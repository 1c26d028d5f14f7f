"""Mutations of ONNX models: attributes, shapes, edges, element types and constants, changed one at a time.

Every mutation takes a model and a generator of random numbers, changes the model in place and says in a few
words what it did, or returns nothing where the model has nothing to change. What comes out is a well-formed
protocol buffer; whether it is a valid network is left to chance, and to the tool under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper

from fuzz.onnx_hostile import HOSTILE

__all__ = ["MUTATIONS", "mutated"]

Random = np.random.Generator
Mutation = Callable[[onnx.ModelProto, Random], "str | None"]

INTEGERS = (0, -1, -2, 1, 2, 3, 5, 7, 100, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))
SIZES = (0, -1, 1, 2, 3, 5, 8, 64, 1 << 20, 1 << 40)
FLOATS = (0.0, -1.0, 1.0, 1e30, -1e30, 1e-30, float("nan"), float("inf"), -float("inf"))
TEXTS = (b"", b"bogus", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"linear", b"reflect", b"wrap", b"\xff")
TYPES = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64,
    TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL, TensorProto.STRING,
    TensorProto.INT4, TensorProto.FLOAT8E4M3FN, TensorProto.COMPLEX64, TensorProto.UNDEFINED, 99,
)  # fmt: skip
OPERATORS = (
    "Add", "Sub", "Mul", "Div", "MatMul", "Conv", "ConvTranspose", "Gemm", "Relu", "Clip", "Pow", "Softmax",
    "Concat", "Split", "Slice", "Gather", "Pad", "Resize", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
    "Expand", "Tile", "Where", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN", "LSTM", "GRU", "RNN",
    "LayerNormalization", "BatchNormalization", "InstanceNormalization", "ReduceMean", "ReduceSum", "ArgMax",
    "Cast", "Shape", "ConstantOfShape", "Range", "TopK", "Loop", "If", "Einsum", "CumSum", "OneHot",
    "Identity", "DepthToSpace", "SpaceToDepth", "QuantizeLinear", "DequantizeLinear", "Flatten", "PRelu",
    "Dropout", "Bogus",
)  # fmt: skip


def mutated(model: onnx.ModelProto, random: Random) -> tuple[onnx.ModelProto, list[str]]:
    """A copy of `model` with one to three mutations, and what they did."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    notes: list[str] = []
    for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
        for _ in range(10):
            note = _pick(random, MUTATIONS)(changed, random)
            if note is not None:
                notes.append(note)
                break
    return changed, notes


def _pick(random: Random, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def _node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto | None:
    """A node of the graph, or of a graph or function within it."""
    nodes = list(model.graph.node)
    for node in model.graph.node:
        bodies = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
        nodes += [inner for body in bodies for inner in body.node]
    nodes += [inner for function in model.functions for inner in function.node]
    return _pick(random, nodes) if nodes else None


def _change_attribute(model: onnx.ModelProto, random: Random) -> str | None:
    node = _node(model, random)
    if node is None or not node.attribute:
        return None
    attribute = _pick(random, node.attribute)
    _change_value(attribute, random)
    return f"{node.op_type}.{attribute.name} changed"


def _change_value(attribute: AttributeProto, random: Random) -> None:
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = _pick(random, INTEGERS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = _pick(random, FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = _pick(random, TEXTS)
    elif kind == AttributeProto.INTS:
        _change_list(attribute.ints, INTEGERS, random)
    elif kind == AttributeProto.FLOATS:
        _change_list(attribute.floats, FLOATS, random)
    elif kind == AttributeProto.TENSOR:
        _change_tensor(attribute.t, random)
    elif kind == AttributeProto.GRAPH:
        _change_body(attribute.g, random)


def _change_list(values: Any, choices: Sequence[Any], random: Random) -> None:
    """Changes, drops, adds or reverses elements of a repeated field."""
    way = int(random.integers(6))
    if way == 0 or not values:
        values.append(_pick(random, choices))
    elif way == 1:
        values.pop()
    elif way == 2:
        del values[:]
    elif way == 3:
        kept = list(values)[::-1]
        del values[:]
        values.extend(kept)
    else:
        values[int(random.integers(len(values)))] = _pick(random, choices)


def _change_body(graph: GraphProto, random: Random) -> None:
    """Changes what a branch or loop takes or gives."""
    fields = [field for field in (graph.input, graph.output, graph.node, graph.initializer) if field]
    if fields:
        field = _pick(random, fields)
        del field[int(random.integers(len(field)))]


def _drop_attribute(model: onnx.ModelProto, random: Random) -> str | None:
    node = _node(model, random)
    if node is None or not node.attribute:
        return None
    index = int(random.integers(len(node.attribute)))
    name = node.attribute[index].name
    del node.attribute[index]
    return f"{node.op_type}.{name} dropped"


def _retype_attribute(model: onnx.ModelProto, random: Random) -> str | None:
    node = _node(model, random)
    if node is None or not node.attribute:
        return None
    attribute = _pick(random, node.attribute)
    value = _pick(random, [1, 2.5, "text", [1, 2], [0.5], [-1], []])
    changed = helper.make_attribute(
        attribute.name, value, attr_type=None if value != [] else AttributeProto.INTS
    )
    attribute.CopyFrom(changed)
    return f"{node.op_type}.{attribute.name} of another type"


def _add_attribute(model: onnx.ModelProto, random: Random) -> str | None:
    """States an attribute that the schema of a node knows and the node leaves out."""
    node = _node(model, random)
    if node is None:
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return None
    stated = {attribute.name for attribute in node.attribute}
    kinds = {
        AttributeProto.INT,
        AttributeProto.FLOAT,
        AttributeProto.STRING,
        AttributeProto.INTS,
        AttributeProto.FLOATS,
    }
    known: Any = schema.attributes
    free = [(name, int(each.type.value)) for name, each in known.items() if name not in stated]
    free = [(name, kind) for name, kind in free if kind in kinds]
    if not free:
        return None
    name, kind = _pick(random, sorted(free))
    made = node.attribute.add(name=name, type=kind)
    if kind in {AttributeProto.INTS, AttributeProto.FLOATS}:
        for _ in range(int(random.integers(1, 5))):
            (made.ints if kind == AttributeProto.INTS else made.floats).append(int(random.integers(-2, 5)))
    else:
        _change_value(made, random)
    return f"{node.op_type}.{name} added"


def _change_input_shape(model: onnx.ModelProto, random: Random) -> str | None:
    if not model.graph.input:
        return None
    value = _pick(random, [*model.graph.input, *model.graph.output, *model.graph.value_info])
    shape = value.type.tensor_type.shape
    way = int(random.integers(6))
    if way == 0:
        shape.dim.add(dim_value=_pick(random, SIZES))
    elif way == 1 and shape.dim:
        shape.dim.pop()
    elif way == 2:
        value.type.tensor_type.ClearField("shape")
    elif shape.dim:
        dim = _pick(random, shape.dim)
        if way == 3:
            dim.dim_param = "open"
        else:
            dim.dim_value = _pick(random, SIZES)
    return f"shape of {value.name} changed"


def _change_input_type(model: onnx.ModelProto, random: Random) -> str | None:
    if not model.graph.input:
        return None
    value = _pick(random, [*model.graph.input, *model.graph.output])
    if random.integers(8) == 0:
        value.ClearField("type")
    else:
        value.type.tensor_type.elem_type = _pick(random, TYPES)
    return f"type of {value.name} changed"


def _change_initializer(model: onnx.ModelProto, random: Random) -> str | None:
    if not model.graph.initializer:
        return None
    tensor = _pick(random, model.graph.initializer)
    _change_tensor(tensor, random)
    return f"constant {tensor.name} changed"


def _change_tensor(tensor: TensorProto, random: Random) -> None:
    """Changes size, shape, type or elements; the elements may then fit or not."""
    way = int(random.integers(9))
    if way == 0:
        _change_list(tensor.dims, SIZES, random)
    elif way == 1:
        tensor.data_type = _pick(random, TYPES)
    elif way == 2 and tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: int(random.integers(len(tensor.raw_data)))]
    else:
        _change_elements(tensor, way, random)


def _change_elements(tensor: TensorProto, way: int, random: Random) -> None:
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:  # noqa: BLE001 - an earlier mutation broke it: there is nothing left to change
        return
    if way == 3:
        array = array.reshape(-1) if random.integers(2) else array[None]
    elif way == 4 and array.ndim:
        array = array[: int(random.integers(array.shape[0] + 1))]
    elif way == 5 and array.ndim:
        array = np.concatenate([array, array])
    elif array.size and array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        array.flat[int(random.integers(array.size))] = min(
            max(_pick(random, INTEGERS), limits.min), limits.max
        )
    elif array.size and array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            value = array.dtype.type(_pick(random, FLOATS))
        if random.integers(4):
            array.flat[int(random.integers(array.size))] = value
        else:
            array[...] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _move_constant(model: onnx.ModelProto, random: Random) -> str | None:
    """Makes an input of a constant, drops it, or lists it twice."""
    graph = model.graph
    if not graph.initializer:
        return None
    index = int(random.integers(len(graph.initializer)))
    tensor = graph.initializer[index]
    way = int(random.integers(3))
    if way == 0:
        graph.initializer.add().CopyFrom(tensor)
        return f"constant {tensor.name} twice"
    note = f"constant {tensor.name} {'dropped' if way == 1 else 'an input'}"
    if way == 2:
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[index]
    return note


def _values(graph: GraphProto) -> list[str]:
    made = [name for node in graph.node for name in node.output if name]
    return [*(value.name for value in graph.input), *(each.name for each in graph.initializer), *made]


def _rewire(model: onnx.ModelProto, random: Random) -> str | None:
    """Has a node read another value: an earlier one, a later one, none, its own, or one nobody computes."""
    node, names = _node(model, random), _values(model.graph)
    if node is None or not names:
        return None
    way = int(random.integers(7))
    if way == 0:
        node.input.append(_pick(random, names))
        return f"{node.op_type} with another input"
    if not node.input:
        return None
    index = int(random.integers(len(node.input)))
    if way == 1:
        del node.input[index]
        return f"{node.op_type} without input {index}"
    node.input[index] = "" if way == 2 else "nowhere" if way == 3 else _pick(random, names)
    return f"{node.op_type} input {index} changed"


def _change_outputs(model: onnx.ModelProto, random: Random) -> str | None:
    """Changes what a node or the network gives."""
    graph, node = model.graph, _node(model, random)
    way = int(random.integers(7))
    if way == 0 and node is not None and node.output:
        node.output.pop()
        return f"{node.op_type} without its last output"
    if way == 1 and node is not None:
        node.output.append(_pick(random, [*_values(graph), "further", ""]))
        return f"{node.op_type} with another output"
    if way == 2:
        del graph.output[:]
        return "no outputs"
    if way == 3 and graph.output:
        graph.output.add().CopyFrom(graph.output[0])
        return "an output twice"
    if way == 4 and graph.output and _values(graph):
        _pick(random, graph.output).name = _pick(random, _values(graph))
        return "another value as output"
    if way == 5 and graph.input:
        del graph.input[int(random.integers(len(graph.input)))]
        return "an input less"
    if way == 6 and graph.input:
        graph.input.add().CopyFrom(graph.input[0])
        return "an input twice"
    return None


def _change_node(model: onnx.ModelProto, random: Random) -> str | None:
    """Replaces, removes, repeats or moves a node, or calls it something else."""
    graph = model.graph
    if not graph.node:
        return None
    index = int(random.integers(len(graph.node)))
    node, way = graph.node[index], int(random.integers(6))
    if way <= 1:
        note = f"{node.op_type} becomes"
        node.op_type = _pick(random, OPERATORS)
        return f"{note} {node.op_type}"
    if way == 2:
        note = f"{node.op_type} removed"
        del graph.node[index]
        return note
    if way == 3:
        graph.node.add().CopyFrom(node)
        return f"{node.op_type} twice"
    if way == 4:
        node.domain = _pick(random, ["", "ai.onnx", "com.microsoft", "bogus.domain", "tpuflow", "ai.onnx.ml"])
        return f"{node.op_type} of domain {node.domain}"
    node.name = _pick(random, ["", graph.node[0].name, "a/b\n\x1b[31m", "x" * 300])
    return f"{node.op_type} called something else"


def _change_versions(model: onnx.ModelProto, random: Random) -> str | None:
    if random.integers(4) == 0:
        model.ir_version = _pick(random, [0, 1, 3, 7, 10, 99])
        return "another version of the format"
    if not model.opset_import:
        return None
    model.opset_import[0].version = int(random.integers(1, 29))
    return f"opset {model.opset_import[0].version}"


MUTATIONS: Sequence[Mutation] = (
    *[_change_attribute] * 3,
    _drop_attribute,
    _retype_attribute,
    *[_add_attribute] * 2,
    *[_change_input_shape] * 2,
    _change_input_type,
    *[_change_initializer] * 3,
    _move_constant,
    *[_rewire] * 2,
    _change_outputs,
    *[_change_node] * 2,
    _change_versions,
    *HOSTILE,
)
"""Each as often as it is to be drawn."""
