"""Refined weights and searches on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Built, Command, Result
from conftest import slow_except
from tpuflow.io.journal import Journal
from tpuflow.ptq.search import MARGIN_DB


@pytest.mark.parametrize("method", ["gptq", "adaround[Conv]"])
@pytest.mark.feature("GCA-16")
def test_build_refines_after_ranges_are_known(
    method: str, built: Built, command: Command, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'[quantize]\nweight_bits = 4\n[calibrate]\nglobal_calibration = "{method}"\n', encoding="utf-8"
    )
    program = tmp_path / "m.tpu"
    made = command(
        "build", built.model, "--calib", built.calibration, "--config", config, "-o", program, "--no-verify"
    )
    assert made.status == 0, made.err
    told = made.out + made.err
    assert "weights of" in told, told
    assert f"{method.split('[', maxsplit=1)[0]}: weights of" in told
    assert program.is_file()


def test_methods_that_need_samples_say_so(built: Built, command: Command, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[calibrate]\nglobal_calibration = "gptq"\n', encoding="utf-8")
    ranges = tmp_path / "r.json"
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    refused = command("build", built.model, "--ranges", ranges, "--config", config, "-o", tmp_path / "m.tpu")
    assert refused.status == 1
    assert "global_calibration needs samples" in refused.err
    refused = command(
        "quantize", built.model, "--ranges", ranges, "--config", config, "-o", tmp_path / "m.tpuq"
    )
    assert refused.status == 1
    assert "global_calibration needs samples" in refused.err


@pytest.fixture
def enough(built: Built, tmp_path: Path) -> Path:
    """Samples to choose by."""
    generator = np.random.default_rng(5)
    with np.load(built.calibration) as arrays:
        more = {name: np.concatenate([arrays[name]] * 2)[:8] for name in arrays.files}
    more = {name: array * generator.uniform(0.5, 1, array.shape).astype("f") for name, array in more.items()}
    np.savez(tmp_path / "enough.npz", allow_pickle=False, **more)
    return tmp_path / "enough.npz"


@pytest.mark.feature("GCA-13")
def test_search_writes_the_best_graph(built: Built, enough: Path, command: Command, tmp_path: Path) -> None:
    graph, report = tmp_path / "m.tpuq", tmp_path / "r.json"
    found = command("search", built.model, "--calib", enough, "-o", graph, "--json", report)
    assert found.status == 0, found.err
    rows = json.loads(report.read_text(encoding="utf-8"))["candidates"]
    best = [row for row in rows if row["kept"]][-1]
    assert best["sqnr_db"] >= max(row["sqnr_db"] for row in rows) - 2 * MARGIN_DB
    shown = json.loads(report.read_text(encoding="utf-8"))
    assert shown["chosen"] in {best["name"], "default recipe"}
    (interval,) = shown["validation"]["outputs"].values()
    assert f"{interval['low_db']:.1f} to {interval['high_db']:.1f} dB" in found.out + found.err
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    with np.load(built.calibration) as arrays:
        np.savez(inputs, **{name: arrays[name] for name in arrays.files})
    assert command("run", graph, "--inputs", inputs, "--outputs", outputs).status == 0


@pytest.mark.parametrize(
    ("kind", "told"), [("zeros", "a sample of zeros"), ("generated", "8 generated samples")]
)
@pytest.mark.feature("CAL-21", "QMO-16")
def test_without_data_it_is_said_what_stands_in(
    kind: str, told: str, built: Built, command: Command, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[calibrate]\nno_data = "{kind}"\n', encoding="utf-8")
    found = command("calibrate", built.model, "--config", config, "-o", tmp_path / "r.json")
    assert found.status == 0, found.err
    assert f"ranges come from {told}, accuracy is not calibrated" in found.out + found.err
    ranges = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["tensors"]["image"]
    assert ((ranges["min"], ranges["max"]) == (0, 0)) == (kind == "zeros")


@pytest.mark.parametrize("command_name", slow_except(["mixed"], ["search", "mixed"]))
@pytest.mark.feature("MSC-17")
@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on_where_it_was(
    command_name: str,
    built: Built,
    enough: Path,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    calls = 0

    def run(folder: Path, calib: Path = enough) -> Result:
        words = {
            "search": ["-o", folder / "m.out"],
            "mixed": ["--budget", "cycles=1e9", "-o", folder / "m.out"],
        }
        return command(
            command_name, built.model, "--calib", calib, *words[command_name], "--json", folder / "m.json"
        )

    def after(most: int) -> None:
        nonlocal calls
        calls = 0
        note = Journal.note

        def noted(self: Journal, *given: Any, **named: Any) -> None:
            nonlocal calls
            note(self, *given, **named)
            calls += 1
            if calls >= most:
                raise KeyboardInterrupt

        monkeypatch.setattr(Journal, "note", noted)

    assert run(whole).status == 0
    for _ in range(2):
        after(3)
        assert run(cut).status == 130
        monkeypatch.undo()
    assert [each.name for each in cut.iterdir()] == ["m.out.journal"]
    after(10**6)
    done = run(cut)
    monkeypatch.undo()
    assert done.status == 0, done.err
    assert "m.out.journal: 6 trials of an interrupted run are reused" in done.err
    assert {each.name: each.read_bytes() for each in cut.iterdir()} == {
        each.name: each.read_bytes() for each in whole.iterdir()
    }
    after(3)
    assert run(cut).status == 130
    monkeypatch.undo()
    other = tmp_path / "other.npz"
    with np.load(enough) as arrays:
        np.savez(other, **{name: arrays[name] * 2 for name in arrays.files})
    done = run(cut, other)
    assert done.status == 0
    assert "m.out.journal: is of another samples: begun anew" in done.err
    assert sorted(each.name for each in cut.iterdir()) == ["m.json", "m.out"]
