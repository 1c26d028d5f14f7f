"""The engine that applies local rewrites to a float model.

A rewrite looks at one node and either declines (returns None) or returns the values that take the place of
the node's outputs: new ones made through the `Emitter`, or values that exist already. It never touches the
graph itself. The engine does the rest, so the rules below hold for every rewrite:

* **Validity.** A rewrite is only shown nodes that are as the standard demands (`tpuflow.frontend.validity`)
  and make elements, and asks for the nodes before them by `produced_by` and `maker_of`, which keep others
  from it.
* **Names.** A value that replaces another takes over its name, so every tensor that survives is found under
  the name the user's model gives it. The node that produces it keeps the node's name; helpers are called
  after it (`conv1/pad`). Graph inputs and outputs keep names and order.
* **Types and shapes.** Every value made here gets its type and static shape at once, by ONNX's own inference.
* **Cost.** One sweep visits each node once and looks up rewrites by operator; sweeps repeat until none
  applies. Nothing scans the graph from within a rewrite.

Nodes left without a consumer are removed at once, so the number of users a rewrite sees is right. A rewrite
that looks through several nodes need not ask whether it is the only user of what lies between, unless it
would duplicate work: what others use simply stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.frontend.inference import DOMAIN, infer_output
from tpuflow.frontend.validity import objection
from tpuflow.frontend.values import (
    Attribute,
    all_bodies,
    attributes_of,
    shape_of,
    sole_user,
    state_steps,
    use_count,
)

__all__ = [
    "Emitter",
    "Names",
    "Rewrite",
    "Rules",
    "apply_once",
    "apply_rules",
    "may_become_output",
]

MAX_SWEEPS = 64
WIDE = 64
"""Inputs of a node from which replacing one must not look at all others."""
MOST_COMPARED = 64
"""Elements of constants up to which a rewrite is held against what was there."""
BEFORE_ALL = -(2**31)
"""End of a Slice that walks backwards past the first element."""

Array = npt.NDArray[Any]


class Emitter:
    """Makes the nodes and constants of one replacement.

    Attributes:
        nodes: What was made so far, in order.
    """

    def __init__(self, node: ir.Node, names: Names, versions: Mapping[str, int]) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._node = node
        self._names = names
        self._versions = versions

    def __call__(
        self,
        operator: str,
        *inputs: ir.Value | None,
        attributes: Mapping[str, Attribute] | None = None,
        label: str | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Adds a node with one output, which is returned.

        Args:
            operator: Operator type.
            inputs: Its inputs; None for an optional one left out.
            attributes: Its attributes, by name.
            label: What to call node and output when they are helpers; the operator in lower case by default.
            domain: Domain of the operator.
        """
        label = label or operator.lower()
        output = ir.Value(name=self._names.value(f"{self._node.outputs[0].name}/{label}"))
        self._add(
            ir.Node(
                domain,
                operator,
                list(inputs),
                [_attribute(name, value) for name, value in (attributes or {}).items()],
                outputs=[output],
                name=f"{self._node.name}/{label}",
            )
        )
        return output

    def several(
        self, operator: str, *inputs: ir.Value | None, attributes: Mapping[str, Attribute] | None = None
    ) -> list[ir.Value]:
        """Adds a node with as many outputs as the one to be replaced, in ONNX's own domain."""
        label = operator.lower()
        outputs = [ir.Value(name=self._names.value(f"{old.name}/{label}")) for old in self._node.outputs]
        self._add(
            ir.Node(
                "",
                operator,
                list(inputs),
                [_attribute(name, value) for name, value in (attributes or {}).items()],
                outputs=outputs,
                name=f"{self._node.name}/{label}",
            )
        )
        return outputs

    def _add(self, node: ir.Node) -> None:
        self.nodes.append(node)
        infer_output(node, self._versions)

    def constant(
        self,
        array: npt.ArrayLike,
        label: str,
        like: ir.Value | None = None,
        steps: Array | None = None,
    ) -> ir.Value:
        """Adds an initialiser named after the node.

        Args:
            array: The values.
            label: What they are, for the name.
            like: Where given, the values take the element type of this one.
            steps: Where given, what every element is a whole multiple of.
        """
        values = np.asarray(array)
        if like is not None and like.dtype is not None:
            values = values.astype(like.dtype.numpy())
        made = self.initializer(values, f"{self._node.name}/{label}")
        state_steps(made, steps)
        return made

    def integers(self, values: Sequence[int], label: str) -> ir.Value:
        """Adds a one-dimensional int64 initialiser: a shape, axes, pads."""
        return self.constant(np.asarray(values, np.int64), label)

    def folded(self, old: ir.Value, array: Array, steps: Array | None = None) -> ir.Value:
        """Adds the initialiser that takes the place of `old`, under its name where nothing else uses it.

        Only for a rewrite that is sure not to decline, since `old` itself may change. `steps` is what every
        element is a whole multiple of, where that is known.
        """
        if sole_user(old):
            old.const_value = ir.tensor(array, name=old.name)
            old.shape = ir.Shape(array.shape)
            made = old
        else:
            made = self.initializer(array, f"{old.name}/folded")
        state_steps(made, steps)
        return made

    def initializer(self, array: Array, name: str) -> ir.Value:
        """Adds an initialiser under `name`, or the next free name like it."""
        name = self._names.value(name)
        tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
        value = ir.Value(
            name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
        )
        self.constants.append(value)
        return value

    def inline(self, graph: ir.Graph, arguments: Sequence[ir.Value | None], label: str) -> list[ir.Value]:
        """Adds a copy of the nodes of a subgraph, with `arguments` for its inputs; returns its outputs."""
        copy = graph.clone(allow_outer_scope_values=True)
        outputs = list(copy.outputs)
        copy.outputs.clear()
        for formal, actual in zip(copy.inputs, arguments, strict=True):
            if actual is None:
                raise ValueError("an argument is missing")
            formal.replace_all_uses_with(actual)
            outputs = [actual if output is formal else output for output in outputs]
        for value in list(copy.initializers.values()):
            tensor = value.const_value
            if tensor is not None:
                made = self.initializer(tensor.numpy(), f"{self._node.name}/{label}/{value.name}")
                value.replace_all_uses_with(made)
                outputs = [made if output is value else output for output in outputs]
        nodes = list(copy)
        copy.remove(nodes)
        for node in nodes:
            node.name = f"{self._node.name}/{label}/{node.name or node.op_type.lower()}"
            for output in node.outputs:
                output.name = self._names.value(f"{self._node.name}/{label}/{output.name}")
                output.shape = None
            self.nodes.append(node)
            if node.op_type == "Constant" and not node.domain:
                _state_constant(node)
            else:
                infer_output(node, self._versions)
        return outputs

    def reshape(self, x: ir.Value, shape: Sequence[int], label: str = "reshape") -> ir.Value:
        """Adds a Reshape to a known shape."""
        return self("Reshape", x, self.integers(shape, f"{label}_shape"), label=label)

    def slice(self, x: ir.Value, axis: int, kept: range, label: str = "slice") -> ir.Value:
        """Adds a Slice that keeps the indices `kept` of one axis."""
        # Backwards the end before the first element has no index of its own; a large negative one is clipped.
        stop = kept.stop if kept.step > 0 or kept.stop >= 0 else BEFORE_ALL
        numbers = (("start", kept.start), ("end", stop), ("axis", axis), ("step", kept.step))
        bounds = [self.integers([number], f"{label}_{name}") for name, number in numbers]
        return self("Slice", x, *bounds, label=label)


Rewrite = Callable[[ir.Node, Emitter], "ir.Value | Sequence[ir.Value] | None"]
Rules = Mapping[str, Sequence[Rewrite]]


def apply_once(model: ir.Model, rules: Rules, *, within_bodies: bool = False) -> bool:
    """Offers every node to its rewrites exactly once; True if any applied.

    With `within_bodies` also the nodes of branches and loops, whose values keep their names apart from all
    others.
    """
    names = Names(model.graph)
    changed = _sweep(model.graph, model.graph.opset_imports, rules, names)
    for body in all_bodies(model.graph) if within_bodies else ():
        changed = _sweep(body, model.graph.opset_imports, rules, names) or changed
    return changed


def apply_rules(model: ir.Model, rules: Rules) -> bool:
    """Applies `rules` (by operator type, with its domain unless that is ONNX's or ours) until none applies.

    True if any did.

    Raises:
        RuntimeError: If the rules never settle: two of them undo each other.
    """
    names = Names(model.graph)
    for sweep in range(MAX_SWEEPS):
        if not _sweep(model.graph, model.graph.opset_imports, rules, names):
            return sweep > 0
    raise RuntimeError(f"rewrites do not settle within {MAX_SWEEPS} sweeps")


def _sweep(graph: ir.Graph, versions: Mapping[str, int], rules: Rules, names: Names) -> bool:
    changed = False
    for node in graph:
        known = node.domain in {"", DOMAIN}
        rewrites = rules.get(node.op_type if known else f"{node.domain}.{node.op_type}", ())
        if not rewrites or objection(node, versions) is not None or _takes_text(node) or _is_empty(node):
            continue
        for rewrite in rewrites:
            emit = Emitter(node, names, versions)
            result = rewrite(node, emit)
            if result is not None and _is_same(node, emit):
                for index in range(len(emit.nodes[0].inputs)):  # so that nothing counts it among its users
                    emit.nodes[0].replace_input_with(index, None)
            elif result is not None:
                values = [result] if isinstance(result, ir.Value) else list(result)
                # A node may hand out less than its branches give.
                _replace(graph, node, values[: len(node.outputs)], emit)
                changed = True
                break
    return changed


def _is_same(node: ir.Node, emit: Emitter) -> bool:
    """Whether a rewrite says of a node what it says already, as may be where its shape stays unknown."""
    if len(emit.nodes) != 1:
        return False
    (new,) = emit.nodes
    same = (new.op_type, new.domain, len(new.outputs)) == (node.op_type, node.domain, len(node.outputs))
    return (
        same
        and attributes_of(new) == attributes_of(node)
        and len(new.inputs) == len(node.inputs)
        and all(
            old is value or _equal(old, value) for old, value in zip(node.inputs, new.inputs, strict=True)
        )
    )


def _equal(old: ir.Value | None, new: ir.Value | None) -> bool:
    """Whether two values are equal constants of few elements."""
    if old is None or new is None or old.const_value is None or new.const_value is None:
        return False
    ours, theirs = old.const_value, new.const_value
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.size > MOST_COMPARED:
        return False
    return bool(np.array_equal(ours.numpy(), theirs.numpy()))


def _takes_text(node: ir.Node) -> bool:
    """Whether a node is one of text, which the host computes as it is."""
    return any(value is not None and value.dtype == ir.DataType.STRING for value in node.inputs)


def _is_empty(node: ir.Node) -> bool:
    """Whether a node makes no elements: nothing would be computed by what took its place either."""
    return any(0 in (shape_of(value) or ()) for value in node.outputs[:1])


def _replace(graph: ir.Graph, node: ir.Node, values: list[ir.Value], emit: Emitter) -> None:
    made = {output for new in emit.nodes for output in new.outputs}
    for constant in emit.constants:
        graph.register_initializer(constant)
    for index, (old, new) in enumerate(zip(node.outputs, values, strict=True)):
        if old.is_graph_output() and new not in made and not may_become_output(new):
            # An output must be a value of its own, not an input or another output.
            values[index] = emit("Identity", new, label="output")
            made.add(values[index])
    graph.insert_before(node, emit.nodes)
    for old, new in zip(node.outputs, values, strict=True):
        if new in made or old.is_graph_output():
            name, old.name = old.name, None
            new.name = name
        if new in made and (producer := new.producer()) is not None and new is values[0]:
            producer.name = node.name
        if old.shape is not None and (new.shape is None or not new.shape.is_static()):
            new.shape = old.shape
        if new.type is None:
            new.type = old.type
        _replace_uses(old, new)
    _remove_with_unused_producers(graph, node)


def _replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Lets all that reads one value read another.

    onnx_ir looks at each input of a user to replace one, which of a concatenation of thousands adds up to all
    of them for each: there the others are copied as they stand.
    """
    for node, index in old.uses():
        if len(node.inputs) > WIDE:
            before = node._inputs  # noqa: SLF001 - what `replace_input_with` does
            node._inputs = (*before[:index], new, *before[index + 1 :])  # noqa: SLF001
            old._remove_usage(node, index)  # noqa: SLF001
            new._add_usage(node, index)  # noqa: SLF001
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _remove_with_unused_producers(graph: ir.Graph, node: ir.Node) -> None:
    """Removes `node` and all that was computed for it alone, so that users are counted right."""
    dead = [node]
    while dead:
        node = dead.pop()
        producers = dict.fromkeys(value.producer() for value in node.inputs if value is not None)
        graph.remove(node, safe=True)
        dead += [producer for producer in producers if producer is not None and _is_unused(producer)]


def _is_unused(node: ir.Node) -> bool:
    return not any(use_count(output) or output.is_graph_output() for output in node.outputs)


def _attribute(name: str, value: Attribute) -> ir.Attr:
    """An attribute whose type is known here, since finding it out costs more than all else about a node."""
    if isinstance(value, str):
        kind = ir.AttributeType.STRING
    elif isinstance(value, Sequence):
        whole = all(isinstance(each, (int, np.integer)) for each in value)
        kind = ir.AttributeType.INTS if whole else ir.AttributeType.FLOATS
    else:
        whole = isinstance(value, (int, np.integer))
        kind = ir.AttributeType.INT if whole else ir.AttributeType.FLOAT
    return ir.convenience.convert_attribute(name, value, kind)


def may_become_output(value: ir.Value) -> bool:
    """Whether a graph output may be this value, under the output's name."""
    return not (value.is_graph_input() or value.is_graph_output() or value.is_initializer())


def _state_constant(node: ir.Node) -> None:
    """Lets the output of a Constant be known as one, as an initialiser is."""
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    if tensor is not None:
        node.outputs[0].const_value = tensor
        node.outputs[0].shape, node.outputs[0].dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype


class Names:
    """Every value name in use, to give new ones out."""

    def __init__(self, graph: ir.Graph) -> None:
        self._used: set[str | None] = set()
        # Thousands of nodes may read one constant and name theirs after it: counting goes on where it was.
        self._last: dict[str, int] = {}
        for each in (graph, *all_bodies(graph)):
            self._used.update(value.name for value in each.inputs)
            self._used.update(each.initializers)
            self._used.update(output.name for node in each for output in node.outputs)

    def value(self, wish: str) -> str:
        """A name that no value has yet: the one wished for, or that with a number behind it."""
        name, count = wish, self._last.get(wish, 1)
        while name in self._used:
            count += 1
            name = f"{wish}_{count}"
        self._last[wish] = count
        self._used.add(name)
        return name
