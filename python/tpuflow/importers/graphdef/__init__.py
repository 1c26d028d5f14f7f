"""A frozen TensorFlow graph, read from its protocol buffer without TensorFlow, becomes an ONNX model.

    messages.py    the protocol buffers
    conversion.py  the walk, and what operators write with
    layers.py, arithmetic.py, movement.py    the operators

Tensors keep their names, `node:number`. Inputs are the placeholders, outputs what no other node reads.
"""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tpuflow.errors import ModelError
from tpuflow.importers.graphdef import arithmetic, layers, movement
from tpuflow.importers.graphdef.conversion import CONVERSIONS, Context
from tpuflow.importers.graphdef.messages import GraphDef

__all__ = ["arithmetic", "from_graphdef", "is_graphdef", "layers", "movement", "supported_operators"]


def from_graphdef(graph: Any, label: str = "graph") -> onnx.ModelProto:
    """Converts a frozen graph.

    Args:
        graph: A GraphDef: its bytes, its text, or a message (of TensorFlow's own type, for instance).
        label: What to call it in messages.

    Raises:
        ModelError: If it is no GraphDef, or does not fit together.
        UnsupportedModelError: Listing every node that cannot be converted.
    """
    found = GraphDef()
    try:
        if isinstance(graph, str):
            text_format.Parse(graph, found, allow_unknown_field=True)
        else:
            found.ParseFromString(graph if isinstance(graph, bytes) else graph.SerializeToString())
    except (DecodeError, text_format.ParseError) as error:
        raise ModelError(f"{label}: not a TensorFlow graph, or a truncated one") from error
    if not found.node:
        raise ModelError(f"{label}: not a TensorFlow graph, or an empty one")
    return Context(found, label).run()


def is_graphdef(content: bytes) -> bool:
    """Whether bytes look like a GraphDef: its first field is a node, where other models state a number."""
    return content[:1] == b"\x0a"


def supported_operators() -> tuple[str, ...]:
    """Every TensorFlow operator that can be converted, sorted."""
    return tuple(sorted({*CONVERSIONS, "Const", "NoOp", "Placeholder"}))
