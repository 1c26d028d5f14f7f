"""Statistics and what else calibration leaves behind, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Built, Command


@pytest.mark.feature("CAL-14")
def test_ranges_of_saved_statistics_need_no_samples(built: Built, command: Command, tmp_path: Path) -> None:
    first, again, saved = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "s.json"
    made = command(
        "calibrate", built.model, "--calib", built.calibration, "-o", first, "--save-statistics", saved
    )
    assert made.status == 0, made.err
    reread = command("calibrate", built.model, "--statistics", saved, "-o", again)
    assert reread.status == 0, reread.err
    assert again.read_bytes() == first.read_bytes()
    assert "no sample is read" in reread.out + reread.err
    config = tmp_path / "c.toml"
    config.write_text(f"[calibrate]\nstatistic_file = {json.dumps(str(saved))}\n", encoding="utf-8")
    nothing = tmp_path / "never_read.npz"
    nothing.write_bytes(b"no arrays")
    made = command("calibrate", built.model, "--config", config, "--calib", nothing, "-o", again)
    assert made.status == 0, made.err
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.feature("CAL-15")
def test_generated_samples_in_place_of_what_a_file_lacks_are_told(
    built: Built, command: Command, tmp_path: Path
) -> None:
    saved, out, config = tmp_path / "s.json", tmp_path / "r.json", tmp_path / "c.toml"
    words = ("calibrate", built.model, "-o", out)
    made = command(*words, "--calib", built.calibration, "--save-statistics", saved)
    assert made.status == 0, made.err
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["tensors"].popitem()
    saved.write_text(json.dumps(content), encoding="utf-8")
    config.write_text("[calibrate]\nignore_missing_statistic = true\n", encoding="utf-8")
    told = []
    for calib in ((), ("--calib", built.calibration)):
        made = command(*words, "--statistics", saved, "--config", config, *calib)
        assert made.status == 0, made.err
        told.append(made.out + made.err)
    assert f"ranges of what {saved} lacks come from 8 generated samples" in told[0]
    assert ["accuracy is not calibrated" in each for each in told] == [True, False]


@pytest.mark.parametrize("stage", ["build", "quantize"])
@pytest.mark.feature("CFG-17")
def test_ranges_of_a_file_are_not_calibrated_by_layer(
    built: Built, command: Command, tmp_path: Path, stage: str
) -> None:
    ranges, out = tmp_path / "r.json", tmp_path / ("m.tpu" if stage == "build" else "m.tpuq")
    made = command("calibrate", built.model, "--calib", built.calibration, "-o", ranges)
    assert made.status == 0, made.err
    config = tmp_path / "c.toml"
    entry = '[[layers]]\noperators = ["Conv"]\nstrategy = "extrema"\n'
    config.write_text(entry, encoding="utf-8")
    options = ("--ranges", ranges, "-o", out, "--config", config)
    made = command(stage, built.model, *options)
    assert made.status == 1
    assert f"sets strategy, but ranges come from {ranges}" in made.err
    assert not out.exists()
    config.write_text(f"[quantize]\nlenient = true\n{entry}", encoding="utf-8")
    made = command(stage, built.model, *options)
    assert made.status == 0, made.err
    assert out.exists()


@pytest.mark.feature("CFG-17")
def test_what_was_counted_is_not_counted_otherwise(built: Built, command: Command, tmp_path: Path) -> None:
    saved, again, config = tmp_path / "s.json", tmp_path / "r.json", tmp_path / "c.toml"
    words = ("calibrate", built.model, "--calib", built.calibration, "-o", again)
    assert command(*words, "--save-statistics", saved).status == 0
    for key, status in (("bins = 64", 1), ('strategy = "extrema"', 0)):
        config.write_text(f'[[layers]]\noperators = ["Conv"]\n{key}\n', encoding="utf-8")
        made = command("calibrate", built.model, "--statistics", saved, "--config", config, "-o", again)
        assert made.status == status, made.err
        assert (f"sets bins, but {saved} was counted without it" in made.err) == bool(status)


@pytest.mark.feature("CAL-25")
def test_statistics_of_the_original_model_beside_its_ranges(
    built: Built, command: Command, tmp_path: Path
) -> None:
    folder, ranges, report = tmp_path / "kept", tmp_path / "r.json", tmp_path / "c.json"
    config = tmp_path / "c.toml"
    config.write_text('[calibrate]\nstrategy = "pct[90]"\n', encoding="utf-8")
    options = ("--config", config, "--save-dir", folder, "--debug-sample-number", "2")
    made = command("calibrate", built.model, "--calib", built.calibration, "-o", ranges, *options)
    assert made.status == 0, made.err
    assert (folder / "thresholds.json").read_bytes() == ranges.read_bytes()
    shown = command("compare-statistics", folder / "statistics.json", ranges, "--json", report)
    assert shown.status == 0, shown.err
    assert "values beyond their ranges" in shown.out + shown.err
    rows = {row["tensor"]: row for row in json.loads(report.read_text(encoding="utf-8"))["tensors"]}
    with np.load(built.calibration) as arrays:
        image = arrays["image"][:2]
    assert rows["image"]["count"] == image.size
    assert (rows["image"]["min"], rows["image"]["max"]) == (min(image.min(), 0), max(image.max(), 0))
    assert sum(row["beyond"] for row in rows.values()) > 0
    wrong = command("compare-statistics", ranges, ranges)
    assert wrong.status == 1
    assert 'means of "image": axis, count and mean are needed' in wrong.err


@pytest.mark.feature("CAL-26")
def test_by_default_no_file_is_written(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = tmp_path / "r.json"
    here = tmp_path / "here"
    here.mkdir(mode=0o555)
    monkeypatch.chdir(here)
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    assert sorted(tmp_path.rglob("*")) == [here, ranges]
