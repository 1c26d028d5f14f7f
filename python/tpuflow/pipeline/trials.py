"""Networks with layers of any precision, for searches and questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.evaluation.metrics import metric_list, metric_text
from tpuflow.io.samples import load_evaluation_samples
from tpuflow.pipeline.samples import samples_of
from tpuflow.pipeline.stages import calibrate_model, starting
from tpuflow.plugins import dataset_samples, is_dataset, plugin_metrics
from tpuflow.ptq import Listener, Recipe
from tpuflow.ptq.precision import Trials, parsed_rule, raised_from_the_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.calibration import Ranges
    from tpuflow.config import Config
    from tpuflow.executors import Executor
    from tpuflow.frontend import FloatModel
    from tpuflow.io.journal import Journal
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.pipeline.request import Request

__all__ = ["measure_metrics", "metric_evaluators", "search_precisions", "trials"]


def trials(
    model: FloatModel,
    request: Request,
    loss: str = "sqnr",
    journal: Journal | None = None,
    executor: Executor | None = None,
) -> Trials:
    """The network of a request with layers of any precision, evaluated by what its configuration names.

    Args:
        model: The network.
        request: What it is calibrated and evaluated with.
        loss: How outputs are compared with float.
        journal: Where what is found of assignments is noted.
        executor: Where trials run that do not depend on each other.

    Raises:
        TpuflowError: Samples, metric or plugins are wrong, or do not fit the model.
    """
    evaluator = metric_evaluators(model, request, loss)[0]
    state = starting(model, request)

    def ranges(config: Config) -> Ranges:
        recipe = Recipe(config, stages=("calibrate",))
        found = calibrate_model(state, replace(request, config=config), Listener(), recipe).ranges
        assert found is not None, "the stage makes them"
        return found

    return Trials(
        model, request.config, ranges, evaluator,
        machine=request.machine, level=request.level, host=request.host, journal=journal,
        executor=executor,
    )  # fmt: skip


def metric_evaluators(model: FloatModel, request: Request, loss: str = "sqnr") -> list[Evaluator]:
    """One evaluator for every metric a configuration names; one without a metric if it names none.

    Without samples to evaluate with those of calibration are taken.

    Raises:
        TpuflowError: Samples, metric or plugins are wrong, or do not fit the model.
    """
    chosen = request.config.evaluate
    if chosen.dataset:
        samples, labels = dataset_samples(
            request.plugins, chosen.source, model.inputs, chosen.dataloader_workers
        )
    elif is_dataset(chosen.data) and not Path(chosen.data).exists():
        samples, labels = dataset_samples(
            request.plugins, chosen.data, model.inputs, chosen.dataloader_workers
        )
    elif chosen.data:
        samples, labels = load_evaluation_samples(chosen.data, model.inputs, chosen.dataloader_workers)
    else:
        samples, labels = samples_of(model, request), None
    if chosen.searches:
        count = parsed_rule(chosen.mixed_precision_auto_search).batches * chosen.metric_batch_size
        samples, labels = samples.first(count), None if labels is None else labels[:count]
    plugins = plugin_metrics(request.plugins)
    texts = (
        [metric_text(name, words) for name, words in metric_list(chosen.metric)] if chosen.metric else [""]
    )
    return [
        Evaluator(model, samples, labels=labels, metric_text=text, plugins=plugins, loss=loss)
        for text in texts
    ]


def search_precisions(model: FloatModel, request: Request, listener: Listener) -> tuple[Trials, Config]:
    """The configuration with what `mixed_precision_auto_search` finds, and by what it was evaluated."""
    rule = parsed_rule(request.config.evaluate.mixed_precision_auto_search)
    found = trials(model, request)
    raised = raised_from_the_end(found, rule, remark=listener.remark)
    for what, (first, last) in raised.ranges.items():
        kind = {"unchanged": "stay as they are", "16": "get 16 bits"}.get(what, "become floats")
        listener.remark(f"layers {first} to {last} {kind}")
    name = found.evaluator.name
    verdict = "" if raised.holds else ", which still is not what was asked for"
    listener.remark(f"{name} {raised.before:.4f} before, {raised.after:.4f} now{verdict}")
    hosted = found.host_layers(raised.assignment)
    if hosted:
        listener.remark(
            f"{len(hosted)} layers in floats need the CPU of the host, target "
            f'"{request.config.quantize.target}" has none: {", ".join(hosted)}'
        )
    return found, found.config(raised.assignment)


def measure_metrics(by: Sequence[Evaluator], graph: AnyGraph, request: Request) -> list[str]:
    """Every metric of the float network and of its graph, as far as they are to be measured, in words."""
    chosen = request.config.evaluate
    outputs = by[0].outputs(graph) if chosen.eval_optimized_model else None
    lines = []
    for evaluator in by:
        values = {"float": evaluator.base} if chosen.eval_original_model else {}
        if outputs is not None:
            values["quantised"] = evaluator.value(outputs)
        lines.append(
            f"{evaluator.name}: " + ", ".join(f"{level} {value:.4f}" for level, value in values.items())
        )
    return lines
