"""The instruction set: any that the processor offers gives the same bits, and none other can be asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
from tpuflow import kernels
from tpuflow.errors import TpuflowError

generator = np.random.default_rng(0)
try:
    for dtype in ("int8", "int16"):
        a = generator.integers(-128, 127, (7, 37), dtype=dtype)
        b = generator.integers(-128, 127, (37, 19), dtype=dtype)
        assert (kernels.gemm(a, b) == a.astype(int) @ b.astype(int)).all()
except TpuflowError as error:
    sys.exit(str(error))
"""


def run(isa: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TPUFLOW_ISA": isa}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_instruction_set_offered_computes_the_product() -> None:
    offered = run("none").stderr.rsplit("offers ", 1)[1].strip().split(", ")
    assert offered[0] == "reference"
    for isa in offered:
        assert run(isa).returncode == 0, isa


@pytest.mark.parametrize("isa", ["none", "", "AVX2"])
def test_another_name_is_refused(isa: str) -> None:
    finished = run(isa)
    assert finished.returncode == 1
    assert finished.stderr.startswith(f'TPUFLOW_ISA is "{isa}", this processor offers reference')
