"""`tpuflow search`: the closest quantised form of a network among strategies, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import say, say_host, write_figures
from tpuflow.cli.commands.progress import progress
from tpuflow.cli.commands.resuming import resumable

if TYPE_CHECKING:
    from tpuflow.ptq import SearchResult

__all__ = ["search"]


def search(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", callback=paths.model_input)],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="MODEL.tpuq",
            help="Output file for the best graph.",
            callback=paths.output,
        ),
    ],
    calib: Annotated[
        Path,
        typer.Option(
            metavar="FILE.npz|DIR",
            help="Samples; some are held out for evaluation, in turn.",
            callback=paths.sample_input,
        ),
    ],
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    host: options.Host = True,
    growth: Annotated[
        float,
        typer.Option(min=1, help="Allowed growth of multiplications; 1: none."),
    ] = 2.0,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    report: options.JsonFile = None,
) -> None:
    """Try quantisation methods; keep the most accurate.

    Trials are kept in MODEL.tpuq.journal while the search runs; an interrupted search resumes.
    """
    from tpuflow.frontend import load, model_digest
    from tpuflow.io.files import publication
    from tpuflow.io.journal import content_digest
    from tpuflow.io.samples import load_samples
    from tpuflow.ptq import search as best

    settings = options.configuration(config, dtype)
    if not settings.needs_ranges:
        raise options.OptionError(f"{model}: {settings.quantize.dtype} needs no calibration")
    float_model = load(
        model,
        input_shapes=options.shapes(input_shape),
        batch=batch,
        **settings.loading,
        host=host,
    )
    samples = load_samples(calib, float_model.inputs)
    inputs = {
        "model": model_digest(model),
        "samples": content_digest(calib),
        "config": settings.model_dump_json(),
        "options": f"batch {batch}, input shapes {input_shape}, host {host}, growth {growth}, validated",
    }
    with resumable(output, "search", inputs) as journal:
        with options.executor(workers, ray) as executor, progress("search"):
            several = None if executor.runs_here else executor
            found = best(float_model, samples, settings, say, growth, journal, several)
        with publication() as files:
            found.graph.save(files.stage(output))
        write_figures(
            report, {"chosen": found.name, "validation": _validation(found), "candidates": _rows(found)}
        )
    say(f"{output}: {found.name}{_interval_text(found)}")
    say_host(found.graph)


def _interval_text(found: SearchResult) -> str:
    """The interval of every output, in words."""
    if found.estimate is None:
        return ", accuracy not estimated"
    texts = [
        f"{name} {each.low_db:.1f} to {each.high_db:.1f} dB" for name, each in found.estimate.outputs.items()
    ]
    return f": expected {', '.join(texts)}" if texts else ""


def _validation(found: SearchResult) -> dict[str, object] | None:
    """The validation on samples kept apart, for JSON."""
    seen = found.validation
    if seen is None:
        return None
    return {
        "samples": seen.samples,
        "found_db": seen.found_db,
        "default_db": seen.default_db,
        "more_flips": seen.more_flips,
        "standard_error": seen.standard_error,
        "outputs": {
            name: {"low_db": each.low_db, "high_db": each.high_db}
            for name, each in seen.estimate.outputs.items()
        },
    }


def _rows(found: SearchResult) -> list[dict[str, object]]:
    """Everything that was tried, as JSON has it."""
    return [
        {
            "name": entry.name,
            "sqnr_db": entry.sqnr_db,
            "flips": entry.fidelity.flips,
            "expected_flips": entry.fidelity.expected_flips,
            "folds": len(entry.parts),
            "commute_pooling": entry.plan.commute_pooling,
            "averaged": entry.plan.commute_pooling,
            "scaled": entry.plan.scaled,
            "refined": entry.refined,
            "split_channels": entry.plan.split_channels,
            "doubled": entry.plan.split_channels,
            "correct_output_bias": entry.plan.correct_output_bias,
            "centred": entry.plan.correct_output_bias,
            "kept": entry.kept,
        }
        for entry in found.candidates
    ]
