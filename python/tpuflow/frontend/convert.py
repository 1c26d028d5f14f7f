"""The import as one call with the options converters of other tool chains have.

    model, names = onnx_to_tf(proto, {"x": [1, 3, 224, 224]}, try_simplify=True)

It gives a float model to go on with (`tpuflow.load` takes it) and, for every tensor of the ONNX model that is
still there, what it is called now. Images are taken channels last, as everything below the frontend lays them
out; `keep_arrangement` names the inputs that stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.interface import fix_input_shapes
from tpuflow.frontend.normalize import simplify
from tpuflow.frontend.source import Source, read
from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["onnx_to_tf"]


def onnx_to_tf(
    onnx_model: Source,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    try_simplify: bool = False,  # noqa: FBT001, FBT002 - the signature is that of the converter it stands for
    onnxsim_fixed_point_iters: int = 100,
    keep_arrangement: Mapping[str, Sequence[int] | None] | None = None,
) -> tuple[ir.Model, dict[str, str]]:
    """Imports an ONNX model.

    Args:
        onnx_model: A file or a model in memory, which is not changed.
        input_shape: Shapes of inputs whose shape the model leaves open.
        try_simplify: Apply the passes of normalisation until nothing changes.
        onnxsim_fixed_point_iters: How often at most; 0 leaves the model as it is.
        keep_arrangement: Inputs that are not to be taken channels last, each with the order its axes are to
            have: a permutation of those of the model. None, or the input's own shape, is the model's order.

    Returns:
        The model, and its tensors by the names of the ONNX model's; all inputs and outputs are among them.
        An input taken in another order is followed by a transpose to the model's.

    Raises:
        ModelError: If the model cannot be read, or contradicts itself or the options.
    """
    if onnxsim_fixed_point_iters < 0:
        raise ModelError(f"onnxsim_fixed_point_iters must not be negative, is {onnxsim_fixed_point_iters}")
    model, label = read(onnx_model)
    fix_input_shapes(model, label, input_shape or {}, None)
    original = list(ir.convenience.create_value_mapping(model.graph))
    if try_simplify and onnxsim_fixed_point_iters:
        simplify(model, onnxsim_fixed_point_iters)
    wishes = dict(keep_arrangement or {})
    inputs = {value.name or "": value for value in model.graph.inputs}
    for name in wishes:
        if name not in inputs:
            raise ModelError(f'{label}: keep_arrangement: no input is called "{name}" ({", ".join(inputs)})')
    for name, value in inputs.items():
        _arrange(model, value, _order(value, wishes, f'{label}: keep_arrangement of "{name}"'))
    present = ir.convenience.create_value_mapping(model.graph)
    return model, {name: name for name in original if name in present}


def _order(value: ir.Value, wishes: Mapping[str, Sequence[int] | None], where: str) -> list[int]:
    """The order of axes an input is taken in."""
    shape = shape_of(value) or ()
    rank = len(shape)
    same = list(range(rank))
    if value.name not in wishes:
        return [0, *range(2, rank), 1] if rank in (4, 5) else same
    wish = wishes[value.name or ""]
    if wish is None or tuple(wish) == shape:
        return same
    if sorted(wish) != same:
        raise ModelError(f"{where}: {list(wish)} is no permutation of {rank} axes")
    return list(wish)


def _arrange(model: ir.Model, value: ir.Value, order: Sequence[int]) -> None:
    """Takes an input in another order of axes, in front of a transpose to its own."""
    shape = shape_of(value)
    if shape is None or list(order) == sorted(order):
        return
    graph, name = model.graph, value.name
    taken = ir.Value(name=name, type=value.type, shape=ir.Shape([shape[axis] for axis in order]))
    value.name = f"{name}/arranged"
    back = [list(order).index(axis) for axis in range(len(order))]
    given = ir.Value(name=value.name, type=value.type, shape=value.shape)
    node = ir.Node(
        "", "Transpose", [taken], [ir.AttrInt64s("perm", back)], outputs=[given], name=f"{name}/arrange"
    )
    value.replace_all_uses_with(given, replace_graph_outputs=True)
    graph.inputs[list(graph.inputs).index(value)] = taken
    graph.insert_before(graph[0], node)
