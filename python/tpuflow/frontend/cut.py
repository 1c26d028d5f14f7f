"""Parts of a model: whatever lies between some tensors and others.

    head = get_sub_model(model, ["image"], ["features"])
    tail = get_sub_model(model, ["features"], ["scores"])        # tail after head computes the whole

Any tensor can be cut at: an input, an output, what a node computes, a constant. A cut is made in the graph
itself: the tensor becomes an input, whatever only led to it is dropped. A node of which one result is cut
and another still needed stays, and computes the first under another name.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from tpuflow.errors import ModelError
from tpuflow.frontend.normalize import inferred_values
from tpuflow.frontend.source import Source, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["cut", "get_sub_model", "nearest"]


def get_sub_model(
    model: Source, ordered_input_names: Sequence[str], ordered_output_names: Sequence[str]
) -> onnx.ModelProto:
    """The part of a model between some tensors and others, as a model of its own.

    Args:
        model: A file or a model in memory, which is not changed.
        ordered_input_names: Tensors that become the inputs, all of them and in this order.
        ordered_output_names: Tensors that become the outputs, in this order.

    Returns:
        The part; nodes, names, opset and float types are those of `model`.

    Raises:
        ModelError: If the model cannot be read, a tensor does not exist or is named twice, there is no
            output, or an output depends on an input of the model that is not among those given.
    """
    whole, label = read(model)
    if not ordered_output_names:
        raise ModelError(f"{label}: a part needs at least one output")
    part = _extract_between(whole, label, ordered_input_names, ordered_output_names, known_values(whole))
    given = set(ordered_input_names)
    needed = [value.name or "" for value in part.graph.inputs if value.name not in given]
    if needed:
        raise ModelError(
            f"{label}: the outputs also depend on {_quote(needed)}: add it to the inputs, "
            "or cut closer to the outputs"
        )
    return ir.serde.serialize_model(part)


def cut(
    model: ir.Model,
    label: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    known: Mapping[str, ir.Value] | None = None,
) -> ir.Model:
    """The part of `model` between `inputs` and `outputs`, tensors by name; `model` is used up.

    Inputs of the model that the part still needs stay, after those given. No outputs means the model's own.

    Args:
        model: The model.
        label: What to call it in messages.
        inputs: Tensors that become inputs.
        outputs: Tensors that become outputs.
        known: Values by name, with types and shapes as far as they are known; inferred when None.

    Raises:
        ModelError: If a tensor does not exist, is named twice, or is an input no output depends on.
    """
    wanted = list(outputs) or [value.name or "" for value in model.graph.outputs]
    part = _extract_between(model, label, inputs, wanted, known_values(model) if known is None else known)
    for value in part.graph.inputs:
        if not value.uses() and not value.is_graph_output():
            raise ModelError(f'{label}: cannot cut at "{value.name}": no output depends on it')
    return part


def known_values(model: ir.Model) -> dict[str, ir.Value]:
    """Values by name with the types of `model`, and shapes as far as they follow from it."""
    clone = model.clone()
    common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(clone)
    known = ir.convenience.create_value_mapping(clone.graph)
    if all(value.shape is not None for value in known.values()):
        return known
    # Folding what depends on shapes alone finds more of them.
    folded = inferred_values(model)
    for name, value in known.items():
        if value.shape is None and name in folded:
            value.shape = folded[name].shape
            value.type = value.type or folded[name].type
    return known


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first; those that hold it or its last part are like it."""
    names = [each for each in known if each]
    tail = name.rsplit("/", 1)[-1].removesuffix(":0")
    holding = [each for each in names if name in each or (len(tail) > 2 and each.endswith(tail))]
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.2)
    return list(dict.fromkeys([*close, *sorted(holding, key=len)]))[:count]


def unknown_tensor(name: str, values: Mapping[str, ir.Value]) -> str:
    """The message for a tensor that does not exist; it proposes no constants, at which nobody cuts."""
    near = nearest(name, (each for each, value in values.items() if not _is_constant(value)))
    return "there is no such tensor" + (f"; the nearest are {_quote(near)}" if near else "")


def _is_constant(value: ir.Value) -> bool:
    maker = value.producer()
    return value.is_initializer() or (maker is not None and maker.op_type == "Constant")


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _extract_between(
    model: ir.Model,
    label: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    known: Mapping[str, ir.Value],
) -> ir.Model:
    """Makes `model` the part between the tensors; inputs of it that the part still needs come last."""
    graph = model.graph
    values = ir.convenience.create_value_mapping(graph)
    for names in (inputs, outputs):
        for place, name in enumerate(names):
            if name not in values:
                raise ModelError(f'{label}: cannot cut at "{name}": {unknown_tensor(name, values)}')
            if name in names[:place]:
                raise ModelError(f'{label}: cannot cut at "{name}": it is named twice')
    results = [values[name] for name in outputs]
    graph.outputs.clear()
    opened: dict[ir.Value, ir.Value] = {}
    for name in inputs:
        opened[values[name]] = _replace_by_input(graph, values[name], known.get(name), label)
    graph.outputs.extend(opened.get(value, value) for value in results)
    for value in graph.outputs:
        found = known.get(value.name or "")
        if found is not None:
            value.type = value.type or found.type
            value.shape = value.shape or found.shape
    common.RemoveUnusedNodesPass()(model)
    listed = list(opened.values())
    others = [
        value for value in graph.inputs if value not in listed and (value.uses() or value.is_graph_output())
    ]
    graph.inputs.clear()
    graph.inputs.extend([*listed, *others])
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    return model


def _replace_by_input(graph: ir.Graph, value: ir.Value, known: ir.Value | None, label: str) -> ir.Value:
    """The input that takes the place of `value` in all that reads it."""
    if value.is_graph_input() and not value.is_initializer():
        return value
    kind = value.type if known is None or value.type is not None else known.type
    if kind is None:
        raise ModelError(f'{label}: cannot cut at "{value.name}": its type is not known')
    name = value.name
    shape = value.shape if known is None or known.shape is None else known.shape
    if value.is_initializer() and name is not None:
        graph.initializers.pop(name)
    made = ir.Value(name=name, type=kind, shape=shape)
    value.name = f"{name}/cut"
    value.replace_all_uses_with(made)
    graph.inputs.append(made)
    return made
