"""Writes TensorFlow graphs node by node, as the bytes of their protocol buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpuflow.importers.graphdef.messages import DTYPES, GraphDef

NUMBERS = {kind: number for number, (kind, _, _) in DTYPES.items()}


class GraphBuilder:
    """A graph under construction; a node is known by its name."""

    def __init__(self) -> None:
        self.graph = GraphDef()

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """A node; attributes by the Python type of their value."""
        node = self.graph.node.add(name=name, op=op, input=list(inputs))
        for key, value in attributes.items():
            self._set(node.attr.add(key=key).value, value)
        return name

    @staticmethod
    def _set(attribute: Any, value: Any) -> None:
        match value:
            case bool():
                attribute.b = value
            case int():
                attribute.i = value
            case float():
                attribute.f = value
            case str():
                attribute.s = value.encode()
            case np.dtype():
                attribute.type = NUMBERS[value]
            case tuple():
                attribute.list.i.extend(value)
            case list():
                for size in value:
                    attribute.shape.dim.add(size=size)
                attribute.shape.SetInParent()
            case _:
                array = np.asarray(value)
                attribute.tensor.dtype = NUMBERS[array.dtype]
                attribute.tensor.tensor_content = array.tobytes()
                for size in array.shape:
                    attribute.tensor.tensor_shape.dim.add(size=size)
                attribute.tensor.SetInParent()

    def input(self, name: str, *shape: int, dtype: Any = np.float32) -> str:
        return self.node("Placeholder", name, dtype=np.dtype(dtype), shape=list(shape))

    def constant(self, name: str, value: Any) -> str:
        array = np.asarray(value)
        if array.dtype == np.int64 and not isinstance(value, np.ndarray):
            array = array.astype(np.int32)
        return self.node("Const", name, dtype=array.dtype, value=array)

    @property
    def bytes(self) -> bytes:
        content: bytes = self.graph.SerializeToString()
        return content
