"""One tiny network, built once a session by the command line, and a way to run commands as a user does."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.builder import Builder, samples
from tpuflow.cli import main


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Result]


def run_command(*words: str | Path) -> Result:
    """Runs a command in this process, which spares the start of another one."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["tpuflow", *map(str, words)]
    status: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before
    assert isinstance(status, int)
    return Result(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def command() -> Command:
    return run_command


@dataclass(frozen=True)
class Built:
    """Files of the network; `calibration` has inputs only, `labelled` also labels."""

    folder: Path
    model: Path
    program: Path
    graph: Path
    figures: Path
    calibration: Path
    labeled: Path
    output: str


def tiny() -> onnx.ModelProto:
    """Every computing unit once: convolution, addition, pooling, dense."""
    b = Builder("tiny")
    x = b.node("Relu", b.conv(b.input("image", [1, 3, 9, 7]), 8, pads=(1, 1, 1, 1)))
    x = b.node("Add", x, b.conv(x, 8, (1, 1)))
    b.output(b.gemm(b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 6))
    return b.model()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("tiny")
    model, program = folder / "tiny.onnx", folder / "tiny.tpu"
    network = tiny()
    onnx.save(network, model)
    arrays = samples(network, 5)
    calibration, labeled, figures = (
        folder / "calibration.npz",
        folder / "labelled.npz",
        folder / "build.json",
    )
    np.savez(calibration, allow_pickle=False, **arrays)
    np.savez(labeled, allow_pickle=False, **arrays, labels=np.arange(5) % 6)
    result = run_command("build", model, "-O5", "--calib", calibration, "-o", program, "--json", figures)
    assert result.status == 0, result.err
    output = network.graph.output[0].name
    graph = program.with_suffix(".tpuq")
    return Built(folder, model, program, graph, figures, calibration, labeled, output)
