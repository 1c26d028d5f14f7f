"""`tpuflow generate`, and what `build` and `evaluate` do with decoders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuflow.execution.decoder import PhaseLevel
    from tpuflow.partitioning.storage import AnyProgram
    from tpuflow.pipeline import Request

__all__ = ["build_phases", "generate", "score_decoder"]


def build_phases(
    request: Request,
    prefill: int | None,
    decode: int,
    contexts: Sequence[int],
    output: Path | None,
    json: Path | None,
) -> None:
    """Builds a decoder's phases and writes them as one bundle."""
    from tpuflow.pipeline.decoders import build_decoder, phases_of
    from tpuflow.ptq import Listener

    phases = phases_of(prefill, decode, contexts)
    if not phases:
        raise options.OptionError(
            f"--context {max(contexts)} holds neither --prefill {prefill} nor --decode {decode}"
        )
    path = output or Path(f"{request.model.stem}.tpub")
    built = build_decoder(request, phases, Listener(remark=say), lambda name: say(f"program    {name}"))
    bundle = built.bundle
    bundle.save(path)
    figures = {name: dict(each.report) for name, each in built.parts.items()}
    rows = [
        (
            name,
            f"{figures[name]['cycles']:,}",
            bytes_text(_ddr_bytes(figures[name])),
            bytes_text(len(bundle.programs[name])),
        )
        for name in phases
    ]
    table([("program", "left"), ("cycles", "right"), ("DDR", "right"), ("size", "right")], rows)
    say(f"bundle     {path} ({bytes_text(path.stat().st_size)})")
    if json is not None:
        write_figures(json, {"programs": figures})


def _ddr_bytes(figures: dict[str, Any]) -> int:
    """Bytes a run reads and writes in DDR."""
    memory = figures["memory"]
    return int(memory["ddr_read_bytes"] + memory["ddr_write_bytes"])


def generate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.tpub", help="Bundle made by `tpuflow build --context`.", callback=paths.bundle_input
        ),
    ],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Prompt text.")],
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens to generate.")] = 32,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help='A file of the tokenizers library, or {"chars": [...]} of characters. [code points]',
            callback=paths.readable,
        ),
    ] = None,
    simulated: Annotated[
        bool,
        typer.Option("--simulate", help="Compute values on the simulated machine instead of the graphs."),
    ] = False,
    json: options.JsonFile = None,
) -> None:
    """Continue a text with a decoder, token by token."""
    from tpuflow.execution.tokens import open_tokenizer
    from tpuflow.pipeline.bundle import load_bundle
    from tpuflow.pipeline.decoders import open_decoder

    words = open_tokenizer(tokenizer)
    runs: list[tuple[int, int, int]] = []

    def ran(chosen: PhaseLevel, count: int) -> None:
        runs.append((chosen.phase.sequence, chosen.phase.context, count))

    decoder = open_decoder(file, ran, simulated=simulated)
    held = load_bundle(file)
    with progress("generate") as advance:
        found = decoder.generate(words.encode(prompt), tokens, advance)
    say(prompt + words.decode(found))
    programs = {}
    for name in held.programs:
        program = held.program(name)
        programs[_phase_of(program)] = (name, program)
    summary = _summary(runs, programs)
    table(
        [("phase", "left"), ("tokens", "right"), ("cycles a token", "right"), ("tokens a second", "right"),
         ("DDR a token", "right")],
        [
            (each["phase"], str(each["tokens"]), f"{each['cycles_per_token']:,.0f}",
             f"{each['tokens_per_second']:,.1f}", bytes_text(int(each["ddr_bytes_per_token"])))
            for each in summary
        ],
    )  # fmt: skip
    if json is not None:
        write_figures(json, {"tokens": [int(token) for token in found], "phases": summary})


def _phase_of(program: Any) -> tuple[int, int]:
    from tpuflow.execution.decoder import PhaseLevel
    from tpuflow.execution.levels import program_level

    phase = PhaseLevel.of(program_level(program)).phase
    return phase.sequence, phase.context


def _summary(
    runs: Sequence[tuple[int, int, int]], programs: dict[tuple[int, int], tuple[str, AnyProgram]]
) -> list[dict[str, Any]]:
    """Figures of the runs by phase, in the order they were first run; of each run at its position."""
    counts, tokens = Counter((s, c) for s, c, _ in runs), Counter[tuple[int, int]]()
    reports: dict[tuple[int, int], list[dict[str, Any]]] = {}
    position = 0
    for sequence, context, count in runs:
        _, program = programs[sequence, context]
        reports.setdefault((sequence, context), []).append(_figures_at(program, position))
        tokens[sequence, context] += count
        position += count
    found = []
    for phase, times in counts.items():
        name = programs[phase][0]
        cycles = sum(report["cycles"] for report in reports[phase])
        clock = reports[phase][0]["clock_hz"]
        found.append(
            {
                "phase": name,
                "runs": times,
                "tokens": tokens[phase],
                "cycles_per_token": cycles / tokens[phase],
                "tokens_per_second": tokens[phase] * clock / cycles,
                "ddr_bytes_per_token": sum(map(_ddr_bytes, reports[phase])) / tokens[phase],
            }
        )
    return found


def _figures_at(program: AnyProgram, position: int) -> dict[str, Any]:
    """Figures of a run behind so many rows of the program's state."""
    from tpuflow.execution.simulation import simulate
    from tpuflow.partitioning import Partitioned

    if not isinstance(program, Partitioned) and program.last_position is not None:
        program = program.at(position)
    return simulate(program, values=False).report


def score_decoder(
    file: Path, data: Path, metric: str, reference: Path | None, json: Path | None, *, simulated: bool = False
) -> float | None:
    """Prints the perplexity of a bundle's decoder; gives its change against the float model's, if any.

    Raises:
        OptionError: The metric is another one.
    """
    from tpuflow.evaluation.perplexity import losses, paired_perplexity
    from tpuflow.pipeline.decoders import float_decoder, open_decoder, token_rows

    name, _, words = metric.partition("(")
    prompt = words.removesuffix(")") or "1"
    if name != "perplexity" or not prompt.isdecimal():
        raise options.OptionError(f'--metric "{metric}": a decoder is scored by perplexity(PROMPT)')
    decoder, rows = open_decoder(file, simulated=simulated), token_rows(data)
    with progress("evaluate") as advance:
        found = losses(decoder, rows, int(prompt), advance)
    theirs = None
    if reference is not None:
        floats = float_decoder(reference, [each.phase for each in decoder.phases])
        with progress("float") as advance:
            theirs = losses(floats, rows, int(prompt), advance)
    result = paired_perplexity(found, theirs)
    say(f"perplexity of {result.tokens} tokens in {len(rows)} rows, {prompt} of each as a prompt")
    if result.reference is not None and result.change is not None and result.standard_error is not None:
        say(f"  float       {result.reference:.4f}")
        error = f"standard error {result.standard_error:.3%}"
        say(f"  graph       {result.value:.4f}, {result.change:+.3%} ({error})")
    else:
        say(f"  graph       {result.value:.4f}")
    if json is not None:
        write_figures(json, result.to_json())
    return result.change
