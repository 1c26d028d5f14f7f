"""Mutations that no exporter makes by mistake: what a person would write into a model to break a reader.

As those of `onnx_mutations`, each changes a model in place and says what it did, or gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz.onnx_nested import into_body, into_function

__all__ = ["HOSTILE"]

Random = np.random.Generator

EXTREMES = (0, 1, -1, 2, -2, 3, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))
SCALARS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, -3e38, float("nan"), float("inf"), -float("inf"))
WORDS = ("", "NOTSET", "SAME_UPPER", "constant", "linear", "add", "ij,jk->ik", "...->...", "a" * 3000, "é\n")
SCALES = (1.0, 0.5, 0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"))
CODES = (
    TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.INT4,
    TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.INT32, TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E5M2, TensorProto.FLOAT4E2M1, TensorProto.FLOAT,
)  # fmt: skip
SHAPES = ((), (0,), (1,), (2,), (3,), (4,), (1, 1), (0, 3), (2, 2), (1, 2, 0), (1, 2, 4, 4), (8,), (2,) * 6)
KEYS = ("tpuflow.bound", "tpuflow.state", "tpuflow.shape", "tpuflow.factors", "tpuflow.types")
OWN_DOMAINS = ("tpuflow", "tpuflow.outside", "tpuflow.expanded", "pkg.onnxscript.torch_lib", "ai.onnx.ml")


def _pick(random: Random, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def _values(graph: GraphProto) -> list[str]:
    made = [name for node in graph.node for name in node.output if name]
    return [*(value.name for value in graph.input), *(each.name for each in graph.initializer), *made]


@cache
def _schemas() -> list[Any]:
    """The newest schema of every operator of ONNX's own domains."""
    return [
        each
        for each in sorted(onnx.defs.get_all_schemas(), key=lambda s: s.name)
        if each.domain in {"", "ai.onnx.ml"}
    ]


def _constant(model: onnx.ModelProto, random: Random) -> str:
    """The name of a new constant, small and odd."""
    shape, way = _pick(random, SHAPES), int(random.integers(4))
    array: Any
    if way == 0:
        array = np.array([_pick(random, EXTREMES) for _ in range(int(np.prod(shape)))], np.int64)
    elif way == 1:
        array = random.integers(-3, 5, int(np.prod(shape))).astype(
            _pick(random, [np.int64, np.int64, np.int32, np.uint8])
        )
    elif way == 2:
        array = np.array([_pick(random, SCALARS) for _ in range(int(np.prod(shape)))], np.float32)
    else:
        array = random.standard_normal(int(np.prod(shape))).astype(np.float32)
    name = f"hostile{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(array.reshape(shape), name))
    return name


def _set(attribute: AttributeProto, kind: Any, random: Random) -> None:
    """Gives an attribute a value of some type."""
    attribute.type = kind
    count = int(random.integers(0, 6))
    if kind == AttributeProto.INT:
        attribute.i = _pick(random, EXTREMES) if random.integers(2) else int(random.integers(-2, 5))
    elif kind == AttributeProto.FLOAT:
        attribute.f = _pick(random, SCALARS)
    elif kind == AttributeProto.STRING:
        attribute.s = _pick(random, WORDS).encode()
    elif kind == AttributeProto.INTS:
        attribute.ints.extend(
            _pick(random, EXTREMES) if random.integers(4) == 0 else int(random.integers(-2, 5))
            for _ in range(count)
        )
    elif kind == AttributeProto.FLOATS:
        attribute.floats.extend(_pick(random, SCALARS) for _ in range(count))
    elif kind == AttributeProto.STRINGS:
        attribute.strings.extend(_pick(random, WORDS).encode() for _ in range(count))
    elif kind == AttributeProto.TENSOR:
        array = np.full(_pick(random, SHAPES), _pick(random, SCALARS), np.float32)
        attribute.t.CopyFrom(numpy_helper.from_array(array, _pick(random, ["", "t"])))
    elif kind == AttributeProto.GRAPH:
        attribute.g.name = "body"
        for _ in range(count // 2):
            attribute.g.output.append(helper.make_tensor_value_info("o", TensorProto.FLOAT, [1]))
        if random.integers(2):
            attribute.g.node.append(helper.make_node("Constant", [], ["o"], value_float=1.0))
    elif kind == AttributeProto.TYPE_PROTO:
        attribute.tp.CopyFrom(helper.make_tensor_type_proto(_pick(random, CODES), [_pick(random, EXTREMES)]))
    elif kind == AttributeProto.SPARSE_TENSOR:
        attribute.sparse_tensor.dims.extend([_pick(random, EXTREMES), 3])


def swap_attribute(model: onnx.ModelProto, random: Random) -> str | None:
    """An attribute of any type, of a type its value does not have, referring to another, or twice."""
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return None
    node = _pick(random, nodes)
    attribute, way = _pick(random, node.attribute), int(random.integers(6))
    if way == 0:
        attribute.type = int(random.integers(15))
    elif way == 1:
        attribute.ref_attr_name = "outer"
    elif way == 2:
        node.attribute.add().CopyFrom(attribute)
    elif way == 3:
        attribute.name = _pick(random, ["", "axis", "to", "body", "value", "x" * 200])
    else:
        name = attribute.name
        attribute.Clear()
        attribute.name = name
        _set(attribute, int(random.integers(1, 15)), random)
    return f"{node.op_type}.{attribute.name} swapped"


def insert_node(model: onnx.ModelProto, random: Random) -> str | None:
    """Any operator of ONNX with odd constants and attributes, in front of another node or of an output."""
    graph, schema = model.graph, _pick(random, _schemas())
    known = _values(graph)
    if not known:
        return None
    at = int(random.integers(len(graph.node) + 1))
    before = [*(v.name for v in graph.input), *(t.name for t in graph.initializer)]
    before += [name for node in graph.node[:at] for name in node.output if name]
    most = min(max(schema.min_input, min(schema.max_input, 6)), 8)
    count = int(random.integers(schema.min_input, most + 1))
    inputs = []
    for index in range(count):
        way = int(random.integers(10))
        if way == 0:
            inputs.append("")
        elif before and (index == 0 or way < 4):
            inputs.append(_pick(random, before))
        else:
            inputs.append(_constant(model, random))
    outputs = [f"inserted{at}_{k}" for k in range(int(random.integers(1, max(schema.min_output, 2) + 1)))]
    node = NodeProto(op_type=schema.name, domain=schema.domain, name=f"inserted{at}")
    node.input.extend(inputs)
    node.output.extend(outputs)
    for name, each in sorted(schema.attributes.items()):
        if each.required or random.integers(3) == 0:
            made = node.attribute.add(name=name)
            kind = int(each.type.value) if random.integers(20) else int(random.integers(1, 15))
            _set(made, kind, random)
    graph.node.insert(at, node)
    users = [(later, k) for later in graph.node[at + 1 :] for k in range(len(later.input))]
    if users and random.integers(3):
        later, k = _pick(random, users)
        later.input[k] = outputs[0]
    else:
        graph.output.append(onnx.ValueInfoProto(name=outputs[0]))
        kind = _pick(random, [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64])
        graph.output[-1].type.tensor_type.elem_type = kind
    if schema.domain and all(each.domain != schema.domain for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(schema.domain, schema.since_version))
    return f"{schema.name} inserted"


def quantize_value(model: onnx.ModelProto, random: Random) -> str | None:
    """Quantises a value there and back, with scales, zero points, axes and types that are odd."""
    graph = model.graph
    places = [
        (index, k) for index, node in enumerate(graph.node) for k, name in enumerate(node.input) if name
    ]
    if not places:
        return None
    index, k = _pick(random, places)
    kind, shape = _pick(random, CODES), _pick(random, [(), (), (), *SHAPES])
    count = len(graph.initializer)
    size = int(np.prod(shape))
    scales = np.array(
        [_pick(random, SCALES) if random.integers(3) == 0 else 0.25 for _ in range(size)], np.float32
    )
    graph.initializer.append(numpy_helper.from_array(scales.reshape(shape), f"scale{count}"))
    inputs = [graph.node[index].input[k], f"scale{count}"]
    if random.integers(4):
        zero = graph.initializer.add(
            name=f"zero{count}", data_type=_pick(random, [kind, kind, _pick(random, CODES)])
        )
        zero.dims.extend(_pick(random, [shape, shape, _pick(random, SHAPES)]))
        if zero.data_type == TensorProto.FLOAT:
            zero.float_data.extend([0.0] * int(np.prod(zero.dims)))
        else:
            number = _pick(random, [0, 0, 1, 3, 127, 128, 255, -128, 32767, -1])
            zero.int32_data.extend([number] * int(np.prod(zero.dims)))
        inputs.append(f"zero{count}")
    words: dict[str, Any] = {}
    if random.integers(3) == 0:
        words["axis"] = _pick(random, [0, 1, -1, 2, 7, 2**31 - 1])
    if random.integers(5) == 0:
        words["block_size"] = _pick(random, [0, 1, 2, 3, 2**31 - 1])
    if random.integers(5) == 0:
        words["output_dtype"] = _pick(random, CODES)
    there = helper.make_node("QuantizeLinear", inputs, [f"codes{count}"], name=f"quantize{count}", **words)
    words.pop("output_dtype", None)
    back = helper.make_node(
        "DequantizeLinear",
        [f"codes{count}", *inputs[1:]],
        [f"back{count}"],
        name=f"dequantize{count}",
        **words,
    )
    graph.node[index].input[k] = f"back{count}"
    graph.node.insert(index, back)
    graph.node.insert(index, there)
    return f"input {k} of node {index} quantised as {kind}"


def absurd_tensor(model: onnx.ModelProto, random: Random) -> str | None:
    """A constant of a shape its data does not have, kept outside, in segments, in two fields, or sparse."""
    graph = model.graph
    if not graph.initializer:
        return None
    tensor, way = _pick(random, graph.initializer), int(random.integers(7))
    if way == 0:
        del tensor.dims[:]
        tensor.dims.extend(
            _pick(random, [(2**62, 4), (2**31, 2**31, 2**31), (-1,), (0, 2**62), (1,) * 300, (2**40,)])
        )
    elif way == 1:
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add(key="location")
        entry.value = _pick(random, ["/etc/passwd", "../x", "", "x\0y", "weights.bin"])
    elif way == 2:
        tensor.segment.begin, tensor.segment.end = _pick(random, EXTREMES), _pick(random, EXTREMES)
    elif way == 3:
        tensor.float_data.extend([1.0] * int(random.integers(1, 5)))
        tensor.int64_data.extend([1] * int(random.integers(1, 5)))
    elif way == 4:
        tensor.string_data.extend([b"\xff", b"text"])
        tensor.data_type = _pick(random, [TensorProto.STRING, tensor.data_type])
    elif way == 5:
        made = graph.sparse_initializer.add()
        made.values.CopyFrom(tensor)
        made.dims.extend([2**40])
    else:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(_pick(random, SHAPES), np.float32), tensor.name))
    return f"constant {tensor.name} absurd ({way})"


def empty_axis(model: onnx.ModelProto, random: Random) -> str | None:
    """An input without elements, or a constant."""
    graph = model.graph
    if graph.initializer and random.integers(2):
        tensor = _pick(random, graph.initializer)
        try:
            array = numpy_helper.to_array(tensor)
        except Exception:  # noqa: BLE001 - an earlier mutation broke it
            return None
        if not array.ndim:
            return None
        axis = int(random.integers(array.ndim))
        tensor.CopyFrom(numpy_helper.from_array(array.take(np.arange(0), axis), tensor.name))
        return f"constant {tensor.name} without elements"
    dims = [dim for value in graph.input for dim in value.type.tensor_type.shape.dim]
    if not dims:
        return None
    _pick(random, dims).dim_value = 0
    return "an input without elements"


def odd_type(model: onnx.ModelProto, random: Random) -> str | None:
    """A sequence, a map, an optional or sparse value as input or output, with metadata that are ours."""
    graph = model.graph
    fields = [*graph.input, *graph.output, *graph.value_info]
    if not fields:
        return None
    value, way = _pick(random, fields), int(random.integers(6))
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, None])
    if way == 0:
        value.type.CopyFrom(helper.make_sequence_type_proto(inner))
    elif way == 1:
        value.type.CopyFrom(helper.make_optional_type_proto(inner))
    elif way == 2:
        value.type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, inner))
    elif way == 3:
        value.type.CopyFrom(helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3]))
    else:
        entry = value.metadata_props.add(key=_pick(random, KEYS))
        entry.value = _pick(
            random, ["", "0", "1", "-1", "2", "9" * 400, "[1, 2]", *_values(graph)[:4], "nowhere"]
        )
        return f"{value.name} noted {entry.key}"
    return f"{value.name} of another kind ({way})"


def rename(model: onnx.ModelProto, random: Random) -> str | None:
    """Gives a value another name, everywhere or at one place, that may be empty, odd, or another's."""
    graph = model.graph
    known = _values(graph)
    if not known:
        return None
    old = _pick(random, known)
    new = _pick(
        random, ["", " ", "a/b", "../..", "x" * 5000, "\x00", "\u202e", f"{old}/pad", old.upper(), *known[:3]]
    )
    everywhere = bool(random.integers(2))
    for node in graph.node:
        if everywhere:
            node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for field in (graph.input, graph.output, graph.initializer) if everywhere else ():
        for value in field:
            if value.name == old:
                value.name = new
    return f"{old} is called {new[:20]!r}"


def reorder(model: onnx.ModelProto, random: Random) -> str | None:
    """Puts the nodes in another order, or has two read each other."""
    graph = model.graph
    if len(graph.node) < 2:
        return None
    if random.integers(2):
        nodes = [graph.node[int(index)] for index in random.permutation(len(graph.node))]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
        return "nodes in another order"
    a, b = (_pick(random, graph.node) for _ in range(2))
    if not (a.input and b.input and a.output and b.output):
        return None
    a.input[0], b.input[0] = b.output[0], a.output[0]
    return f"{a.op_type} and {b.op_type} read each other"


def odd_imports(model: onnx.ModelProto, random: Random) -> str | None:
    """Versions of domains that are missing, twice, huge, negative, or of a domain nobody has."""
    imports, way = model.opset_import, int(random.integers(5))
    if way == 0 and imports:
        del imports[int(random.integers(len(imports)))]
    elif way == 1:
        imports.append(helper.make_opsetid("", int(random.integers(1, 29))))
    elif way == 2:
        imports.append(helper.make_opsetid(_pick(random, OWN_DOMAINS), _pick(random, EXTREMES)))
    elif way == 3 and imports:
        imports[0].version = _pick(random, EXTREMES)
    else:
        imports.append(helper.make_opsetid("ai.onnx", 13))
    return f"versions of domains changed ({way})"


def own_domain(model: onnx.ModelProto, random: Random) -> str | None:
    """A node of a domain that this package, or one beneath it, uses itself."""
    if not model.graph.node:
        return None
    node = _pick(random, model.graph.node)
    node.domain = _pick(random, OWN_DOMAINS)
    if random.integers(2):
        node.op_type = _pick(random, ["Silu", "RMSNormalization", "aten_add", node.op_type])
    if random.integers(2):
        model.opset_import.append(helper.make_opsetid(node.domain, 1))
    return f"{node.op_type} of domain {node.domain}"


HOSTILE: Sequence[Callable[[onnx.ModelProto, Random], str | None]] = (
    swap_attribute,
    swap_attribute,
    insert_node,
    insert_node,
    insert_node,
    quantize_value,
    absurd_tensor,
    empty_axis,
    odd_type,
    rename,
    reorder,
    odd_imports,
    own_domain,
    into_function,
    into_body,
)
"""Each as often as it is to be drawn."""
