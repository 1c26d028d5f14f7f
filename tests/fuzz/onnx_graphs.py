"""Feeds mutated ONNX models to the importer, or to the whole build, and says what became of each.

    python tests/fuzz/onnx_graphs.py --cases 1000 --seed 0            loads and checks
    python tests/fuzz/onnx_graphs.py --cases 1000 --seed 0 --build    calibrates, compiles, runs as well
    python tests/fuzz/onnx_graphs.py --seed 0 --only 17               one case, with traceback

A case is made from the seed and its number alone: a small network of the tests or a node test of the onnx
package, with one to three mutations (`onnx_mutations`); one in five is a random node (`onnx_nodes`) instead.
Where a mutation makes tensors of millions of elements, the network is loaded and no more: to build it takes
more than the limits below without a defect. Cases run in processes of their own, so that an abort
or an endless loop is one case's. What may come of a case:

    ok        built, or listed as something the machine cannot do
    refused   an error of this package: one that names what is wrong
    internal  any other exception: a defect
    crash     the process ended: a defect
    hang      more than 5 seconds of processor time: a defect
    memory    more than 1 GB: a defect

The exit status is 1 if there was a defect.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where pytest finds modules of tests

import tpuflow
from frontend.onnx_backend import cases as node_tests
from frontend.onnx_outcomes import FORMS
from fuzz.onnx_mutations import mutated
from fuzz.onnx_nodes import random_node
from models.make_models import MODELS
from tpuflow.config import Config
from tpuflow.errors import TpuflowError, UnsupportedModelError
from tpuflow.frontend.values import shape_of
from tpuflow.io.samples import Samples
from tpuflow.pipeline.preflight import audit

__all__ = ["DEFECTS", "Result", "base_models", "case", "outcome", "run"]

SECONDS = 5
BYTES = 1 << 30
LARGEST_BUILT = 1 << 22
"""Elements of all tensors up to which a network is built."""
NODES = 0.2
"""Share of the cases that are random nodes."""
DEFECTS = ("internal", "crash", "hang", "memory")
STALLED = 120.0
"""Seconds by the clock after which a process that uses no processor time is taken for stalled."""


@dataclass(frozen=True)
class Result:
    """Outcome of a case.

    Attributes:
        number: Of the case.
        kind: One of ok, refused and `DEFECTS`.
        text: The error.
        where: The innermost place in this package, of an internal error.
    """

    number: int
    kind: str
    text: str = ""
    where: str = ""


@cache
def base_models() -> dict[str, onnx.ModelProto]:
    """The models that are mutated, by name: small networks, and node tests with their inputs as constants."""
    found = {name: make() for name, make in MODELS.items()}
    for name, test in node_tests().items():
        for form in FORMS:
            prepared = test.with_constants(form)
            if prepared is not None and prepared[0].ByteSize() < 1 << 17:
                found[f"{name}/{form}"] = prepared[0]
    return found


def case(seed: int, number: int) -> tuple[str, onnx.ModelProto, list[str]]:
    """The base model's name, the mutated model, and what was changed."""
    random = np.random.default_rng([seed, number])
    if random.random() < NODES:
        return random_node(random)
    names = list(base_models())
    small = random.random() < 0.4
    name = names[int(random.integers(len(MODELS) if small else len(names)))]
    return (name, *mutated(base_models()[name], random))


def check(model: onnx.ModelProto) -> None:
    """What `tpuflow check` does, without and with the host."""
    try:
        audit(model)
    except TpuflowError:
        loaded = tpuflow.load(model, host=True)
        tpuflow.partition(loaded)
        raise


def build(model: onnx.ModelProto) -> None:
    """Every stage with two made-up samples, on the host what the machine cannot do."""
    from tpuflow.frontend import generate_samples  # noqa: PLC0415 - checks alone do without

    config = Config()
    loaded = tpuflow.load(model, host=True)
    sizes = [shape_of(value) or () for node in loaded.model.graph for value in (*node.inputs, *node.outputs)]
    if sum(map(math.prod, sizes)) > LARGEST_BUILT:
        return
    parts = tpuflow.partition(loaded)
    feeds = generate_samples(loaded, 2)
    samples = Samples.of_feeds(feeds, loaded.inputs)
    ranges = tpuflow.calibrate(parts, samples, config)
    graph = tpuflow.quantize(parts, ranges, config)
    program = tpuflow.compile(graph, machine="128x128_asic", level=1)
    tpuflow.simulate(program, {name: array[None] for name, array in feeds[0].items()})


def outcome(seed: int, number: int, *, whole: bool) -> Result:
    """Runs one case in this process."""
    try:
        (build if whole else check)(case(seed, number)[1])
    except UnsupportedModelError as error:
        return Result(number, "ok", str(error))
    except TpuflowError as error:
        return Result(number, "refused", str(error))
    except MemoryError:
        return Result(number, "memory", "", _place(sys.exc_info()[2]))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect
        return Result(
            number, "internal", f"{type(error).__name__}: {error}"[:300], _place(error.__traceback__)
        )
    return Result(number, "ok")


def _place(trace: object) -> str:
    frames = [frame for frame in traceback.extract_tb(trace) if "/tpuflow/" in frame.filename]  # type: ignore[arg-type]
    return f"{frames[-1].filename.partition('/tpuflow/')[2]}:{frames[-1].lineno}" if frames else ""


def _worker(results: Connection, seed: int, numbers: Sequence[int], *, whole: bool) -> None:
    """Runs cases one after another; tells the number of each before it begins, and its result after."""
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        results.send(number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        result = outcome(seed, number, whole=whole)
        signal.setitimer(signal.ITIMER_PROF, 0)
        results.send(result)
    results.close()


def run(seed: int, numbers: Sequence[int], *, whole: bool, jobs: int) -> Iterator[Result]:
    """Runs cases in `jobs` processes, with a fresh one after each that ended before its time."""
    base_models()  # made once, before the processes fork
    context = multiprocessing.get_context("fork")
    waiting = [list(numbers[first : first + 250]) for first in range(0, len(numbers), 250)][::-1]
    active: dict[Connection, tuple[BaseProcess, list[int]]] = {}
    while waiting or active:
        while waiting and len(active) < jobs:
            share = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_worker, args=(theirs, seed, share), kwargs={"whole": whole}, daemon=True
            )
            process.start()
            theirs.close()
            active[ours] = process, share
        ready = wait(list(active), STALLED)
        for connection in ready or list(active):
            assert isinstance(connection, Connection)
            process, share = active[connection]
            if not ready:
                process.kill()
            try:
                told = connection.recv()
            except EOFError:
                process.join()
                del active[connection]
                if process.exitcode or share:
                    number, *rest = share
                    kind = "hang" if process.exitcode in {-signal.SIGPROF, -signal.SIGKILL} else "crash"
                    yield Result(number, kind, f"exit status {process.exitcode}")
                    if rest:
                        waiting.append(rest)
                continue
            if isinstance(told, Result):
                share.remove(told.number)
                yield told


def _show(seed: int, number: int, *, whole: bool, save: Path | None) -> None:
    name, model, notes = case(seed, number)
    sys.stdout.write(f"{name}: {', '.join(notes)}\n")
    if save is not None:
        save.write_bytes(model.SerializeToString())
    (build if whole else check)(model)


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", action="store_true", help="every stage, not load and check alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, help="run this case in this process")
    parser.add_argument("--save", type=Path, help="with --only: write the model there")
    words = parser.parse_args()
    if words.only is not None:
        _show(words.seed, words.only, whole=words.build, save=words.save)
        return 0
    counts: Counter[str] = Counter()
    defects: Counter[tuple[str, str, str]] = Counter()
    numbers = range(words.first, words.first + words.cases)
    for result in run(words.seed, numbers, whole=words.build, jobs=words.jobs):
        counts[result.kind] += 1
        if result.kind in DEFECTS:
            key = (result.kind, result.where, result.text.partition(":")[0])
            defects[key] += 1
            if defects[key] <= 3:
                sys.stdout.write(f"{result.number}: {result.kind} {result.where} {result.text}\n")
                sys.stdout.flush()
    for (kind, where, text), count in defects.most_common():
        sys.stdout.write(f"{count:6} {kind} {where} {text}\n")
    sys.stdout.write(f"{words.cases} cases: {dict(counts.most_common())}\n")
    return 1 if any(counts[kind] for kind in DEFECTS) else 0


if __name__ == "__main__":
    sys.exit(main())
