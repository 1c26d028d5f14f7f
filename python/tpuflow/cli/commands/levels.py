"""`tpuflow run`, `compare` and `evaluate`: the same input at any level of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.evaluation.comparison import Comparison
    from tpuflow.evaluation.scores import Evaluation
    from tpuflow.report import Overlay

__all__ = ["compare", "evaluate", "run"]

MOST_SHAPES = 5
PICTURES = (".svg", ".dot")


def run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help=".onnx (float), .tpuq (graph) or .tpu (program).", callback=paths.model_input
        ),
    ],
    inputs: Annotated[
        Path,
        typer.Option(
            metavar="X.npz", help="Samples, one array per input by its name.", callback=paths.sample_input
        ),
    ],
    outputs: Annotated[
        Path, typer.Option(metavar="Y.npz", help="Where the outputs go.", callback=paths.output)
    ],
    all_tensors: Annotated[
        bool, typer.Option("--all-tensors", help="Write every tensor that has a name in the model.")
    ] = False,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
) -> None:
    """Run a model, graph or program on samples."""
    from tpuflow.execution.levels import open_level, run_samples
    from tpuflow.io.files import write_arrays
    from tpuflow.io.samples import load_samples

    level = open_level(file, options.shapes(input_shape), batch)
    samples = load_samples(inputs, level.ports)
    with progress("run") as advance:
        arrays = run_samples(level, samples, all_tensors=all_tensors, progress=advance)
    write_arrays(outputs, arrays)
    say(f"{outputs}: {len(arrays)} tensors of {samples.count} samples, computed by the {level.kind}")


def compare(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.onnx", help="The original network.", callback=paths.model_input)
    ],
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.tpu",
            help="Its program, or its graph (.tpuq) alone.",
            callback=paths.program_or_graph,
        ),
    ],
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="X.npz", help="Samples; one is generated if there are none.", callback=paths.sample_input
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.tpuq", help="The quantised graph. [beside the program]", callback=paths.graph_input
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="V.npz",
            help="Further samples, compared and reported beside those.",
            callback=paths.sample_input,
        ),
    ] = None,
    count: Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Compare on the first N.")] = 1,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="COS,EUCLID", help="Least similarity of float and integer tensors, such as 0.8,0.5."
        ),
    ] = None,
    least_sqnr: Annotated[
        float,
        typer.Option(metavar="DB", help="Least signal to noise of every output beside float; -inf: none."),
    ] = 6.0,
    excepts: options.Excepts = None,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    config: options.ConfigFile = None,
    seed: options.SeedOption = 0,
    json: options.JsonFile = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|.dot",
            help="Draw the graph with the similarity of every layer; what is below the tolerance is red.",
            callback=paths.output,
        ),
    ] = None,
    histograms: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Draw the distributions of every tensor, float and dequantised.",
            callback=paths.folder,
        ),
    ] = None,
) -> None:
    """Find the first tensor that differs, and why.

    Exit status 3 when graph and program differ in any bit, an output has less signal to noise than asked for,
    or a tensor is below the tolerance.
    """
    from tpuflow.evaluation.comparison import DifferenceError, compare_levels, open_pair
    from tpuflow.frontend import load
    from tpuflow.partitioning.storage import graph_beside
    from tpuflow.report import save_overlays

    least, ignored = _tolerance(tolerance), options.names(excepts)
    if picture is not None and picture.suffix not in PICTURES:
        raise options.OptionError(f"{picture}: a picture is {' or '.join(PICTURES)}")
    original = load(
        model,
        **options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        preprocess=options.configuration(config, None).preprocess,
        host=True,
    )
    pair = open_pair(program, graph)
    source = program if program.suffix == ".tpuq" else graph or graph_beside(program)
    overlays = {} if histograms is None else _overlays(source)

    def watch(name: str, floating: NDArray[Any], quantised: NDArray[Any]) -> None:
        if name in overlays:
            overlays[name].add(floating, quantised)

    with progress("compare") as advance:
        found = compare_levels(original, pair, inputs, count=count, seed=seed, progress=advance, watch=watch)
        further = None
        if validation is not None:
            further = compare_levels(original, pair, validation, count=count, seed=seed, progress=advance)
    if histograms is not None:
        seen = [overlay for overlay in overlays.values() if overlay.floating.any()]
        say(f"{save_overlays(seen, histograms)}: distributions of {len(seen)} tensors, pictures beside it")
    if json is not None:
        report = found.to_json()
        write_figures(json, report if further is None else report | {"validation": further.to_json()})
    if picture is not None:
        _draw(picture, source, found, found.failed(least, ignored))
    _show_comparison(found)
    failures = found.failures(least, ignored, least_sqnr)
    if further is not None:
        say(f"{validation}:")
        _show_comparison(further)
        failures = failures or further.failures(least, ignored, least_sqnr)
    if failures:
        raise DifferenceError(failures)


def _tolerance(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        cosine, euclid = (float(word) for word in text.split(","))
    except ValueError:
        raise options.OptionError(f'--tolerance "{text}": write two numbers, such as 0.99,0.90') from None
    if not (cosine <= 1 and euclid <= 1):
        raise options.OptionError(f'--tolerance "{text}": no similarity is above 1')
    return cosine, euclid


def _overlays(graph: Path) -> dict[str, Overlay]:
    """A count of values for every tensor of the model that a graph stores as codes, still empty."""
    from tpuflow.export import activation_grids
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.report import Overlay

    networks = device_networks(load_graph(graph))
    grids = activation_grids(tensor for network in networks for tensor in network.tensors)
    return {name: Overlay(name, grid.reach) for name, grid in grids.items()}


def _draw(path: Path, graph: Path, found: Comparison, failed: set[str]) -> None:
    """Draws a graph, a segment below the other, with the similarity of what its layers give."""
    from tpuflow.io.files import write_text
    from tpuflow.partitioning import HostSegment, Partitioned
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.report import Mark, dot_text, graph_nodes, host_node, joined, svg_picture

    network = load_graph(graph)
    if isinstance(network, Partitioned):
        nodes = joined(
            [
                [host_node(part.name, part.reason, part.inputs, part.outputs)]
                if isinstance(part, HostSegment)
                else graph_nodes(part.network)
                for part in network.segments
            ]
        )
    else:
        nodes = graph_nodes(network)
    marks = {}
    for tensor in found.tensors:
        pair = tensor.quantized or tensor.normalized
        text = "" if pair is None else f"cos {pair.cosine:.3f}, euclid {pair.euclid:.3f}"
        if tensor.equal is False:
            text = f"{text}, program differs" if text else "program differs"
        if text:
            marks[tensor.name] = Mark(text, tensor.name in failed)
    drawn = svg_picture(nodes, marks) if path.suffix == ".svg" else dot_text(nodes, marks, network.name)
    write_text(path, drawn)
    count = sum(mark.failed for mark in marks.values())
    say(f"picture    {path}: {len(nodes)} nodes, {count} tensors failed")


def _show_comparison(found: Comparison) -> None:
    heading(f"{found.name}: {found.samples} sample{'s' if found.samples > 1 else ''}, worst of each tensor")
    rows = []
    for tensor in found.tensors:
        cells: list[object] = [tensor.name]
        for pair in (tensor.normalized, tensor.quantized):
            if pair is None:
                cells += ["", ""]
            else:
                cells += [f"{pair.cosine:.3f}", f"{pair.euclid:.3f}"]
        if tensor.quantized is None:
            cells += ["", ""]
        else:
            cells += [f"{tensor.quantized.sqnr:.1f}", f"{tensor.quantized.max_error:.3g}"]
        cells.append({None: "", True: "equal", False: "DIFFERENT"}[tensor.equal])
        rows.append(cells)
    table(
        [
            ("tensor", "left"),
            ("import cos", "right"),
            ("euclid", "right"),
            ("graph cos", "right"),
            ("euclid", "right"),
            ("SQNR dB", "right"),
            ("max error", "right"),
            ("program", "left"),
        ],
        rows,
    )
    say("import: normalised against original float; graph: integers against normalised float")
    shaped = [tensor for tensor in found.tensors if tensor.shapes is not None]
    for tensor in shaped[:MOST_SHAPES]:
        say(f'shapes of "{tensor.name}" differ: {tensor.shapes}')
    if len(shaped) > MOST_SHAPES:
        say(f"and those of {len(shaped) - MOST_SHAPES} more tensors (all: --json)")
    if found.bit_equal is not None:
        compared = sum(tensor.equal is not None for tensor in found.tensors)
        verdict = "equal in every bit" if found.bit_equal else "DIFFERENT"
        say(f"graph and program: {verdict} ({compared} tensors)")


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help=".onnx (float), .tpuq (graph) or .tpu (program).", callback=paths.model_input
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE.npz|PLUGIN",
            help="Inputs by name, and `labels`; or a dataset plugin, NAME(DATA,LABELS).",
            callback=paths.sample_input,
        ),
    ],
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One or several, such as top1,f1(macro): top1, top5, top(K), f1, coco_map, voc_map, "
            "f1_boxes, miou, pixel_accuracy, mpa, wer, rmse, psnr, max_error, cosine, euclid, agreement.",
        ),
    ],
    reference: Annotated[
        Path | None,
        typer.Option(
            "--float", metavar="MODEL.onnx", help="Float network to compare with.", callback=paths.model_input
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="A,B", help="Outputs the metric reads. [the first]")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="X", help="Exit 3 if a score is worse than X, such as 0.7.")
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="Exit 3 if a score is worse than --float's by more than X."),
    ] = None,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    plugins: options.Plugins = None,
    json: options.JsonFile = None,
) -> None:
    """Score a network on labelled data, float beside it."""
    from tpuflow.errors import ShortfallError
    from tpuflow.evaluation.scores import evaluate_level
    from tpuflow.execution.levels import open_level
    from tpuflow.frontend import is_model_file
    from tpuflow.plugins import dataset_samples, is_dataset, load_plugins, plugin_metrics

    if max_drop is not None and reference is None:
        raise options.OptionError("--max-drop compares with the float network: give it with --float")
    is_model, opened = is_model_file(file), (options.shapes(input_shape), batch)
    level = open_level(file, *opened if is_model or reference is None else ())
    loaded = load_plugins(named=plugins or ())
    named = is_dataset(str(data)) and not data.exists()
    given = dataset_samples(loaded, str(data), level.ports) if named else data
    original = None if reference is None else open_level(reference, *opened)
    with progress("evaluate") as advance:
        found = evaluate_level(
            level,
            given,
            metric,
            reference=original,
            outputs=options.names(output),
            plugins=plugin_metrics(loaded),
            progress=advance,
        )
    if json is not None:
        metrics = [each.to_json() for each in found]
        write_figures(json, {**(metrics[0] if len(metrics) == 1 else {}), "metrics": metrics})
    for each in found:
        _show_evaluation(each)
    missed = [text for each in found if (text := each.shortfall(threshold, max_drop))]
    if missed:
        raise ShortfallError(f"{file}: {'; '.join(missed)}")


def _show_evaluation(found: Evaluation) -> None:
    say(f"{found.metric} of {found.samples} samples, output {found.output}")
    if found.reference is not None:
        say(f"  float       {found.shown(found.reference)}")
    say(f"  {found.level:<12}{found.shown(found.value)}")
    if found.right_to_wrong is not None:
        lost, won = found.right_to_wrong, found.wrong_to_right
        say(f"  {lost} right in float only, {won} right in {found.level} only")
    if found.sqnr_db is not None:
        say(f"  output SQNR {found.sqnr_db:.1f} dB, same arg-max in {found.agreement:.1%} of the samples")
