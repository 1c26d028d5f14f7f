"""Small ONNX graphs for the tests of the frontend, and the one check all of them go through."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from tpuflow.frontend import FloatModel, FloatSession, generate_samples, load
from tpuflow.frontend.normalize import normalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Node = tuple[Any, ...]
Shapes = dict[str, list[int | str]]


def graph(
    nodes: Sequence[Node],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    types: Mapping[str, int] | None = None,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; a node is (operator, inputs, outputs[, attributes]), spaces separate names.

    Constants that are not arrays become float32. `types` gives element types other than float.
    """
    types = types or {}
    made = []
    for index, (operator, sources, targets, *attributes) in enumerate(nodes):
        domain, _, name = operator.rpartition(":")
        made.append(
            helper.make_node(
                name,
                ["" if source == "_" else source for source in sources.split()],
                targets.split(),
                name=f"{name.lower()}{index}",
                domain=domain,
                **(attributes[0] if attributes else {}),
            )
        )
    initializers = [
        numpy_helper.from_array(
            np.asarray(value, None if isinstance(value, (np.ndarray, np.generic)) else np.float32), name
        )
        for name, value in (constants or {}).items()
    ]
    return helper.make_model(
        helper.make_graph(
            made,
            "graph",
            [
                helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
                for name, shape in inputs.items()
            ],
            [
                helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None)
                for name in outputs
            ],
            initializers,
        ),
        opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)],
        ir_version=8 if opset < 19 else 10,
    )


def operators(model: FloatModel) -> Counter[str]:
    """How often each operator occurs in the normalised model."""
    return Counter(node.op_type for node in model.model.graph)


def normalized(proto: onnx.ModelProto, tolerance: float = 1e-5, **options: Any) -> FloatModel:
    """Loads a model and checks all that must hold of any: same results, same names, valid, idempotent."""
    before = proto.SerializeToString()
    model = load(proto, **options)
    assert proto.SerializeToString() == before, "the model given was changed"
    onnx.checker.check_model(ir.to_proto(model.model), full_check=True)
    known = {tensor.name for tensor in proto.graph.initializer}
    if not options.keys() & {"cut_inputs", "cut_outputs"}:
        assert [p.name for p in model.inputs] == [i.name for i in proto.graph.input if i.name not in known]
        assert [p.name for p in model.outputs] == [o.name for o in proto.graph.output]
    names = [node.name for node in model.model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
    for node in model.model.graph:
        for value in [*node.inputs, *node.outputs]:
            assert value is None or (value.shape is not None and value.shape.is_static()), value
    left, right = FloatSession(model.original), FloatSession(model.model)
    for feeds in generate_samples(model, 3):
        results = right.run(feeds)
        for name, expected in left.run(feeds).items():
            assert results[name].shape == expected.shape
            assert results[name].dtype == expected.dtype
            scale = max(float(np.max(np.abs(expected), initial=0)), 1e-3)
            np.testing.assert_allclose(results[name], expected, rtol=tolerance, atol=tolerance * scale)
    text = [str(node) for node in model.model.graph]
    assert [str(node) for node in normalize(model.model.clone()).graph] == text, "not idempotent"
    return model


def array(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    """An int64 vector."""
    return np.array(values, np.int64)
