"""The tensors of a float model that layers of its graph read, so that a graph runs beside it part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir

    from tpuflow.execution.levels import GraphLevel
    from tpuflow.execution.simulation import ProgramPort

__all__ = ["GraphReads", "values_of"]


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    """Values that nodes of a model compute, and its inputs, by name."""
    made = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {value.name: value for value in made if value.name}


class GraphReads:
    """The tensors of its model that layers of a graph read.

    Args:
        level: The graph.
        model: The float model it was made of.
    """

    def __init__(self, level: GraphLevel, model: ir.Model) -> None:
        tensors, values = level.graph.tensors, values_of(model)
        self._operands = {layer.output: layer.operands for layer in level.graph.layers}
        self._model_names = [
            port.name if (port := level.shown.get(each.name)) and _is_known(port, values) else None
            for each in tensors
        ]
        self._outputs = {
            level.shown[each.name].name: at for at, each in enumerate(tensors) if each.name in level.shown
        }

    def of(self, names: Iterable[str]) -> set[str]:
        """The nearest tensors of the model in front of these: all that their layers need."""
        waiting = [self._outputs[name] for name in names if name in self._outputs]
        found, seen = set[str](), set(waiting)
        while waiting:
            for at in self._operands.get(waiting.pop(), ()):
                name = self._model_names[at]
                if name is not None:
                    found.add(name)
                elif at not in seen:
                    seen.add(at)
                    waiting.append(at)
        return found


def _is_known(port: ProgramPort, values: Mapping[str, ir.Value]) -> bool:
    """Whether the float network shows a tensor of a graph, in its shape."""
    value = values.get(port.name)
    if value is None or value.dtype is None or shape_of(value) != tuple(port.shape):
        return False
    return value.is_graph_input() or value.dtype.is_floating_point()
