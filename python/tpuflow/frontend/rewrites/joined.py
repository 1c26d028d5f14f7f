"""Convolutions side by side, whose results a Concat joins along the channels.

    Concat(Conv(x[:k]), Conv(x[k:]))  ->  Conv(x)           a grouped convolution
    Concat(Conv(x), Conv(x))          ->  Conv(x)           with the output channels of both
    Mul(Concat(Conv(a), Conv(b)), s)  ->  Concat(Mul(Conv(a), s[:k]), Mul(Conv(b), s[k:])), and Add alike
    f(Concat(Conv(a), Conv(b)))       ->  Concat(f(Conv(a)), f(Conv(b)))      f works element by element

The first two hold for the same window, and the first for groups of equal size. One pass of the array then
writes whole pixels, where each convolution alone would fill few of its rows and columns. Scales, shifts
and activations behind what is still joined go to the convolutions that they disappear into: networks that
mix kernel sizes (MixNet: Tan and Le, BMVC 2019) normalise behind the Concat.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpuflow.frontend.rewrites.affine import per_channel
from tpuflow.frontend.rewrites.movement import ELEMENTWISE
from tpuflow.frontend.values import (
    array_of,
    attributes_of,
    input_at,
    produced_by,
    shape_of,
    sliced,
    sole_user,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Emitter, Rules

__all__ = ["RULES"]

CHANNELS = 1
"""The axis of images' channels."""


def _joined_convolutions(value: ir.Value | None) -> list[ir.Node] | None:
    """The convolutions with constant weights and biases whose results only the Concat of `value` reads."""
    concat, shape = produced_by(value, "Concat"), shape_of(value)
    if concat is None or shape is None or len(shape) < 3:
        return None
    if concat.attributes.get_int("axis", 0) % len(shape) != CHANNELS or len(concat.inputs) < 2:
        return None
    found = []
    for operand in concat.inputs:
        node = produced_by(operand, "Conv")
        if node is None or operand is None or not sole_user(operand):
            return None
        weights, bias, y = array_of(node.inputs[1]), input_at(node, 2), shape_of(operand)
        biases = array_of(bias)
        if weights is None or (bias is not None and biases is None) or y is None:
            return None
        group = node.attributes.get_int("group", 1)
        whole = len(weights) == y[CHANNELS] and group > 0 and len(weights) % group == 0
        if not whole or (biases is not None and biases.shape != (len(weights),)):
            return None  # a mistake in the model, which is told where its nodes are checked
        found.append(node)
    return found


def _biases(nodes: Sequence[ir.Node]) -> npt.NDArray[Any] | None:
    """The biases of all, one after the other; None where none has one."""
    if all(input_at(node, 2) is None for node in nodes):
        return None
    parts = []
    for node in nodes:
        weights, bias = array_of(node.inputs[1]), array_of(input_at(node, 2))
        assert weights is not None
        parts.append(np.zeros(len(weights), weights.dtype) if bias is None else bias)
    return np.concatenate(parts)


def _window(node: ir.Node) -> dict[str, Any]:
    """What says which elements an output is computed from: all attributes but the groups, defaults stated."""
    weights = array_of(node.inputs[1])
    assert weights is not None
    axes = weights.ndim - 2
    stated = attributes_of(node)
    stated.pop("group", None)
    given: dict[str, Any] = {"auto_pad": "NOTSET", "pads": [0] * (2 * axes)}
    given |= {"strides": [1] * axes, "dilations": [1] * axes} | stated
    return {name: list(v) if isinstance(v, (list, tuple)) else v for name, v in given.items()} | {
        "kernel_shape": list(weights.shape[2:])
    }


def _channels_of(value: ir.Value | None) -> tuple[ir.Value, range] | None:
    """The value of which another is a run of channels, and these; of no Slice all channels of itself."""
    shape = shape_of(value)
    if value is None or shape is None:
        return None
    node = produced_by(value, "Slice")
    found = None if node is None else sliced(node)
    if found is None or found[1] != CHANNELS or found[2].step != 1:
        return value, range(shape[CHANNELS])
    return found[0], found[2]


def one_convolution(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Writes convolutions of one value, or of all its channels in turn, as one."""
    nodes = _joined_convolutions(node.outputs[0])
    if nodes is None or any(steps_of(each.inputs[1]) is not None for each in nodes):
        return None
    parts = [_channels_of(each.inputs[0]) for each in nodes]
    sources = [part[0] for part in parts if part is not None]
    ranges = [part[1] for part in parts if part is not None]
    whole = shape_of(sources[0]) if sources else None
    if len(sources) < len(nodes) or whole is None or any(source is not sources[0] for source in sources):
        return None
    groups = [each.attributes.get_int("group", 1) for each in nodes]
    weights = [array for each in nodes if (array := array_of(each.inputs[1])) is not None]
    same_window = all(_window(each) == _window(nodes[0]) for each in nodes)
    if not same_window or len({array.shape[1:] for array in weights}) > 1:
        return None
    if all(channels == range(whole[CHANNELS]) for channels in ranges) and set(groups) == {1}:
        group = 1
    elif ranges[0].start == 0 and ranges[-1].stop == whole[CHANNELS]:
        outputs = {len(array) // group for array, group in zip(weights, groups, strict=True)}
        if any(a.stop != b.start for a, b in pairwise(ranges)) or len(outputs) > 1:
            return None
        group = sum(groups)
    else:
        return None
    inputs = [sources[0], emit.constant(np.concatenate(weights), "weights")]
    biases = _biases(nodes)
    if biases is not None:
        inputs.append(emit.constant(biases, "bias"))
    return emit("Conv", *inputs, attributes={**_window(nodes[0]), "group": group})


def constant_to_branches(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes a Mul or Add by constants per channel in front of a Concat of convolutions."""
    joined, constant, shape = node.inputs[0], array_of(node.inputs[1]), shape_of(node.inputs[0])
    if joined is None or not sole_user(joined) or constant is None or shape is None:
        return None
    nodes = _joined_convolutions(joined)
    if nodes is None:
        return None
    values = per_channel(constant, len(shape), CHANNELS, shape[CHANNELS])
    if values is None:
        return None
    parts: list[ir.Value] = []
    at = 0
    for each in nodes:
        weights = array_of(each.inputs[1])
        assert weights is not None
        own = values[at : at + len(weights)].reshape(-1, *(1,) * (len(shape) - 2))
        at += len(weights)
        constant_part = emit.constant(own, f"part{len(parts)}_constant", like=node.inputs[1])
        parts.append(emit(node.op_type, each.outputs[0], constant_part, label=f"part{len(parts)}"))
    return emit("Concat", *parts, attributes={"axis": CHANNELS})


def function_to_branches(node: ir.Node, emit: Emitter) -> ir.Value | None:
    """Takes a function of one input, element by element, in front of a Concat of convolutions."""
    joined = node.inputs[0]
    if joined is None or not sole_user(joined) or len(node.outputs) > 1:
        return None
    nodes = _joined_convolutions(joined)
    if nodes is None:
        return None
    parts = [
        emit(
            node.op_type,
            each.outputs[0],
            *node.inputs[1:],
            attributes=attributes_of(node),
            label=f"part{index}",
            domain=node.domain,
        )
        for index, each in enumerate(nodes)
    ]
    return emit("Concat", *parts, attributes={"axis": CHANNELS})


RULES: Rules = {
    "Concat": [one_convolution],
    "Mul": [constant_to_branches],
    "Add": [constant_to_branches],
    **{name: [function_to_branches] for name in ELEMENTWISE},
}
"""To be applied where scales and shifts are folded, once functions are recognised."""
