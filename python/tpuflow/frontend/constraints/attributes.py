"""Constraints of ONNX on the attributes of a node: words, ranges, flags, axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from tpuflow.frontend.constraints.indices import Objection
from tpuflow.frontend.values import input_at, shape_of

__all__ = ["LARGEST", "attribute_violations"]

LARGEST_EPSILON = 1e6
"""Largest epsilon of a norm; what keeps one from dividing by zero is far less."""
LARGEST = 1 << 40
"""Elements no tensor of a network has."""


def attribute_violations(node: ir.Node) -> Iterator[Objection]:
    """The constraints on its attributes that a node of ONNX's own domain does not keep."""
    own = node.attributes.data
    for attribute, choices in CHOICES.items():
        if attribute in own and node.op_type in choices:
            value = own[attribute].value
            if value not in choices[node.op_type]:
                yield attribute, f'"{value}" is not one of {", ".join(choices[node.op_type])}'
    for name, least in LEAST.items():
        if name in own and (node.op_type, name) not in FREE:
            yield from _at_least(node, name, least)
    for name in FLAGS:
        if name in own and own[name].as_int() not in (0, 1):
            yield name, f"{own[name].as_int()} is neither 0 nor 1"
    for each in own.values():
        bounded = each.type == ir.AttributeType.FLOAT and each.name not in UNBOUNDED
        if bounded and not math.isfinite(each.as_float()):
            yield each.name, f"{each.as_float()} is not finite"
    if not 0 <= node.attributes.get_float("epsilon", 0.0) < LARGEST_EPSILON:
        yield "epsilon", f"{node.attributes.get_float('epsilon')} is out of range (0 to {LARGEST_EPSILON:g})"
    yield from _axis(node)


_PADDING = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_REDUCTIONS = ("none", "add", "mul", "max", "min")

CHOICES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "auto_pad": dict.fromkeys(
        ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"), _PADDING
    ),
    "mode": {
        "Resize": ("nearest", "linear", "cubic"),
        "Upsample": ("nearest", "linear", "bilinear"),
        "Pad": ("constant", "reflect", "edge", "wrap"),
        "GridSample": ("bilinear", "bicubic", "nearest", "linear", "cubic"),
        "DepthToSpace": ("DCR", "CRD"),
        "RoiAlign": ("avg", "max"),
    },
    "padding_mode": {"GridSample": ("zeros", "border", "reflection")},
    "coordinate_transformation_mode": {
        "Resize": (
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        ),
        "RoiAlign": ("half_pixel", "output_half_pixel"),
    },
    "nearest_mode": {"Resize": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")},
    "keep_aspect_ratio_policy": {"Resize": ("stretch", "not_larger", "not_smaller")},
    "direction": {**dict.fromkeys(("LSTM", "GRU", "RNN"), _DIRECTIONS), "BitShift": ("LEFT", "RIGHT")},
    "reduction": {
        **dict.fromkeys(("ScatterElements", "ScatterND"), _REDUCTIONS),
        **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), ("none", "sum", "mean")),
    },
    "approximate": {"Gelu": ("none", "tanh")},
}  # fmt: skip
"""Attributes that take one of several words, by operator."""

LEAST: Mapping[str, int] = {
    "group": 1, "kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0, "output_padding": 0,
    "blocksize": 1, "hidden_size": 1, "num_groups": 1, "num_heads": 1, "num_outputs": 1, "size": 1,
    "q_num_heads": 1, "kv_num_heads": 1, "block_size": 0, "output_height": 1, "output_width": 1,
    "output_shape": 1, "p": 1,
}  # fmt: skip
"""The least an attribute, or each of its elements, may be."""

FLAGS = (
    "allowzero", "ceil_mode", "count_include_pad", "exclusive", "keepdims", "linear_before_reset",
    "noop_with_empty_axes", "reverse", "select_last_index", "training_mode", "transA", "transB",
)  # fmt: skip
"""Attributes that are 0 or 1."""

UNBOUNDED = frozenset({"max", "min", "value", "value_float", "extrapolation_value"})
"""Floats that may be infinite."""

FREE = frozenset({("Pad", "pads")})
"""Attributes of those names that may be less."""


def _at_least(node: ir.Node, name: str, least: int) -> Iterator[Objection]:
    value = node.attributes[name].value
    numbers = list(value) if isinstance(value, Sequence) else [value]
    wrong = [number for number in numbers if isinstance(number, int) and not least <= number < LARGEST]
    if wrong:
        yield name, f"{wrong[0]} is out of range (at least {least})"


AXIS = frozenset(
    {
        "ArgMax", "ArgMin", "Concat", "DequantizeLinear", "Gather", "GatherElements", "GroupNormalization",
        "Hardmax", "LayerNormalization", "LogSoftmax", "LpNormalization", "QuantizeLinear",
        "RMSNormalization", "Scatter", "ScatterElements", "Softmax", "Split", "TopK",
    }
)  # fmt: skip
"""Operators whose `axis` is one of their first input."""
FLAT = frozenset({"Compress", "Unique"})
"""The same of operators that take all elements as one row without it."""


def _axis(node: ir.Node) -> Iterator[Objection]:
    shape = shape_of(input_at(node, 0))
    if node.op_type in {"DequantizeLinear", "QuantizeLinear"} and len(shape_of(input_at(node, 1)) or ()) == 0:
        return  # one scale has no axis
    along_axis = node.op_type in AXIS or (node.op_type in FLAT and "axis" in node.attributes)
    if along_axis and shape == ():
        yield "input 0", "has no axes"
    elif along_axis and "axis" in node.attributes and shape is not None:
        axis = node.attributes.get_int("axis")
        if not -len(shape) <= axis < len(shape):
            yield "axis", f"{axis} is not an axis of the shape {list(shape)}"
