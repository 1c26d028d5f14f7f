"""What can become of a node test of the onnx package, and the page about all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from frontend.onnx_lowered import ALIKE, SMALL, TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuflow.config import DType

__all__ = [
    "FORMS", "INTEGERS", "INTEGER_TYPES", "RANKS", "RUN_TIME", "WEIGHTS", "Outcome", "counts_of", "is_wrong",
    "kind_of", "regressed", "table",
]  # fmt: skip

Outcome = dict[str, str | float]
"""By stage, see `onnx_backend.outcome`."""

RUN_TIME, INTEGERS, WEIGHTS = "run time", "integers constant", "all but the first constant"
FORMS = (RUN_TIME, INTEGERS, WEIGHTS)
INTEGER_TYPES: tuple[DType, ...] = ("int16", "int8")
RANKS = {"machine": 3, "whole": 3, "equal": 3, "as onnxruntime": 2, "host": 1, "unsupported": 0, "wrong": -1}
"""What is better than what."""
LOW = {
    "hardmax": "the two largest lie within one step",
    "large_number": "numbers of 0 to 10000 on one grid, of which differences of 1 matter",
    "round": "halves, on the border between two results",
    "thresholdedrelu": "a value at the threshold, which a rounding crosses",
    "operator_add_size1": "denormal doubles, which are 0 in float32",
    "onehot": "indices are told apart by the codes they fall on",
}
"""Why integers differ, by part of the name of a test."""


def kind_of(result: str) -> str:
    """A result without its reason."""
    return "machine" if result in FORMS else result.partition(":")[0]


def is_wrong(outcome: Outcome) -> bool:
    """Whether a test fails anywhere."""
    return any(str(result).startswith("wrong") for result in outcome.values())


def regressed(outcome: Outcome, listed: Outcome) -> bool:
    """Whether a test does worse than the list says."""
    return any(_rank(outcome.get(key, "")) < _rank(result) for key, result in listed.items())


def _rank(result: str | float) -> float:
    """What is better than what; similarity counts in hundredths."""
    return RANKS.get(kind_of(result), 0) if isinstance(result, str) else 1 + round(result, 2)


PAGE = """# ONNX operators

What becomes of the node tests of the onnx package, and of the small models beside them: in the importer, in
the graph's interpreter and on the simulated machine. All of them run with

    python tests/frontend/onnx_backend.py

which compares with the list by test beside that file; `--write` writes that list and this page. `./start
test` runs a sample.

## Import

Of {tests} tests the machine's operators compute {machine}, machine and host together {host}; {other} give
what onnxruntime gives where that is not what the test expects; {refused} are refused with a reason, {wrong}
are wrong. Of those the machine's operators compute, {run_time} run as they are, {integers} with their integer
inputs (shapes, axes, indices) made constants, {weights} with all inputs but the first made constants.

Results are those of the normalised float model in onnxruntime, compared with the expected ones within the
tolerance of each test. A test counts as the host's where at least one node is left to it.

## float32

Of the {taken} the importer takes, {whole} become a float32 graph as a whole and {shared} in segments between
device and host, all of which give the expected outputs; {refused32} cannot be lowered, {wrong32} are wrong.
The tolerance is that of the test, but no narrower than {rtol:g} of the value plus {atol:g}: sums are taken in
another order. Graphs of up to {small} elements are compiled and simulated too: {equal} programs equal their
graph in every bit, {not_compiled} do not compile, {different} differ.
Programs in floats take NaN and infinity as samples; programs of integers and calibration refuse them.

{why}

## Integers

The same as integers, calibrated on the very inputs of the test; of outputs in floats the least cosine
similarity with the expected ones counts.

| | compared | at least 0.999 | at least 0.99 | below | refused |
|---|---|---|---|---|---|
{integer_rows}

Below 0.99:

{below}

## By operator

The last but one columns count tests that become a float32 graph, whole or in segments, and those whose
int16 and int8 versions reach 0.99.

| operator | tests | machine | host | refused | float32 | int16 | int8 | why, for most of those left |
|---|---|---|---|---|---|---|---|---|"""


def table(found: Mapping[str, Outcome], operators: Mapping[str, str]) -> str:
    """The page about all operators; `operators` has those of the tests that are about one."""
    rows: dict[str, list[Outcome]] = {}
    for name, operator in operators.items():
        rows.setdefault(operator, []).append(found[name])
    results = [str(outcome["import"]) for outcome in found.values()]
    counts, forms = Counter(map(kind_of, results)), Counter(results)
    floats, programs = counts_of(found, "float32"), counts_of(found, "program")
    lines = [
        PAGE.format(
            tests=len(found),
            machine=counts["machine"],
            host=counts["host"],
            other=counts["as onnxruntime"],
            refused=counts["unsupported"],
            wrong=counts["wrong"],
            run_time=forms[RUN_TIME],
            integers=forms[INTEGERS],
            weights=forms[WEIGHTS],
            taken=floats.total(),
            whole=floats["whole"],
            shared=floats["host"],
            refused32=floats["unsupported"],
            wrong32=floats["wrong"],
            rtol=TOLERANCE[0],
            atol=TOLERANCE[1],
            small=SMALL,
            equal=programs["equal"],
            not_compiled=programs["unsupported"],
            different=programs["wrong"],
            why=_reasons(found),
            integer_rows="\n".join(_integer_row(found, dtype) for dtype in INTEGER_TYPES),
            below=_below(found),
        )
    ]
    for operator, outcomes in sorted(rows.items()):
        kinds = Counter(kind_of(str(outcome["import"])) for outcome in outcomes)
        reasons = Counter(reason for outcome in outcomes if (reason := _reason(outcome)))
        reason = reasons.most_common(1)[0][0].removeprefix(f"{operator}: ") if reasons else ""
        machine = kinds["machine"] + kinds["as onnxruntime"]
        lowered = sum(kind_of(str(outcome.get("float32"))) in {"whole", "host"} for outcome in outcomes)
        alike = [sum(_alike(outcome.get(dtype)) for outcome in outcomes) for dtype in INTEGER_TYPES]
        cells = (operator, len(outcomes), machine, kinds["host"], kinds["unsupported"], lowered, *alike)
        lines.append(f"| {' | '.join(map(str, cells))} | {_cell(reason)} |")
    return "\n".join(lines) + "\n"


def counts_of(found: Mapping[str, Outcome], key: str) -> Counter[str]:
    return Counter(kind_of(str(outcome[key])) for outcome in found.values() if key in outcome)


def _reason(outcome: Outcome) -> str:
    """Why a test is not all the machine's, in import or else in float32."""
    for key in ("import", "float32"):
        kind, _, reason = str(outcome.get(key, "")).partition(": ")
        if kind in {"host", "unsupported"}:
            return reason
    return ""


def _cell(text: str) -> str:
    return text.partition(": [")[0].replace("|", "\\|")[:110]


def _reasons(found: Mapping[str, Outcome]) -> str:
    """Why tests the importer gives to the machine alone are no graph as a whole, most frequent first."""
    reasons: Counter[tuple[str, str]] = Counter()
    for outcome in found.values():
        kind, _, reason = str(outcome.get("float32", "")).partition(": ")
        if kind in {"host", "unsupported"} and not str(outcome["import"]).startswith("host"):
            reasons[kind, _cell(reason)] += 1
    rows = [f"| {count} | {kind} | {reason} |" for (kind, reason), count in reasons.most_common()]
    head = "Of those that import leaves to the machine alone, not lowered as a whole:"
    return "\n".join([head, "", "| tests | float32 | why |", "|---|---|---|", *rows])


def _alike(result: object, least: float = ALIKE) -> bool:
    return isinstance(result, float) and result >= least


def _integer_row(found: Mapping[str, Outcome], dtype: str) -> str:
    results = [outcome[dtype] for outcome in found.values() if dtype in outcome]
    compared = [result for result in results if isinstance(result, float)]
    close, near = (sum(_alike(result, least) for result in compared) for least in (0.999, ALIKE))
    refused = sum(str(result).startswith("unsupported") for result in results)
    cells = (dtype, len(compared), close, near, len(compared) - near, refused)
    return f"| {' | '.join(map(str, cells))} |"


def _below(found: Mapping[str, Outcome]) -> str:
    rows = ["| test | int16 | int8 | why |", "|---|---|---|---|"]
    for name, outcome in found.items():
        results = [outcome.get(dtype) for dtype in INTEGER_TYPES]
        if any(isinstance(result, float) and not _alike(result) for result in results):
            why = next((reason for part, reason in LOW.items() if part in name), "")
            rows.append(f"| {name} | {' | '.join(_cell(str(result)) for result in results)} | {why} |")
    return "\n".join(rows)
