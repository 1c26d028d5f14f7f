"""A graph of integers as an ONNX model of integers that any runtime computes to the same bits.

The model takes and gives codes (`ProgramPort.encode` makes them), in the shapes of the
original model, and holds nothing but standard operators on integers: what requantisation rounds and clamps
is written out. It is for debugging, and slow: one layer becomes a dozen nodes.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from tpuflow.errors import ModelError
from tpuflow.export.operators import OPERATORS, LayerContext
from tpuflow.export.tape import OPSET, Tape

if TYPE_CHECKING:
    from tpuflow.lowering import Graph

__all__ = ["integer_onnx"]

INTEGERS = {"int8", "int16", "int32", "int64"}


def integer_onnx(graph: Graph, cache_word_length: int = 128) -> onnx.ModelProto:
    """The model; its metadata say how many cache words of that length each input and output takes.

    Args:
        graph: All of whose tensors are integers.
        cache_word_length: Bytes of a cache word.

    Raises:
        ModelError: A layer computes with floats, or with integers of more than 64 bits.
    """
    document = json.loads(graph.to_json())
    tensors: list[dict[str, Any]] = document["tensors"]
    floats = [tensor["name"] for tensor in tensors if tensor["dtype"] not in INTEGERS]
    if floats:
        raise ModelError(f'"{floats[0]}" is a float: only networks in integers have an ONNX form of integers')
    if cache_word_length < 1 or cache_word_length & (cache_word_length - 1):
        raise ModelError(f"cache_word_length is {cache_word_length}, it must be a power of two")
    tape, values, words = Tape(), {}, {}
    ports: dict[str, list[onnx.ValueInfoProto]] = {"inputs": [], "outputs": []}

    for number in document["inputs"]:
        name, shape, permutation, info = _port(tensors[number])
        ports["inputs"].append(info)
        tape.prefix = name
        value = tape.op("Transpose", tape.cast(name), perm=permutation) if shape else tape.cast(name)
        values[number] = tape.reshape(value, tensors[number]["shape"])
        words[name] = _words(tensors[number], cache_word_length)
    for layer in document["layers"]:
        output = tensors[layer["output"]]
        tape.prefix = output["name"]
        context = LayerContext(layer["name"], layer["op"], tape, tensors, values, graph.constant)
        if layer["op"]["op"] not in OPERATORS:
            raise ModelError(f'layer "{layer["name"]}": {layer["op"]["op"]} computes with floats')
        values[layer["output"]] = tape.reshape(OPERATORS[layer["op"]["op"]](context), output["shape"])
    for number in document["outputs"]:
        name, shape, permutation, info = _port(tensors[number])
        ports["outputs"].append(info)
        tape.prefix = f"{name}/output"
        value = tape.reshape(values[number], [shape[axis] for axis in permutation])
        value = tape.op("Transpose", value, perm=np.argsort(permutation).tolist()) if shape else value
        tape.name(tape.cast(value, tensors[number]["dtype"]), name)
        words[name] = _words(tensors[number], cache_word_length)

    made = helper.make_graph(
        tape.nodes, document["name"], ports["inputs"], ports["outputs"], list(tape.constants.values())
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    helper.set_model_props(
        model, {"cache_word_length": str(cache_word_length), "words": json.dumps(words, sort_keys=True)}
    )
    return model


def _port(tensor: dict[str, Any]) -> tuple[str, list[int], list[int], onnx.ValueInfoProto]:
    """Name, shape and axis order of an input or output in the original model, and its declaration."""
    source = tensor.get("source") or {}
    shape = list(source.get("shape", tensor["shape"]))
    permutation = list(source.get("permutation", range(len(shape))))
    name = source.get("name", tensor["name"])
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(tensor["dtype"]))
    return name, shape, permutation, helper.make_tensor_value_info(name, dtype, shape)


def _words(tensor: dict[str, Any], word: int) -> int:
    """Cache words of a stored tensor: rows of pixels, each pixel a power of two of bytes or whole words."""
    *lead, width, channels = (1, 1, *(int(extent) for extent in tensor["shape"]))
    payload = channels * int(np.dtype(tensor["dtype"]).itemsize)
    pixel = math.ceil(payload / word) * word if payload >= word else 1 << (payload - 1).bit_length()
    return math.prod(lead) * math.ceil(width * pixel / word)
