"""Settings by layer: written beside every program, edited, given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Built, Command
from conftest import slow_except
from tpuflow import _core
from tpuflow.config.registry import registry


def written(built: Built) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(built.program.with_suffix(".layers.json").read_text(encoding="utf-8"))
    return found


def rebuilt(built: Built, command: Command, folder: Path, content: Any, *words: str) -> Path:
    settings, program = folder / "settings.json", folder / "again.tpu"
    settings.write_text(json.dumps(content), encoding="utf-8")
    result = command(
        "build", built.model, "-O5", "--calib", built.calibration, "--config", settings, "-o", program, *words
    )
    assert result.status == 0, result.err
    return program


@pytest.mark.feature("CFG-06")
def test_what_is_written_gives_the_same_program(built: Built, command: Command, tmp_path: Path) -> None:
    assert rebuilt(built, command, tmp_path, written(built)).read_bytes() == built.program.read_bytes()


@pytest.mark.feature("CFG-06", "CFG-08")
def test_one_layer_is_changed(built: Built, command: Command, tmp_path: Path) -> None:
    content = written(built)
    conv = next(
        name for name, each in content.items() if each["just_for_display"]["brief_info"]["layer_id"] == 2
    )
    content[conv]["q_bits_weight"] = 16
    program = rebuilt(built, command, tmp_path, content)
    graph = _core.Graph.load(program.with_suffix(".tpuq"))
    wide = [
        layer.nodes
        for layer in graph.layers
        if any(graph.tensors[i].is_constant and graph.tensors[i].dtype == "int16" for i in layer.operands)
    ]
    assert wide == [[name for name in wide[0] if name]] and conv in wide[0]
    again = json.loads(program.with_suffix(".layers.json").read_text(encoding="utf-8"))
    assert again[conv]["weight_bits"] == 16
    assert all(each["weight_bits"] is None for name, each in again.items() if name != conv)


@pytest.mark.feature("CFG-08")
def test_effective_values_stand_there_under_the_published_names(
    built: Built, command: Command, tmp_path: Path
) -> None:
    config, program = tmp_path / "c.toml", tmp_path / "v.tpu"
    config.write_text(
        '[quantize]\nweight_bits = 6\nper_channel = false\n[output]\nlayer_settings = "values"\n',
        encoding="utf-8",
    )
    words = ("build", built.model, "--calib", built.calibration, "--config", config, "-o", program)
    assert command(*words).status == 0
    graph = _core.Graph.load(program.with_suffix(".tpuq"))
    content = json.loads(program.with_suffix(".layers.json").read_text(encoding="utf-8"))
    weighted = [each for each in content.values() if "q_bits_weight" in each]
    assert weighted
    for each in weighted:
        assert (each["q_bits_weight"], each["q_mode_weight"]) == (6, "per_tensor_symmetric_restricted_range")
    for name, each in content.items():
        assert (each["q_mode_activation"], each["q_strategy_activation"]) == ("per_tensor_asymmetric", "mse")
        shown = each["just_for_display"]["quantization_info"]
        for tensor in graph.tensors:
            if tensor.name in shown and tensor.scale is not None and len(tensor.scale) == 1:
                assert shown[tensor.name]["scale"] == pytest.approx(1 / tensor.scale[0], rel=1e-6), name


@pytest.mark.feature("CFG-08")
@pytest.mark.parametrize(
    "quantize", ["", "weight_bits = 6\nper_channel = false", 'dtype = "int16"', "weight_bits = 5"]
)
@pytest.mark.parametrize("beside", slow_except([True], [True, False]))
def test_effective_values_given_back_change_nothing(
    built: Built,
    command: Command,
    tmp_path: Path,
    quantize: str,
    beside: bool,  # noqa: FBT001 - parametrised
) -> None:
    """Beside the configuration they were written with, or, of one that says nothing else, alone."""
    config = tmp_path / "c.toml"
    config.write_text(f'[quantize]\n{quantize}\n[output]\nlayer_settings = "values"\n', encoding="utf-8")
    made = [tmp_path / "a.tpu", tmp_path / "b.tpu"]
    words = ("build", built.model, "--calib", built.calibration)
    assert command(*words, "--config", config, "-o", made[0]).status == 0
    again = [
        *(["--config", config] if beside or quantize else []),
        "--config",
        made[0].with_suffix(".layers.json"),
    ]
    done = command(*words, *again, "-o", made[1])
    assert done.status == 0, done.err
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.feature("CFG-08")
def test_values_that_differ_and_have_no_effect_are_still_an_error(
    built: Built, command: Command, tmp_path: Path
) -> None:
    entry = tmp_path / "x.layers.json"
    entry.write_text(json.dumps({"image": {"force_shift_positive": True}}), encoding="utf-8")
    done = command(
        "build", built.model, "--calib", built.calibration, "--config", entry, "-o", tmp_path / "x.tpu"
    )
    assert done.status != 0 and "sets force_shift_positive, but no layer it matches" in done.err


@pytest.mark.feature("CFG-07")
def test_what_is_shown_is_not_read(built: Built, command: Command, tmp_path: Path) -> None:
    content = written(built)
    for each in content.values():
        each["just_for_display"] = {"nonsense": 1, "weight_bits": 16}
    assert rebuilt(built, command, tmp_path, content).read_bytes() == built.program.read_bytes()


@pytest.mark.feature("CFG-08")
def test_every_field_of_layers_stands_there_and_what_came_of_it(built: Built) -> None:
    graph = _core.Graph.load(built.graph)
    for name, each in written(built).items():
        shown = each.pop("just_for_display")
        assert list(each) == [entry.name for entry in registry() if entry.per_layer]
        assert set(each.values()) == {None}
        assert set(shown) == {"quantization_info", "optimization_info", "brief_info"}
        if shown["brief_info"]["layer_type"] == "Input":
            tensor = graph.tensors[graph.inputs[0]]
            assert name == tensor.name
        else:
            (layer,) = (layer for layer in graph.layers if name in layer.nodes)
            tensor = graph.tensors[layer.output]
        facts = shown["quantization_info"][tensor.name]
        assert (facts["dtype"], facts["scale"], facts["zerop"]) == (
            tensor.dtype,
            tensor.scale if len(tensor.scale or ()) > 1 else (tensor.scale or [0])[0],
            tensor.zero_point,
        )
        assert facts["qmax"] == {"int8": 127, "int16": 32767}[tensor.dtype]
        assert facts["fmin"] <= 0 <= facts["fmax"]


@pytest.mark.parametrize(
    ("layer", "settings", "words"),
    [
        ("conv_99", {"weight_bits": 16}, '"conv_99" matches no node'),
        (
            "/maxpool_4",
            {"weight_bits": 16},
            '"/maxpool_4" sets weight_bits, but no layer it matches has weights in codes',
        ),
    ],
)
@pytest.mark.feature("CFG-17")
def test_settings_without_effect(
    built: Built, command: Command, tmp_path: Path, layer: str, settings: dict[str, Any], words: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({layer: settings}), encoding="utf-8")
    asked = ("build", built.model, "--calib", built.calibration, "--config", path, "-o", tmp_path / "x.tpu")
    refused = command(*asked)
    assert refused.status == 1 and words in refused.err
    assert sorted(tmp_path.iterdir()) == [path]
    assert command(*asked, "--lenient").status == 0
    path.write_text(json.dumps({layer: {"weight_bit": 16}}), encoding="utf-8")
    refused = command(*asked)
    assert refused.status == 1 and 'did you mean "weight_bits"?' in refused.err


@pytest.mark.feature("CFG-04", "CFG-06")
def test_text_names_a_file_by_layer(built: Built, command: Command, tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(json.dumps({"/conv_0": {"q_bits_weight": 8}}), encoding="utf-8")
    text = tmp_path / "x.cfg"
    text.write_text("[Common]\nweight_bits = 8 & <[Conv]:16>\nopt_config = layers.json\n", encoding="utf-8")
    program = tmp_path / "x.tpu"
    result = command("build", built.model, "--calib", built.calibration, "--config", text, "-o", program)
    assert result.status == 0, result.err
    graph = _core.Graph.load(program.with_suffix(".tpuq"))
    widths = {
        layer.nodes[0]: graph.tensors[layer.operands[1]].dtype for layer in graph.layers if layer.op == "conv"
    }
    assert widths.pop("/conv_0") == "int8"
    assert "int16" in widths.values()


@pytest.mark.feature("CFG-02")
def test_the_command_line_of_configurations(
    built: Built, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, program = tmp_path / "x.cfg", tmp_path / "x.tpu"
    text.write_text("[Common]\nweight_bits = 16\n", encoding="utf-8")
    for option in ("-c", "--cfg", "--config"):
        asked = ("build", built.model, "--calib", built.calibration, option, text, "-o", program)
        assert command(*asked).status == 0
        graph = _core.Graph.load(program.with_suffix(".tpuq"))
        assert {t.dtype for t in graph.tensors if t.is_constant and t.scale is not None} == {"int16"}
    assert command("--version").out.startswith("tpuflow ")
    listed = command("fields", "--markdown").out
    assert all(entry.name in listed for entry in registry())
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "aipubt_dataset_a.py").write_text(
        "from AIPUBuilder.Optimizer.framework import *\n"
        "@register_plugin(PluginType.Dataset, '1.5')\nclass Mine: pass\n",
        encoding="utf-8",
    )
    (folder / "aipubt_op_b.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = command("plugins", "--plugins", folder).out
    assert "Mine" in shown and "1.5" in shown
    assert "not loaded" in shown and "aipubt_op_b.py" in shown
