"""`tpuflow run` and `evaluate`: the same input at any level of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say, write_figures
from tpuflow.cli.commands.decoders import score_decoder
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from tpuflow.evaluation.scores import Evaluation
    from tpuflow.execution.levels import Level
    from tpuflow.io.samples import Samples

__all__ = ["evaluate", "run"]


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
    outputs: Annotated[Path, typer.Option(metavar="Y.npz", help="Output file.", callback=paths.output)],
    all_tensors: Annotated[
        bool, typer.Option("--all-tensors", help="Write every tensor that has a name in the model.")
    ] = False,
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    json: options.JsonFile = None,
) -> None:
    """Run a model, graph or program on samples."""
    from tpuflow.execution.levels import open_level, run_samples
    from tpuflow.io.files import write_arrays
    from tpuflow.io.samples import load_samples
    from tpuflow.pipeline.operators import use_operators

    use_operators()
    level = open_level(file, options.shapes(input_shape), batch)
    samples = load_samples(inputs, level.ports)
    with progress("run") as advance:
        arrays = run_samples(level, samples, all_tensors=all_tensors, progress=advance)
    write_arrays(outputs, arrays)
    shapes = {name: {"shape": array.shape, "dtype": str(array.dtype)} for name, array in arrays.items()}
    figures = {"level": level.kind, "samples": samples.count, "outputs": str(outputs), "tensors": shapes}
    write_figures(json, figures)
    say(f"{outputs}: {len(arrays)} tensors of {samples.count} samples, computed by the {level.kind}")


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=".onnx (float), .tpuq (graph), .tpu (program), or .tpub, a decoder.",
            callback=paths.model_input,
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
            "f1_boxes, miou, pixel_accuracy, mpa, wer, perplexity(PROMPT) of a decoder, rmse, psnr, "
            "max_error, cosine, euclid, agreement.",
        ),
    ],
    reference: Annotated[
        Path | None,
        typer.Option(
            "--float", metavar="MODEL.onnx", help="Float network to compare with.", callback=paths.model_input
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="A,B", help="Outputs for the metric. [the first]")
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
    workers: options.Workers = 1,
    ray: options.Ray = None,
    json: options.JsonFile = None,
) -> None:
    """Score a network on labelled data, compared with float."""
    from tpuflow.errors import ShortfallError
    from tpuflow.evaluation.scores import evaluate_level
    from tpuflow.execution.levels import open_level, run_samples
    from tpuflow.execution.shards import Sharded
    from tpuflow.frontend import is_model_file
    from tpuflow.plugins import dataset_samples, is_dataset, load_plugins, plugin_metrics

    if max_drop is not None and reference is None:
        raise options.OptionError("--max-drop compares with the float network: give it with --float")
    if file.suffix == ".tpub":
        change = score_decoder(file, data, metric, reference, json)
        if max_drop is not None and change is not None and change > max_drop:
            raise ShortfallError(f"{file}: perplexity is {change:.3%} above that of the float network")
        return
    is_model, opened = is_model_file(file), (options.shapes(input_shape), batch)
    level = open_level(file, *opened if is_model or reference is None else ())
    loaded = load_plugins(named=plugins or ())
    named = is_dataset(str(data)) and not data.exists()
    given = dataset_samples(loaded, str(data), level.ports) if named else data
    original = None if reference is None else open_level(reference, *opened)
    files = {id(level): file, id(original): reference}
    with options.executor(workers, ray) as executor, progress("evaluate") as advance:

        def run(opened: Level, samples: Samples, **told: Any) -> dict[str, Any]:
            if executor.runs_here:
                return run_samples(opened, samples, **told)
            path = files[id(opened)]
            assert path is not None, "what is run was opened from a file"
            return Sharded.of(opened, path, executor)(samples, **told)

        found = evaluate_level(
            level,
            given,
            metric,
            reference=original,
            outputs=options.names(output),
            plugins=plugin_metrics(loaded),
            progress=advance,
            run=run,
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
        say(f"  float       {found.text_of(found.reference)}")
    say(f"  {found.level:<12}{found.text_of(found.value)}")
    if found.right_to_wrong is not None:
        lost, won = found.right_to_wrong, found.wrong_to_right
        say(f"  {lost} right in float only, {won} right in {found.level} only")
    if found.sqnr_db is not None:
        say(f"  output SQNR {found.sqnr_db:.1f} dB, same arg-max in {found.agreement:.1%} of the samples")
