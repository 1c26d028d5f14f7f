"""The check that import left a model's results alone: original and normalised model on the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tpuflow.errors import VerificationError
from tpuflow.evaluation.similarity import Similarity, similarity
from tpuflow.frontend import FloatSession, generate_samples
from tpuflow.frontend.values import reads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tpuflow.frontend import FloatModel

__all__ = ["verify_import"]

IMPORT_TOLERANCE = (0.99, 0.99)
CODES_TOLERANCE = (0.99, 0.9)


def verify_import(
    float_model: FloatModel,
    samples: Iterable[Mapping[str, npt.ArrayLike]] | None = None,
    tolerance: tuple[float, float] | None = None,
    remark: Callable[[str], None] | None = None,
    excepts: Collection[str] = (),
) -> list[tuple[str, Similarity]]:
    """Runs the original and the normalised model on the same samples and compares every output.

    What follows nodes of the host is checked where the host begins: they select and count, so that a last
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
