"""The instruction set: any that the processor offers gives the same bits, and none other can be asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TIES = Path(__file__).with_name("test_ties.py")
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


OFFERED = run("none").stderr.rsplit("offers ", 1)[1].strip().split(", ")


@pytest.mark.parametrize("isa", OFFERED)
def test_every_instruction_set_offered_computes_the_product(isa: str) -> None:
    assert OFFERED[0] == "reference"
    assert run(isa).returncode == 0


# `test_ties.py` itself has the fastest that the processor offers.
@pytest.mark.slow
@pytest.mark.parametrize("isa", OFFERED[:-1])
@pytest.mark.feature("NUM-30")
def test_every_kernel_equals_the_reference_at_ties_and_limits(isa: str) -> None:
    """`test_ties.py` as it is, in a process that has this instruction set."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TIES)]
    environment = os.environ | {"TPUFLOW_ISA": isa}
    done = subprocess.run(
        command, env=environment, cwd=TIES.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout.splitlines()[-1] or "[100%]" in done.stdout


@pytest.mark.parametrize("isa", ["none", "", "AVX2"])
def test_another_name_is_refused(isa: str) -> None:
    finished = run(isa)
    assert finished.returncode == 1
    assert finished.stderr.startswith(f'TPUFLOW_ISA is "{isa}", this processor offers reference')
