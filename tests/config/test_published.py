"""What text files mean where they say nothing: defaults of the tool they come from, and what is a note."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.graphs import array, graph
from tpuflow.config import Config, ConfigError, load_config, resolve_layers
from tpuflow.config.operators import types_of
from tpuflow.config.published import DEFAULTS
from tpuflow.frontend import load


def read(folder: Path, *lines: str) -> Config:
    path = folder / "x.cfg"
    path.write_text("[Common]\n" + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return load_config(path)


# Every key with its default as the tool's users write it.
STATED = {
    "activation_bits": "8",
    "bias_bits": "32",
    "calibration_batch_size": "1",
    "calibration_strategy_for_activation": "mean",
    "calibration_strategy_for_weight": "extrema",
    "cast_dtypes_for_lib": "False",
    "dataloader_workers": "0",
    "dump": "false",
    "eval_original_model": "True",
    "featuremap_splits_item_x": "1",
    "featuremap_splits_item_y": "1",
    "featuremap_splits_overlap_rate": "50",
    "force_dtype_int": "false",
    "force_shift_positive": "false",
    "global_calibration": "none",
    "histc_bins": "2048",
    "lut_items_in_bits": "8",
    "metric_batch_size": "1",
    "mixed_precision_auto_search": "0,0,L",
    "quantize_method_for_activation": "per_tensor_symmetric_full_range",
    "quantize_method_for_weight": "per_tensor_symmetric_restricted_range",
    "resize_degrade_to_nearest": "false",
    "running_statistic_momentum": "0.9",
    "save_statistic_info": "False",
    "trigger_float_op": "disable",
    "unify_scales_for_concat": "False",
    "unify_scales_for_concat_max_depth": "20",
    "unify_scales_for_concat_threshold": "1.05",
    "unify_shifts_for_aiff": "false",
    "weight_bits": "8",
    "with_winograd": "False",
    "without_batch_dim": "False",
}


@given(chosen=st.sets(st.sampled_from(sorted(STATED))))
def test_stating_a_default_changes_nothing(
    chosen: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    silent = read(folder)
    assert read(folder, *(f"{key} = {STATED[key]}" for key in sorted(chosen))) == silent


@pytest.mark.parametrize("key", sorted(STATED))
def test_stating_a_default_beside_another_choice_changes_nothing(key: str, tmp_path: Path) -> None:
    others = {
        "activation_bits": "16", "quantize_method_for_activation": "per_tensor_asymmetric",
        "calibration_strategy_for_activation": "10kld", "quantize_method_for_weight":
        "per_channel_symmetric_full_range", "save_statistic_info": "True", "lut_items_in_bits": "10",
    }  # fmt: skip
    lines = [f"{name} = {value}" for name, value in others.items() if name != key]
    assert read(tmp_path, *lines, f"{key} = {STATED[key]}") == read(tmp_path, *lines)


@pytest.mark.feature("CAL-21")
def test_defaults_are_those_of_the_manual(tmp_path: Path) -> None:
    config = read(tmp_path)
    found = config.quantize
    assert (found.dtype, found.activation_bits, found.weight_bits, found.bias_bits) == ("int8", 8, 8, 32)
    assert (found.activation_mode, found.unsigned) == ("symmetric_full", True)
    assert (found.weight_mode, found.per_channel, found.table_bits) == ("symmetric_restricted", False, 8)
    assert (config.calibrate.strategy, config.calibrate.no_data) == ("mean", "zeros")
    assert not config.tunes and not config.calibrate.equalize
    other = tmp_path / "x.toml"
    other.write_text("[quantize]\nweight_bits = 16\n", encoding="utf-8")
    assert load_config(other).quantize.output_dtype == "int16"
    both = load_config(tmp_path / "x.cfg", other).quantize
    assert (both.weight_bits, both.output_dtype) == (16, "int8")
    for section, values in DEFAULTS.items():
        native = type(getattr(config, section))()
        held = {key: getattr(getattr(config, section), key) for key in values}
        assert held == dict(values)
        assert any(getattr(native, key) != value for key, value in values.items())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["metric = TopKMetric"], "metric has no effect without data"),
        (["label = ./a.npy"], "label has no effect without data"),
        (["dataset = NumpyDataset"], "dataset has no effect without data"),
        (["with_winograd = true"], "with_winograd changes nothing"),
        (["with_winograd = false & <[(0,3)]:true>"], "with_winograd changes nothing"),
    ],
)
def test_keys_without_effect_are_notes(
    lines: list[str], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert read(tmp_path, *lines) == read(tmp_path)
    assert words in caplog.text
    caplog.clear()
    read(tmp_path, "dataset = NumpyDataset", "calibration_data = a.npy")
    assert not caplog.text


def test_names_of_files(tmp_path: Path) -> None:
    config = read(
        tmp_path, "graph = m.onnx", "bin = m.data", "calibration_data = ./c.npy", "dataset = Mine",
        "output_dir = out", "save_statistic_info = True", "dump = true", "dump_dir = tensors",
        "data = v.npy", "label = l.npy", "metric = TopKMetric", "without_batch_dim = True",
    )  # fmt: skip
    assert (config.input.model, config.input.constants) == ("m.onnx", "m.data")
    assert config.input.source == "Mine(./c.npy)" and config.input.without_batch_dim
    assert config.evaluate.source == "Mine(v.npy,l.npy)"
    assert config.calibrate.save_statistic_info == "out/statistics.json"
    assert (config.output.dump, config.output.dump_dir) == (True, "tensors")
    assert read(tmp_path, "data = v.npy", "label = l.npy").evaluate.source == "NumpyDataset(v.npy,l.npy)"


@pytest.mark.feature("LOW-08")
def test_floats_are_preferred_and_fall_back(tmp_path: Path) -> None:
    preferred = read(tmp_path, "trigger_float_op = float16_preferred", "activation_bits = 16").quantize
    assert (preferred.dtype, preferred.fallback, preferred.activation_bits) == ("float16", "int16", None)
    assert read(tmp_path, "trigger_float_op = bfloat16_preferred").quantize.fallback == "int8"
    forced = read(tmp_path, "trigger_float_op = float16_preferred!").quantize
    assert (forced.dtype, forced.fallback) == ("float16", None)
    weights = read(tmp_path, "trigger_float_op = float32_act_int_wht").quantize
    assert (weights.dtype, weights.weight_only) == ("float32", True)


def test_types_by_any_of_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert types_of("convolution") == types_of("CONV") == {"Conv"}
    assert {"MatMul"} <= types_of("FullyConnected") and {"MatMul"} <= types_of("Gemm")
    assert types_of("RESHAPE") == {"Reshape"} and not types_of("Covn")
    model = load(
        graph(
            [("Conv", "x w", "a"), ("Relu", "a", "b"), ("Conv", "b w", "y")],
            {"x": [1, 3, 6, 6]},
            ["y"],
            {"w": array(3, 3, 1, 1)},
        )
    ).model
    config = read(tmp_path, "weight_bits = 8 & <[convolution, FullyConnected, Abs]:16>")
    (entry,) = resolve_layers(config, model).layers
    assert entry.names == tuple(node.name for node in model.graph if node.op_type == "Conv")
    assert 'no layer is of the type "Abs"' in caplog.text
    assert resolve_layers(read(tmp_path, "weight_bits = 8 & <[Tile]:16>"), model).layers == ()
    strict = Config.parse({"layers": [{"operators": ["Covn"], "weight_bits": 16}]})
    with pytest.raises(ConfigError, match='no operator "Covn", did you mean "Conv"'):
        resolve_layers(strict, model)


@pytest.mark.feature("GCA-04")
def test_adaround_takes_eight_numbers(tmp_path: Path) -> None:
    config = read(tmp_path, "global_calibration = adaround[10,3,1,0.001,0.01,20,2,0.2]")
    (method,) = config.calibrate.chain
    assert list(method.numbers.values()) == [10, 3, 1, 0.001, 0.01, 20, 2, 0.2]
    assert list(method.numbers)[:4] == ["batches", "epochs", "batch_size", "lr"]
    with pytest.raises(ConfigError, match="there are 9 numbers"):
        read(tmp_path, "global_calibration = adaround[1,1,1,1,1,1,1,1,1]")


@pytest.mark.parametrize(
    ("value", "expected"), [("False", ()), ("True", ("*",)), ("Abs,reshape,tile", ("Abs", "reshape", "tile"))]
)
def test_cast_dtypes_in_every_form(value: str, expected: Any, tmp_path: Path) -> None:
    assert read(tmp_path, f"cast_dtypes_for_lib = {value}").quantize.cast_dtypes == expected
