"""Made-up samples for models without data at hand, and the check that import left a model's results alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import SampleError, VerificationError
from tpuflow.frontend.session import FloatSession
from tpuflow.frontend.values import array_of, produced_by, reads, shape_of
from tpuflow.similarity import Similarity, similarity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tpuflow.frontend.load import FloatModel

__all__ = ["drawn_feeds", "generate_samples", "verify_import"]

Feeds = dict[str, npt.NDArray[Any]]
IMPORT_TOLERANCE = (0.99, 0.99)
CODES_TOLERANCE = (0.99, 0.9)


def generate_samples(float_model: FloatModel, count: int = 8, seed: int = 0) -> list[Feeds]:
    """Makes `count` samples, the same ones for the same seed.

    Float inputs are normal(0, 1). Integer inputs that pick rows of an embedding are uniform over its rows,
    8-bit ones over their range, others are 0 or 1.

    Returns:
        One dictionary per sample: input name to array of the input's whole shape (its batch included).
    """
    return drawn_feeds(float_model.model.graph.inputs, count, seed)


def drawn_feeds(inputs: Sequence[ir.Value], count: int, seed: int) -> list[Feeds]:
    """Samples of graph inputs of static shape, as `generate_samples` makes them."""
    generator = np.random.default_rng(seed)
    return [{value.name or "": _drawn(value, generator) for value in inputs} for _ in range(count)]


def _drawn(value: ir.Value, generator: np.random.Generator) -> npt.NDArray[Any]:
    shape, kind = shape_of(value), np.dtype((value.dtype or ir.DataType.FLOAT).numpy())
    assert shape is not None, "inputs of an imported model have static shapes"
    if np.issubdtype(kind, np.floating):
        return generator.standard_normal(shape).astype(kind)
    if kind.kind == "O":
        raise SampleError(f'input "{value.name}" takes text, which cannot be made up: give samples')
    rows = _rows(value)
    low, high = 0, rows or 2
    if rows is None and kind in (np.int8, np.uint8):
        low, high = (-128, 128) if kind == np.int8 else (0, 256)
    return generator.integers(low, high, shape).astype(kind)


def _rows(value: ir.Value) -> int | None:
    """Rows of the smallest table that `value`, perhaps reshaped, picks from."""
    rows = []
    for use in value.uses():
        if use.node.op_type == "Gather" and use.idx == 1:
            shape = shape_of(use.node.inputs[0]) if array_of(use.node.inputs[0]) is not None else None
            rows.append(None if shape is None else shape[0])
        elif produced_by(use.node.outputs[0], "Reshape", "Transpose", "Slice", "Cast") is not None:
            rows.append(_rows(use.node.outputs[0]))
    return min((count for count in rows if count is not None), default=None)


def verify_import(
    float_model: FloatModel,
    samples: Iterable[Mapping[str, npt.ArrayLike]] | None = None,
    tolerance: tuple[float, float] | None = None,
    remark: Callable[[str], None] | None = None,
    excepts: Collection[str] = (),
) -> list[tuple[str, Similarity]]:
    """Runs the original and the normalised model on the same samples and compares every output.

    What follows nodes of the host is judged where the host begins: they select and count, so that a last
    bit of their inputs may change all of an output. Instead every tensor the host takes must be alike, and
    outputs of the host that differ are remarked upon.

    Args:
        float_model: The model in both forms.
        samples: What to run on; one generated sample when None.
        tolerance: Least cosine and Euclidean similarity; None for that of float models, or of models that
            quantise themselves, whose codes fall differently by a last bit of a float.
        remark: Told of every output of the host that differs in its values.
        excepts: Outputs that may differ.

    Returns:
        For each output the worst similarity over the samples.

    Raises:
        VerificationError: If an output has another shape, or is less alike than `tolerance`; names it and
            the first tensor on the way to it that is.
    """
    sources, loose = _boundary(float_model)
    if tolerance is None:
        coded = any(node.op_type == "QuantizeLinear" for node in float_model.model.graph)
        tolerance = CODES_TOLERANCE if coded else IMPORT_TOLERANCE
    outputs = [port.name for port in float_model.outputs]
    made = {value.name for node in float_model.origin.graph for value in node.outputs}
    compared = [*outputs, *(name for name in sources if name in made and name not in outputs)]
    fed = list(generate_samples(float_model, 1) if samples is None else samples)
    # One session after the other: each holds weights in a form of its own.
    originals = _results(float_model.origin, compared, fed)
    # The host's sizes that depend on values may change with a last bit; all others are of the network.
    counted = {port.name for port in float_model.outputs if not port.static}
    worst: dict[str, Similarity] = {}
    for feeds, left, right in zip(fed, originals, _results(float_model.model, compared, fed), strict=True):
        for name, reference in left.items():
            if name in excepts:
                continue
            other = right[name]
            if reference.ndim != other.ndim or (name not in counted and reference.shape != other.shape):
                raise VerificationError(
                    f'output "{name}" of the normalised model has the shape {list(right[name].shape)}, '
                    f"that of the original {list(reference.shape)}"
                )
            if name in loose:
                _remark(name, reference, right[name], tolerance, remark)
                continue
            result = similarity(reference, right[name])
            if not result.reaches(tolerance):
                raise VerificationError(_difference(float_model, feeds, name, result, tolerance))
            if name not in worst or result.cosine < worst[name].cosine:
                worst[name] = result
    return list(worst.items())


def _results(
    model: ir.Model, names: Sequence[str], samples: Iterable[Mapping[str, npt.ArrayLike]]
) -> list[dict[str, npt.NDArray[Any]]]:
    """Tensors of a model for every sample."""
    session = FloatSession(model, names, once=True)
    return [session.run(feeds) for feeds in samples]


def _boundary(float_model: FloatModel) -> tuple[list[str], set[str]]:
    """Floats the host's nodes take from others, and outputs that depend on the host."""
    host = {finding.node for finding in float_model.findings}
    behind: set[ir.Value] = set()
    sources: dict[str, None] = {}
    for node in float_model.model.graph:
        taken = reads(node)
        if node.name in host or any(value in behind for value in taken):
            behind.update(node.outputs)
            floats = (value for value in taken if value not in behind and value.dtype == ir.DataType.FLOAT)
            sources |= {value.name: None for value in floats if value.name and value.producer() is not None}
    return list(sources), {value.name or "" for value in float_model.model.graph.outputs if value in behind}


def _remark(
    name: str,
    reference: npt.NDArray[Any],
    test: npt.NDArray[Any],
    tolerance: tuple[float, float],
    remark: Callable[[str], None] | None,
) -> None:
    """Tells of an output of the host that differs."""
    if remark is None:
        return
    if reference.shape != test.shape:
        shapes = f"{list(reference.shape)} and {list(test.shape)}"
        remark(f'output "{name}" of the host: original and normalised model give the shapes {shapes}')
    elif reference.dtype.kind not in "fiub":
        if not np.array_equal(reference, test):
            remark(f'output "{name}" of the host: original and normalised model give different text')
    elif not (found := similarity(reference, test)).reaches(tolerance):
        remark(
            f'output "{name}" of the host: original and normalised model differ, cosine {found.cosine:.3f}'
        )


def _difference(
    float_model: FloatModel,
    feeds: Mapping[str, npt.ArrayLike],
    output: str,
    result: Similarity,
    tolerance: tuple[float, float],
) -> str:
    """The message about an output that differs, with the first tensor both forms have that does."""
    left = FloatSession(float_model.origin, "all").run(feeds)
    right = FloatSession(float_model.model, "all").run(feeds)
    first = next(
        (
            name
            for name, array in right.items()
            if name in left
            and left[name].shape == array.shape
            and not similarity(left[name], array).reaches(tolerance)
        ),
        output,
    )
    return (
        f'output "{output}" of the normalised model differs from the original: cosine {result.cosine:.3f}, '
        f"euclid {result.euclid:.3f} (least {tolerance[0]:.2f}, {tolerance[1]:.2f}), "
        f'first at tensor "{first}"'
    )
