"""Folding: what depends on constants and static shapes only is evaluated, and shapes are inferred.

onnxscript does it. It evaluates nodes one by one, by ONNX's reference implementation, and importing all of
that takes longer than normalising a plain image classifier in which nothing is to be folded: whether there
is anything to do is seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
from onnx_ir.passes import common

from tpuflow.frontend.rewrites import stated
from tpuflow.frontend.values import shape_of

__all__ = ["fold_constants", "is_settled", "lift_constants"]

LARGEST_FOLDED = 1 << 27  # elements a folded constant may have


def fold_constants(model: ir.Model) -> bool:
    """Evaluates what depends on constants and static shapes only, and infers shapes on the way."""
    try:
        changed = not is_settled(model) and _folded(model)
    except RuntimeError:  # a node whose evaluation fails, which the listing of unsupported nodes says better
        changed = False
    lift_constants(model)
    return changed


def lift_constants(model: ir.Model) -> None:
    """Makes initialisers of constants that are nodes."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _folded(model: ir.Model) -> bool:
    from onnxscript.optimizer import fold_constants_ir  # noqa: PLC0415 - plain networks do without

    result = fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=LARGEST_FOLDED,
        output_size_limit=LARGEST_FOLDED,
        should_fold=lambda node: not (stated.keeps_integers(node) or "Sequence" in node.op_type),
    )
    return bool(result.modified)


def is_settled(model: ir.Model) -> bool:
    """Whether folding would leave a model as it is: all nodes compute floats of known shapes from inputs."""
    return not model.functions and all(_is_settled(node) for node in model.graph)


def _is_settled(node: ir.Node) -> bool:
    if any(attribute.type in _BODIES for attribute in node.attributes.values()):
        return False
    if any(value.dtype != ir.DataType.FLOAT or shape_of(value) is None for value in node.outputs):
        return False
    if all(value is None or value.const_value is not None for value in node.inputs):
        return False
    return SIMPLIFIED.get(node.op_type, _as_it_is)(node)


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _as_it_is(_: ir.Node) -> bool:
    return True


def _never(_: ir.Node) -> bool:
    return False


def _changes_shape(node: ir.Node) -> bool:
    taken = node.inputs[0]
    return taken is not None and shape_of(taken) not in (None, shape_of(node.outputs[0]))


def _joins(node: ir.Node) -> bool:
    shapes = [None if value is None else shape_of(value) for value in node.inputs]
    return len(shapes) > 1 and all(shape is not None and 0 not in shape for shape in shapes)


SIMPLIFIED: Mapping[str, Callable[[ir.Node], bool]] = {
    # Of floats nothing is done to these: they are followed for the sake of sizes.
    "Abs": _as_it_is,
    "Add": _as_it_is,
    "Gather": _as_it_is,
    "Squeeze": _as_it_is,
    "Concat": _joins,
    "Expand": _changes_shape,
    "Reshape": _changes_shape,
} | dict.fromkeys(
    (
        "Cast",
        "CastLike",
        "ConcatFromSequence",
        "Dropout",
        "Identity",
        "If",
        "SequenceAt",
        "SequenceConstruct",
        "Shape",
        "Size",
        "SplitToSequence",
    ),
    _never,
)
"""Operators that onnxscript simplifies beyond constants, and when it leaves a node of floats alone."""
