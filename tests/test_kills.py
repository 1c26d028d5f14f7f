"""A few kills of the campaign in `kills.py`."""

from __future__ import annotations

import pytest

from kills import campaign
from study_kills import campaign as killed_studies

pytestmark = pytest.mark.slow


def test_killed_builds_and_calibrations_leave_old_or_new_files() -> None:
    count = campaign(kills=4, seed=1, only=("build", "calibrate"))
    assert set(count) == {"build", "calibrate"}


def test_a_killed_study_loses_and_repeats_nothing() -> None:
    assert killed_studies(kills=2, seed=1)[0] == 2
