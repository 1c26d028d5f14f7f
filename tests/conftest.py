"""What every test shares: outside material, how properties are generated, and a count of what was not run.

Large trained networks and exported graphs are not part of the repository. Tests that use them ask for the
fixture `shared`; where the material is absent they are reported as not run, and the same code is covered by
small models.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from _pytest.mark import ParameterSet

REPOSITORY = Path(__file__).resolve().parent.parent
ABSENT = "shared material is absent"

# The same examples on every run and every machine; no deadline, so that no test depends on its neighbours.
settings.register_profile(
    "default", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# For the inner loop, `./start test --fast`.
settings.register_profile("fast", parent=settings.get_profile("default"), max_examples=10)
# For a long search by hand: fresh examples at every run, and many of them.
settings.register_profile(
    "deep", parent=settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("TPUFLOW_HYPOTHESIS", "default"))


def shared_folder() -> Path | None:
    """The folder `TPUFLOW_SHARED` names, else `shared` beside the repository; None where there is none."""
    named = os.environ.get("TPUFLOW_SHARED")
    folder = Path(named) if named else REPOSITORY.parent / "shared"
    return folder if folder.is_dir() else None


def slow_except(kept: Collection[object], values: Iterable[object]) -> list[ParameterSet]:
    """Values of a parameter of which the fast tier takes a few; the others are marked slow."""
    return [pytest.param(value, marks=[] if value in kept else [pytest.mark.slow]) for value in values]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared test material; the test is not run where there is none."""
    folder = shared_folder()
    if folder is None:
        pytest.skip(f"{ABSENT}: neither TPUFLOW_SHARED nor {REPOSITORY.parent / 'shared'} is a folder")
    return folder


# Of a test with more parameters than this the fast tier takes every fourth.
MANY_PARAMETERS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow every test of shared networks, which have many layers, and most of many parameters."""
    parameters: dict[str, list[pytest.Item]] = {}
    for item in items:
        parameters.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    for each in parameters.values():
        if len(each) > MANY_PARAMETERS:
            for index, item in enumerate(each):
                if index % 4:
                    item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in one line how many tests were not run for want of shared material."""
    skipped: Sequence[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    absent = sum(isinstance(report.longrepr, tuple) and ABSENT in report.longrepr[2] for report in skipped)
    if absent:
        terminalreporter.write_line(f"{absent} tests not run: {ABSENT} (TPUFLOW_SHARED)", yellow=True)
