"""`tpuflow export`: a quantised graph as ONNX with quantisers, for other runtimes and tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say, write_figures
from tpuflow.cli.commands.progress import progress

__all__ = ["export"]


def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL.onnx", help="The float model of the graph.", callback=paths.model_input
        ),
    ],
    graph: Annotated[
        Path, typer.Argument(metavar="GRAPH.tpuq", help="The quantised graph.", callback=paths.graph_input)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT.onnx",
            help="Output file.",
            callback=paths.output,
        ),
    ],
    fake_quant: Annotated[
        bool, typer.Option("--fake-quant", help="Weights as dequantised floats instead of codes.")
    ] = False,
    qdq_only: Annotated[
        bool,
        typer.Option("--qdq-only", help="Only the model's operators and quantisers, for other compilers."),
    ] = False,
    scales: Annotated[
        Path | None,
        typer.Option(
            metavar="scales.json", help="Write scales of inputs and outputs.", callback=paths.output
        ),
    ] = None,
    ranges: options.RangesFile = None,
    thresholds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the largest magnitude of each of --ranges.",
            callback=paths.output,
        ),
    ] = None,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    config: options.ConfigFile = None,
    json: options.JsonFile = None,
) -> None:
    """Write a quantised graph as ONNX with QDQ nodes.

    Operators that floats would not repeat exactly are written in integers, so that onnxruntime gives the
    graph's bits; with --qdq-only or --fake-quant they stay as they are, and a runtime rounds in its own way.
    """
    from tpuflow.calibration import Ranges
    from tpuflow.export import quantized_onnx
    from tpuflow.export import scales as scales_of
    from tpuflow.frontend import load
    from tpuflow.io.files import replace_atomically, write_json
    from tpuflow.partitioning.storage import load_graph

    if thresholds is not None and ranges is None:
        raise options.OptionError("--thresholds needs the ranges they are taken from: give --ranges")
    found = load_graph(graph)
    loaded = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        **options.configuration(config, None).loading,
        host=True,
    )
    with progress("export"):
        proto = quantized_onnx(loaded, found, fake=fake_quant, exact=not qdq_only)
    with replace_atomically(output) as beside:
        beside.write_bytes(proto.SerializeToString())
    nodes, size = proto.graph.node, output.stat().st_size
    pairs = sum(node.op_type == "QuantizeLinear" for node in nodes)
    figures = {"model": str(output), "nodes": len(nodes), "quantized_tensors": pairs, "bytes": size}
    write_figures(json, figures)
    say(f"{output}: {len(nodes)} nodes, {pairs} tensors quantised, {bytes_text(size)}")
    if scales is not None:
        write_json(scales, scales_of(found))
        say(f"{scales}: scales of inputs and outputs")
    if thresholds is not None and ranges is not None:
        read = Ranges.load(ranges).thresholds
        write_json(thresholds, read)
        say(f"{thresholds}: {len(read)} thresholds")
