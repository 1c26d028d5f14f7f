"""Cuts a float model into segments, each a model of its own.

The device gets what the closed set supports, the host the rest, in as few turns as can be (`turns`). Two
things beyond `tpuflow.frontend.supported` keep a node from the device: a shape known only at run time, and
a number other than float32, but for integers that pick rows, are codes, or are only moved. Truth values are
computed on either side and may cross, but the host compares integers, which on the device may fall on one
code; and it computes the sizes of what it makes, which no grid may round. A part of the device's that is
worth less than a thousandth of the network's multiply-accumulates does not pay for two crossings: its nodes
may go either way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from tpuflow.errors import Finding, ModelError
from tpuflow.frontend import FloatModel, Port
from tpuflow.frontend.rewrites.logic import COMPARISONS, CONNECTIVES
from tpuflow.frontend.supported import MOVING, operator_name
from tpuflow.frontend.values import array_of, reads, shape_of
from tpuflow.partitioning.network import DeviceSegment, HostSegment, PartitionedModel
from tpuflow.partitioning.segmentation import Segmentation, Side, islands, segmentation

__all__ = ["partition"]

WORTH = 1e-3
"""Least share of the network's multiply-accumulates for which the device is given a turn of its own."""

INTEGERS = {
    ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32,
    ir.DataType.INT64,
}  # fmt: skip
TAKES_INTEGERS = {*MOVING, "Gather", "Cast", "DequantizeLinear"}
KNOWS_TRUTHS = {*MOVING, *COMPARISONS, *CONNECTIVES, "Not", "Where", "Cast"}
"""Operators that take or give truth values."""
SIZES = {
    "ConstantOfShape": (0,), "Expand": (1,), "Loop": (0,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2),
    "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Tile": (1,), "TopK": (1,),
}  # fmt: skip
"""Positions of the inputs on which the shape of an operator's result depends."""
FEW = 64
"""A value of more elements is not a list of sizes."""


def partition(
    model: FloatModel, findings: Iterable[Finding] = (), bound: Collection[str] = ()
) -> PartitionedModel:
    """The model in segments, in the order they run; those of the device and those of the host take turns.

    Args:
        model: A model loaded with `host=True`; one without host nodes becomes a single device segment.
        findings: Further reasons why nodes must run on the host, such as quantisation found.
        bound: Further nodes to run there, by name.

    Returns:
        The segments; every node of the normalised model is in exactly one.

    Raises:
        ModelError: Nothing is left for the device.
    """
    nodes = list(model.model.graph)
    reasons: dict[str, list[Finding]] = {}
    for finding in (*model.findings, *findings):
        reasons.setdefault(finding.node, []).append(finding)
    known = {node.name for node in nodes}
    unsupported: set[ir.Node] = set()
    for node in nodes:
        if node.name in reasons or node.name in bound:
            unsupported.add(node)
        elif reasons and (problem := _objection(node, unsupported)) is not None:
            name = node.name or ""
            reasons.setdefault(name, []).append(Finding(name, operator_name(node), *problem))
            unsupported.add(node)
    for node in _computing_sizes(nodes, unsupported):
        name = node.name or ""
        reasons.setdefault(name, []).append(
            Finding(name, operator_name(node), None, "a size is computed from it")
        )
        unsupported.add(node)
    assert reasons.keys() <= known, f"findings name nodes the model does not have: {reasons.keys() - known}"
    predecessors = _predecessors(nodes)
    found = segmentation(predecessors, _sides(nodes, predecessors, unsupported))
    if nodes and found.count == 1 and found.first == "host":
        listed = "".join(f"\n  {finding}" for entries in reasons.values() for finding in entries)
        raise ModelError(f"{model.label}: nothing to compile, the host would compute every node:{listed}")
    parts: list[list[ir.Node]] = [[] for _ in range(found.count)]
    for node, turn in zip(nodes, _moved_late(nodes, found), strict=True):
        parts[turn].append(node)
    graph = model.model.graph
    last_read = _last_read(parts, graph)
    segments: list[DeviceSegment[FloatModel] | HostSegment] = []
    for turn, part in enumerate(parts):
        side = found.side(turn)
        name = f"{side}{turn // 2 + 1}"
        inputs, outputs = _borders(part, turn, last_read, graph)
        taken, given = (
            tuple(value.name or "" for value in inputs),
            tuple(value.name or "" for value in outputs),
        )
        if side == "host":
            why = [finding for node in part for finding in reasons.get(node.name or "", [])]
            alone = _submodel(model.model, part, inputs, outputs, name)
            content = ir.serde.serialize_model(alone).SerializeToString()
            names = tuple(node.name or "" for node in part)
            segments.append(HostSegment(name, content, taken, given, names, tuple(why)))
        elif found.count == 1:
            everything = tuple(value.name or "" for value in graph.inputs)  # also what no node reads
            segments.append(DeviceSegment(name, model, everything, given))
        else:
            own = _submodel(model.model, part, inputs, outputs, f"{graph.name or 'model'}/{name}")
            segments.append(DeviceSegment(name, _float_model(own, model), taken, given))
    on_host = frozenset(name for part in segments if isinstance(part, HostSegment) for name in part.nodes)
    title = graph.name or "model"
    return PartitionedModel(title, tuple(segments), model.inputs, model.outputs, model, on_host)


def _objection(node: ir.Node, on_host: Collection[ir.Node]) -> tuple[str | None, str] | None:
    """Which tensor keeps a node of the closed set from the machine, and why; None if none does."""
    outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    computed = [value for value in node.inputs if value is not None and array_of(value) is None]
    if not computed:
        return None, "it computes a constant"
    for value in (*computed, *outputs):
        shape = shape_of(value)
        if shape is None:
            return _tensor(value), "shape known only at run time"
        if 0 in shape:
            return _tensor(value), "no elements"
    for value in (*computed, *outputs):
        integers = value.dtype in INTEGERS and (value in outputs or node.op_type in TAKES_INTEGERS)
        port = node.op_type == "Cast" and (value.is_graph_input() or value.is_graph_output())
        other_float = port and value.dtype is not None and value.dtype.is_floating_point()
        truths = value.dtype == ir.DataType.BOOL and node.op_type in KNOWS_TRUTHS
        if value.dtype != ir.DataType.FLOAT and not (integers or other_float or truths):
            kind = "unknown type" if value.dtype is None else f"type {value.dtype.name.lower()}"
            return _tensor(value), f"{kind} is not supported"
    for value in computed:
        if node.op_type in COMPARISONS and _was_integer(value):
            return _tensor(value), "integers are compared"
        if node.op_type in MOVING and value.dtype in INTEGERS and value.producer() in on_host:
            return _tensor(value), "integers the host computes"
    return None


def _computing_sizes(nodes: Sequence[ir.Node], on_host: Collection[ir.Node]) -> list[ir.Node]:
    """Nodes of the device that compute sizes of what the host makes, out of other sizes."""
    sizes: set[ir.Value] = set()
    found = []
    for node in reversed(nodes):
        if node in on_host:
            positions = SIZES.get(node.op_type, ())
            sizes.update(
                value for i in positions if i < len(node.inputs) and (value := node.inputs[i]) is not None
            )
        if any(value in sizes and _size(value) <= FEW for value in node.outputs) and not multiplications(
            node
        ):
            sizes.update(value for value in node.inputs if value is not None)
            if node not in on_host:
                found.append(node)
    return found


def _was_integer(value: ir.Value) -> bool:
    maker = value.producer()
    source = maker.inputs[0] if maker is not None and maker.op_type == "Cast" else None
    return source is not None and source.dtype in INTEGERS


def _tensor(value: ir.Value) -> str:
    return f'tensor "{value.name}"'


def _sides(
    nodes: Sequence[ir.Node], predecessors: Sequence[Sequence[int]], unsupported: Collection[ir.Node]
) -> list[Side | None]:
    """Binds unsupported nodes to the host, and those that multiply to the device, where they are worth it."""
    strict: list[Side | None] = ["host" if node in unsupported else "device" for node in nodes]
    work = [0 if node in unsupported else multiplications(node) for node in nodes]
    total = sum(work)
    if "host" not in strict or not total:
        return strict
    islets = islands(predecessors, segmentation(predecessors, strict).of)
    sums: dict[int, int] = {}
    for islet, count in zip(islets, work, strict=True):
        sums[islet] = sums.get(islet, 0) + count
    return [
        side if side == "host" or (count and sums[islet] >= WORTH * total) else None
        for side, count, islet in zip(strict, work, islets, strict=True)
    ]


def _moved_late(nodes: Sequence[ir.Node], found: Segmentation) -> list[int]:
    """The turns, with what only cuts and regroups values for the host on the host.

    Ninety slices of one tensor, each read by the host alone, need not be ninety tensors that cross: the one
    crosses instead, unless that is more than twice as much.
    """
    turn_of = dict(zip(nodes, found.of, strict=True))
    for node in reversed(nodes):
        turn = turn_of[node]
        if found.side(turn) == "host" or turn + 1 == found.count:
            continue
        for value in node.outputs:
            users = dict.fromkeys(use.node for use in value.uses())
            here = [user for user in users if turn_of.get(user) == turn]
            if not here or not all(user.op_type in MOVING and _is_for_host(user, turn_of) for user in here):
                continue
            if _size(value) <= 2 * sum(_size(user.outputs[0]) for user in here):
                turn_of |= dict.fromkeys(here, turn + 1)
    return list(turn_of.values())


def _is_for_host(node: ir.Node, turn_of: Mapping[ir.Node, int]) -> bool:
    """Whether all that a node computes is read in later turns, and all it reads but one value is constant."""
    if sum(value is not None and array_of(value) is None for value in node.inputs) != 1:
        return False
    users = [use.node for value in node.outputs for use in value.uses()]
    outside = not any(value.is_graph_output() for value in node.outputs)
    return outside and all(turn_of.get(user, 0) > turn_of[node] for user in users)


def _size(value: ir.Value) -> int:
    return math.prod(shape_of(value) or (0,))


def multiplications(node: ir.Node) -> int:
    """Multiply-accumulates of a supported node, about; 0 for all but products and convolutions."""
    if node.op_type not in {"Conv", "ConvTranspose", "MatMul"}:
        return 0
    left, right = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    result = shape_of(node.outputs[0])
    if left is None or right is None or result is None:
        return 0
    if node.op_type == "MatMul":
        return math.prod(result) * left[-1]
    return math.prod(left if node.op_type == "ConvTranspose" else result) * math.prod(right[1:])


def _predecessors(nodes: Sequence[ir.Node]) -> list[list[int]]:
    number = {node: index for index, node in enumerate(nodes)}
    return [
        sorted({number[maker] for value in reads(node) if (maker := value.producer()) in number})
        for node in nodes
    ]


def _last_read(parts: Sequence[Sequence[ir.Node]], graph: ir.Graph) -> dict[ir.Value, int]:
    """For every value the number of the last part that reads it; of outputs one past all parts."""
    found = {value: number for number, part in enumerate(parts) for node in part for value in reads(node)}
    return found | dict.fromkeys(graph.outputs, len(parts))


def _borders(
    part: Sequence[ir.Node], number: int, last_read: Mapping[ir.Value, int], graph: ir.Graph
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Inputs of a part, those of the network first and in order, and its outputs."""
    made = dict.fromkeys(value for node in part for value in node.outputs)
    read = dict.fromkeys(value for node in part for value in reads(node))
    taken = [value for value in read if value not in made and not value.is_initializer()]
    order = {value: index for index, value in enumerate(graph.inputs)}
    taken.sort(key=lambda value: order.get(value, len(order)))
    given = [value for value in made if last_read.get(value, 0) > number]
    order = {value: index for index, value in enumerate(graph.outputs)}
    given.sort(key=lambda value: order.get(value, len(order)))
    return taken, given


def _submodel(
    model: ir.Model,
    part: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    name: str,
) -> ir.Model:
    """A part as a model; constants are shared, not copied."""
    constants = dict.fromkeys(value for node in part for value in reads(node) if value.is_initializer())
    view = ir.GraphView(
        inputs,
        outputs,
        nodes=part,
        initializers=tuple(constants),
        opset_imports=model.graph.opset_imports,
        name=name,
    )
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(view.clone(), ir_version=model.ir_version or 10, functions=functions)


def _float_model(own: ir.Model, whole: FloatModel) -> FloatModel:
    def ports(values: Iterable[ir.Value]) -> tuple[Port, ...]:
        return tuple(Port(value.name or "", shape_of(value) or (), _kind(value)) for value in values)

    return FloatModel(
        model=own,
        origin=own,
        source=whole.source,
        inputs=ports(own.graph.inputs),
        outputs=ports(own.graph.outputs),
    )


def _kind(value: ir.Value) -> np.dtype[np.generic]:
    return np.dtype("float32" if value.dtype is None else value.dtype.numpy())


def device_values(parts: PartitionedModel) -> Mapping[str, ir.Value]:
    """Every computed value of the device segments by name; those that cross a border belong to them too."""
    found: dict[str, ir.Value] = {}
    for segment in parts.device:
        graph = segment.network.model.graph
        made = (value for node in graph for value in node.outputs)
        found |= {value.name: value for value in (*graph.inputs, *made) if value.name}
    return found
