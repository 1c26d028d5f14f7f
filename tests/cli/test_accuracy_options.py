"""Options that hold numbers to a bar, and the files between the stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tpuflow.calibration import Range, Ranges
from tpuflow.errors import FileError
from tpuflow.frontend import load
from tpuflow.pipeline.intermediates import save_stages

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Built, Command


def test_compare_fails_where_an_output_has_less_signal_to_noise_than_asked_for(
    built: Built, command: Command, tmp_path: Path
) -> None:
    words = ("compare", built.model, built.program, "--inputs", built.calibration)
    assert command(*words).status == 0
    failed = command(*words, "--least-sqnr", "200")
    assert failed.status == 3
    assert "200" in failed.err
    # Ranges of a hundredth clip nearly everything: 6 dB are asked for by default.
    ranges = {
        name: Range(low / 100, high / 100)
        for name, each in _calibrated(built).tensors.items()
        for low, high in each.pairs
    }
    Ranges(ranges).save(tmp_path / "narrow.json")
    narrow = tmp_path / "narrow.tpu"
    assert command("build", built.model, "--ranges", tmp_path / "narrow.json", "-o", narrow).status == 0
    words = ("compare", built.model, narrow, "--inputs", built.calibration)
    assert command(*words).status == 3
    assert command(*words, "--least-sqnr=-inf").status == 0


def _calibrated(built: Built) -> Ranges:
    from tpuflow.calibration import calibrate  # noqa: PLC0415 - one test alone

    return calibrate(load(built.model), dict(np.load(built.calibration)))


def test_stages_are_saved_all_or_none(built: Built, tmp_path: Path) -> None:
    """The last file cannot be written: those of an earlier build stay, and nothing is left beside them."""
    folder = tmp_path / "stages"
    folder.mkdir()
    (folder / "ranges.json").write_text("earlier")

    def refuse(path: Path) -> None:
        path.write_bytes(b"half")
        raise FileError(f"{path}: cannot be written: no space left on device")

    request: Any = SimpleNamespace(stages=folder)
    model = load(built.model)
    with pytest.raises(FileError, match="no space"):
        save_stages(request, model, model, Ranges({}), cast("Any", SimpleNamespace(save=refuse)))
    assert [path.name for path in folder.iterdir()] == ["ranges.json"]
    assert (folder / "ranges.json").read_text() == "earlier"
