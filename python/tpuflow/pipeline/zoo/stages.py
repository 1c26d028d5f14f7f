"""One network through a part of the stages, every stage measured on its own.

The part `float` imports the model, holds its normalised form against the original, calibrates, and leaves in
the work folder what the other parts need: ranges per element type, held-out samples, and what the original
makes of them. A part named after an element type starts in a fresh process from those, so that the seconds
and the memory of import and quantisation are those of a user's build; then it evaluates the graph, builds,
simulates and compares a program per level.

A stage that fails ends the part where the rest needs it; the levels do not need each other.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.calibration import Ranges, collect, fit
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, QuantizeConfig
from tpuflow.errors import TpuflowError, VerificationError
from tpuflow.evaluation.similarity import Similarity, similarity
from tpuflow.execution.levels import graph_level, program_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatSession, load
from tpuflow.io.arrays import read_arrays
from tpuflow.io.files import write_arrays
from tpuflow.io.samples import Samples
from tpuflow.partitioning import Partitioned, device_networks, partition
from tpuflow.pipeline import float_bytes, graph_bytes
from tpuflow.pipeline.request import for_machine
from tpuflow.pipeline.zoo.layer_losses import layer_losses
from tpuflow.pipeline.zoo.memory import Peak
from tpuflow.pipeline.zoo.networks import MODELS
from tpuflow.ptq import CalibratedModel, Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.pipeline.zoo.networks import Network

    Arrays = dict[str, NDArray[Any]]

__all__ = ["FLOAT", "LOW", "Recorder", "config_of", "lists", "run_part"]

FLOAT = "float"
"""The part that involves no element type."""
CHOOSING = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "TopK"})
"""Operators whose results are indices of values, or values in their order."""
LOW = 0.95
"""Cosine below which the layers to blame are looked for."""


class Recorder:
    """The record of a part, passed to `save` whenever it changes.

    Attributes:
        stages: By name in the order they began: `status` ("ok", "refused" where the package says why it
            cannot, "defect" where it fails otherwise, "running"), `seconds`, `peak_bytes`, figures.
    """

    def __init__(self, save: Callable[[dict[str, Any]], None]) -> None:
        self.stages: dict[str, dict[str, Any]] = {}
        self._save = save

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Runs a stage; yields where its figures go. What it raises is noted and does not leave it."""
        found: dict[str, Any] = {"status": "running"}
        self.stages[name] = found
        self._save(self.stages)
        peak, start = Peak(), time.perf_counter()
        try:
            yield found
            found["status"] = "ok"
        except TpuflowError as error:
            found |= {"status": "refused", "message": str(error)}
        except Exception as error:  # noqa: BLE001 - one network's defect must not hide the others' results
            message = f"{type(error).__name__}: {error}".strip()
            found |= {"status": "defect", "message": message}
        found |= {"seconds": time.perf_counter() - start, "peak_bytes": peak.bytes()}
        self._save(self.stages)

    def passed(self, name: str) -> bool:
        """Whether a stage has ended well."""
        return bool(self.stages.get(name, {}).get("status") == "ok")


def config_of(dtype: str, machine: str = "128x128_asic") -> Config:
    """The default configuration of an element type, for a machine."""
    return for_machine(Config(quantize=QuantizeConfig.model_validate({"dtype": dtype})), machine)


def run_part(
    network: Network, part: str, work: Path, settings: Mapping[str, Any], recorder: Recorder
) -> None:
    """Runs the stages of a part.

    Args:
        network: The network.
        part: `FLOAT` or an element type.
        work: Folder of what one part leaves for another.
        settings: `samples`, `held_out`, `dtypes`, `levels`, `machine`, as in `tpuflow.pipeline.zoo.Settings`.
        recorder: Where results go.
    """
    if part == FLOAT:
        _float(network, work, settings, recorder)
    else:
        _run_dtype(network, part, work, settings, recorder)


def _float(network: Network, work: Path, settings: Mapping[str, Any], recorder: Recorder) -> None:
    made: dict[str, Any] = {}
    if network.hook is not None:
        with recorder.stage("materialise"):
            network.complete(work / MODELS)
        if not recorder.passed("materialise"):
            return
    with recorder.stage("import") as found:
        path = network.complete(work / MODELS)
        made["model"] = model = load(path, cut_preset=network.preset, host=True)
        operators = sorted({node.op_type for node in model.model.graph})
        found |= {
            "file_bytes": path.stat().st_size,
            "nodes": len(model.origin.graph),
            "normalised_nodes": len(model.model.graph),
            "float_bytes": float_bytes(model),
            "operators": operators,
            "inputs": {port.name: [str(port.dtype), *port.shape] for port in model.inputs},
            "outputs": {port.name: [str(port.dtype), *port.shape] for port in model.outputs},
        }
    if not recorder.passed("import"):
        return
    with recorder.stage("normalised") as found:
        model = made["model"]
        feeds = network.feeds(model, work / MODELS, settings["samples"], settings["held_out"])
        made["feeds"], held_out = feeds[: settings["samples"]], feeds[settings["samples"] :]
        original = FloatSession(model.origin)
        results = [original.run(feed) for feed in held_out]
        del original
        normalized = FloatSession(model.model)
        errors = [_relative_errors(result, normalized.run(feed)) for feed, result in zip(held_out, results)]  # noqa: B905
        found["relative_error"] = {name: max(each[name] for each in errors) for name in errors[0]}
        write_arrays(_held_out(work, network), _stack_feeds(held_out))
        write_arrays(_results(work, network), _stack_feeds(results))
    if not recorder.passed("normalised"):
        return
    with recorder.stage("calibrate") as found:
        model = made["model"]
        samples = Samples.of_feeds(made["feeds"], model.inputs)
        statistics = collect(partition(model), samples, Config().calibrate)
        for dtype in settings["dtypes"]:  # floats need no ranges, but take them
            fit(statistics, config_of(dtype).calibration()).save(_ranges(work, network, dtype))
        found["samples"] = statistics.samples


def _run_dtype(
    network: Network, dtype: str, work: Path, settings: Mapping[str, Any], recorder: Recorder
) -> None:
    made: dict[str, Any] = {}
    with recorder.stage("quantize") as found:
        ranges = Ranges.load(_ranges(work, network, dtype))
        start = time.perf_counter()
        made["model"] = model = load(network.complete(work / MODELS), cut_preset=network.preset, host=True)
        found["import_seconds"] = time.perf_counter() - start
        state = CalibratedModel(model, ranges, hosted=frozenset())
        made["graph"] = graph = Recipe(config_of(dtype, settings["machine"])).graph(state)
        found |= {"graph_bytes": graph_bytes(graph), "host_operators": _host_operators(model, graph)}
    if not recorder.passed("quantize"):
        return
    level = graph_level(made["graph"])
    held_out = _unstack_feeds(_held_out(work, network))
    codes: list[Arrays] = []
    with recorder.stage("interpret") as found:
        worst: dict[str, Similarity] = {}
        unlike: dict[str, str] = {}
        for feed, reference in zip(held_out, _unstack_feeds(_results(work, network)), strict=True):
            computed = level.compute(feed)
            codes.append(computed.codes)
            for name, expected in reference.items():
                result = computed.tensors[name]
                if expected.shape == result.shape:
                    _keep_worst(worst, name, similarity(expected, result))
                else:  # how much is found depends on values where the host selects
                    unlike[name] = f"{list(expected.shape)} in float, {list(result.shape)}"
        found["outputs"] = {name: asdict(result) for name, result in worst.items() if name not in unlike}
        found |= {"other_shapes": unlike, "lists": lists(made["model"])}
    for number in settings["levels"]:
        _check_program(made["graph"], number, settings["machine"], held_out, codes, recorder)
    chosen = lists(made["model"])
    low = [name for name, result in worst.items() if name not in chosen and not result.cosine >= LOW]
    if low and recorder.passed("interpret"):
        with recorder.stage("layer_losses") as found:
            found["layers"] = layer_losses(made["model"], level, held_out[0], low)


def _check_program(
    graph: AnyGraph,
    level: int,
    machine: str,
    held_out: list[Arrays],
    codes: list[Arrays],
    recorder: Recorder,
) -> None:
    """Builds, simulates and compares the program of one level."""
    made: dict[str, Any] = {}
    with recorder.stage(f"O{level}") as found:
        made["program"] = program = compile_graph(graph, machine=machine, level=level)
        found["fallback"] = next((part.fallback for part in device_networks(program) if part.fallback), None)
    if not recorder.passed(f"O{level}"):
        return
    with recorder.stage(f"simulate O{level}") as found:
        report = simulate(made["program"], values=False).report
        found |= {key: report[key] for key in ("cycles", "time_us", "bound", "binding", "gap", "macs")}
        found["ddr_bytes"] = report["memory"]["ddr_read_bytes"] + report["memory"]["ddr_write_bytes"]
        running = program_level(made["program"])
        differing = set()
        for feed, expected in zip(held_out, codes, strict=False):
            theirs = running.compute(feed).codes
            differing |= {
                name
                for name, array in expected.items()
                if not np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f")
            }
        found |= {"compared": len(codes), "differing": sorted(differing)}
        if differing:
            raise VerificationError(f"graph and program differ in {', '.join(sorted(differing))}")


def lists(model: FloatModel) -> list[str]:
    """Outputs chosen or put in order by value, where the least difference moves whole entries."""
    chosen: set[str] = set()
    for node in model.model.graph:
        given = (value.name for value in node.inputs if value is not None)
        if node.op_type in CHOOSING or any(name in chosen for name in given):
            chosen |= {value.name for value in node.outputs if value.name}
    return [port.name for port in model.outputs if port.name in chosen]


def _host_operators(model: FloatModel, graph: AnyGraph) -> dict[str, int]:
    """How many nodes of which operator run on the host."""
    if not isinstance(graph, Partitioned):
        return {}
    names = {name for part in graph.host for name in part.nodes}
    return dict(sorted(Counter(node.op_type for node in model.model.graph if node.name in names).items()))


def _relative_errors(reference: Arrays, test: Arrays) -> dict[str, float]:
    """Largest difference of every output over its largest magnitude; infinite where shapes differ."""
    errors = {}
    for name, array in reference.items():
        if array.shape != test[name].shape:
            errors[name] = math.inf
            continue
        x, y = array.astype(np.float64), test[name].astype(np.float64)
        peak = float(np.max(np.abs(x), initial=0.0))
        error = float(np.max(np.abs(x - y), initial=0.0))
        errors[name] = error / peak if peak else error
    return errors


def _keep_worst(worst: dict[str, Similarity], name: str, result: Similarity) -> None:
    if name not in worst or not result.cosine >= worst[name].cosine:
        worst[name] = result


def _stack_feeds(feeds: list[Arrays]) -> Arrays:
    """Several feeds as one dictionary that a file can hold: `index/name`."""
    return {f"{index}/{name}": array for index, feed in enumerate(feeds) for name, array in feed.items()}


def _unstack_feeds(path: Path) -> list[Arrays]:
    feeds: dict[int, Arrays] = {}
    for key, array in read_arrays(path).items():
        index, _, name = key.partition("/")
        feeds.setdefault(int(index), {})[name] = array
    return [feeds[index] for index in sorted(feeds)]


def _held_out(work: Path, network: Network) -> Path:
    return work / "held_out" / f"{network.name}.npz"


def _results(work: Path, network: Network) -> Path:
    return work / "held_out" / f"{network.name}.results.npz"


def _ranges(work: Path, network: Network, dtype: str) -> Path:
    return work / "ranges" / f"{network.name}.{dtype}.json"
