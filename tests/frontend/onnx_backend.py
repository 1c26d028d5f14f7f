"""The node tests of the onnx package through import and normalisation, with a list of what becomes of each.

    python tests/frontend/onnx_backend.py            runs all and compares with the list
    python tests/frontend/onnx_backend.py --write    runs all and writes the list and its table in docs/

Such a test is a model of one node, with inputs and expected outputs. It feeds everything as an input, also
the shapes, axes and weights that networks hold as constants; so each is tried in up to three forms, with
more and more of its inputs made constants:

    RUN_TIME   nothing is a constant
    INTEGERS   inputs that are not floating are constants: shapes, axes, indices
    WEIGHTS    all inputs but the first are constants

The first form that is not refused counts. Each form that is not refused must give the expected outputs,
within the tolerance of the test; where onnxruntime itself gives others, those of onnxruntime, which is said.
A wrong result anywhere is a failure, and so is anything but a clean refusal.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper
from onnx.backend.test.case import node as backend

from tpuflow.errors import ModelError, SampleError, UnsupportedModelError
from tpuflow.frontend import FloatSession, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx.backend.test.case.test_case import TestCase

    from tpuflow.errors import Finding
    from tpuflow.frontend import FloatModel

__all__ = ["FORMS", "LIST", "Case", "cases", "cases_of", "outcome"]

Array = np.ndarray[Any, np.dtype[Any]]

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).with_suffix(".json")
TABLE = ROOT / "docs" / "onnx-operators.md"

RUN_TIME, INTEGERS, WEIGHTS = "run time", "integers constant", "all but the first constant"
FORMS = (RUN_TIME, INTEGERS, WEIGHTS)
RANDOM = ("test_bernoulli", "test_training_dropout")
"""Tests of random results, of which only shape and type are compared."""
FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")


@dataclass(frozen=True)
class Case:
    """One test of the onnx package.

    Attributes:
        name: Its name there.
        model: A model, of one node in most tests.
        inputs: What to feed, in the order of the model's header.
        outputs: What must come out.
        tolerance: Relative and absolute.
    """

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    tolerance: tuple[float, float]

    def with_constants(self, form: str) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
        """The model in one of `FORMS` and what is left to feed; None where it is like an earlier form."""
        named = dict(zip([value.name for value in self.model.graph.input], self.inputs, strict=False))
        if any(not isinstance(array, np.ndarray) for array in named.values()):
            return (self.model, named) if form == RUN_TIME else None
        first = next(iter(named), "")
        integers = [name for name, array in named.items() if array.dtype.kind not in "fcV"]
        if form == RUN_TIME:
            frozen = []
        elif form == INTEGERS:
            frozen = [name for name in integers if len(integers) < len(named)]
        else:
            frozen = [name for name in named if name != first]
            if set(frozen) == set(integers):
                return None
        if not frozen and form != RUN_TIME:
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        kept = [value for value in model.graph.input if value.name not in frozen]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.extend(numpy_helper.from_array(named[name], name) for name in frozen)
        return model, {name: array for name, array in named.items() if name not in frozen}


def cases_of(operator: str) -> dict[str, Case]:
    """The node tests of one file of the onnx package, by name, without running all others."""
    seen = len(backend._NodeTestCases)  # where each file adds its tests, once
    importlib.import_module(f"{backend.__name__}.{operator}")
    return _plain_cases(backend._NodeTestCases[seen:])


def _plain_cases(tests: Sequence[TestCase]) -> dict[str, Case]:
    found = {}
    for test in tests:
        if not test.data_sets or test.model is None:
            continue
        inputs, outputs = ([_plain(value) for value in values] for values in test.data_sets[0])
        found[test.name] = Case(test.name, test.model, inputs, outputs, (test.rtol, test.atol))
    return found


@cache
def cases() -> dict[str, Case]:
    """Every test by name."""
    found = _plain_cases(backend.collect_testcases(None))
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for folder in FOLDERS:
        for path in sorted((data / folder).glob("test_*/model.onnx")):
            sets = path.parent / "test_data_set_0"
            if not sets.is_dir():
                continue
            model = onnx.load(path)
            arrays = [
                [_array(sets / f"{kind}_{index}.pb") for index in range(len(list(sets.glob(f"{kind}_*.pb"))))]
                for kind in ("input", "output")
            ]
            name = f"{folder}/{path.parent.name}"
            found[name] = Case(name, model, arrays[0], arrays[1], (1e-3, 1e-7))
    return found


def _array(path: Path) -> Any:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return numpy_helper.to_array(tensor)
    except DecodeError:  # a sequence or an optional value
        return None


def outcome(case: Case) -> str:
    """The first of `FORMS` that passes, else "host: ...", "unsupported: ..." or "wrong: ..."."""
    passed, hosted, refusal = "", "", ""
    for form in FORMS:
        prepared = case.with_constants(form)
        if prepared is None:
            continue
        try:
            loaded = load(prepared[0], host=True)
            found = _compared(case, loaded, *prepared)
        except UnsupportedModelError as error:
            refusal = refusal_of("unsupported", error.findings[0])
            continue
        except (ModelError, SampleError) as error:
            # What onnxruntime says differs from version to version.
            reason = str(error).removeprefix("model: ").partition(": [ONNXRuntimeError]")[0]
            refusal = f"unsupported: {reason}"
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure of this test
            return f"wrong: {form}: {type(error).__name__}: {_line(error)}"
        if found and _as_onnxruntime(*prepared):
            return f"as onnxruntime: {form}: {found}"
        if found:
            return f"wrong: {form}: {found}"
        if loaded.findings:
            hosted = refusal_of("host", loaded.findings[0])
        else:
            passed = passed or form
    return passed or hosted or refusal


def refusal_of(kind: str, finding: Finding) -> str:
    place = f"{finding.attribute}: " if finding.attribute else ""
    return f"{kind}: {finding.operator}: {place}{finding.reason}"


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def _compared(case: Case, loaded: FloatModel, model: onnx.ModelProto, feeds: dict[str, Array]) -> str:
    """What is wrong with the outputs of the normalised model; nothing where they are right."""
    results = FloatSession(loaded.model).run({port.name: feeds[port.name] for port in loaded.inputs})
    for value, expected in zip(model.graph.output, case.outputs, strict=False):
        result = results[value.name]
        if not isinstance(expected, np.ndarray):
            return f"{value.name} is not a tensor"
        if result.shape != expected.shape:
            return f"{value.name} has shape {list(result.shape)}, not {list(expected.shape)}"
        if result.dtype != expected.dtype:
            return f"{value.name} has type {result.dtype}, not {expected.dtype}"
        if expected.dtype.kind not in "biufcV":
            return "" if np.array_equal(result, expected) else f"{value.name} differs"
        if case.name.startswith(RANDOM):
            continue
        a, b = result.astype(np.float64), expected.astype(np.float64)
        if expected.dtype == np.float64:  # doubles are computed in float32, where the largest are infinite
            with np.errstate(over="ignore"):
                a, b = a.astype(np.float32), b.astype(np.float32)
        rtol, atol = case.tolerance
        if expected.dtype.itemsize == 2:
            rtol = max(rtol, 2e-2 if expected.dtype.kind == "V" else 2e-3)
        if not np.allclose(a, b, rtol=rtol, atol=max(atol, 1e-6), equal_nan=True):
            return f"{value.name} differs by {np.nanmax(np.abs(a - b)):.3g}"
    return ""


def _as_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> bool:
    """Whether original and normalised model do the same in onnxruntime."""
    try:
        original = FloatSession(model).run(feeds)
    except ModelError:
        return False
    normalised = FloatSession(load(model, host=True).model).run(feeds)
    return all(
        normalised[name].shape == array.shape and np.allclose(normalised[name], array, 1e-4, 1e-6)
        for name, array in original.items()
    )


def _plain(value: Any) -> Any:
    """Arrays, of tensors in the form of the format and of single numbers too."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _outcome(name: str) -> tuple[str, str]:
    return name, outcome(cases()[name])


def _all(pattern: str, jobs: int) -> Iterator[tuple[str, str]]:
    names = [name for name in cases() if pattern in name]
    if jobs == 1:
        yield from map(_outcome, names)
        return
    with ProcessPoolExecutor(jobs) as pool:  # forked after the cases were collected
        yield from pool.map(_outcome, names, chunksize=16)


PAGE = """# ONNX operators

What becomes of the node tests of the onnx package, and of the small models beside them, in the importer.
Written by `python tests/frontend/onnx_backend.py --write`, with the list by test beside that file.

Of {tests} tests the machine's operators compute {machine}, machine and host together {host}; {other} give
what onnxruntime gives where that is not what the test expects; {refused} are refused with a reason, {wrong}
are wrong. Of those the machine's operators compute, {run_time} run as they are, {integers} with their integer
inputs (shapes, axes, indices) made constants, {weights} with all inputs but the first made constants.

Results are those of the normalised float model in onnxruntime, compared with the expected ones within the
tolerance of each test. A test counts as the host's where at least one node is left to it.

| operator | tests | machine | host | refused | why, for most of those left |
|---|---|---|---|---|---|"""


def table(found: dict[str, str]) -> str:
    """The page about all operators."""
    rows: dict[str, list[str]] = {}
    for name, result in found.items():
        case = cases()[name]
        if "/" not in name and not name.endswith("_expanded") and len(case.model.graph.node) == 1:
            node = case.model.graph.node[0]
            rows.setdefault(f"{node.domain}.{node.op_type}".lstrip("."), []).append(result)
    counts = Counter(_kind(result) for result in found.values())
    forms = Counter(found.values())
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
        )
    ]
    for operator, results in sorted(rows.items()):
        kinds = Counter(_kind(result) for result in results)
        reasons = Counter(
            result.partition(": ")[2] for result in results if _kind(result) in {"host", "unsupported"}
        )
        reason = reasons.most_common(1)[0][0].removeprefix(f"{operator}: ") if reasons else ""
        reason = reason.partition(": [")[0].replace("|", "\\|")[:110]
        machine = kinds["machine"] + kinds["as onnxruntime"]
        cells = (operator, len(results), machine, kinds["host"], kinds["unsupported"], reason)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _kind(result: str) -> str:
    return "machine" if result in FORMS else result.partition(":")[0]


def write(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the list instead of comparing with it")
    parser.add_argument("--only", default="", help="run tests with this in their name, and show each")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    found = dict(sorted(_all(options.only, options.jobs)))
    if options.only:
        for name, result in found.items():
            write(f"{name}: {result}")
    counts = Counter(result if result in FORMS else result.partition(":")[0] for result in found.values())
    write(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    wrong = [f"{name}: {result}" for name, result in found.items() if result.startswith("wrong")]
    write(*wrong)
    if options.write:
        LIST.write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(table(found))
        return bool(wrong)
    listed = json.loads(LIST.read_text())
    changed = [
        f"{name}: {result}, listed as {listed.get(name)}"
        for name, result in found.items()
        if listed.get(name) != result
    ]
    write(*changed)
    return bool(changed)


def regressed(result: str, listed: str) -> bool:
    """Whether a test does worse than the list says."""
    ranks = {"machine": 3, "as onnxruntime": 2, "host": 1, "unsupported": 0, "wrong": -1}
    return ranks[_kind(result)] < ranks[_kind(listed)]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    sys.exit(main())
