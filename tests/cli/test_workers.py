"""Commands that divide their work: what they write is the same for any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cli.conftest import Command
from models.builder import samples
from precision.networks import chain
from tpuflow import executors
from tpuflow.calibration import calibrate, collect
from tpuflow.config import CalibrationConfig, Config
from tpuflow.errors import SampleError
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.evaluation.metrics import metric
from tpuflow.executors import ExecutorError, InProcess, LocalProcesses
from tpuflow.frontend import load
from tpuflow.io.samples import Samples, load_samples
from tpuflow.lowering import lower
from tpuflow.pipeline import Request, trials
from tpuflow.ptq import search

Run = Callable[..., list[Any]]


def write_inputs(folder: Path) -> Path:
    """Writes a network, its graph, samples in a file and in a directory, and labelled ones."""
    model = chain(loud="")
    onnx.save(model, folder / "m.onnx")
    drawn = samples(model, 40)
    np.savez(folder / "calib.npz", allow_pickle=False, **drawn)
    labels = np.arange(40) % 10
    np.savez(folder / "data.npz", allow_pickle=False, labels=labels, **drawn)
    (folder / "files").mkdir()
    for first in range(0, 40, 3):
        part = {name: array[first : first + 3] for name, array in drawn.items()}
        np.savez(folder / "files" / f"{first:02}.npz", allow_pickle=False, **part)
    float_model = load(folder / "m.onnx")
    ranges = calibrate(float_model, drawn)
    lower(float_model, ranges, Config()).save(folder / "m.tpuq")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("workers"))


def commands(folder: Path) -> dict[str, list[str | Path]]:
    """Words of every command that takes `--workers`; the last file is what it writes."""
    model, calib = folder / "m.onnx", folder / "calib.npz"
    data = folder / "data.npz"
    return {
        "calibrate": ["calibrate", model, "--calib", calib, "-o"],
        "calibrate by files": ["calibrate", model, "--calib", folder / "files", "-o"],
        "evaluate": ["evaluate", folder / "m.tpuq", "--data", data, "--metric", "top1,cosine", "--float",
                     model, "--json"],
        "sensitivity": ["sensitivity", model, "--calib", calib, "--data", data, "--metric", "top1", "--json"],
        "mixed": ["mixed", model, "--calib", calib, "--budget", "bytes=4000", "--widths", "4,8,16,f16", "-o"],
        "search": ["search", model, "--calib", calib, "-o"],
    }  # fmt: skip


SUFFIX = {"search": ".tpuq"}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(commands(Path())))
def test_what_is_written_is_the_same_for_any_number_of_processes(
    name: str, folder: Path, command: Command, tmp_path: Path
) -> None:
    written, told = [], []
    for workers in (1, 3):
        path = tmp_path / f"{workers}{SUFFIX.get(name, '.json')}"
        made = command(*commands(folder)[name], path, "--workers", str(workers))
        assert made.status in {0, 3}, made.err
        written.append(path.read_bytes())
        told.append(made.out.replace(str(path), ""))
    assert written[0] == written[1]
    assert told[0] == told[1]


@pytest.fixture(params=["here", "processes"], scope="module")
def executor(request: pytest.FixtureRequest) -> Iterator[InProcess | LocalProcesses]:
    with InProcess() if request.param == "here" else LocalProcesses(2) as made:
        yield made


@pytest.mark.parametrize("source", ["calib.npz", "files"])
@pytest.mark.slow
def test_statistics_of_shards_are_those_of_all_samples(
    source: str, folder: Path, executor: InProcess | LocalProcesses
) -> None:
    model = load(folder / "m.onnx")
    config = CalibrationConfig(strategy="mse")
    opened = load_samples(folder / source, model.inputs)
    told: list[int] = []
    whole = collect(model, opened, config, histograms=True)
    parts = collect(
        model, opened, config, lambda done, _: told.append(done), histograms=True, executor=executor
    )
    assert sorted(told) == told
    assert told[-1] == parts.samples == whole.samples == 40
    assert list(parts.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        mine, theirs = (each.__getstate__() | {"levels": None} for each in (parts.tensors[name], tensor))
        assert mine == theirs
        assert parts.tensors[name].step == tensor.step
    means = [{name: sums.means() for name, sums in each.sums.items()} for each in (whole, parts)]
    assert means[0] == means[1]


@pytest.mark.slow
def test_a_sample_that_cannot_be_counted_is_named_by_its_number(
    folder: Path, executor: InProcess | LocalProcesses
) -> None:
    model = load(folder / "m.onnx")
    with np.load(folder / "calib.npz") as arrays:
        drawn = {name: arrays[name] for name in arrays.files}
    for array in drawn.values():
        array[[17, 30]] = 3e38
    opened = Samples.of(drawn, model.inputs)
    with pytest.raises(SampleError) as alone:
        collect(model, opened, CalibrationConfig())
    with pytest.raises(SampleError, match="at sample 17") as divided:
        collect(model, opened, CalibrationConfig(), executor=executor)
    assert str(divided.value) == str(alone.value)


def test_samples_are_divided_in_their_order(folder: Path) -> None:
    model = load(folder / "m.onnx")
    for source in ("calib.npz", "files"):
        opened = load_samples(folder / source, model.inputs)
        for size in (1, 5, 7, 40, 100):
            shards = opened.shards(size)
            rows = [row for shard in shards for row in shard.rows()]
            assert sum(shard.count for shard in shards) == len(rows) == 40
            assert all(shard.count >= size for shard in shards[:-1])
            for mine, theirs in zip(rows, opened.rows(), strict=True):
                assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    shuffled = load_samples(folder / "files", model.inputs).shuffle(3)
    assert shuffled.shards(5) == [shuffled]
    batched = load(folder / "m.onnx", batch=4)
    for source in ("calib.npz", "files"):
        opened = load_samples(folder / source, batched.inputs)
        shards = opened.shards(5)
        assert len(shards) > 1
        assert all(shard.count % 4 == 0 for shard in shards[:-1])


@pytest.mark.slow
def test_trials_of_a_lost_process_are_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    words = commands(folder)["calibrate"]
    assert command(*words, tmp_path / "1.json").status == 0
    killed: list[int] = []
    send = executors.LocalProcesses._start

    def start(self: LocalProcesses, task: Any) -> None:
        send(self, task)
        if task.number in {1, 4}:
            worker, _ = next(each for each in self._running.values() if each[1] is task)
            worker._process.kill()
            killed.append(task.number)

    monkeypatch.setattr(executors.LocalProcesses, "_start", start)
    made = command(*words, tmp_path / "2.json", "--workers", "2")
    assert made.status == 0, made.err
    assert killed == [1, 4]
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_a_metric_of_a_plugin_needs_one_process(folder: Path) -> None:
    model = load(folder / "m.onnx")
    opened = load_samples(folder / "calib.npz", model.inputs)
    own = {"own": lambda: metric("top1", (), {})}
    evaluator = Evaluator(model, opened, labels=np.arange(40) % 10, metric_text="own", plugins=own)
    with LocalProcesses(1) as executor, pytest.raises(ExecutorError, match="own is the metric of a plugin"):
        executor.share(evaluator)


@pytest.mark.slow
def test_searches_with_an_executor_here_find_the_same(folder: Path) -> None:
    model = load(folder / "m.onnx")
    opened = load_samples(folder / "calib.npz", model.inputs)
    config = Config.parse({"calibrate": {"equalize": False}})
    told: list[list[str]] = [[], []]
    alone = search(model, opened, config, told[0].append)
    divided = search(model, opened, config, told[1].append, executor=InProcess())
    assert told[0] == told[1]
    assert alone.candidates == divided.candidates
    assert alone.ranges == divided.ranges


def test_layers_come_in_waves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpuflow.ptq.precision import Limits, sensitivity  # noqa: PLC0415
    from tpuflow.ptq.precision import trials as module  # noqa: PLC0415

    monkeypatch.setattr(module, "WAVE", 2)
    request = Request(folder / "m.onnx", calibration=folder / "calib.npz", config=Config())
    model = load(folder / "m.onnx")
    rows = [
        sensitivity(trials(model, request, executor=executor), "16", Limits(steps=3))
        for executor in (None, InProcess())
    ]
    assert repr(rows[0]) == repr(rows[1])  # metrics that nobody asked for are NaN
    assert len(rows[0]) == 3
