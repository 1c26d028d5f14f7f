"""Searches for precisions on the command line, and where samples come from."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Built, Command
from tpuflow import _core
from tpuflow.config.cfg import parse_cfg
from tpuflow.frontend import load
from tpuflow.io.arrays import read_arrays
from tpuflow.io.samples import Samples, load_samples
from tpuflow.partitioning.storage import load_graph


def search(folder: Path, text: str) -> Path:
    """The keys of a text file as TOML, beneath which lie the defaults of this package."""
    path = folder / "search.toml"
    sections = parse_cfg(f"[Common]\n{text}\n", "search").items()
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in own.items()) for name, own in sections
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mixed_precision_auto_search = 1,0.1,L", "needs metric and data"),
        ("mixed_precision_auto_search = 1,0.1,L\nmetric = top1\n", "needs data to evaluate with"),
        ("mixed_precision_auto_search = 1,0.1,M", "followed by L or G"),
        ("metric = top1", "metric has no effect without data"),
        ("data = x.npz\nlabel = y.npy", "label has no effect without dataset"),
    ],
)
@pytest.mark.feature("MIX-02")
def test_a_search_without_a_metric_is_refused_at_once(
    text: str, told: str, built: Built, command: Command, tmp_path: Path
) -> None:
    config = search(tmp_path, text)
    refused = command(
        "build", built.model, "--calib", built.calibration, "--cfg", config, "-o", tmp_path / "x.tpu"
    )
    assert refused.status == 1 and told in refused.err
    assert "import" not in refused.out
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize("threshold", ["1e-5", "-1"])
@pytest.mark.feature("MIX-03")
def test_a_build_from_what_was_found_gives_the_same_program(
    threshold: str, built: Built, command: Command, tmp_path: Path
) -> None:
    config = search(
        tmp_path,
        f"mixed_precision_auto_search = 5,{threshold},L\nmetric = cosine\ndata = {built.labeled}",
    )
    first, again = tmp_path / "first.tpu", tmp_path / "again.tpu"
    made = command("build", built.model, "-O5", "--calib", built.calibration, "--cfg", config, "-o", first)
    assert made.status == 0, made.err
    told = made.out + made.err
    kind = "become floats" if threshold == "-1" else "get 16 bits"
    assert kind in told and "verified: cosine" in told
    assert ("still is not what was asked for" in told) == (threshold == "-1")
    layers = json.loads(first.with_suffix(".layers.json").read_text(encoding="utf-8"))
    raised = {name for name, each in layers.items() if each["dtype"] is not None}
    assert raised
    made = command(
        "build", built.model, "-O5", "--calib", built.calibration,
        "--config", first.with_suffix(".layers.json"), "-o", again,
    )  # fmt: skip
    assert made.status == 0, made.err
    assert again.read_bytes() == first.read_bytes()
    assert json.loads(again.with_suffix(".layers.json").read_text(encoding="utf-8")) == layers


@pytest.mark.feature("MIX-14")
def test_a_build_says_that_floats_need_the_cpu(built: Built, command: Command, tmp_path: Path) -> None:
    config = search(
        tmp_path,
        f"mixed_precision_auto_search = 5,-1,L\nmetric = cosine\ndata = {built.labeled}\ntarget = int8",
    )
    found = command(
        "build", built.model, "--calib", built.calibration, "--cfg", config, "-o", tmp_path / "x.tpu"
    )
    assert "need the CPU of the host" in found.out + found.err


@pytest.mark.feature("CFG-18", "CMP-15")
def test_debugging_is_told_aloud(built: Built, command: Command, tmp_path: Path) -> None:
    config = search(tmp_path, "fake_quant_operators_for_debug = Conv\nfake_quant_scopes_for_debug = [(0,1)]")
    found = command(
        "build", built.model, "--calib", built.calibration, "--cfg", config, "-o", tmp_path / "x.tpu"
    )
    assert found.status == 0, found.err
    assert "WARNING: fake_quant is set" in found.out + found.err


@pytest.mark.feature("MIX-01")
def test_fewer_than_one_batch_is_no_search(built: Built, command: Command, tmp_path: Path) -> None:
    config = search(tmp_path, f"mixed_precision_auto_search = 0,0.,L\nmetric = top1\ndata = {built.labeled}")
    program = tmp_path / "x.tpu"
    made = command("build", built.model, "-O5", "--calib", built.calibration, "--cfg", config, "-o", program)
    assert made.status == 0, made.err
    assert program.read_bytes() == built.program.read_bytes()


@pytest.mark.feature("MIX-13", "MIX-15")
def test_the_table_of_layers(built: Built, command: Command, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    found = command(
        "sensitivity", built.model, "--calib", built.calibration, "--data", built.labeled, "--metric",
        "top1", "--json", report,
    )  # fmt: skip
    assert found.status == 0, found.err
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    assert [row["gain"] for row in rows] == sorted((row["gain"] for row in rows), reverse=True)
    shown = [
        line.split()[1] for line in found.out.splitlines() if line.split()[:1] and line.split()[0].isdigit()
    ]
    assert shown == [row["layer"] for row in rows]


@pytest.mark.feature("MIX-07")
def test_settings_within_a_budget_are_built_as_they_were_evaluated(
    built: Built, command: Command, tmp_path: Path
) -> None:
    layers, report, program = tmp_path / "l.json", tmp_path / "r.json", tmp_path / "x.tpu"
    found = command(
        "mixed", built.model, "--budget", "cycles=3600", "--calib", built.calibration, "--data",
        built.labeled, "--metric", "cosine", "-o", layers, "--json", report,
    )  # fmt: skip
    assert found.status == 0, found.err
    chosen = json.loads(report.read_text(encoding="utf-8"))
    assert chosen["within"] and chosen["cycles"][0] < chosen["cycles"][1] <= 3600
    made = command(
        "build", built.model, "--calib", built.calibration, "--config", layers, "-o", program, "--json",
        tmp_path / "b.json",
    )  # fmt: skip
    assert made.status == 0, made.err
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["cycles"] == chosen["cycles"][1]
    scored = command(
        "evaluate", program.with_suffix(".tpuq"), "--data", built.labeled, "--metric", "cosine", "--float",
        built.model, "--json", tmp_path / "e.json",
    )  # fmt: skip
    assert scored.status == 0, scored.err
    assert json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))["value"] == chosen["metric"][1]


@pytest.mark.feature("MIX-05")
def test_a_table_is_built_as_settings_are(built: Built, command: Command, tmp_path: Path) -> None:
    programs = []
    for suffix in ("json", "table"):
        layers, program = tmp_path / f"l.{suffix}", tmp_path / f"{suffix}.tpu"
        found = command(
            "mixed", built.model, "--budget", "cycles=3600", "--calib", built.calibration, "-o", layers
        )
        assert found.status == 0, found.err
        made = command("build", built.model, "--calib", built.calibration, "--config", layers, "-o", program)
        assert made.status == 0, made.err
        programs.append(program.read_bytes())
    assert programs[0] == programs[1] != built.program.read_bytes()


@pytest.mark.feature("CMP-16")
def test_layers_found_by_bisection_are_written_as_settings(
    built: Built, command: Command, tmp_path: Path
) -> None:
    config, layers = tmp_path / "bad.json", tmp_path / "l.json"
    config.write_text(json.dumps({"/conv_2": {"weight_bits": 4}}), encoding="utf-8")
    found = command(
        "bisect", built.model, "--calib", built.calibration, "--data", built.labeled, "--metric", "cosine",
        "--allowed", "0.0005", "--config", config, "-o", layers,
    )  # fmt: skip
    assert found.status == 0, found.err
    written = json.loads(layers.read_text(encoding="utf-8"))
    assert [name for name, each in written.items() if each["dtype"] == "float32"] == ["/conv_2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sensitivity", "MODEL"), "give --calib or --ranges"),
        (("sensitivity", "MODEL", "--calib", "CALIB", "--to", "12"), '--to "12": choose of'),
        (("sensitivity", "MODEL", "--calib", "CALIB", "--loss", "x"), 'unknown loss "x" (known: '),
        (("mixed", "MODEL", "--calib", "CALIB", "--budget", "x=1", "-o", "OUT"), 'budget "x=1"'),
        (("mixed", "MODEL", "--calib", "CALIB", "--budget", "drop=1", "-o", "OUT"), "give it with --metric"),
        (("bisect", "MODEL", "--calib", "CALIB", "--metric", "top1"), "the samples have no labels"),
        (("bisect", "MODEL", "--calib", "CALIB", "--metric", "nonsense"), "no metric is called"),
    ],
)
def test_what_cannot_be_searched(
    words: tuple[str, ...], told: str, built: Built, command: Command, tmp_path: Path
) -> None:
    names = {"MODEL": built.model, "CALIB": built.calibration, "OUT": tmp_path / "l.json"}
    refused = command(*(names.get(word, word) for word in words))
    assert refused.status == 1 and told in refused.err
    assert not list(tmp_path.iterdir())


@pytest.mark.feature("CMP-14")
def test_similarity_by_layer_is_that_of_a_comparison_of_dumps(
    built: Built, command: Command, tmp_path: Path
) -> None:
    ours, theirs, one = tmp_path / "q.npz", tmp_path / "f.npz", tmp_path / "one.npz"
    with np.load(built.calibration) as arrays:
        np.savez(one, **{name: arrays[name][:1] for name in arrays.files})
    for file, out in ((built.graph, ours), (built.model, theirs)):
        assert command("run", file, "--inputs", one, "--outputs", out, "--all-tensors").status == 0
    layers = json.loads(built.program.with_suffix(".layers.json").read_text(encoding="utf-8"))
    graph = load_graph(built.graph)
    assert isinstance(graph, _core.Graph)
    outputs = {
        name: json.loads(graph.tensors[layer.output].source_json or "{}").get("name")
        for layer in graph.layers
        for name in layer.nodes
    }
    checked = 0
    with np.load(ours) as quantized, np.load(theirs) as floating:
        for name, each in layers.items():
            brief, facts = (each["just_for_display"][key] for key in ("brief_info", "quantization_info"))
            tensor = outputs.get(name, name)
            if tensor not in quantized.files or tensor not in floating.files:
                continue
            x, y = (side[tensor].astype(np.float64).ravel() for side in (floating, quantized))
            cosine = x @ y / np.sqrt((x @ x) * (y @ y))
            assert brief["similarity"] == pytest.approx(cosine, rel=1e-6)
            assert brief["MSE"] == pytest.approx(np.mean((x - y) ** 2), rel=1e-5)
            assert any(found.get("similarity") == brief["similarity"] for found in facts.values())
            checked += 1
    assert checked >= 4


@pytest.mark.feature("CMP-14")
def test_without_samples_there_is_no_similarity(built: Built, command: Command, tmp_path: Path) -> None:
    ranges, program = tmp_path / "r.json", tmp_path / "x.tpu"
    assert command("calibrate", built.model, "--calib", built.calibration, "-o", ranges).status == 0
    assert command("build", built.model, "--ranges", ranges, "-o", program).status == 0
    written: dict[str, Any] = json.loads(program.with_suffix(".layers.json").read_text(encoding="utf-8"))
    assert all("similarity" not in each["just_for_display"]["brief_info"] for each in written.values())


# Samples read ahead


@pytest.fixture
def directory(built: Built, tmp_path: Path) -> Path:
    folder = tmp_path / "samples"
    folder.mkdir()
    with np.load(built.calibration) as arrays:
        for index, row in enumerate(arrays["image"]):
            np.save(folder / f"{index:02}.npy", row)
    return folder


@pytest.mark.feature("MSC-02")
def test_samples_are_the_same_for_any_number_of_threads(
    built: Built, command: Command, directory: Path, tmp_path: Path
) -> None:
    programs = []
    for workers in (0, 1, 4):
        config, program = search(tmp_path, f"dataloader_workers = {workers}"), tmp_path / f"{workers}.tpu"
        made = command("build", built.model, "-O5", "--calib", directory, "--cfg", config, "-o", program)
        assert made.status == 0, made.err
        programs.append(program.read_bytes())
    assert programs == [built.program.read_bytes()] * 3


@pytest.mark.feature("MSC-02")
def test_files_are_read_by_so_many_threads(
    directory: Path, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports, seen = load(built.model).inputs, set[str]()
    read = read_arrays

    def noted(path: Path) -> dict[str, Any]:
        seen.add(threading.current_thread().name)
        return read(path)

    monkeypatch.setattr("tpuflow.io.samples.read_arrays", noted)

    def rows(workers: int) -> list[Any]:
        seen.clear()
        found: Samples = load_samples(directory, ports, workers)
        return [row["image"].tobytes() for row in found.rows()]

    alone = rows(0)
    assert seen == {threading.main_thread().name}
    assert rows(4) == alone
    assert threading.main_thread().name not in seen


@pytest.mark.feature("MSC-02")
def test_a_file_that_cannot_be_read_is_told_all_the_same(
    built: Built, command: Command, directory: Path, tmp_path: Path
) -> None:
    (directory / "03.npy").write_bytes(b"nothing")
    config = search(tmp_path, "dataloader_workers = 4")
    refused = command(
        "calibrate", built.model, "--calib", directory, "--cfg", config, "-o", tmp_path / "r.json"
    )
    assert refused.status == 1 and "03.npy: not a complete NumPy file" in refused.err
