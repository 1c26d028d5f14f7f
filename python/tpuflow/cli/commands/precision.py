"""`tpuflow sensitivity`, `mixed` and `bisect`: which layers need more bits, and which may have fewer."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress
from tpuflow.cli.commands.resuming import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuflow.config import Config
    from tpuflow.evaluation.fidelity import Evaluator
    from tpuflow.executors import Executor
    from tpuflow.frontend import FloatModel
    from tpuflow.io.journal import Journal
    from tpuflow.ptq.precision import Limits, Row, Trials

__all__ = ["bisect", "mixed", "sensitivity"]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", callback=paths.model_input)]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.npz|PLUGIN",
        help="Samples to evaluate with, with `labels` if the metric needs them. [those of --calib]",
    ),
]
MetricName = Annotated[
    str | None, typer.Option("--metric", metavar="NAME", help="Task metric, see `tpuflow evaluate`.")
]
Loss = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="How outputs are compared with float: sqnr (noise over signal), mse, cosine, kl."
    ),
]
Machine = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE.toml", help="Machine whose cycles are counted.", callback=options.valid_machine
    ),
]
Level = Annotated[options.Level, typer.Option("-O", help="Level of the schedule whose cycles are counted.")]
Seconds = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="S", help="Time limit in seconds.", callback=options.positive),
]
Steps = Annotated[int | None, typer.Option(min=0, metavar="N", help="Maximum number of trials.")]


MODES = {"4": "INT4", "8": "INT8", "16": "INT16", "f16": "F16", "bf16": "BF16", "f32": "F32"}
"""Names of precisions in tables."""


def sensitivity(
    model: Model,
    calib: options.Calib = None,
    ranges: options.RangesFile = None,
    data: Data = None,
    metric: MetricName = None,
    to: Annotated[
        str, typer.Option(metavar="WIDTH", help="Precision tried on each layer: 4, 8, 16, f16, bf16, f32.")
    ] = "16",
    loss: Loss = "sqnr",
    machine: Machine = "128x128_asic",
    level: Level = options.Level.sequential,
    plugins: options.Plugins = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    host: options.Host = True,
    time_limit: Seconds = None,
    steps: Steps = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    json: options.JsonFile = None,
) -> None:
    """Rank layers by the effect of another precision."""
    from tpuflow.ptq.precision import PRECISIONS, PrecisionError
    from tpuflow.ptq.precision import sensitivity as ranked

    if to not in PRECISIONS:
        raise PrecisionError(f'--to "{to}": choose of {", ".join(PRECISIONS)}')
    with options.executor(workers, ray) as executor:
        trials = _open_model(
            model,
            options.configuration(config, dtype),
            options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
            _Measure(calib, ranges, data, metric, loss, machine, int(level.value), host, plugins),
            executor=executor,
        ).trials
        with _trial_limits(steps, time_limit, len(trials.layers)) as limits:
            rows = ranked(trials, to, limits)
    _show_rows(trials, rows)
    if limits.cut:
        say("stopped early: layers not listed were not tried")
    if json is not None:
        write_figures(
            json, {"base_loss": trials.loss({}), "partial": limits.cut, "rows": [_plain(r) for r in rows]}
        )


def mixed(
    model: Model,
    budget: Annotated[
        str,
        typer.Option(
            metavar="cycles=N|bytes=N|activations=N|drop=X",
            help="Limit on cycles, bytes of constants or activations, or loss of the metric against float.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="LAYERS.json|.table",
            help="Output file for per-layer settings.",
            callback=paths.output,
        ),
    ],
    calib: options.Calib = None,
    ranges: options.RangesFile = None,
    data: Data = None,
    metric: MetricName = None,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Allowed precisions, of 4, 8, 16, f16, bf16, f32, or a8, a16 for activations alone. "
            "[8,16; for a budget of activations a8,a16]",
        ),
    ] = None,
    loss: Loss = "sqnr",
    machine: Machine = "128x128_asic",
    level: Level = options.Level.sequential,
    plugins: options.Plugins = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    host: options.Host = True,
    time_limit: Seconds = None,
    steps: Steps = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    json: options.JsonFile = None,
) -> None:
    """Choose a precision for every layer within a budget.

    Every layer is tried alone at every width, on the machine and on the samples; the table of what each
    gains and costs comes first. The choice is then compiled and evaluated as a whole. Trials are
    kept in LAYERS.json.journal while the search runs; an interrupted search resumes.
    """
    from tpuflow.config import table_text
    from tpuflow.errors import ShortfallError
    from tpuflow.io.files import write_json, write_text
    from tpuflow.ptq.precision import parsed_budget, within_budget

    wish = parsed_budget(budget)
    words = options.names(widths) if widths else wish.widths
    if output.suffix == ".table" and not MODES.keys() >= set(words):
        raise options.OptionError(f"{output}: a table has no words for activations alone: write a .json file")
    settings = options.configuration(config, dtype)
    opening = options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset)
    told = f"{opening}, metric {metric}, loss {loss}, level {level.value}, host {host}"
    inputs = _inputs(model, calib, ranges, data, settings, machine, plugins) | {"options": told}
    with resumable(output, "mixed", inputs) as journal, options.executor(workers, ray) as executor:
        opened = _open_model(
            model,
            settings,
            opening,
            _Measure(calib, ranges, data, metric, loss, machine, int(level.value), host, plugins),
            journal,
            executor,
        )
        trials = opened.trials
        with _trial_limits(steps, time_limit, len(trials.layers) * len(words)) as limits:
            found = within_budget(trials, wish, words, limits, lambda rows: _show_rows(trials, rows))
        if output.suffix == ".table":
            write_text(output, table_text({name: MODES[width] for name, width in found.assignment.items()}))
        else:
            write_json(output, opened.settings_entries(found.assignment))
    counts = {width: list(found.assignment.values()).count(width) for width in words}
    listed = ", ".join(f"{count} at {width}" for width, count in counts.items() if count)
    say()
    say(f"{output}: {listed or 'no layer'} of {len(trials.layers)} layers, to be given back with --config")
    say(f"cycles     {found.base.cycles:,} before, {found.cost.cycles:,} now (-O{level.value}, {machine})")
    if wish.kind == "activations":
        say(f"activations {found.base.activations:,} bytes before, {found.cost.activations:,} now")
    say(
        f"bytes      {found.base.bytes:,} before, {found.cost.bytes:,} now; 4-bit weights are stored as bytes"
    )
    say(f"loss       {_shown_loss(loss, found.loss[0])} before, {_shown_loss(loss, found.loss[1])} now")
    if trials.evaluator.name:
        say(f"{trials.evaluator.name:<10} {_comparison_text(trials.evaluator, *found.value)}")
    _say_hosted(trials, found.assignment)
    if found.partial:
        say("stopped early: layers that were not tried stay as they are")
    if json is not None:
        content = {
            "assignment": found.assignment,
            "cycles": [found.base.cycles, found.cost.cycles],
            "bytes": [found.base.bytes, found.cost.bytes],
            "activations": [found.base.activations, found.cost.activations],
            "loss": list(found.loss),
            "metric": list(found.value),
            "within": found.within,
            "partial": found.partial,
            "rows": [_plain(row) for row in found.rows],
        }
        write_figures(json, content)
    if not found.within:
        raise ShortfallError(
            f"{output}: the budget {budget} is exceeded: this is the closest these precisions come"
        )


def bisect(
    model: Model,
    metric: Annotated[str, typer.Option(metavar="NAME", help="Task metric, see `tpuflow evaluate`.")],
    calib: options.Calib = None,
    ranges: options.RangesFile = None,
    data: Data = None,
    allowed: Annotated[
        float, typer.Option(metavar="X", help="Allowed loss of the metric against float.")
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="LAYERS.json",
            help="Write them as per-layer settings.",
            callback=paths.output,
        ),
    ] = None,
    plugins: options.Plugins = None,
    config: options.ConfigFile = None,
    dtype: options.DTypeOption = None,
    batch: options.Batch = None,
    input_shape: options.InputShapes = None,
    cut_inputs: options.CutInputs = None,
    cut_outputs: options.CutOutputs = None,
    cut_preset: options.CutPreset = None,
    host: options.Host = True,
    time_limit: Seconds = None,
    steps: Steps = None,
    json: options.JsonFile = None,
) -> None:
    """Find the fewest layers that must stay in float.

    None of those found can be left out: they are where quantisation does the damage.
    """
    from tpuflow.io.files import write_json
    from tpuflow.ptq.precision import bisect_layers

    opened = _open_model(
        model,
        options.configuration(config, dtype),
        options.opening(input_shape, batch, cut_inputs, cut_outputs, cut_preset),
        _Measure(calib, ranges, data, metric, host=host, plugins=plugins),
    )
    trials = opened.trials
    with _trial_limits(steps, time_limit, None) as limits:
        found = bisect_layers(trials, allowed, limits)
    say(f"{metric}: {_comparison_text(trials.evaluator, found.before, found.after)} in floats")
    if not found.layers:
        say("no layer found: as configured the metric is within the allowed loss")
    else:
        say(f"{len(found.layers)} of {len(trials.layers)} layers in {found.evaluations} evaluations:")
    table(
        [("id", "right"), ("layer", "left"), ("operator", "left")],
        [(layer.number, layer.name, layer.operator) for layer in found.layers],
    )
    assignment = {layer.name: "f32" for layer in found.layers}
    _say_hosted(trials, assignment)
    if found.partial:
        say("stopped early: fewer layers may suffice")
    if output is not None:
        write_json(output, opened.settings_entries(assignment))
        say(f"{output}: these layers in floats, to be given back with --config")
    if json is not None:
        content = {
            "layers": [
                {"id": each.number, "name": each.name, "operator": each.operator} for each in found.layers
            ],
            "metric": {"float": found.base, "before": found.before, "after": found.after},
            "evaluations": found.evaluations,
            "partial": found.partial,
        }
        write_figures(json, content)


def _inputs(
    model: Path,
    calib: Path | None,
    ranges: Path | None,
    data: str | None,
    settings: Config,
    machine: str,
    plugins: list[Path] | None,
) -> dict[str, str]:
    """Everything trials depend on, by name: hashes of files, texts of options."""
    from tpuflow.compiler.program import machine_text
    from tpuflow.frontend import model_digest
    from tpuflow.io.journal import content_digest

    def identity(given: Path | str | None) -> str:
        return content_digest(given) if given is not None and Path(given).exists() else str(given)

    return {
        "model": model_digest(model),
        "samples": f"{identity(calib)} {identity(data)} {identity(settings.evaluate.data or None)}",
        "ranges": identity(ranges),
        "config": settings.model_dump_json(),
        "machine": machine_text(machine),
        "plugins": " ".join(identity(folder) for folder in plugins or ()),
    }


@dataclass(frozen=True)
class _OpenedModel:
    """A model with its trials."""

    trials: Trials
    model: FloatModel
    machine: str

    def settings_entries(self, assignment: Mapping[str, str]) -> dict[str, Any]:
        """An assignment as settings by layer."""
        from tpuflow.lowering import by_layer

        trials = self.trials
        return by_layer(
            trials.graph(assignment), self.model.model, trials.config(assignment), trials.ranges(assignment)
        )


class _Measure(NamedTuple):
    """How accuracy and cycles of trials are measured: samples or ranges, data, metric or loss, machine."""

    calib: Path | None
    ranges: Path | None
    data: str | None
    metric: str | None
    loss: str = "sqnr"
    machine: str = "128x128_asic"
    level: int = 1
    host: bool = True
    plugins: list[Path] | None = None


def _open_model(
    model: Path,
    settings: Config,
    opening: options.Opening,
    by: _Measure,
    journal: Journal | None = None,
    executor: Executor | None = None,
) -> _OpenedModel:
    """The trials of a model, its data read and its metric known before anything is calibrated.

    Raises:
        OptionError: There is nothing to calibrate with.
    """
    from tpuflow.config import EvaluateConfig
    from tpuflow.frontend import load
    from tpuflow.pipeline import Request, trials
    from tpuflow.plugins import load_plugins

    if by.calib is None and by.ranges is None:
        raise options.OptionError(f"{model}: accuracy is measured here: give --calib or --ranges")
    if by.ranges is not None and by.data is None and not settings.evaluate.data:
        raise options.OptionError(f"{by.ranges}: ranges hold no samples to evaluate with: give --data")
    chosen = {key: getattr(settings.evaluate, key) for key in settings.evaluate.model_fields_set}
    chosen.pop("mixed_precision_auto_search", None)
    if by.data is not None:
        chosen = {key: value for key, value in chosen.items() if key not in {"dataset", "label"}}
        chosen["data"] = by.data
    scored = EvaluateConfig.model_construct(**chosen | ({} if by.metric is None else {"metric": by.metric}))
    settings = settings.model_copy(update={"evaluate": scored})
    found = load_plugins(named=by.plugins or ())
    request = Request(
        model, by.level, by.machine, by.calib, found, ranges=by.ranges, config=settings, host=by.host
    )
    loaded = load(model, **opening, **settings.loading, host=by.host)
    several = None if executor is None or executor.runs_here else executor
    return _OpenedModel(trials(loaded, request, by.loss, journal, several), loaded, by.machine)


@contextmanager
def _trial_limits(steps: int | None, seconds: float | None, most: int | None) -> Iterator[Limits]:
    """Limits that show how far a search is, where it is known how far it may go."""
    from tpuflow.ptq.precision import Limits

    with progress("trials") as advance:
        yield Limits(steps, seconds, told=lambda done: advance(done, max(done, most or done + 1)))


def _show_rows(trials: Trials, rows: Sequence[Row]) -> None:
    loss = trials.evaluator.loss_name
    base, cost = trials.loss({}), trials.cost({})
    heading(f"as configured: {_shown_loss(loss, base)}, {cost.cycles:,} cycles, {cost.bytes:,} bytes")
    scored = bool(trials.evaluator.name)
    columns: list[tuple[str, Literal["left", "right"]]] = [
        ("id", "right"), ("layer", "left"), ("operator", "left"), ("width", "right"), ("loss", "right"),
        ("gain", "right"), ("cycles", "right"), ("bytes", "right"),
    ]  # fmt: skip
    cells = [
        [
            row.layer.number, row.layer.name, row.layer.operator, row.precision, _shown_loss(loss, row.loss),
            f"{row.gain / base:+.1%}" if base else "0", f"{row.cost.cycles:+,}", f"{row.cost.bytes:+,}",
            *([f"{row.value:.4f}"] if scored else []),
        ]
        for row in rows
    ]  # fmt: skip
    table([*columns, (trials.evaluator.name, "right")] if scored else columns, cells)


def _shown_loss(name: str, value: float) -> str:
    if name == "sqnr":
        return f"{-10 * math.log10(value):.1f} dB" if value > 0 else "no error"
    return f"{name} {value:.3g}"


def _comparison_text(evaluator: Evaluator, before: float, after: float) -> str:
    return f"float {evaluator.base:.4f}, as configured {before:.4f}, now {after:.4f}"


def _say_hosted(trials: Trials, assignment: Mapping[str, str]) -> None:
    hosted = trials.host_layers(assignment)
    if hosted:
        say(f"{len(hosted)} layers need the CPU of the host, the target has no floats: {', '.join(hosted)}")


def _plain(row: Row) -> dict[str, Any]:
    return {
        "id": row.layer.number,
        "layer": row.layer.name,
        "operator": row.layer.operator,
        "precision": row.precision,
        "loss": row.loss,
        "gain": row.gain,
        "metric": row.value,
        "cycles": row.cost.cycles,
        "bytes": row.cost.bytes,
    }
