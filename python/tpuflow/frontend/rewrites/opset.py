"""Brings operators of older opsets to the form they have in opset 21, the one every later rewrite expects.

Between opsets 6 and 21 most operators only gained element types. Those listed here moved attributes to
inputs or changed meaning; everything else keeps its text. Operators that
came later keep the text of their own opset until they are replaced.
The version converter of the onnx package is not used: it rebuilds the model with all weights for each
step, and it stops at the first operator it has no adapter for, while an unknown operator here is left for
the listing of unsupported nodes.

Source: the operator changelog of ONNX, https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from tpuflow.frontend.values import array_of, attributes_of, input_at, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rewrite, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["NEWEST", "OLDEST", "RULES", "TARGET", "needed_opset", "note_versions"]

OLDEST, NEWEST = 6, 28
"""Opsets accepted."""
TARGET = 21
"""The opset of a normalised model, unless nodes that stay as they are need a later one."""

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")


def note_versions(model: ir.Model, version: int) -> None:
    """Notes for every node, of subgraphs too, which opset's text it follows."""
    for node in model.graph.all_nodes():
        if not node.domain:
            node.version = version


def needed_opset(model: ir.Model) -> int:
    """The oldest opset, from `TARGET` on, that has every node as it is: operator, attributes, inputs, types.

    Only nodes for the host can need a later one. Opsets after `TARGET` add operators and element types and
    change no meaning, so that the other nodes may be raised with them.
    """
    return max((_required_opset(node) for node in model.graph.all_nodes() if not node.domain), default=TARGET)


def _required_opset(node: ir.Node) -> int:
    if node.version is None or node.version <= TARGET or _is_of(node, TARGET):
        return TARGET
    try:
        since: int = onnx.defs.get_schema(node.op_type, node.version, "").since_version
    except onnx.defs.SchemaError:
        return TARGET
    return max(TARGET, since)


def _is_of(node: ir.Node, version: int) -> bool:
    """Whether an opset has a node as it is."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    if len(node.inputs) > schema.max_input or not set(node.attributes) <= set(schema.attributes):
        return False
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    pairs = [(node.inputs, schema.inputs), (node.outputs, schema.outputs)]
    for values, formals in pairs:
        for index, value in enumerate(values):
            if value is None or not formals or not isinstance(value.type, ir.TensorType):
                continue
            variable = formals[min(index, len(formals) - 1)].type_str
            if f"tensor({str(value.dtype).lower()})" not in allowed.get(variable, [variable]):
                return False
    return True


def _before_opset(since: int, rewrite: Rewrite) -> Rewrite:
    """The rewrite for nodes that follow the text of an opset before `since`."""

    def upgrade(node: ir.Node, emit: Emitter) -> ir.Value | Sequence[ir.Value] | None:
        return rewrite(node, emit) if node.version is not None and node.version < since else None

    return upgrade


def _attributes_without(node: ir.Node, *moved: str) -> dict[str, Attribute]:
    return {name: value for name, value in attributes_of(node).items() if name not in moved}


def _upsample(node: ir.Node, emit: Emitter) -> ir.Value:
    scales = input_at(node, 1)
    if scales is None:
        scales = emit.constant(np.array(node.attributes.get_floats("scales", []), np.float32), "scales")
    return _asymmetric_resize(node, scales, emit)


def _resize_without_mode(node: ir.Node, emit: Emitter) -> ir.Value | None:
    scales = input_at(node, 1)
    return None if len(node.inputs) > 2 or scales is None else _asymmetric_resize(node, scales, emit)


def _asymmetric_resize(node: ir.Node, scales: ir.Value, emit: Emitter) -> ir.Value:
    mode = node.attributes.get_string("mode", "nearest")
    attributes = {
        "mode": "linear" if mode in {"linear", "bilinear"} else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return emit("Resize", node.inputs[0], None, scales, attributes=attributes)


def _slice_inputs(node: ir.Node, emit: Emitter) -> ir.Value | None:
    if "starts" not in node.attributes:
        return None
    starts, ends = node.attributes.get_ints("starts", []), node.attributes.get_ints("ends", [])
    axes = node.attributes.get_ints("axes", list(range(len(starts))))
    return emit(
        "Slice",
        node.inputs[0],
        emit.integers(starts, "starts"),
        emit.integers(ends, "ends"),
        emit.integers(axes, "axes"),
    )


def _clip_inputs(node: ir.Node, emit: Emitter) -> ir.Value | None:
    if len(node.inputs) > 1 or not ({"min", "max"} & set(node.attributes)):
        return None
    bounds = [
        emit.constant(np.float32(node.attributes.get_float(name)), name, like=node.inputs[0])
        if name in node.attributes
        else None
        for name in ("min", "max")
    ]
    return emit("Clip", node.inputs[0], *bounds)


def _pad_inputs(node: ir.Node, emit: Emitter) -> ir.Value | None:
    if "pads" not in node.attributes:
        return None
    value = emit.constant(np.float32(node.attributes.get_float("value", 0.0)), "value", like=node.inputs[0])
    pads = emit.integers(node.attributes.get_ints("pads", []), "pads")
    return emit(
        "Pad",
        node.inputs[0],
        pads,
        value,
        attributes={"mode": node.attributes.get_string("mode", "constant")},
    )


def _flattened_softmax(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Until opset 13 softmax ran over all axes from `axis` (default 1) on, as one."""
    x = node.inputs[0]
    axis = node.attributes.get_int("axis", 1)
    if x is None:
        return None
    rank = None if x.shape is None else x.shape.rank()
    if axis == -1 or (rank is not None and axis in {-1, rank - 1}):
        return emit(node.op_type, x, attributes={"axis": -1})
    flat = emit("Flatten", x, attributes={"axis": axis})
    rows = emit(node.op_type, flat, attributes={"axis": -1}, label="rows")
    return emit("Reshape", rows, emit("Shape", x, label="shape"))


def _count_input(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    if "k" not in node.attributes:
        return None
    count = emit.integers([node.attributes.get_int("k")], "k")
    return emit.several(node.op_type, node.inputs[0], count, attributes=_attributes_without(node, "k"))


def _scatter_elements(node: ir.Node, emit: Emitter) -> ir.Value:
    return emit("ScatterElements", *node.inputs, attributes=_attributes_without(node))


def _ratio_input(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    if "ratio" not in node.attributes:
        return None
    ratio = emit.constant(np.float32(node.attributes.get_float("ratio")), "ratio")
    return emit.several(node.op_type, node.inputs[0], ratio)


def _sizes_input(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    if "split" not in node.attributes:
        return state_part_count(node, emit)
    sizes = emit.integers(node.attributes.get_ints("split", []), "split")
    return emit.several(node.op_type, node.inputs[0], sizes, attributes=_attributes_without(node, "split"))


def state_part_count(node: ir.Node, emit: Emitter) -> list[ir.Value] | None:
    """Since opset 18 a Split into equal parts says how many."""
    if input_at(node, 1) is not None or "num_outputs" in node.attributes:
        return None
    attributes = _attributes_without(node) | {"num_outputs": len(node.outputs)}
    return emit.several(node.op_type, node.inputs[0], attributes=attributes)


def _unshifted_boxes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Until opset 16 boxes were not shifted by half a pixel."""
    if "coordinate_transformation_mode" in node.attributes:
        return None
    attributes = _attributes_without(node) | {"coordinate_transformation_mode": "output_half_pixel"}
    return emit(node.op_type, *node.inputs, attributes=attributes)


def _renamed_mode(node: ir.Node, emit: Emitter) -> ir.Value | None:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attributes.get_string("mode", "bilinear")
    if mode not in names:
        return None
    return emit(node.op_type, *node.inputs, attributes=_attributes_without(node) | {"mode": names[mode]})


def _axes_input(node: ir.Node, emit: Emitter) -> ir.Value | None:
    if "axes" not in node.attributes:
        return None
    axes = emit.integers(node.attributes.get_ints("axes", []), "axes")
    return emit(node.op_type, node.inputs[0], axes, attributes=_attributes_without(node, "axes"))


def _squeeze_all(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """An empty list of axes is none, which means all of one element."""
    axes = array_of(input_at(node, 1))
    return emit("Squeeze", node.inputs[0]) if axes is not None and axes.size == 0 else None


def _group_scale_per_channel(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Until opset 21 scale and bias of GroupNormalization had one entry per group."""
    shape = shape_of(node.inputs[0])
    scale, bias = array_of(input_at(node, 1)), array_of(input_at(node, 2))
    if shape is None or scale is None or bias is None or scale.size == shape[1]:
        return None
    repeats = shape[1] // scale.size
    return emit(
        node.op_type,
        node.inputs[0],
        emit.constant(np.repeat(scale, repeats), "scale"),
        emit.constant(np.repeat(bias, repeats), "bias"),
        attributes=_attributes_without(node),
    )


def _broadcast_along_axis(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Until opset 7 the second operand was broadcast on request, aligned with `axis` of the first."""
    a, b = node.inputs[0], node.inputs[1]
    if "broadcast" not in node.attributes:
        return None
    wide, narrow = shape_of(a), shape_of(b)
    if a is None or b is None or wide is None or narrow is None:
        return None
    axis = node.attributes.get_int("axis", len(wide) - len(narrow))
    shape = (*narrow, *(1 for _ in wide[axis % max(len(wide), 1) + len(narrow) :]))
    return emit(node.op_type, a, b if shape == narrow else emit.reshape(b, shape, "aligned"))


def _slope_per_channel(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Until opset 7 a slope was one number, or one per channel."""
    x, slope = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    if x is None or slope is None or node.inputs[1] is None or len(slope) != 1 or len(x) < 3:
        return None
    aligned = emit.reshape(node.inputs[1], (*slope, *(1 for _ in x[2:])), "aligned")
    return emit("PRelu", node.inputs[0], aligned)


def _without(*names: str) -> Rewrite:
    """Drops attributes that say nothing about inference."""

    def rewrite(node: ir.Node, emit: Emitter) -> ir.Value | None:
        if not set(names) & set(node.attributes) or any(output.uses() for output in node.outputs[1:]):
            return None
        return emit(node.op_type, *node.inputs, attributes=_attributes_without(node, *names))

    return rewrite


def _rules() -> Rules:
    changed: list[tuple[int, str, Rewrite]] = [
        *((7, name, _broadcast_along_axis) for name in BROADCAST),
        (7, "PRelu", _slope_per_channel),
        (7, "Gemm", _without("broadcast")),
        (7, "BatchNormalization", _without("is_test", "consumed_inputs")),
        (7, "Dropout", _without("is_test")),
        (11, "Resize", _resize_without_mode),
        (10, "Slice", _slice_inputs),
        (10, "TopK", _count_input),
        (11, "Scatter", _scatter_elements),
        (11, "Clip", _clip_inputs),
        (11, "Pad", _pad_inputs),
        (13, "Softmax", _flattened_softmax),
        (13, "LogSoftmax", _flattened_softmax),
        (13, "Hardmax", _flattened_softmax),
        (12, "Dropout", _ratio_input),
        (13, "Split", _sizes_input),
        (13, "Squeeze", _axes_input),
        (13, "Unsqueeze", _axes_input),
        (13, "ReduceSum", _axes_input),
        *((18, f"Reduce{name}", _axes_input) for name in REDUCTIONS),
        (16, "RoiAlign", _unshifted_boxes),
        (18, "Split", state_part_count),
        (20, "GridSample", _renamed_mode),
        (21, "GroupNormalization", _group_scale_per_channel),
    ]
    # Upsample is deprecated since opset 10, and still met.
    rules: dict[str, list[Rewrite]] = {"Upsample": [_upsample], "Squeeze": [_squeeze_all]}
    for since, operator, rewrite in changed:
        rules.setdefault(operator, []).append(_before_opset(since, rewrite))
    return rules


RULES: Rules = _rules()
"""Conversions from the opset noted at a node to `TARGET`; their results follow `TARGET`."""
