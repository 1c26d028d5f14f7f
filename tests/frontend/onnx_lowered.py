"""The node tests of the onnx package beyond import: in the graph's interpreter and on the simulated machine.

What the importer takes is lowered three times:

    float32   must give the expected outputs, within `TOLERANCE` where that of the test is narrower; small
              graphs also as a program of level 1, whose outputs must equal the graph's in every bit
    int16     outputs in floats are compared by cosine similarity; ranges are those of the test's own inputs
    int8      the same

A network the device cannot compute as a whole is divided; device and host then compute it together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, QuantizeConfig
from tpuflow.errors import TpuflowError, UnsupportedModelError
from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.partitioning import Partitioned, partition

if TYPE_CHECKING:
    from tpuflow.config import DType
    from tpuflow.errors import Finding
    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["ALIKE", "TOLERANCE", "in_floats", "in_integers", "on_the_machine", "reason_of"]

Array = np.ndarray[Any, np.dtype[Any]]
Compare = Callable[[Mapping[str, Array]], str]
"""Says what is wrong with outputs by name; nothing where they are right."""

TOLERANCE = (1e-3, 1e-5)
"""Relative and absolute: float32 adds in another order than the test, and rounds what it approximates."""
ALIKE = 0.99
"""Cosine similarity an integer network is expected to reach."""
SMALL = 1 << 12
"""Elements of all tensors of a graph that is compiled and simulated too."""


def reason_of(finding: Finding) -> str:
    """What keeps a node from where it should be, in one line without its name."""
    place = f"{finding.attribute}: " if finding.attribute else ""
    return f"{finding.operator}: {place}{finding.reason}"


def _lowered(model: FloatModel, dtype: DType, feeds: Mapping[str, Array]) -> tuple[AnyGraph, str]:
    """A graph, whole or in segments, and what kept it from being whole.

    Raises:
        TpuflowError: Nothing of it can be lowered.
    """
    config = Config(quantize=QuantizeConfig(dtype=dtype))
    parts = partition(model) if model.findings else None
    ranges = None
    if config.needs_ranges:
        ranges = calibrate(parts or model, Samples.of_feeds([feeds], model.inputs), config)
    if parts is not None:
        return lower(parts, ranges, config), reason_of(model.findings[0])
    try:
        return lower(model, ranges, config), ""
    except UnsupportedModelError as error:
        refused = error
    try:
        return lower(partition(model), ranges, config), reason_of(refused.findings[0])
    except TpuflowError:
        raise refused from None


def in_floats(model: FloatModel, feeds: Mapping[str, Array], compare: Compare) -> tuple[str, AnyGraph | None]:
    """What becomes of a model in float32, and its graph if there is one.

    Returns:
        "whole", "host: why", "unsupported: why" or "wrong: what".
    """
    try:
        graph, reason = _lowered(model, "float32", feeds)
        found = compare(graph_level(graph).run(feeds))
    except UnsupportedModelError as error:
        return f"unsupported: {reason_of(error.findings[0])}", None
    except TpuflowError as error:
        return f"unsupported: {_line(error)}", None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure of this test
        return f"wrong: {type(error).__name__}: {_line(error)}", None
    if found:
        return f"wrong: {found}", graph
    return f"host: {reason}" if reason else "whole", graph


def on_the_machine(graph: AnyGraph, feeds: Mapping[str, Array]) -> str:
    """Whether a program equals its graph: "equal", "wrong: ..." or "unsupported: ..."; "" if it is large."""
    graphs = [part.network for part in graph.device] if isinstance(graph, Partitioned) else [graph]
    if sum(math.prod(tensor.shape) for each in graphs for tensor in each.tensors) > SMALL:
        return ""
    try:
        program = program_level(compile_graph(graph)).compute(feeds).codes
    except TpuflowError as error:
        return f"unsupported: {_line(error)}"
    except Exception as error:  # noqa: BLE001 - as above
        return f"wrong: {type(error).__name__}: {_line(error)}"
    for name, array in graph_level(graph).compute(feeds).codes.items():
        if not np.array_equal(array.view(_bits(array)), program[name].view(_bits(array))):
            return f"wrong: {name} differs"
    return "equal"


def _bits(array: Array) -> np.dtype[Any]:
    return np.dtype(f"u{array.dtype.itemsize}") if array.dtype.kind in "fV" else array.dtype


def in_integers(
    model: FloatModel, dtype: DType, feeds: Mapping[str, Array], expected: Mapping[str, Array]
) -> float | str:
    """The least cosine similarity of any output in floats, cut to three digits, or why there is none."""
    names = [name for name, array in expected.items() if array.dtype.kind in "fV" and array.size]
    if not names:
        return "no floats"
    try:
        graph, _ = _lowered(model, dtype, feeds)
        found = graph_level(graph).run(feeds)
    except UnsupportedModelError as error:
        return f"unsupported: {reason_of(error.findings[0])}"
    except TpuflowError as error:
        return f"unsupported: {_line(error)}"
    except Exception as error:  # noqa: BLE001 - as above
        return f"wrong: {type(error).__name__}: {_line(error)}"
    if any(expected[name].shape != found[name].shape for name in names):
        return "wrong: another shape"
    least = min(similarity(_real(expected[name]), _real(found[name])).cosine for name in names)
    return math.floor(least * 1000 + 1e-6) / 1000 if math.isfinite(least) else "not finite"


def _real(array: Array) -> Array:
    return array.astype(np.float64)


def _line(error: BaseException) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return text.partition(": [ONNXRuntimeError]")[0][:160]
