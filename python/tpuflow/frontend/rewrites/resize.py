"""One form for Resize: output sizes stated; scales only where they are not the ratio of the sizes.

Coordinates are computed from the scale. Where it equals output / input (in float32, as runtimes divide) the
sizes say everything; a scale such as 2.3 on 5 pixels (11 out, ratio 2.2) has to be kept.

Source: Resize of https://onnx.ai/onnx/operators/ (opset 19).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpuflow.frontend.values import array_of, attributes_of, input_at, integers_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]


def plain_resize(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """States sizes (or scales) of all axes and the modes that matter, and nothing else."""
    x, shape, y = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or shape is None or y is None or node.attributes.get_int("antialias", 0) != 0:
        return None
    mode = node.attributes.get_string("mode", "nearest")
    transform = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode not in {"nearest", "linear"} or transform == "tf_crop_and_resize":
        return None
    scales = array_of(input_at(node, 2))
    if input_at(node, 3) is None and scales is None:
        return None
    factors = np.divide(y, shape).astype(np.float32)
    if scales is not None and scales.size:
        axes = [axis % len(shape) for axis in node.attributes.get_ints("axes", range(len(shape)))]
        stated = np.ones(len(shape), np.float32)
        stated[axes] = scales
    else:
        stated = factors
    if y == shape and np.all(stated == 1):
        return x
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    ratio = transform == "align_corners" or np.array_equal(stated, factors)
    present = integers_of(input_at(node, 3)) == list(y) if ratio else np.array_equal(_full(scales), stated)
    names = attributes_of(node)
    if present and names == attributes and input_at(node, 1) is None:
        return None
    if ratio:
        return emit("Resize", x, None, None, emit.integers(y, "sizes"), attributes=attributes)
    return emit("Resize", x, None, emit.constant(stated, "scales"), attributes=attributes)


def _full(scales: np.ndarray | None) -> np.ndarray:
    return np.zeros(0, np.float32) if scales is None else scales


def channels_first(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Puts a Resize of the two middle axes, as channels-last frameworks write it, between transposes."""
    shape, y = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if shape is None or y is None or len(shape) != 4 or shape[1] == y[1] or shape[3] != y[3]:
        return None
    order = [0, 3, 1, 2]
    inputs: list[ir.Value | None] = [
        emit("Transpose", node.inputs[0], attributes={"perm": order}, label="first")
    ]
    for index, value in enumerate(node.inputs[1:], start=1):
        array = array_of(value)
        if array is not None and array.size not in (0, 4):
            return None  # sizes of some of the axes
        inputs.append(
            emit.constant(array[order], f"input{index}") if array is not None and array.size else None
        )
    resized = emit("Resize", *inputs, attributes=attributes_of(node))
    return emit("Transpose", resized, attributes={"perm": [0, 2, 3, 1]})


RULES: Rules = {"Resize": [plain_resize, channels_first]}
