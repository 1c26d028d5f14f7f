"""One form for operators that slide a window: two spatial axes, every attribute stated, pads explicit.

Convolutions and pools over one spatial axis run over two, the first of size 1, between two reshapes.
`auto_pad` and `output_shape` become `pads`; a Pad node in front is folded in where padding with its value
is what the operator does anyway.

Source: Conv, ConvTranspose, MaxPool and AveragePool of https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.rewrite import Names
from tpuflow.frontend.rewrites.arithmetic import clip_bounds
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    input_at,
    integers_of,
    produced_by,
    scalar_of,
    shape_of,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.frontend.rewrite import Emitter, Rules
    from tpuflow.frontend.values import Attribute

__all__ = ["ONE_AXIS", "RULES", "drop_windows_of_padding"]

POOLS = ("MaxPool", "AveragePool")

ROUNDED_UP = frozenset({*POOLS, "LpPool"})
"""Operators whose number of windows may be rounded up."""


def explicit_window(node: ir.Node, emit: Emitter) -> Sequence[ir.Value] | None:
    """States kernel, strides, dilations and pads, and resolves `auto_pad` and `output_shape`."""
    x, y = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    weight = shape_of(input_at(node, 1))
    if x is None or y is None or len(node.outputs) > 1 or (node.op_type not in POOLS and weight is None):
        return None
    rank = len(x) - 2
    if len(y) != len(x):
        return None
    kernel = list(node.attributes.get_ints("kernel_shape", []) or (weight or ())[2:])
    strides = list(node.attributes.get_ints("strides", []) or [1] * rank)
    dilations = list(node.attributes.get_ints("dilations", []) or [1] * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    stated: dict[str, Attribute] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if node.op_type == "ConvTranspose":
        extra = list(node.attributes.get_ints("output_padding", []) or [0] * rank)
        totals = [
            s * (size - 1) + e + extent - out
            for s, size, e, extent, out in zip(strides, x[2:], extra, extents, y[2:], strict=True)
        ]
        if "output_shape" in node.attributes:  # more than the windows reach is padding of the output
            longer = [e - min(0, total) for e, total in zip(extra, totals, strict=True)]
            if all(e < max(s, d) for e, s, d in zip(longer, strides, dilations, strict=True)):
                extra, totals = longer, [max(0, total) for total in totals]
        stated["output_padding"] = extra
    else:
        totals = [
            max(0, (out - 1) * s + extent - size)
            for s, size, extent, out in zip(strides, x[2:], extents, y[2:], strict=True)
        ]
    pads = _pads(node, totals, rank)
    if pads is None:
        return None
    stated["pads"] = pads
    if node.op_type in POOLS:
        # Rounding up matters only where the last window starts beyond the padded input.
        begins, ends = pads[:rank], pads[rank:]
        exact = all(
            (size + b + e - extent) // s + 1 == out
            for size, b, e, extent, s, out in zip(x[2:], begins, ends, extents, strides, y[2:], strict=True)
        )
        stated["ceil_mode"] = 0 if exact else 1
        if node.op_type == "AveragePool":
            stated["count_include_pad"] = node.attributes.get_int("count_include_pad", 0) if any(pads) else 0
            # onnxruntime carries the attribute over to its operator on codes, which does not know it.
            if all(dilation == 1 for dilation in dilations):
                del stated["dilations"]
    else:
        stated["group"] = node.attributes.get_int("group", 1)
    if attributes_of(node) == stated:
        return None
    return [emit(node.op_type, *node.inputs, attributes=stated)]


def drop_windows_of_padding(graph: ir.Graph) -> bool:
    """Has pools leave out windows that would lie wholly in the padding; True if there are any.

    Until opset 22 the standard counts such a window, which runtimes leave out, as the standard does since.
    """
    changed = [_exclude_padding(graph, node) for node in graph]
    return any(changed)


@dataclass(frozen=True)
class _Axis:
    """One axis of a pool whose number of windows is rounded up."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int

    @property
    def is_valid(self) -> bool:
        """Whether there are windows, and none is of padding alone but for the rounding."""
        pads = (self.begin, self.end)
        least = min(self.kernel, self.dilation, self.count)
        return least >= 1 and 0 <= min(pads) <= max(pads) < self.extent

    @property
    def extent(self) -> int:
        """How far a window reaches."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def count(self) -> int:
        """Windows, rounded up."""
        return -(-(self.size + self.begin + self.end - self.extent) // self.stride) + 1

    @property
    def ends_in_padding(self) -> bool:
        """Whether the last of them begins in the padding behind the image."""
        return (self.count - 1) * self.stride >= self.size + self.begin

    @property
    def last_end(self) -> int:
        """Where the last window that counts ends, from the end of the image on."""
        last = self.count - 1 - self.ends_in_padding
        return last * self.stride + self.extent - self.size - self.begin


def _exclude_padding(graph: ir.Graph, node: ir.Node) -> bool:
    """Has the last window that counts end where the padding does, along axes where one of padding follows.

    Where even the image reaches further, between that window and the next, it is cut there.
    """
    x = shape_of(input_at(node, 0))
    pooled = not node.domain and node.op_type in ROUNDED_UP and node.attributes.get_int("ceil_mode", 0) == 1
    if x is None or not pooled:
        return False
    automatic = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    kernel = node.attributes.get_ints("kernel_shape", []) or []
    if automatic not in {"NOTSET", "VALID"} or not kernel or len(x) != len(kernel) + 2:
        return False
    rank = len(kernel)
    pads = list(node.attributes.get_ints("pads", []) or [0] * 2 * rank)
    strides = node.attributes.get_ints("strides", []) or [1] * rank
    dilations = node.attributes.get_ints("dilations", []) or [1] * rank
    if not len(pads) == 2 * len(strides) == 2 * len(dilations) == 2 * rank or min(strides) < 1:
        return False
    axes = [
        _Axis(*each) for each in zip(x[2:], kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    ]
    if not all(axis.is_valid for axis in axes) or not any(axis.ends_in_padding for axis in axes):
        return False
    ends = [axis.last_end if axis.ends_in_padding else axis.end for axis in axes]
    if min(ends) < 0:
        if len(node.outputs) > 1:  # places count in the whole image
            return False
        sizes = [axis.size + min(end, 0) for axis, end in zip(axes, ends, strict=True)]
        node.replace_input_with(0, _cut(graph, node, sizes))
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[:rank], *(max(end, 0) for end in ends)])
    return True


def _cut(graph: ir.Graph, node: ir.Node, sizes: Sequence[int]) -> ir.Value:
    """The first cells of an image that a pool reads, along all of its axes."""
    names, name = Names(graph), node.outputs[0].name
    bounds = []
    for label, numbers in (
        ("starts", [0] * len(sizes)),
        ("ends", list(sizes)),
        ("axes", [2 + axis for axis in range(len(sizes))]),
    ):
        tensor = ir.tensor(np.array(numbers, np.int64))
        value = ir.Value(name=names.value(f"{name}/cut_{label}"), const_value=tensor)
        value.shape, value.dtype = ir.Shape([len(sizes)]), ir.DataType.INT64
        graph.register_initializer(value)
        bounds.append(value)
    slicing = ir.node("Slice", [node.inputs[0], *bounds], name=f"{node.name}/cut")
    slicing.outputs[0].name = names.value(f"{name}/cut")
    graph.insert_before(node, slicing)
    return slicing.outputs[0]


def _pads(node: ir.Node, totals: Sequence[int], rank: int) -> list[int] | None:
    """Pads [begins, ends]; `totals` is what `auto_pad` or `output_shape` asks for in sum."""
    auto = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    shaped = node.op_type == "ConvTranspose" and "output_shape" in node.attributes
    if auto == "VALID" and not shaped:
        return [0] * (2 * rank)
    if auto == "NOTSET" and not shaped:
        return list(node.attributes.get_ints("pads", []) or [0] * (2 * rank))
    if any(total < 0 for total in totals):
        return None
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    return small + large if auto == "SAME_UPPER" else large + small


def fold_pad(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Folds a Pad of the spatial axes into the operator behind it."""
    pad = produced_by(node.inputs[0], "Pad")
    if pad is None or len(node.outputs) > 1 or "pads" not in node.attributes:
        return None
    shape, widths = shape_of(pad.inputs[0]), integers_of(input_at(pad, 1))
    if shape is None or widths is None or input_at(pad, 3) is not None:
        return None
    rank = len(shape) - 2
    own = node.attributes.get_ints("pads", [])
    spatial = widths[2 : 2 + rank] + widths[4 + rank :]
    outside = widths[:2] + widths[2 + rank : 4 + rank]
    if pad.attributes.get_string("mode", "constant") != "constant" or any(outside) or min(spatial) < 0:
        return None
    value = 0.0 if input_at(pad, 2) is None else scalar_of(input_at(pad, 2))
    if value is None or not _pads_with(node, pad, value, own):
        return None
    pads = [a + b for a, b in zip(own, spatial, strict=True)]
    attributes = attributes_of(node) | {"pads": pads}
    kernel = node.attributes.get_ints("kernel_shape", [])
    if node.op_type in POOLS and any(pad >= k for pad, k in zip(pads, [*kernel, *kernel], strict=True)):
        return None
    if node.op_type == "AveragePool":
        attributes["count_include_pad"] = 1
    return emit(node.op_type, pad.inputs[0], *node.inputs[1:], attributes=attributes)


def _pads_with(node: ir.Node, pad: ir.Node, value: float, own: Sequence[int]) -> bool:
    """Whether `node` treats its padding as if it had `value` in it."""
    if node.op_type == "MaxPool":
        if value <= float(np.finfo(np.float32).min):
            return True
        limited = produced_by(pad.inputs[0], "Relu", "Clip")
        bounds = None if limited is None else clip_bounds(limited)
        return bounds is not None and bounds[0] >= value
    if value != 0.0:
        return False
    # With rounding up, the windows that start in the padding count differently.
    return node.op_type == "Conv" or (
        node.attributes.get_int("ceil_mode", 0) == 0
        and (not any(own) or node.attributes.get_int("count_include_pad", 0) == 1)
    )


def two_axes(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Runs a convolution or pool over one spatial axis over two, the first of size 1."""
    x, y = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or y is None or len(x) != 3 or len(node.outputs) > 1 or "pads" not in node.attributes:
        return None
    inputs = [emit.reshape(_require(node.inputs[0]), (x[0], x[1], 1, x[2]), "wide"), *node.inputs[1:]]
    if node.op_type not in POOLS:
        weight = array_of(input_at(node, 1))
        if weight is None:
            return None
        steps = steps_of(node.inputs[1])
        wide = None if steps is None else steps[:, :, np.newaxis, :]
        inputs[1] = emit.folded(_require(node.inputs[1]), weight[:, :, np.newaxis, :], wide)
    attributes = attributes_of(node)
    for name, neutral in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if name in attributes:
            attributes[name] = [neutral, *attributes[name]]  # type: ignore[misc]
    begin, end = node.attributes.get_ints("pads", [0, 0])
    attributes["pads"] = [0, begin, 0, end]
    return emit.reshape(emit(node.op_type, *inputs, attributes=attributes), y)


def global_pool(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Gives a global pool over any number of spatial axes exactly two."""
    x, y = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if x is None or y is None or len(x) == 4 or len(x) < 3:
        return None
    wide = emit.reshape(_require(node.inputs[0]), (x[0], x[1], 1, math.prod(x[2:])), "wide")
    return emit.reshape(emit(node.op_type, wide), y)


def _require(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise ValueError("a required input is missing")
    return value


WINDOWS = ("Conv", "ConvTranspose", *POOLS)

RULES: Rules = {
    **{name: [explicit_window] for name in WINDOWS},
    "Conv": [explicit_window, fold_pad],
    "MaxPool": [explicit_window, fold_pad],
    "AveragePool": [explicit_window, fold_pad],
}

ONE_AXIS: Rules = {
    **{name: [two_axes] for name in WINDOWS},
    "GlobalAveragePool": [global_pool],
    "GlobalMaxPool": [global_pool],
}
"""To be applied once constants behind convolutions are folded, which the reshapes would hide."""
