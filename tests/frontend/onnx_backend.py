"""The node tests of the onnx package through import, graph and machine, with a list of what becomes of each.

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

What passes is then lowered to float32 and to integers, see `onnx_lowered`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where pytest finds modules of tests

from frontend.onnx_lowered import TOLERANCE, in_floats, in_integers, on_the_machine, reason_of
from frontend.onnx_outcomes import (
    FORMS,
    INTEGER_TYPES,
    INTEGERS,
    RANKS,
    RUN_TIME,
    Outcome,
    counts_of,
    is_wrong,
    kind_of,
    table,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx.backend.test.case.test_case import TestCase

    from tpuflow.frontend import FloatModel

__all__ = ["LIST", "Case", "cases", "cases_of", "outcome"]

Array = np.ndarray[Any, np.dtype[Any]]

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).with_suffix(".json")
TABLE = ROOT / "docs" / "onnx-operators.md"

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
    with np.errstate(invalid="ignore"):  # lanes beside the operands of a product of numpy may hold anything
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
    with np.errstate(invalid="ignore"):
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


def outcome(case: Case) -> Outcome:
    """What becomes of a test in import and normalisation, and, where it is taken, beyond.

    Returns:
        By key:

        - `import`: the first of `FORMS` that passes, else "as onnxruntime: ...", "host: ...",
          "unsupported: ..." or "wrong: ...".
        - `float32`: "whole", "host: ...", "unsupported: ..." or "wrong: ..."
        - `program`: "equal", "unsupported: ..." or "wrong: ..."; absent where the graph is large.
        - `int16`, `int8`: cosine similarity, or why there is none.
    """
    taken: list[Taken] = []
    found: Outcome = {"import": _imported(case, taken)}
    if taken:
        found |= _beyond(taken)
    return found


def _imported(case: Case, taken: list[Taken]) -> str:
    """The fate of import; forms that pass are added to `taken`."""
    passed, hosted, refusal, other = "", "", "", ""
    for form in FORMS:
        prepared = case.with_constants(form)
        if prepared is None:
            continue
        expected: Sequence[Any] = case.outputs
        try:
            loaded = load(prepared[0], host=True)
            found = _compared(case, loaded, *prepared)
        except UnsupportedModelError as error:
            refusal = f"unsupported: {reason_of(error.findings[0])}"
            continue
        except (ModelError, SampleError) as error:
            # What onnxruntime says differs from version to version.
            reason = str(error).removeprefix("model: ").partition(": [ONNXRuntimeError]")[0]
            refusal = f"unsupported: {reason}"
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure of this test
            return f"wrong: {form}: {type(error).__name__}: {_line(error)}"
        if found:
            results = _of_onnxruntime(*prepared)
            if results is None:
                return f"wrong: {form}: {found}"
            expected = results
            other = other or f"as onnxruntime: {form}: {found}"
        taken.append(Taken(case, form, loaded, prepared[0], prepared[1], expected))
        if loaded.findings:
            hosted = f"host: {reason_of(loaded.findings[0])}"
        else:
            passed = passed or form
    return other or passed or hosted or refusal


@dataclass(frozen=True)
class Taken:
    """A form of a test that the importer takes, and what it must give."""

    case: Case
    form: str
    loaded: FloatModel
    model: onnx.ModelProto
    feeds: dict[str, Array]
    expected: Sequence[Any]

    def compare(self, results: Mapping[str, Array]) -> str:
        case = self.case
        rtol, atol = (max(pair) for pair in zip(case.tolerance, TOLERANCE, strict=True))
        return _differences(replace(case, outputs=self.expected, tolerance=(rtol, atol)), self.model, results)


def _beyond(taken: Sequence[Taken]) -> Outcome:
    """The fate of a test in the graph and on the machine: that of the first form that can be lowered best."""
    taken = sorted(taken, key=lambda form: bool(form.loaded.findings))
    if taken[0].case.name.startswith(RANDOM):
        return {}
    best = taken[0]
    found, graph = "", None
    for form in taken:
        result, made = in_floats(form.loaded, form.feeds, form.compare)
        if result.startswith("wrong"):
            return {"float32": result.replace("wrong: ", f"wrong: {form.form}: ", 1)}
        if not found or RANKS[kind_of(result)] > RANKS[kind_of(found)]:
            best, found, graph = form, result, made
    outcome: Outcome = {"float32": found}
    if graph is not None and (program := on_the_machine(graph, best.feeds)):
        outcome["program"] = program
    names = [value.name for value in best.model.graph.output]
    expected = dict(zip(names, best.expected, strict=False))
    for dtype in INTEGER_TYPES:
        outcome[dtype] = in_integers(best.loaded, dtype, best.feeds, expected)
    return outcome


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def _compared(case: Case, loaded: FloatModel, model: onnx.ModelProto, feeds: dict[str, Array]) -> str:
    """What is wrong with the outputs of the normalised model; nothing where they are right."""
    results = FloatSession(loaded.model).run({port.name: feeds[port.name] for port in loaded.inputs})
    return _differences(case, model, results)


def _differences(case: Case, model: onnx.ModelProto, results: Mapping[str, Array]) -> str:
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


def _of_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array] | None:
    """What the original gives in onnxruntime, if the normalised model gives the same."""
    try:
        original = FloatSession(model).run(feeds)
    except ModelError:
        return None
    normalized = FloatSession(load(model, host=True).model).run(feeds)
    same = all(
        normalized[name].shape == array.shape and np.allclose(normalized[name], array, 1e-4, 1e-6)
        for name, array in original.items()
    )
    return [original[value.name] for value in model.graph.output] if same else None


def _plain(value: Any) -> Any:
    """Arrays, of tensors in the form of the format and of single numbers too."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _outcome(name: str) -> tuple[str, Outcome]:
    return name, outcome(cases()[name])


def _all(pattern: str, jobs: int) -> Iterator[tuple[str, Outcome]]:
    names = [name for name in cases() if pattern in name]
    if jobs == 1:
        yield from map(_outcome, names)
        return
    with ProcessPoolExecutor(jobs) as pool:  # forked after the cases were collected
        yield from pool.map(_outcome, names, chunksize=16)


def operators_of(names: Iterable[str]) -> dict[str, str]:
    """Operators by test, of those that are about a single node."""
    found = {}
    for name in names:
        nodes = cases()[name].model.graph.node
        if "/" not in name and not name.endswith("_expanded") and len(nodes) == 1:
            found[name] = f"{nodes[0].domain}.{nodes[0].op_type}".lstrip(".")
    return found


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
        for name, outcome in found.items():
            write(f"{name}: {json.dumps(outcome)}")
    for key in ("import", "float32", "program"):
        kinds = counts_of(found, key).most_common()
        write(f"{key}: {', '.join(f'{count} {kind}' for kind, count in kinds)}")
    failed = [f"{name}: {outcome}" for name, outcome in found.items() if is_wrong(outcome)]
    write(*failed)
    if options.write:
        LIST.write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(table(found, operators_of(found)))
        return bool(failed)
    listed = json.loads(LIST.read_text())
    changed = [
        f"{name}: {outcome}, listed as {listed.get(name)}"
        for name, outcome in found.items()
        if listed.get(name) != outcome
    ]
    write(*changed)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
