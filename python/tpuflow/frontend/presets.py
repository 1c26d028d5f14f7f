"""Named cuts of well-known networks: where users of such accelerators leave the rest to the host.

Each preset knows the tensors by the names under which the network was published, and, for exports of the
same architecture under other names, how to find the same place by structure:

    heads            the last convolutions with learnt weights: nothing behind them convolves again
    joined heads     the concatenations that bring the heads of all scales together
    embedding        what is looked up in a table of constants by an input

The ways are tried in order; the first that finds all its tensors decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from tpuflow.errors import ModelError
from tpuflow.frontend.cut import nearest, unknown_tensor

__all__ = ["PRESETS", "Preset", "resolve"]

Way = Callable[[ir.Graph], Sequence[str] | None]


@dataclass(frozen=True)
class Preset:
    """A named cut.

    Attributes:
        about: What is cut off, for listings.
        end: Whether the tensors become outputs; otherwise inputs.
        published: Their published names.
        alike: Other ways to find the same place, in the order to be tried.
    """

    about: str
    end: bool
    published: tuple[str, ...]
    alike: tuple[Way, ...]


def resolve(name: str, model: ir.Model, label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Inputs and outputs a preset cuts `model` at; one of the two is empty.

    Raises:
        ModelError: If there is no such preset, or the model has none of the places it knows.
    """
    preset = PRESETS.get(name)
    if preset is None:
        near = nearest(name, PRESETS, 1)
        hint = f'did you mean "{near[0]}"? ' if near else ""
        raise ModelError(f'there is no cut preset "{name}": {hint}known are {", ".join(PRESETS)}')
    values = ir.convenience.create_value_mapping(model.graph)
    if all(each in values for each in preset.published):
        found: Sequence[str] | None = preset.published
    else:
        found = next((names for way in preset.alike if (names := way(model.graph)) is not None), None)
    if found is None:
        absent = next(each for each in preset.published if each not in values)
        raise ModelError(
            f'{label}: cut preset "{name}" does not fit: tensor "{absent}": {unknown_tensor(absent, values)}'
        )
    return ((), tuple(found)) if preset.end else (tuple(found), ())


def _tensors_named(*names: str) -> Way:
    """The tensors of these names."""

    def way(graph: ir.Graph) -> Sequence[str] | None:
        values = ir.convenience.create_value_mapping(graph)
        return names if all(name in values for name in names) else None

    return way


def _heads(count: int) -> Way:
    """The last convolutions with learnt weights, if there are `count` of them."""

    def way(graph: ir.Graph) -> Sequence[str] | None:
        found = [value.name or "" for value in _last_convolutions(graph)]
        return found if len(found) == count else None

    return way


def _joined_heads(heads: int, count: int) -> Way:
    """The first concatenations behind the last convolutions, if they join `heads` heads in `count`."""

    def way(graph: ir.Graph) -> Sequence[str] | None:
        lasts = _last_convolutions(graph)
        joins: dict[ir.Value, int] = {}
        for value in lasts:
            join = _first_join(value)
            if join is not None:
                joins[join] = joins.get(join, 0) + 1
        whole = len(lasts) == heads and len(joins) == count and set(joins.values()) == {heads // count}
        ordered = [value for node in graph for value in node.outputs if value in joins]
        return [value.name or "" for value in ordered] if whole else None

    return way


def _embedding(graph: ir.Graph) -> Sequence[str] | None:
    """The result of the first lookup of an input in a constant table."""
    fed = set(graph.inputs) - set(graph.initializers.values())
    for node in graph:
        if node.op_type == "Shape":
            continue
        if any(value in fed for value in node.inputs):
            fed.update(node.outputs)
            table = node.inputs[0]
            if node.op_type == "Gather" and table is not None and _constant(table) and node.inputs[1] in fed:
                return [node.outputs[0].name or ""]
    return None


def _constant(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    return value is not None and (value.is_initializer() or (node is not None and node.op_type == "Constant"))


def _learnt(node: ir.Node) -> bool:
    """Whether a node is a convolution of the network, not a fixed weighted sum over channels."""
    if node.op_type != "Conv" or len(node.inputs) > 2:
        return node.op_type == "Conv"
    weights = node.inputs[1]
    shape = None if weights is None else weights.shape
    return shape is None or not shape.is_static() or shape.numpy()[0] > 1


def _last_convolutions(graph: ir.Graph) -> list[ir.Value]:
    """Results of the convolutions behind which there is none; with the bias, where that is added apart."""
    followed: set[ir.Value] = set()
    lasts: list[ir.Value] = []
    for node in reversed(list(graph)):
        learnt = _learnt(node)
        if learnt and not any(value in followed for value in node.outputs):
            lasts.append(_with_bias(node.outputs[0]))
        if learnt or any(value in followed for value in node.outputs):
            followed.update(value for value in node.inputs if value is not None)
    return lasts[::-1]


def _with_bias(value: ir.Value) -> ir.Value:
    uses = list(value.uses())
    if len(uses) == 1 and uses[0].node.op_type in ("Add", "BiasAdd"):
        node = uses[0].node
        if _constant(node.inputs[1 - uses[0].idx]):
            return node.outputs[0]
    return value


def _first_join(value: ir.Value) -> ir.Value | None:
    """The concatenation that `value` runs into, with nothing but rearrangements before it."""
    while True:
        users = [use.node for use in value.uses() if use.idx == 0 or use.node.op_type == "Concat"]
        users = [node for node in users if node.op_type not in ("Shape", "Size")]
        if len(users) != 1:
            return None
        if users[0].op_type == "Concat":
            return users[0].outputs[0]
        if users[0].op_type not in ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
            return None
        value = users[0].outputs[0]


BOXES = tuple(
    f"BoxPredictor_{scale}/{kind}/BiasAdd:0"
    for scale in range(6)
    for kind in ("BoxEncodingPredictor", "ClassPredictor")
)
POSE = tuple(
    f"/model.22/{name}"
    for name in (
        "Mul_6_output_0",
        "Concat_5_output_0",
        "Sigmoid_output_0",
        "Sigmoid_1_output_0",
        "Concat_7_output_0",
        "Concat_6_output_0",
        "dfl/conv/Conv_output_0",
    )
)
LATER_POSE = tuple(
    f"/model.22/{name}"
    for name in ("Mul_4_output_0", "Sigmoid_output_0", "Sigmoid_1_output_0", "dfl/conv/Conv_output_0")
)
"""Key points, class, visibility of key points and box distances, as later exporters name them; their anchors
and strides are constants."""

PRESETS: Mapping[str, Preset] = {
    "gpt2": Preset(
        "start behind the token embedding, whose table is large",
        end=False,
        published=("/wte/Gather_output_0",),
        alike=(_tensors_named("/m/transformer/wte/Gather_output_0"), _embedding),
    ),
    "ssd_mobilenet_v1": Preset("end at the box and class predictors", True, BOXES, (_heads(12),)),
    "ssd_mobilenet_v2": Preset("end at the box and class predictors", True, BOXES, (_heads(12),)),
    "ssd_resnet50": Preset(
        "end where the predictors of all scales are joined",
        end=True,
        published=("concat_1:0", "concat:0"),
        alike=(_joined_heads(12, 2),),
    ),
    "ssdlite320_mobilenet_v3_large": Preset(
        "end where the predictors of all scales are joined",
        end=True,
        published=("/Squeeze_2_output_0", "/Reshape_output_0"),
        alike=(_joined_heads(12, 2),),
    ),
    "yolo5s": Preset(
        "end at the predictors of the three scales",
        end=True,
        published=("onnx::Shape_663", "onnx::Shape_999", "onnx::Shape_327"),
        alike=(_heads(3),),
    ),
    "yolov8n_pose": Preset(
        "end before boxes and key points are decoded",
        end=True,
        published=POSE,
        alike=(_tensors_named(*LATER_POSE), _heads(9)),
    ),
}
