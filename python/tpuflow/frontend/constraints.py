"""Constraints of ONNX on the attributes and shapes of a node, operator by operator.

Its checker and its shape inference look at a part of this alone. A constraint that cannot be looked at, for
want of a shape or a constant, is not violated.

Source: https://onnx.ai/onnx/operators/ (the text of each operator).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.body_constraints import branches_fit, loop_fits, parts_fit, scan_fits
from tpuflow.frontend.cost_constraints import distribution_exists, neighbors_exist, steps_end
from tpuflow.frontend.index_constraints import (
    SINGLE,
    Constraint,
    Objection,
    axes_fit,
    centered_axes_fit,
    elements_fit,
    heads_fit,
    indices_fit,
    lengths_fit,
    matrices,
    one_number,
    pair_of_values,
    permutation_fit,
    places_fit,
    points_fit,
    rows_fit,
    running_axis_fits,
    shaped,
    slices_fit,
    some_elements,
    updates_fit,
)
from tpuflow.frontend.values import array_of, input_at, integers_of, shape_of

__all__ = ["LARGEST", "Objection", "violations"]

LARGEST_EPSILON = 1e6
"""Largest epsilon of a norm; what keeps one from dividing by zero is far less."""
LARGEST_KERNEL = 1 << 22
"""Elements no window of a pool has."""
LARGEST = 1 << 40
"""Elements no tensor of a network has."""


def violations(node: ir.Node) -> Iterator[Objection]:
    """The constraints a node of ONNX's own domain does not keep."""
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
    for constraint in CONSTRAINTS.get(node.op_type, ()):
        yield from constraint(node)


# Attributes.

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


def _axis(node: ir.Node) -> Iterator[Objection]:
    shape = shape_of(input_at(node, 0))
    if node.op_type in {"DequantizeLinear", "QuantizeLinear"} and len(shape_of(input_at(node, 1)) or ()) == 0:
        return  # one scale has no axis
    if node.op_type in AXIS and shape == ():
        yield "input 0", "has no axes"
    elif node.op_type in AXIS and "axis" in node.attributes and shape is not None:
        axis = node.attributes.get_int("axis")
        if not -len(shape) <= axis < len(shape):
            yield "axis", f"{axis} is not an axis of the shape {list(shape)}"


# Shapes.


def _window(node: ir.Node) -> Iterator[Objection]:
    """Kernel, strides, dilations and pads of as many axes as the images have."""
    shape = shape_of(input_at(node, 0))
    if shape is None:
        return
    axes = len(shape) - 2
    if axes < 1:
        yield "input 0", f"has the shape {list(shape)}: batch, channels and at least one more axis are needed"
        return
    counts = {**dict.fromkeys(WINDOW, axes), "pads": 2 * axes}
    for name, count in counts.items():
        given = node.attributes.get_ints(name, None)
        if given is not None and len(given) not in (0, count):
            yield name, f"has {len(given)} entries, {count} are needed"
            return
    result = shape_of(node.outputs[0])
    stated = node.attributes.get_ints("output_shape", None)
    if stated and result is not None and len(result) != len(shape):  # what inference leaves of such a node
        yield "output_shape", f"{list(stated)} cannot come of the shape {list(shape)}"
    elif result is not None and 0 not in shape and 0 in result:
        yield "kernel_shape", f"no window fits the shape {list(shape)}"


WINDOW = ("kernel_shape", "strides", "dilations", "output_shape", "output_padding")
"""Attributes of a window with one entry for each axis of the images."""


def _images(node: ir.Node) -> Iterator[Objection]:
    """A batch of channels with at least one more axis."""
    shape = shape_of(input_at(node, 0))
    if shape is not None and len(shape) < 3:
        yield "input 0", f"has the shape {list(shape)}: batch, channels and at least one more axis are needed"


def _pooling(node: ir.Node) -> Iterator[Objection]:
    if not node.attributes.get_ints("kernel_shape", None):
        yield "kernel_shape", "is missing"
    kernel = node.attributes.get_ints("kernel_shape", [])
    if math.prod(kernel) > LARGEST_KERNEL:
        yield "kernel_shape", f"{list(kernel)} are more than {LARGEST_KERNEL} elements"
        return
    dilations = node.attributes.get_ints("dilations", []) or [1] * len(kernel)
    pads = list(node.attributes.get_ints("pads", []) or [0] * 2 * len(kernel))
    if len(pads) != 2 * len(kernel):
        yield "pads", f"has {len(pads)} entries, {2 * len(kernel)} are needed"
        return
    for axis, (size, dilation) in enumerate(zip(kernel, dilations, strict=False)):
        if max(pads[axis], pads[axis + len(kernel)]) >= (size - 1) * dilation + 1:
            yield "pads", f"{pads} leave windows of padding alone: they must be less than the kernel"
            return
    x, y = shape_of(input_at(node, 0)), shape_of(node.outputs[0])
    strides = node.attributes.get_ints("strides", []) or [1] * len(kernel)
    if x is None or y is None or not node.attributes.get_int("ceil_mode", 0):
        return
    for size, begin, stride, count in zip(x[2:], pads, strides, y[2:], strict=False):
        if (count - 1) * stride >= size + begin:
            yield "ceil_mode", "the last window lies wholly in the padding, and runtimes leave it out: use 0"
            return


def _convolution(node: ir.Node) -> Iterator[Objection]:
    """Channels, groups and kernel as the weights have them."""
    x, w = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    group = node.attributes.get_int("group", 1)
    if w is None:
        return
    if len(w) < 3 or 0 in w or (x is not None and len(w) != len(x)):
        yield "input 1", f"weights of the shape {list(w)} do not fit {shaped(x)}"
        return
    transposed = node.op_type == "ConvTranspose"
    outputs, channels = (w[1] * group, w[0]) if transposed else (w[0], w[1] * group)
    if x is not None and x[1] != channels:
        yield (
            "group",
            f"{group} groups of weights of the shape {list(w)} take {channels} channels, not {x[1]}",
        )
        return
    if (channels if transposed else outputs) % group:
        yield "group", f"{group} does not divide the {channels if transposed else outputs} channels"
    kernel = node.attributes.get_ints("kernel_shape", None)
    if kernel and tuple(kernel) != w[2:]:
        yield "kernel_shape", f"{list(kernel)} is not that of the weights, {list(w[2:])}"
    bias = shape_of(input_at(node, 2))
    if node.op_type != "ConvInteger" and bias is not None and bias != (outputs,):
        yield "input 2", f"a bias of the shape {list(bias)} does not fit {outputs} channels"


def _per_channel(*indices: int) -> Constraint:
    """These inputs hold one number per channel."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        x = shape_of(input_at(node, 0))
        if x is None:
            return
        if len(x) < 2:
            yield "input 0", f"has the shape {list(x)}: batch and channels are needed"
            return
        for index in indices:
            shape = shape_of(input_at(node, index))
            if shape is not None and shape != (x[1],):
                yield (
                    f"input {index}",
                    f"has the shape {list(shape)}, not one number for each of {x[1]} channels",
                )

    return constraint


def _groups(node: ir.Node) -> Iterator[Objection]:
    x, count = shape_of(input_at(node, 0)), node.attributes.get_int("num_groups", 1)
    if x is None:
        return
    if len(x) < 3 or x[1] % count:
        yield "num_groups", f"{count} does not divide the channels of the shape {list(x)}"
        return
    for index in (1, 2):
        shape = shape_of(input_at(node, index))
        if shape is not None and shape not in {(x[1],), (count,)}:
            yield f"input {index}", f"has the shape {list(shape)}, not one number for each of {x[1]} channels"


def _scaled_axes(node: ir.Node) -> Iterator[Objection]:
    """Scale and bias of a norm broadcast to the axes it runs over, of which there is one at least."""
    x = shape_of(input_at(node, 0))
    if x is None:
        return
    if not x:
        yield "input 0", "has no axes"
        return
    axis = node.attributes.get_int("axis", -1)
    rest = x[axis % max(len(x), 1) :]
    for index in (1, 2):
        yield from _broadcasts(node, index, rest)


def _broadcasts(node: ir.Node, index: int, to: Sequence[int]) -> Iterator[Objection]:
    shape = shape_of(input_at(node, index))
    if shape is None:
        return
    lead = len(to) - len(shape)
    if lead < 0 or any(a not in (1, b) for a, b in zip(shape, to[lead:], strict=True)):
        yield f"input {index}", f"the shape {list(shape)} does not broadcast to {list(to)}"


def _to_first(index: int) -> Constraint:
    """This input broadcasts to the first."""

    def constraint(node: ir.Node) -> Iterator[Objection]:
        x = shape_of(input_at(node, 0))
        if x is not None and (node.version is None or node.version >= 7):
            yield from _broadcasts(node, index, x)

    return constraint


def _bounds(node: ir.Node) -> Iterator[Objection]:
    for index in (1, 2):
        shape = shape_of(input_at(node, index))
        if shape is not None and math.prod(shape) != 1:
            yield f"input {index}", f"must be one number, has the shape {list(shape)}"


def _steps(node: ir.Node) -> Iterator[Objection]:
    """One scale, one by index of an axis, or one by block; zero points alike."""
    x, scale = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    zero, steps = shape_of(input_at(node, 2)), array_of(input_at(node, 1))
    if steps is not None and steps.dtype.kind == "f":
        # A channel of weights that are all zero may have steps of zero, but nothing is divided by them.
        stored = node.op_type == "DequantizeLinear" and array_of(input_at(node, 0)) is not None
        if not np.all(np.isfinite(steps)) or np.any(steps < 0) or (not stored and np.any(steps == 0)):
            yield "input 1", "a scale is not a finite number above 0"
            return
    if x is None or scale is None:
        return
    if zero is not None and zero != scale and math.prod(zero) * math.prod(scale) != 1:
        yield "input 2", f"zero points of the shape {list(zero)} do not fit scales of the shape {list(scale)}"
    if math.prod(scale) == 1:
        return
    axis = node.attributes.get_int("axis", 1)
    if len(scale) == 1:
        if not -len(x) <= axis < len(x) or x[axis] != scale[0]:
            yield "input 1", f"{scale[0]} scales do not fit axis {axis} of the shape {list(x)}"
    elif not _fits_blocks(scale, x, node):
        yield "input 1", f"scales of the shape {list(scale)} do not fit the shape {list(x)}"


def _fits_blocks(scale: Sequence[int], x: Sequence[int], node: ir.Node) -> bool:
    """Whether scales are by element along some axes, or by block along one."""
    if len(scale) != len(x):
        return False
    blocked = node.attributes.get_int("block_size", 0)
    axis = node.attributes.get_int("axis", 1) % len(x)
    return all(
        size in (1, extent) or (blocked > 0 and index == axis and size == -(-extent // blocked))
        for index, (size, extent) in enumerate(zip(scale, x, strict=True))
    )


def _recurrent(node: ir.Node) -> Iterator[Objection]:
    """Weights of as many gates, directions and states as the operator has."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    x, w, r = (shape_of(input_at(node, index)) for index in (0, 1, 2))
    if x is None or w is None or r is None:
        return
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    if len(x) != 3 or len(r) != 3:
        yield "input 0", f"has the shape {list(x)}: time, batch and features are needed"
        return
    hidden = node.attributes.get_int("hidden_size", r[2])
    wanted: dict[int, tuple[int, ...] | None] = {
        1: (directions, gates * hidden, x[2]),
        2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden),
        7: (directions, 3 * hidden) if node.op_type == "LSTM" else None,
    }
    layout = node.attributes.get_int("layout", 0)
    batch = x[0] if layout else x[1]
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    wanted |= {4: (batch,), 5: state, 6: state if node.op_type == "LSTM" else None}
    for index, shape in wanted.items():
        given = shape_of(input_at(node, index))
        if shape is not None and given is not None and given != shape:
            yield f"input {index}", f"has the shape {list(given)}, {list(shape)} is needed"


def _positions(node: ir.Node) -> Iterator[Objection]:
    """One position, of as many coordinates as images have axes, for each point of each image of the batch."""
    x, grid = shape_of(input_at(node, 0)), shape_of(input_at(node, 1))
    if x is None or grid is None:
        return
    if len(x) < 3 or len(grid) != len(x) or grid[0] != x[0] or grid[-1] != len(x) - 2:
        yield "input 1", f"positions of the shape {list(grid)} do not fit images of the shape {list(x)}"


def _blocks(node: ir.Node) -> Iterator[Objection]:
    x, size = shape_of(input_at(node, 0)), node.attributes.get_int("blocksize", 1)
    if x is None:
        return
    if len(x) != 4:
        yield "input 0", f"must have 4 axes, has the shape {list(x)}"
    elif (node.op_type == "DepthToSpace" and x[1] % size**2) or (
        node.op_type == "SpaceToDepth" and (x[2] % size or x[3] % size)
    ):
        yield "blocksize", f"{size} does not divide the shape {list(x)}"


def _padding(node: ir.Node) -> Iterator[Objection]:
    x, pads = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if pads is None and "pads" in node.attributes:
        pads = list(node.attributes.get_ints("pads", []))
    axes = integers_of(input_at(node, 3))
    if x is None or pads is None:
        return
    if axes is not None and any(not -len(x) <= axis < len(x) for axis in axes):
        yield "input 3", f"{axes} are not axes of the shape {list(x)}"
        return
    places = list(range(len(x))) if axes is None else [axis % len(x) for axis in axes]
    if len(pads) != 2 * len(places):
        yield "input 1", f"{len(pads)} pads are given, {2 * len(places)} are needed"
        return
    mode = node.attributes.get_string("mode", "constant")
    for index, axis in enumerate(places):
        before, after = pads[index], pads[index + len(places)]
        if x[axis] + before + after < 0:
            yield "input 1", f"the pads {pads} leave nothing of the shape {list(x)}"
        if mode == "reflect" and max(before, after) >= max(x[axis], 1) and max(before, after) > 0:
            yield "input 1", f"the pads {pads} reflect more than the shape {list(x)} has"
        if mode in {"edge", "wrap"} and x[axis] == 0 and max(before, after) > 0:
            yield "input 1", "an axis without elements has no edge"
    fill = shape_of(input_at(node, 2))
    if fill is not None and math.prod(fill) != 1:
        yield "input 2", f"must be one number, has the shape {list(fill)}"


def _resize(node: ir.Node) -> Iterator[Objection]:
    x = shape_of(input_at(node, 0))
    if x is None or (node.op_type == "Resize" and node.version is not None and node.version < 11):
        return
    axes = node.attributes.get_ints("axes", None)
    if axes and any(not -len(x) <= axis < len(x) for axis in axes):
        yield "axes", f"{list(axes)} are not axes of the shape {list(x)}"
        return
    count = len(axes) if axes else len(x)
    given = [array_of(input_at(node, index)) for index in ((2, 3) if node.op_type == "Resize" else (1,))]
    for index, array in enumerate(given, start=2 if node.op_type == "Resize" else 1):
        if array is None or not array.size:
            continue
        if array.shape != (count,):
            yield f"input {index}", f"has the shape {list(array.shape)}, {count} numbers are needed"
        elif not np.all(np.isfinite(array)) or np.any(array <= 0):
            yield f"input {index}", f"{array.ravel().tolist()} are not all positive"
    if (
        node.op_type == "Resize"
        and len(node.inputs) > 2
        and not any(
            value is not None and ((sizes := array_of(value)) is None or sizes.size)
            for value in node.inputs[2:4]
        )
    ):
        yield "input 2", "neither scales nor sizes are given"


def _region(node: ir.Node) -> Iterator[Objection]:
    """The part of an operand that is resized has finite bounds, in one row."""
    roi = array_of(input_at(node, 1))
    if roi is not None and roi.size and roi.ndim != 1:
        yield "input 1", f"has the shape {list(roi.shape)}, one row of numbers is needed"
    if roi is not None and roi.dtype.kind == "f" and not np.all(np.isfinite(roi)):
        yield "input 1", f"{roi.ravel().tolist()} are not all finite"


def _dft(node: ir.Node) -> Iterator[Objection]:
    """A Fourier transform runs over an axis in front of that of real and imaginary parts."""
    x, axes = shape_of(input_at(node, 0)), integers_of(input_at(node, 2))
    if x is None:
        return
    axis = node.attributes.get_int("axis", axes[0] if axes else 0)
    if len(x) < 2 or x[-1] not in (1, 2):
        yield "input 0", f"has the shape {list(x)}: the last axis holds one or two parts"
    elif not -len(x) <= axis < len(x) or axis % len(x) == len(x) - 1:
        yield "axis", f"{axis} is not an axis of the shape {list(x)} in front of the last"


def _concat(node: ir.Node) -> Iterator[Objection]:
    """Operands of a concatenation have the same shape, but for the axis."""
    shapes = [shape_of(value) for value in node.inputs]
    first = next((shape for shape in shapes if shape is not None), None)
    if first is None:
        return
    axis = node.attributes.get_int("axis", 0) % max(len(first), 1)
    for index, shape in enumerate(shapes):
        if shape is not None and (len(shape) != len(first) or _without(shape, axis) != _without(first, axis)):
            yield f"input {index}", f"the shape {list(shape)} does not fit {list(first)} but for axis {axis}"


def _without(shape: Sequence[int], axis: int) -> Sequence[int]:
    return (*shape[:axis], *shape[axis + 1 :])


def _same_size(node: ir.Node) -> Iterator[Objection]:
    x, result = shape_of(input_at(node, 0)), shape_of(node.outputs[0])
    if x is not None and result is not None and math.prod(x) != math.prod(result):
        yield "input 1", f"the shape {list(result)} has another number of elements than {list(x)}"


def _elementwise(node: ir.Node) -> Iterator[Objection]:
    """Operands broadcast to each other, and make what the node says it makes."""
    shapes = [shape_of(value) for value in node.inputs if value is not None]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or "broadcast" in node.attributes:
        return
    try:
        made = np.broadcast_shapes(*known)
    except ValueError:
        yield None, f"the shapes {' and '.join(str(list(shape)) for shape in known)} do not broadcast"
        return
    result = shape_of(node.outputs[0])
    if result is not None and result != made:
        yield None, f"its output has the shape {list(result)}, its inputs broadcast to {list(made)}"


def _gemm(node: ir.Node) -> Iterator[Objection]:
    """The addend of a product of matrices broadcasts to it."""
    result = shape_of(node.outputs[0])
    if result is not None and node.version is not None and node.version >= 7:
        yield from _broadcasts(node, 2, result)


def _repeats(node: ir.Node) -> Iterator[Objection]:
    x, repeats = shape_of(input_at(node, 0)), integers_of(input_at(node, 1))
    if (
        x is not None
        and repeats is not None
        and (len(repeats) != len(x) or any(each < 0 for each in repeats))
    ):
        yield "input 1", f"{repeats} does not say how often each axis of {shaped(x)} repeats"


CONSTRAINTS: Mapping[str, Sequence[Constraint]] = {
    "Conv": (_window, _convolution),
    "ConvInteger": (_window, _convolution),
    "ConvTranspose": (_window, _convolution),
    "MaxPool": (_window, _pooling),
    "AveragePool": (_window, _pooling),
    "LpPool": (_window, _pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), (_images,)),
    "BatchNormalization": (_per_channel(1, 2, 3, 4),),
    "InstanceNormalization": (_per_channel(1, 2),),
    "GroupNormalization": (_groups,),
    "LayerNormalization": (_scaled_axes,),
    "RMSNormalization": (_scaled_axes,),
    "PRelu": (_to_first(1),),
    "Clip": (_bounds,),
    "LRN": (neighbors_exist,),
    **dict.fromkeys(
        ("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"), (distribution_exists,)
    ),
    "Loop": (one_number(0, 1), loop_fits, steps_end),
    "Scan": (scan_fits,),
    "If": (one_number(0), branches_fit),
    "OneHot": (one_number(1), pair_of_values),
    **{operator: (one_number(*indices),) for operator, indices in SINGLE.items()},
    "Trilu": (one_number(1), matrices),
    **dict.fromkeys(("CumSum", "CumProd"), (one_number(1), running_axis_fits)),
    "SplitToSequence": (parts_fit,),
    "QuantizeLinear": (_steps,),
    "DequantizeLinear": (_steps,),
    "LSTM": (_recurrent,),
    "GRU": (_recurrent,),
    "RNN": (_recurrent,),
    "DepthToSpace": (_blocks,),
    "SpaceToDepth": (_blocks,),
    "Pad": (_padding,),
    "Slice": (slices_fit,),
    "TensorScatter": (rows_fit,),
    "Attention": (heads_fit,),
    "GridSample": (_positions,),
    "Resize": (_resize, _region),
    "Upsample": (_resize,),
    "Gather": (indices_fit,),
    "GatherElements": (indices_fit, elements_fit),
    "GatherND": (points_fit,),
    "ReverseSequence": (lengths_fit,),
    "DFT": (_dft,),
    "Scatter": (places_fit,),
    "ScatterElements": (places_fit,),
    "Unique": (some_elements,),
    "ScatterND": (updates_fit,),
    "Reshape": (_same_size,),
    "Concat": (_concat,),
    "Gemm": (_gemm,),
    "MeanVarianceNormalization": (centered_axes_fit,),
    "Squeeze": (axes_fit,),
    "Unsqueeze": (axes_fit,),
    "Tile": (_repeats,),
    "Transpose": (permutation_fit,),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "And", "Or", "Xor",
         "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        (_elementwise,),
    ),
    **dict.fromkeys(
        [f"Reduce{name}" for name in
         ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")],
        (axes_fit,),
    ),
}  # fmt: skip
"""Further constraints on the inputs of an operator."""
