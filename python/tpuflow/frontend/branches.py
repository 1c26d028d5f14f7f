"""The samples of a batch as branches: a network of one sample once for each, between slices and Concat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tpuflow.frontend.values import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["branch_by_sample"]


def branch_by_sample(single: ir.Model, count: int) -> ir.Model:
    """A model for `count` samples, made of a normalised one for a single sample.

    Every tensor of sample `k` is called `NAME/sample_k`; constants are shared, inputs and outputs keep their
    names. Inputs of no or one axis hold no samples and are read by all.
    """
    made = single.clone()
    graph = made.graph
    inputs = list(graph.inputs)
    batched = [value for value in inputs if len(shape_of(value) or ()) > 1]
    results: list[list[ir.Value]] = [[] for _ in graph.outputs]
    originals = list(graph)
    for sample in range(count):
        twins: dict[ir.Value, ir.Value] = {
            value: _slice(graph, value, sample) if value in batched else value for value in inputs
        }
        for node in originals:
            twin = _twin(node, twins, sample)
            twins.update(zip(node.outputs, twin.outputs, strict=True))
            graph.append(twin)
        for found, output in zip(results, graph.outputs, strict=True):
            found.append(twins.get(output, output))
    for value in batched:
        value.shape = ir.Shape([count * (shape_of(value) or (1,))[0], *(shape_of(value) or ())[1:]])
    for at, (output, parts) in enumerate(zip(list(graph.outputs), results, strict=True)):
        name, shape = output.name, shape_of(output) or ()
        node = ir.Node("", "Concat", parts, [ir.AttrInt64("axis", 0)], name=f"{name}/samples")
        joined = node.outputs[0]
        output.name = f"{name}/single"
        joined.name, joined.type = name, output.type
        joined.shape = ir.Shape([count * shape[0], *shape[1:]])
        graph.append(node)
        graph.outputs[at] = joined
    for node in reversed(originals):
        graph.remove(node, safe=True)
    return made


def _twin(node: ir.Node, twins: dict[ir.Value, ir.Value], sample: int) -> ir.Node:
    """A copy of a node that reads what `twins` says."""
    inputs = [None if value is None else twins.get(value, value) for value in node.inputs]
    outputs = [
        ir.Value(
            name=f"{value.name}/sample_{sample}" if value.name else value.name,
            shape=value.shape,
            type=value.type,
        )
        for value in node.outputs
    ]
    for old, new in zip(node.outputs, outputs, strict=True):
        new.meta.update(old.meta)
    attributes = list(node.attributes.values())
    name = f"{node.name}/sample_{sample}"
    return ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs, name=name)


def _slice(graph: ir.Graph, value: ir.Value, sample: int) -> ir.Value:
    """One sample of an input."""
    size, *rest = shape_of(value) or (1,)
    name = f"{value.name}/sample_{sample}"
    limits = ([sample * size], [(sample + 1) * size], [0])
    operands = [
        _integers(graph, f"{name}/{part}", numbers)
        for part, numbers in zip(("start", "end", "axis"), limits, strict=True)
    ]
    node = ir.Node("", "Slice", [value, *operands], name=name)
    made = node.outputs[0]
    made.name, made.type, made.shape = name, value.type, ir.Shape([size, *rest])
    graph.append(node)
    return made


def _integers(graph: ir.Graph, name: str, numbers: Sequence[int]) -> ir.Value:
    tensor = ir.tensor(np.array(numbers, np.int64), name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape([len(numbers)]), type=ir.TensorType(tensor.dtype)
    )
    graph.initializers[name] = value
    return value
