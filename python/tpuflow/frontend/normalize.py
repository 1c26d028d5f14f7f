"""Normalisation: any accepted model becomes one over the closed operator set, with static shapes.

The whole of it is the list `STAGES`. Passes of onnx-ir and onnxscript do what they do well (inlining,
constant folding, shape inference, common subexpressions, dead code, names); the rewrites of this package
do the rest, because they must keep the user's tensor names, fold in float64 and leave exactly one form.
The stages run until none changes anything, so normalising twice changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from tpuflow.frontend.folding import fold_constants, fold_in_onnxruntime, lift_constants
from tpuflow.frontend.functions import expand_functions
from tpuflow.frontend.inference import DOMAIN
from tpuflow.frontend.precision import to_float32, weights_to_float32
from tpuflow.frontend.rewrite import Rules, apply_once, apply_rules
from tpuflow.frontend.rewrites import (
    activations,
    affine,
    arithmetic,
    attention,
    caches,
    channel_attention,
    choices,
    codes,
    contributed,
    control,
    decoders,
    einsum,
    experts,
    indexing,
    integers,
    joined,
    layout,
    linear,
    logic,
    mixtures,
    movement,
    normalization,
    normalization_fusion,
    opset,
    parts,
    powers,
    query_blocks,
    recurrent,
    reduction,
    resize,
    rotation,
    sampling,
    sinks,
    stated,
    sums,
    tables,
    volumes,
    windows,
)
from tpuflow.frontend.validity import note_types, objection
from tpuflow.frontend.values import shape_of, stated_shape

if TYPE_CHECKING:
    from tpuflow.frontend.rewrite import Rewrite

__all__ = ["STAGES", "inferred_values", "normalize", "simplify", "with_known_shapes"]

MOST_ROUNDS = 32
MOST_SIZES = 1 << 14
"""Elements of a vector that shape inference may follow."""
SMALL = 1 << 12  # elements up to which equal constants are found and shared


def _merge(*rules: Rules) -> Rules:
    merged: dict[str, list[Rewrite]] = {}
    for each in rules:
        for operator, rewrites in each.items():
            merged.setdefault(operator, []).extend(rewrites)
    return merged


ONE_FORM = _merge(
    contributed.RULES,
    decoders.RULES,
    mixtures.RULES,
    stated.RULES,
    linear.RULES,
    einsum.RULES,
    affine.RULES,
    windows.RULES,
    movement.RULES,
    reduction.RULES,
    sampling.RULES,
    resize.RULES,
    codes.RULES,
    arithmetic.RULES,
    logic.RULES,
    integers.RULES,
    indexing.RULES,
    sums.RULES,
    recurrent.RULES,
    control.RULES,
)
"""Leaves one way to write each thing."""

LAYOUT = _merge(layout.RULES, {"Transpose": movement.RULES["Transpose"]})
"""Brings transposes together and cancels them."""

RECOGNIZED = _merge(activations.RULES, normalization_fusion.RULES, normalization.RULES)
"""Finds functions decomposed into elementary operators."""


def remove_dead_code(model: ir.Model) -> bool:
    """Removes nodes and initialisers without a use, and those that repeat another."""
    _forget_removed_users(model)
    changed = common.RemoveUnusedNodesPass()(model).modified
    changed = common.DeduplicateInitializersPass(size_limit=SMALL)(model).modified or changed
    kinds = {attribute.type for node in model.graph for attribute in node.attributes.data.values()}
    if ir.AttributeType.TYPE_PROTO not in kinds:  # which the pass cannot compare
        changed = common.CommonSubexpressionEliminationPass()(model).modified or changed
    return common.RemoveUnusedNodesPass()(model).modified or changed


def _forget_removed_users(model: ir.Model) -> None:
    """Lets values go that nodes of branches not taken read, which folding leaves connected to them."""
    present = set(model.graph.all_nodes())
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in present for value in node.outputs]
    for value in values:
        for use in list(value.uses()):
            if use.node not in present:
                use.node.replace_input_with(use.idx, None)


def _rules(rules: Rules) -> Callable[[ir.Model], bool]:
    return lambda model: apply_rules(model, rules)


STAGES: Mapping[str, Callable[[ir.Model], bool]] = {
    "current opset": _rules(opset.RULES),
    "32-bit floats": weights_to_float32,
    "fold constants": fold_constants,
    "one form": _rules(ONE_FORM),
    "remove dead code": remove_dead_code,
    "transposes towards the outputs": _rules(LAYOUT),
    "recognise functions": _rules(RECOGNIZED),
    "one normalised axis": _rules(normalization.ONE_AXIS),
    "fold scales and shifts": _rules(
        _merge(
            joined.RULES,
            parts.RULES,
            affine.FOLDING,
            attention.RULES,
            sinks.RULES,
            channel_attention.RULES,
        )
    ),
    "scales and shifts alone": _rules(affine.LEFT_OVER),
    "two spatial axes": _rules(_merge(windows.ONE_AXIS, volumes.RULES)),
    "activations next to their operators": _rules(movement.SINKING),
    "sweep up": remove_dead_code,
}
"""In order; repeated as a whole until nothing changes."""

LAST_RESORTS: Sequence[Callable[[ir.Model], bool]] = (
    fold_in_onnxruntime,
    _rules(rotation.RULES),
    _rules(_merge(caches.RULES, tables.RULES)),
    _rules(experts.RULES),
    _rules(_merge(choices.LATE, control.LATE, indexing.LATE, powers.LATE, codes.LATE, integers.LATE)),
    expand_functions,
    _rules(query_blocks.RULES),
)
"""Tried in order once the stages change nothing more; the stages then run again."""


def normalize(model: ir.Model) -> ir.Model:
    """Normalises `model` in place and returns it.

    Operators outside the closed set are left where they are; `tpuflow.frontend.supported` lists them.
    """
    with _quiet("onnxscript", "onnx_ir"):
        _prepare(model)
        before: list[str] = []
        for _ in range(MOST_ROUNDS):
            changed = [stage(model) for stage in STAGES.values()]
            # Passes of two libraries may undo each other within a round, as with two outputs that are one
            # value: then it is the result of the round that counts.
            after = [str(node) for node in model.graph] if any(changed) else before
            if after == before and not any(stage(model) for stage in LAST_RESORTS):
                break
            before = after
        else:
            # Nodes that are not valid may change with each round: they are listed, in whatever form.
            if all(objection(node, model.graph.opset_imports) is None for node in model.graph):
                raise RuntimeError(f"normalisation does not settle within {MOST_ROUNDS} rounds")
        _finish(model)
    return model


def simplify(model: ir.Model, rounds: int) -> ir.Model:
    """As `normalise`, but for a number of rounds after which what is reached counts."""
    with _quiet("onnxscript", "onnx_ir"):
        _prepare(model)
        for _ in range(rounds):
            before = [str(node) for node in model.graph]
            for stage in STAGES.values():
                stage(model)
            if [str(node) for node in model.graph] == before:
                break
        _finish(model)
    return model


def with_known_shapes(model: ir.Model) -> ir.Model:
    """A copy of `model` in which all that follows from static shapes is a constant; no more is changed.

    Functions are inlined, the opset is raised, floats are float32.
    """
    clone = model.clone()
    with _quiet("onnxscript", "onnx_ir"):
        _prepare(clone)
        fold_constants(clone)
        common.RemoveUnusedNodesPass()(clone)
        common.TopologicalSortPass()(clone)
    return clone


def inferred_values(model: ir.Model) -> Mapping[str, ir.Value]:
    """The values of `model` by name, with types and shapes as far as known; `model` is not changed."""
    clone = model.clone()
    with _quiet("onnxscript", "onnx_ir"):
        _prepare(clone)
        before = ir.convenience.create_value_mapping(clone.graph)
        fold_constants(clone)
    return before


def _prepare(model: ir.Model) -> None:
    """Undoes what says nothing about the computation: functions, old opsets, constants as nodes."""
    common.InlinePass(criteria=lambda function: not _is_ours(function))(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.RemoveInitializersFromInputsPass()(model)
    lift_constants(model)
    # Shapes the exporter noted may be those of another batch size, or plainly wrong.
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.shape = ir.Shape(value.const_value.shape.numpy())
            value.type = ir.TensorType(value.const_value.dtype)
    for node in model.graph:
        node.domain = "" if node.domain == "ai.onnx" else node.domain
        # A node without a name is known by what it computes, as model viewers show it.
        node.name = node.name or node.outputs[0].name
        while node.inputs and node.inputs[-1] is None:  # as good as not listed
            node.resize_inputs(len(node.inputs) - 1)
        for output in node.outputs:
            output.shape = stated_shape(output)
    to_float32(model)
    common.NameFixPass()(model)
    _infer_shapes(model)
    while windows.drop_windows_of_padding(model.graph):
        for node in model.graph:
            for output in node.outputs:
                output.shape = None
        _infer_shapes(model)
    opset.note_versions(model, model.graph.opset_imports.get("", opset.TARGET))
    note_types(model.graph)
    model.graph.opset_imports[""] = opset.TARGET
    apply_rules(model, opset.RULES)
    apply_once(model, opset.RULES, within_bodies=True)
    model.ir_version = 10


def _infer_shapes(model: ir.Model) -> None:
    # Of operands that are no tensors inference may make types that cannot be read: then nothing is known.
    with contextlib.suppress(ir.serde.SerdeError):
        _infer_known_shapes(model)


def _infer_known_shapes(model: ir.Model) -> None:
    infer_shapes = common.ShapeInferencePass
    infer_shapes(check_type=False, strict_mode=False, data_prop=False)(model)
    if any(shape_of(value) is None for node in model.graph for value in node.outputs) and _has_few_sizes(
        model.graph
    ):
        infer_shapes(check_type=False, strict_mode=False, data_prop=True)(model)


def _has_few_sizes(graph: ir.Graph) -> bool:
    """Whether inference may follow elements that might be sizes: it makes an object of a kilobyte of each.

    It does so for all elements of every vector, of floats too, that one of these operators reads.
    """
    for node in graph:
        for value in node.inputs if node.op_type in FOLLOWED else ():
            shape = shape_of(value)
            if shape is not None and len(shape) == 1 and shape[0] > MOST_SIZES:
                return False
        if node.op_type in SIZED and node.outputs and shape_of(node.outputs[0]) is None:
            given = node.inputs[SIZED[node.op_type]] if len(node.inputs) > SIZED[node.op_type] else None
            sizes = shape_of(given)
            if sizes is None or sizes in {(), (1,)}:
                return False  # it may make a vector of any size
    return True


FOLLOWED = frozenset({"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
"""Operators whose operands' elements inference follows."""
SIZED = {"ConstantOfShape": 0, "Expand": 1, "Range": 0, "Reshape": 1, "Tile": 1}
"""Operators that are told what sizes to make, and the input that says so."""


def _finish(model: ir.Model) -> None:
    for node in model.graph:
        if node.op_type == "Identity":  # what passes an input on to an output is named after the output
            node.name = node.outputs[0].name
    apply_once(model, movement.AT_THE_END)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    model.graph.opset_imports[""] = opset.needed_opset(model)
    _define_functions(model)
    common.RemoveUnusedOpsetsPass()(model)
    common.NameFixPass()(model)
    common.TopologicalSortPass()(model)
    _take_turns(model.graph)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value.name = value.name
            value.shape = ir.Shape(value.const_value.shape.numpy())


def _take_turns(graph: ir.Graph) -> None:
    """Lists nodes by what comes before them, where recurrent layers follow each other step by step."""
    nodes = list(graph)
    marks = [node.metadata_props.pop(recurrent.STEPWISE, None) for node in nodes]
    if all(mark is None for mark in marks):
        return
    depth: dict[ir.Node, int] = {}
    for node in nodes:
        makers = (value.producer() for value in node.inputs if value is not None)
        depth[node] = 1 + max((depth.get(maker, 0) for maker in makers if maker is not None), default=0)
    graph.remove(nodes)
    graph.extend(sorted(nodes, key=depth.__getitem__))


def _define_functions(model: ir.Model) -> None:
    """Adds the definition of each function of ours that the model calls."""
    called = {node.op_type for node in model.graph if node.domain == DOMAIN}
    if called:
        model.graph.opset_imports[DOMAIN] = 1
    for name in sorted(called & FUNCTIONS.keys()):
        function = FUNCTIONS[name]()
        function.opset_imports[""] = model.graph.opset_imports[""]
        model.functions[function.identifier()] = function


def _is_ours(function: ir.Function) -> bool:
    """Whether a function of a file is one of ours, not another of the same domain or name."""
    own = FUNCTIONS.get(function.name) if function.domain == DOMAIN else None
    return own is not None and [str(node) for node in function] == [str(node) for node in own()]


def _silu() -> ir.Function:
    """X sigmoid(x)."""
    x = ir.Value(name="x")
    gate = ir.Node("", "Sigmoid", [x], outputs=[ir.Value(name="gate")])
    product = ir.Node("", "Mul", [x, gate.outputs[0]], outputs=[ir.Value(name="y")])
    body = ir.Graph([x], product.outputs, nodes=[gate, product], opset_imports={"": opset.TARGET})
    return ir.Function(DOMAIN, "Silu", graph=body, attributes=[])


def _rms_normalization() -> ir.Function:
    """X / sqrt(mean(x^2) + epsilon) * scale over the last axis, which is what `axis` says."""
    x, scale = ir.Value(name="x"), ir.Value(name="scale")
    nodes: list[ir.Node] = []

    def add(operator: str, name: str, *inputs: ir.Value, attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        nodes.append(ir.Node("", operator, inputs, attributes, outputs=[ir.Value(name=name)]))
        return nodes[-1].outputs[0]

    axes = add("Constant", "axes", attributes=[ir.AttrInt64s("value_ints", [-1])])
    floats = ir.AttributeType.FLOAT
    epsilon = add("Constant", "epsilon", attributes=[ir.RefAttr("value_float", "epsilon", floats)])
    mean = add("ReduceMean", "mean", add("Mul", "square", x, x), axes)
    root = add("Sqrt", "root", add("Add", "sum", mean, epsilon))
    y = add("Mul", "y", add("Div", "normal", x, root), scale)
    body = ir.Graph([x, scale], [y], nodes=nodes, opset_imports={"": opset.TARGET})
    attributes = [ir.Attr("epsilon", floats, None), ir.Attr("axis", ir.AttributeType.INT, None)]
    return ir.Function(DOMAIN, "RMSNormalization", graph=body, attributes=attributes)


FUNCTIONS: Mapping[str, Callable[[], ir.Function]] = {
    "Silu": _silu,
    "RMSNormalization": _rms_normalization,
}


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keeps libraries from warning: the list of unsupported nodes says it better, and constants overflow."""
    loggers: Sequence[logging.Logger] = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
