"""All runs of one build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuflow.evaluation.similarity import similarity
from tpuflow.execution.levels import graph_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatSession
from tpuflow.frontend.cut import known_values
from tpuflow.partitioning import device_networks
from tpuflow.report.tensorboard.figures import bits_figure, similarity_figure
from tpuflow.report.tensorboard.graphs import float_nodes, layer_nodes
from tpuflow.report.tensorboard.histogram import ChannelStatistics, Histogram
from tpuflow.report.tensorboard.writer import RunLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = ["log_stages"]

SAMPLES = 20
"""Samples whose activations are counted and compared."""


def log_stages(
    folder: Path,
    model: FloatModel,
    graph: AnyGraph,
    program: AnyProgram | None,
    samples: Samples | None,
    calibrated: FloatModel | None = None,
) -> None:
    """Writes every run below a folder.

    Args:
        folder: Where; made if it is not there.
        model: The float model, original and normalised.
        graph: What it was quantised to.
        program: What that was compiled to.
        samples: Inputs; the first 20 feeds are run in float and as the graph. None: graphs and widths alone.
        calibrated: The float model that was quantised, where methods may have changed it.

    Raises:
        MissingTensorBoardError: The extra is not installed.
    """
    with RunLog(folder / "original") as run:
        run.graph(float_nodes(model.origin.graph, known_values(model.origin)))
    with RunLog(folder / "normalised") as run:
        run.graph(float_nodes(model.model.graph))
    if calibrated is not None:
        with RunLog(folder / "calibrated") as run:
            run.graph(float_nodes(calibrated.model.graph))
    with RunLog(folder / "quantised") as run:
        run.graph(layer_nodes(graph))
    if program is not None:
        report = simulate(program, values=False).report
        with RunLog(folder / "program") as run:
            run.graph(layer_nodes(graph, report))
    if samples is not None:
        _log_samples(folder, model, graph, samples)
    _log_bits(folder, graph)


def _log_samples(folder: Path, model: FloatModel, graph: AnyGraph, samples: Samples) -> None:
    """Histograms, statistics by channel and figures of similarity, in one pass over the samples."""
    floating, integers = FloatSession(model.model, "all"), graph_level(graph)
    histograms: dict[str, Histogram] = {}
    channels: dict[str, ChannelStatistics] = {}
    with RunLog(folder / "similarity") as run:
        for number, batch in enumerate(samples.batches()):
            if number == SAMPLES:
                break
            feeds = dict(batch.arrays)
            found = {**feeds, **floating.run(feeds)}
            for name, array in found.items():
                if array.dtype.kind == "f" and array.size:
                    histograms.setdefault(name, Histogram()).observe(array)
                    channels.setdefault(name, ChannelStatistics()).observe(array)
            stored = integers.compute(feeds, all_tensors=True).tensors
            cosines = _cosines(found, stored)
            if cosines:
                figure = similarity_figure(cosines, f"sample {number}")
                run.image(f"similarity_distance_sample_{number}", *figure)
    with RunLog(folder / "statistics") as run:
        for name, histogram in histograms.items():
            if histogram.count:
                run.histogram(name, histogram)
    for kind in ("low", "high", "mean"):
        label = {"low": "min", "high": "max"}.get(kind, kind)
        with RunLog(folder / "statistics" / f"{label}_per_channel") as run:
            for name, statistics in channels.items():
                run.scalars(name, getattr(statistics, kind))


def _cosines(floats: Mapping[str, NDArray[Any]], stored: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Of every tensor both levels have, in the order of the network; what is no number counts as 0."""
    found = {}
    for name, array in floats.items():
        ours = stored.get(name)
        if ours is not None and ours.shape == array.shape and array.dtype.kind == "f" and array.size:
            cosine = similarity(array, ours).cosine
            found[name] = cosine if cosine == cosine else 0.0  # noqa: PLR0124 - NaN
    return found


def _log_bits(folder: Path, graph: AnyGraph) -> None:
    """Which layer has how many bits, as figure and as table."""
    names, weights, activations = [], [], []
    for part in device_networks(graph):
        tensors = part.tensors
        for layer in part.layers:
            constants = [tensors[i] for i in layer.operands if tensors[i].is_constant]
            names.append(layer.name)
            weights.append(_bits(constants[0].dtype) if constants else 0)
            activations.append(_bits(tensors[layer.output].dtype))
    rows = [
        f"| {name} | {weight or '-'} | {activation} |"
        for name, weight, activation in zip(names, weights, activations, strict=True)
    ]
    table = "\n".join(["| layer | weights | activations |", "| --- | --- | --- |", *rows])
    with RunLog(folder / "configuration") as run:
        run.text("bits", table)
        run.image("bits", *bits_figure(names, weights, activations))


def _bits(dtype: str) -> int:
    return int("".join(c for c in dtype if c.isdigit()))
