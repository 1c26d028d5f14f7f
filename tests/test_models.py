"""The test networks themselves: valid, executable, alive, repeatable, and of every operator they promise."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.make_models import MODELS, random_model, samples

SEEDS = range(100)

# Every operator the end-to-end tests have to meet, in a named or a random model.
OPERATORS = [
    "Abs",
    "Add",
    "ArgMax",
    "AveragePool",
    "BatchNormalization",
    "Clip",
    "Concat",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "Div",
    "Elu",
    "Erf",
    "Expand",
    "Flatten",
    "Gather",
    "GatherND",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "LayerNormalization",
    "LeakyRelu",
    "MatMul",
    "Max",
    "MaxPool",
    "Min",
    "Mul",
    "Neg",
    "PRelu",
    "Pad",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Resize",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Softplus",
    "SpaceToDepth",
    "Split",
    "Sqrt",
    "Sub",
    "Tanh",
    "TopK",
    "Transpose",
]


def run(model: onnx.ModelProto, seed: int = 0) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(value) for value in session.run(None, samples(model, 1, seed))]


def check(model: onnx.ModelProto) -> None:
    outputs = run(model)
    assert len(outputs) == len(model.graph.output)
    for value, info in zip(outputs, model.graph.output, strict=True):
        assert value.shape == tuple(size.dim_value or 1 for size in info.type.tensor_type.shape.dim)
        assert np.isfinite(value).all()
        assert np.abs(value).max() < 1e4, "values too large to be quantised with meaning"
    other = run(model, seed=1)
    assert any((a != b).any() for a, b in zip(outputs, other, strict=True)), "the outputs ignore the input"


@pytest.mark.parametrize("name", MODELS)
def test_named_model_runs(name: str) -> None:
    check(MODELS[name]())


@pytest.mark.parametrize("first", SEEDS[::10])
def test_random_models_run(first: int) -> None:
    for seed in range(first, first + 10):
        check(random_model(seed))


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert random_model(3).SerializeToString() == random_model(3).SerializeToString()
    assert random_model(3).SerializeToString() != random_model(4).SerializeToString()


def test_every_operator_occurs() -> None:
    models = [make() for make in MODELS.values()] + [random_model(seed) for seed in SEEDS]
    assert sorted({node.op_type for model in models for node in model.graph.node}) == sorted(OPERATORS)
