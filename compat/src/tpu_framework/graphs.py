"""Graphs as published scripts pass them on: what `onnx_to_tf` and `as_graph` give, and its `as_graph_def()`.

A `GraphDef` here holds an ONNX model, or the frozen TensorFlow graph it was read from. It has the few members
scripts use of TensorFlow's class of that name, but is none: a session of TensorFlow cannot run it, the one of
`tpu_framework.tensorflow` can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir

from tpuflow.errors import ModelError
from tpuflow.frontend import onnx_to_tf as convert
from tpuflow.frontend.source import Source, read
from tpuflow.importers import from_graphdef
from tpuflow.importers.graphdef import is_graphdef

__all__ = ["GraphDef", "TfGraph", "model_of", "onnx_to_tf"]


class GraphDef:
    """A graph as nodes and bytes."""

    def __init__(self, model: onnx.ModelProto | None = None) -> None:
        self._model = model

    @property
    def model(self) -> onnx.ModelProto:
        """The graph as an ONNX model.

        Raises:
            ModelError: There is nothing in it yet.
        """
        if self._model is None:
            raise ModelError("the GraphDef is empty: fill it with ParseFromString")
        return self._model

    @property
    def node(self) -> Sequence[onnx.NodeProto]:
        """Its nodes."""
        return list(self.model.graph.node)

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protocol buffers call it
        """Its bytes: those of an ONNX model."""
        return bytes(self.model.SerializeToString())

    def ParseFromString(self, content: bytes) -> int:  # noqa: N802
        """Reads the bytes of a frozen TensorFlow graph, or of an ONNX model; gives how many they were.

        Raises:
            ModelError: They are neither.
        """
        if is_graphdef(content):
            self._model = from_graphdef(content)
        else:
            try:
                self._model = onnx.load_model_from_string(content)
            except Exception as error:
                raise ModelError("neither a frozen TensorFlow graph nor an ONNX model") from error
        return len(content)


class TfGraph:
    """A graph that can become a `GraphDef`.

    Attributes:
        model: The graph as an ONNX model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def as_graph_def(self) -> GraphDef:
        """The graph as scripts pass it on."""
        return GraphDef(self.model)


def model_of(graph: Source | TfGraph | GraphDef) -> Source:
    """What `tpuflow.load` takes, of anything that stands for a graph, TensorFlow's own messages included."""
    if isinstance(graph, (TfGraph, GraphDef)):
        return graph.model
    if type(graph).__name__ == "GraphDef":
        return from_graphdef(graph)
    return graph


def onnx_to_tf(
    onnx_model: Source,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    try_simplify: bool = False,  # noqa: FBT001, FBT002 - the published signature
    onnxsim_fixed_point_iters: int = 100,
    keep_arrangement: Mapping[str, Sequence[int] | None] | None = None,
) -> tuple[TfGraph, dict[str, str]]:
    """Imports an ONNX model; its inputs stay in their own order of axes, channels first in images.

    Args:
        onnx_model: A file or a model in memory, which is not changed.
        input_shape: Shapes of inputs whose shape the model leaves open.
        try_simplify: Apply the passes of normalisation until nothing changes.
        onnxsim_fixed_point_iters: How often at most.
        keep_arrangement: Inputs whose axes are to have another order: a permutation of those of the model.

    Returns:
        The graph, and its tensors by the names of the ONNX model's.

    Raises:
        ModelError: The model cannot be read, or contradicts itself or the options.
    """
    found, label = read(onnx_model)
    wishes = {value.name or "": None for value in found.graph.inputs} | dict(keep_arrangement or {})
    inputs = [value.name or "" for value in found.graph.inputs]
    for name in wishes:
        if name not in inputs:
            raise ModelError(f'{label}: keep_arrangement: no input is called "{name}" ({", ".join(inputs)})')
    model, names = convert(found, input_shape, try_simplify, onnxsim_fixed_point_iters, wishes)
    return TfGraph(onnx_ir.to_proto(model)), names
