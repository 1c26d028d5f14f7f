"""`tpuflow explore`: machines for networks, by cycles, energy and area of checked programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, heading, note, say, table
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuflow.executors import Executor
    from tpuflow.explore import MergedResults, Results, Settings, Workload

__all__ = ["explore"]

ROW_BYTES = 1500
"""Of a trial in the study's file, about."""

COMMIT_SECONDS = 0.1
"""Results that end within so many seconds are committed together: one commit takes about 10 ms."""

SHOWN = 20


def explore(
    study: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY.toml|MODEL..|STUDY.db..",
            help="A study; ONNX models and graphs, with --vary; or finished studies, to be merged.",
            callback=paths.each_readable,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="STUDY.db",
            help="Study file; an existing one is resumed.",
            callback=paths.output,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B,..",
            help="Values of a machine field, `batch` or `precision`; repeatable.",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None, typer.Option(metavar="EXPR", help="Constraint on every point; repeatable.")
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Objectives: latency, throughput, energy, edp, area, accuracy. [latency,area]"
        ),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.toml", help="Base machine. [128x128_asic]")
    ] = None,
    levels: Annotated[
        str | None, typer.Option(metavar="1,5", help="Optimisation levels; results are of the last. [1,5]")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="grid, random, tpe or nsga2. [grid]")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of points, except for grid. [100]")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Random seed. [0]")] = None,
    search_steps: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Search steps of level 5; `build` takes 200. [0]"),
    ] = None,
    combine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How to combine several networks: geomean or worst. [geomean]"),
    ] = None,
    energy_table: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.toml", help="Table for energy and area: 45nm, 7nm. [45nm]"),
    ] = None,
    calib: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz|DIR",
            help="Samples, for a single network. [generated]",
            callback=paths.sample_input,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz|DIR",
            help="Samples for the objective accuracy: SQNR of the outputs against float.",
            callback=paths.sample_input,
        ),
    ] = None,
    config: options.ConfigFile = None,
    workers: options.Workers = 1,
    ray: options.Ray = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of points and an upper estimate of the time.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write all trials.", callback=paths.output)
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE.parquet", help="The same as Parquet.", callback=paths.output)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with the Pareto front.", callback=paths.output),
    ] = None,
    reports: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a report of every program of the front.", callback=paths.folder
        ),
    ] = None,
) -> None:
    """Find Pareto-optimal machines for a network.

    Every point is a checked program of the whole network. Points whose lower bounds are dominated by
    finished ones are not built. An interrupted study resumes. Studies of the same networks are merged: all
    their points, the common front, and what each contributes to it.
    """
    from tpuflow.io.journal import Journal
    from tpuflow.pipeline.exploration import study_inputs, workloads

    written = _Written(csv, parquet, page, reports)
    if _are_studies(study):
        if output is not None:
            raise options.OptionError(f"{output}: merged studies are written by --csv, --parquet and --page")
        if reports is not None:
            raise options.OptionError(f"{reports}: reports are written with a study, not with merged ones")
        merged = _merge_studies(study)
        _show(merged)
        _show_contributions(merged)
        written.save(merged)
        return
    if output is None:
        raise options.OptionError(f"{study[0]}: give -o STUDY.db, where trials are kept")
    stated = {
        "objectives": _words(objectives), "machine": machine, "levels": _numbers("--levels", levels),
        "strategy": strategy, "trials": trials, "seed": seed, "combine": combine,
        "energy_table": energy_table, "constraints": constraint, "search_steps": search_steps,
        "data": None if data is None else str(data),
    }  # fmt: skip
    settings = _settings(study, vary, {key: value for key, value in stated.items() if value is not None})
    quantized = options.configuration(config, None)
    graphs = output.with_name(f"{output.name}.graphs")
    if dry_run:
        _estimate(settings, workloads(settings, graphs, calib, quantized, note), workers)
        return
    inputs = study_inputs(settings, calib, quantized)
    with Journal.open(output, "explore", inputs, commit_seconds=COMMIT_SECONDS) as journal:
        if journal.resumed:
            note(f"{output}: resuming after {journal.resumed:,} finished steps")
        try:
            with options.executor(workers, ray) as executor:  # a cluster that does not answer is told first
                networks = workloads(settings, graphs, calib, quantized, note)
                results = _run(settings, networks, executor, journal)
        except BaseException:
            if not journal.holds_trials:
                journal.remove()
            raise
    _show(results)
    written.save(results, networks)


class _Written(NamedTuple):
    """Files that results are written to."""

    csv: Path | None
    parquet: Path | None
    page: Path | None
    reports: Path | None

    def save(self, results: Results, networks: Sequence[Workload] = ()) -> None:
        """Writes all of them; reports are those of the networks, which are compiled once more."""
        links = {} if self.reports is None else _write_reports(results, networks, self.reports)
        if self.page is not None:
            folder = self.page.resolve().parent
            relative = {
                trial: {name: os.path.relpath(path.resolve(), folder) for name, path in own.items()}
                for trial, own in links.items()
            }
        else:
            relative = {}
        for path, write in (
            (self.csv, results.save_csv),
            (self.parquet, results.save_parquet),
            (self.page, _page_writer(results, relative)),
        ):
            if path is not None:
                write(path)
                say(f"{path}")


def _are_studies(files: list[Path]) -> bool:
    """Whether all files are studies; some of them are an error."""
    kinds = [path.suffix == ".db" for path in files]
    if any(kinds) and (len(files) < 2 or not all(kinds)):
        raise options.OptionError(
            f"{files[kinds.index(True)]}: give two or more studies (.db) to be merged, and no other file"
        )
    return any(kinds)


def _merge_studies(studies: list[Path]) -> MergedResults:
    from tpuflow.explore import load_results, merge_results

    names = [path.stem for path in studies]
    if len(set(names)) < len(names):
        names = [str(path) for path in studies]
    return merge_results({name: load_results(path) for name, path in zip(names, studies, strict=True)})


def _show_contributions(merged: MergedResults) -> None:
    heading("Studies")
    objectives = merged.settings.objectives
    columns: list[tuple[str, Literal["left", "right"]]] = [
        ("study", "left"), ("points", "right"), ("front", "right"), ("on the common front", "right"),
        ("dominated by others", "right"), *((f"best {name}", "right") for name in objectives),
    ]  # fmt: skip
    rows = [
        (
            name,
            f"{own.trials:,}",
            f"{own.front:,}",
            f"{own.common:,}",
            f"{own.dominated:,}",
            *(f"{own.best[each]:,.4g}" if each in own.best else "" for each in objectives),
        )
        for name, own in merged.contributions.items()
    ]
    table(columns, rows)


def _run(settings: Settings, networks: list[Workload], executor: Executor, journal: Any) -> Results:
    from tpuflow.explore import explore as explored

    with progress("bounds") as task:

        def on_progress(what: str, done: int, total: int) -> None:
            if what != task.label:
                task.begin(what)
            task(done, total)

        return explored(settings, networks, executor, journal, on_progress)


def _write_reports(
    results: Results, networks: Sequence[Workload], folder: Path
) -> dict[int, dict[str, Path]]:
    """Writes the report page of every program of the front; by trial and network, where it is."""
    from tpuflow.cli.commands.report import graph_tensors, program_view
    from tpuflow.compiler.program import compile as compile_graph
    from tpuflow.compiler.schedule import Schedule
    from tpuflow.execution.simulation import simulate
    from tpuflow.io.files import make_folder, write_text
    from tpuflow.partitioning.storage import load_graph
    from tpuflow.report import render_page

    make_folder(folder)
    settings, level = results.settings, results.settings.levels[-1]
    schedule = Schedule(search_steps=settings.search_steps if level > 1 else None)
    found: dict[int, dict[str, Path]] = {}
    with progress("reports") as advance:
        for done, trial in enumerate(results.front):
            advance(done, len(results.front))
            point = {name: results.rows[trial][name] for name in settings.space.fields}
            machine = settings.space.machine(point, settings.base)
            for own in (each for each in networks if each.fits(point)):
                graph = load_graph(own.graph)
                program = compile_graph(graph, machine, level, schedule=schedule, seed=settings.seed)
                run = simulate(program, values=False, trace=True)
                path = folder / f"{trial}-{own.name}.html"
                write_text(path, render_page(program_view(program, run, graph_tensors(graph))))
                found.setdefault(trial, {})[own.name] = path
    say(f"{folder}: reports of {len(found)} points")
    return found


def _page_writer(results: Results, reports: Mapping[int, Mapping[str, str]]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from tpuflow.explore.page import study_page
        from tpuflow.io.files import write_text

        write_text(path, study_page(results, reports))

    return write


def _settings(study: list[Path], vary: list[str] | None, stated: dict[str, Any]) -> Settings:
    from dataclasses import replace

    from tpuflow.explore import load_settings
    from tpuflow.explore.settings import settings_of

    if study[0].suffix == ".toml":
        if len(study) > 1 or vary or "constraints" in stated:
            raise options.OptionError(
                f"{study[0]}: is a study, which names its networks and its space itself"
            )
        settings = load_settings(study[0])
        lists = {key: tuple(value) for key, value in stated.items() if isinstance(value, list)}
        return replace(settings, **stated | lists)
    if not vary:
        raise options.OptionError(f"{study[0]}: say what varies, such as --vary array.size=32,64,128")
    space = dict(map(_parse_variation, vary))
    return settings_of({"networks": [str(path) for path in study], "space": space, **stated}, Path())


def _parse_variation(text: str) -> tuple[str, list[int | float | str]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise options.OptionError(f"--vary {text}: write FIELD=A,B, such as cache.bytes=1M,2M")
    return name.strip(), [_value(word.strip()) for word in values.split(",")]


def _value(word: str) -> int | float | str:
    if word[-1:].upper() in {"K", "M", "G"} and word[:-1].isdigit():
        return options.size("--vary", word)
    for kind in (int, float):
        try:
            return kind(word.replace("_", ""))
        except ValueError:
            continue
    return word


def _words(text: str | None) -> list[str] | None:
    return None if text is None else list(options.names(text))


def _numbers(option: str, text: str | None) -> list[int] | None:
    words = _words(text)
    if words is not None and not all(word.isdecimal() for word in words):
        raise options.OptionError(f"{option} {text}: write numbers")
    return None if words is None else [int(word) for word in words]


def _estimate(settings: Settings, networks: list[Workload], workers: int) -> None:
    """Says how many points there are, and how long they take if nothing is pruned, by one of them."""
    import time

    from tpuflow.errors import MachineError
    from tpuflow.explore.measure import measure_point
    from tpuflow.explore.strategies import SAMPLERS

    possible, example, reasons = 0, None, list[str]()
    for point in settings.space.points():
        try:
            made = settings.space.machine(point, settings.base)
        except MachineError as error:
            reasons.append(str(error))
            continue
        possible += 1
        example = example or (made, [each for each in networks if each.fits(point)])
    count = possible if settings.strategy == "grid" else min(settings.trials, possible)
    say(f"{settings.space.size:,} points, {possible:,} possible, {count:,} to try ({settings.strategy})")
    if reasons:
        say(f"the first that is impossible: {reasons[0]}")
    if example is None or settings.strategy in SAMPLERS:
        return
    seconds = 0.0
    for level in settings.levels:
        start = time.perf_counter()
        steps = settings.search_steps if level > 1 else None
        measure_point(*example, settings.energy_table, level, settings.seed, steps)
        seconds += time.perf_counter() - start
    say(f"at most {count * seconds / workers:,.0f} s with {workers} workers: a point took {seconds:.1f} s")
    say(f"about {bytes_text(count * ROW_BYTES * (1 + len(settings.levels)))} of disk")


def _show(results: Results) -> None:
    from tpuflow.explore.objectives import OBJECTIVES

    settings, counts = results.settings, results.counts
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    say(f"{len(results.rows):,} points: {told}")
    for level, count in results.pruned_before.items():
        say(f"{count:,} not all built at -O{level}: a finished point is at least as good as their bounds")
    if results.below_bound:
        say(f"WARNING: trials {results.below_bound} lie below their bounds: what was pruned may be wrong")
    heading(f"Front ({len(results.front)} points)")
    names = results.fields
    rows = [
        (
            str(number),
            *(f"{results.rows[number][name]}" for name in names),
            *(f"{results.rows[number][name]:,.4g}" for name in settings.objectives),
        )
        for number in results.front[:SHOWN]
    ]
    columns: list[tuple[str, Literal["left", "right"]]] = [("trial", "right")]
    columns += [(name, "right") for name in names]
    columns += [(f"{name}, {OBJECTIVES[name].unit}", "right") for name in settings.objectives]
    table(columns, rows)
    if len(results.front) > SHOWN:
        say(f"and {len(results.front) - SHOWN} more: --csv, --page")
