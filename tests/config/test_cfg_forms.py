"""Every key of the cfg manual and of its file of settings by layer, with every form of value it describes.

Each form is read, and what it says is compared with what a file says that has only its companions: 51 keys
with 143 forms, 16 keys that layers may differ in with 5 forms of exceptions each, 13 keys by layer.
Where the manual is present, the tables here are compared with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from listings import document
from tpuflow.config import Config, ConfigError, load_config

STRATEGIES = (
    "extrema", "mean", "percentile", "0.9percentile", "std", "3std", "kld", "10kld", "aciq_laplace",
    "1.2aciq_laplace", "aciq_gauss", "1.2aciq_gauss", "weighted_scale_param",
    "weighted_scale_param[1.1, 0.5, 0.5, 0.5]", "in_ir",
)  # fmt: skip
GLOBAL = (
    "easy_quant", "easy_quant[1, 2, 0.5, 2, 10, 4]",
    "adaround", "adaround[10, 3, 1, 0.001, 0.01, 20, 2, 0.2]",
    "adaquant_zy", "adaquant_zy[10, 5, 1, 0.00001, 0.001, 0.001, 0.1]", "svd_quant",
    "svd_quant[0, 0.5, 2, 10, 0.09]",
)  # fmt: skip
GRIDS = {
    "symmetric_restricted_range": "symmetric_restricted",
    "symmetric_full_range": "symmetric_full",
    "asymmetric": "asymmetric",
}
SCORED = ("metric = TopKMetric", "data = v.npy", "dataset = NumpyDataset")


def floats(kind: str, *, forced: bool, weights: bool) -> dict[str, Any]:
    """What a value of trigger_float_op means."""
    return {
        "quantize.dtype": kind,
        "quantize.activation_bits": None,
        "quantize.fallback": None if forced else "int8",
        "quantize.weight_only": weights,
    }


FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "graph": {"./m.onnx": {"input.model": "./m.onnx"}},
    "bin": {"./m.bin": {"input.constants": "./m.bin"}},
    "model_name": {"net_1": {"output.model_name": "net_1"}, "2024": {"output.model_name": "2024"}},
    "dataset": {name: {"evaluate.dataset": name} for name in ("NumpyDataset", "numpynhwcrbg2ncbgrhwdataset")},
    "calibration_data": {"./c.npy": {"input.calibration": "./c.npy"}},
    "calibration_batch_size": {"4": {"calibrate.batch_size": 4}},
    "metric": {
        name: {"evaluate.metric": name} for name in ("TopKMetric", "TopKMetric,TopKMetric(5),TopKMetric(10)")
    },
    "data": {"./v.npy": {"evaluate.data": "./v.npy"}},
    "label": {"./l.npy": {"evaluate.label": "./l.npy"}},
    "metric_batch_size": {"2": {"evaluate.metric_batch_size": 2}},
    "quantize_method_for_weight": {
        f"per_{what}_{name}": {"quantize.weight_mode": grid, "quantize.per_channel": what == "channel"}
        for what in ("tensor", "channel")
        for name, grid in GRIDS.items()
    },
    "quantize_method_for_activation": {
        f"per_tensor_{name}": {"quantize.activation_mode": grid} for name, grid in GRIDS.items()
    },
    "weight_bits": {str(bits): {"quantize.weight_bits": bits} for bits in (8, 16)},
    "bias_bits": {str(bits): {"quantize.bias_bits": bits} for bits in (32, 48)},
    "activation_bits": {
        str(bits): {"quantize.activation_bits": bits, "quantize.dtype": f"int{bits}"} for bits in (8, 16)
    },
    "lut_items_in_bits": {str(bits): {"quantize.table_bits": bits} for bits in (8, 10)},
    "output_dir": {"./": {"output.folder": "./"}, "out": {"output.folder": "out"}},
    "dataloader_workers": {"4": {"evaluate.dataloader_workers": 4}},
    "mixed_precision_auto_search": {
        text: {"evaluate.mixed_precision_auto_search": text.strip("'")}
        for text in ("0,0,L", "1,0.02,L", "1,-0.02,G", "'1,0.02,L'")
    },
    "opt_config": {"layers.json": {}},
    "calibration_strategy_for_weight": {text: {"quantize.weight_strategy": text} for text in STRATEGIES},
    "calibration_strategy_for_activation": {text: {"calibrate.strategy": text} for text in STRATEGIES},
    "global_calibration": {text: {"calibrate.global_calibration": text} for text in (*GLOBAL, "none")},
    "featuremap_tiling_param": {
        "[(0,3,2,2)]": {"schedule.featuremap_tiling_param": ((0, 3, 2, 2),)},
        "[(0,3,2,2), (4,5,1,2)]": {"schedule.featuremap_tiling_param": ((0, 3, 2, 2), (4, 5, 1, 2))},
        "'[(0,3,2,2)]'": {"schedule.featuremap_tiling_param": ((0, 3, 2, 2),)},
    },
    "featuremap_splits_item_x": {"2": {"schedule.featuremap_splits_item_x": 2}},
    "featuremap_splits_item_y": {"2": {"schedule.featuremap_splits_item_y": 2}},
    "featuremap_splits_overlap_rate": {
        text: {"schedule.featuremap_splits_overlap_rate": int(text)} for text in ("0", "50", "99")
    },
    "dump": {text: {"output.dump": text == "true"} for text in ("true", "false")},
    "dump_dir": {"./tensors": {"output.dump_dir": "./tensors"}},
    "without_batch_dim": {text: {"input.without_batch_dim": text == "True"} for text in ("True", "False")},
    "set_qinvariant_for_start_nodes": {
        "0": {"quantize.qinvariant": (0,)},
        "0,2": {"quantize.qinvariant": (0, 2)},
        "0,1,2": {"quantize.qinvariant": (0, 1, 2)},
        "'0'": {"quantize.qinvariant": (0,)},
        "'0,2'": {"quantize.qinvariant": (0, 2)},
    },
    "cast_dtypes_for_lib": {
        "False": {"quantize.cast_dtypes": ()},
        "True": {"quantize.cast_dtypes": ("*",)},
        "Abs,reshape,tile": {"quantize.cast_dtypes": ("Abs", "reshape", "tile")},
    },
    "bias_effective_bits": {"16": {"quantize.bias_effective_bits": 16}},
    "remain_shift": {text: {"quantize.remain_shift": int(text)} for text in ("0", "8", "32")},
    "unify_shifts_for_aiff": {text: {"quantize.unify_shifts": text == "true"} for text in ("true", "false")},
    "force_shift_positive": {
        text: {"quantize.force_shift_positive": text == "true"} for text in ("true", "false")
    },
    "force_dtype_int": {text: {"quantize.force_dtype_int": text == "true"} for text in ("true", "false")},
    "trigger_float_op": {"disable": {"quantize.dtype": "int8"}}
    | {
        f"{kind}_{how}{mark}": floats(kind, forced=bool(mark), weights=how != "preferred")
        for kind in ("float16", "bfloat16", "float32")
        for how in ("preferred", "act_int_wht")
        for mark in ("", "!")
    },
    "eval_original_model": {
        text: {"evaluate.eval_original_model": text == "True"} for text in ("True", "False")
    },
    "save_statistic_info": {
        "True": {"calibrate.save_statistic_info": "statistics.json"},
        "False": {"calibrate.save_statistic_info": ""},
    },
    "statistic_file": {"/path/to/file": {"calibrate.statistic_file": "/path/to/file"}},
    "resize_degrade_to_nearest": {
        text: {"quantize.resize_degrade_to_nearest": text == "true"} for text in ("true", "false")
    },
    "unify_scales_for_concat": {
        text: {"quantize.unify_scales_for_concat": text == "True"} for text in ("True", "False")
    },
    "unify_scales_for_concat_threshold": {"1.2": {"quantize.unify_scales_for_concat_threshold": 1.2}},
    "unify_scales_for_concat_max_depth": {"7": {"quantize.unify_scales_for_concat_max_depth": 7}},
    # The machine computes products as they are: the key is accepted and says so.
    "with_winograd": {"True": {}, "False": {}},
    "fake_quant_operators_for_debug": {
        "Abs,reshape,tile": {"quantize.fake_quant_operators": ("Abs", "reshape", "tile")}
    },
    "fake_quant_scopes_for_debug": {
        "[(0,3)]": {"quantize.fake_quant_scopes": ((0, 3),)},
        "[(0,3),(5,6)]": {"quantize.fake_quant_scopes": ((0, 3), (5, 6))},
        "'[(0,3)]'": {"quantize.fake_quant_scopes": ((0, 3),)},
    },
    "running_statistic_momentum": {"0.5": {"calibrate.momentum": 0.5}},
    "histc_bins": {"1024": {"calibrate.bins": 1024}},
    "trim_infinity_before_statistic": {
        "true": {"calibrate.trim_infinity": "second(-inf,inf)"},
        "false": {"calibrate.trim_infinity": ""},
        "clip(-10,10)": {"calibrate.trim_infinity": "clip(-10,10)"},
    },
}
"""By key and form, the fields that it sets."""

COMPANIONS = {
    "dataset": ("data = v.npy",),
    "metric": SCORED[1:],
    "label": SCORED,
    "mixed_precision_auto_search": SCORED,
    "unify_scales_for_concat_threshold": ("unify_scales_for_concat = True",),
    "unify_scales_for_concat_max_depth": ("unify_scales_for_concat = True",),
}
"""By key, lines without which it has no effect."""

BY_LAYER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "calibration_strategy_for_activation": ("mean", "10kld", {"strategy": "10kld"}),
    "calibration_strategy_for_weight": (
        "extrema", "weighted_scale_param[1.1,0.5,0.5,0.5]",
        {"weight_strategy": "weighted_scale_param[1.1,0.5,0.5,0.5]"},
    ),
    "quantize_method_for_weight": (
        "per_tensor_symmetric_restricted_range", "per_channel_asymmetric",
        {"weight_mode": "asymmetric", "per_channel": True},
    ),
    "quantize_method_for_activation": (
        "per_tensor_symmetric_full_range", "per_tensor_asymmetric", {"activation_mode": "asymmetric"},
    ),
    "weight_bits": ("8", "16", {"weight_bits": 16}),
    "activation_bits": ("8", "16", {"dtype": "int16", "activation_bits": 16}),
    "bias_bits": ("32", "48", {"bias_bits": 48}),
    "lut_items_in_bits": ("8", "10", {"table_bits": 10}),
    "force_dtype_int": ("false", "true", {"force_dtype_int": True}),
    "force_shift_positive": ("false", "true", {"force_shift_positive": True}),
    "running_statistic_momentum": ("0.9", "0.5", {"momentum": 0.5}),
    "histc_bins": ("2048", "1024", {"bins": 1024}),
    "resize_degrade_to_nearest": ("false", "true", {"resize_degrade_to_nearest": True}),
    "with_winograd": ("false", "true", {}),
    "trigger_float_op": ("disable", "float16_preferred", {"dtype": "float16", "fallback": "int8"}),
    "trim_infinity_before_statistic": ("false", "true", {"trim_infinity": "second(-inf,inf)"}),
}  # fmt: skip
"""Keys in which layers may differ: value of the network, value of some layers, what these have then."""

EXCEPTIONS: dict[str, list[dict[str, Any]]] = {
    "<[(0,3)]:{0}>": [{"ids": ((0, 3),)}],
    "<[(0,3),(5,6)]:{0}>": [{"ids": ((0, 3), (5, 6))}],
    "<[MatMul]:{0}>": [{"operators": ("MatMul",)}],
    "<[Convolution, FullyConnected]:{0}>": [{"operators": ("Convolution", "FullyConnected")}],
    "<[(0,3),(5,6)]:{0}> < [MatMul, Conv]:{0}>": [
        {"operators": ("MatMul", "Conv")}, {"ids": ((0, 3), (5, 6))},
    ],
}  # fmt: skip
"""Forms of exceptions, and where they hold, the weaker ones first."""

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "q_mode_activation": ("per_tensor_asymmetric", {"activation_mode": "asymmetric"}),
    "q_mode_weight": (
        "per_channel_symmetric_full_range", {"weight_mode": "symmetric_full", "per_channel": True},
    ),
    "q_bits_activation": (16, {"dtype": "int16", "activation_bits": 16}),
    "q_bits_weight": (16, {"weight_bits": 16}),
    "q_bits_bias": (48, {"bias_bits": 48}),
    "lut_items_in_bits": (10, {"table_bits": 10}),
    "force_dtype_int": (True, {"force_dtype_int": True}),
    "force_shift_positive": (True, {"force_shift_positive": True}),
    "q_strategy_activation": ("10kld", {"strategy": "10kld"}),
    "q_strategy_weight": ("3std", {"weight_strategy": "3std"}),
    "running_statistic_momentum": (0.5, {"momentum": 0.5}),
    "histc_bins": (1024, {"bins": 1024}),
    "just_for_display": ({"quantization_info": "{}", "optimization_info": "{}", "brief_info": ""}, {}),
}  # fmt: skip
"""Keys of the file of settings by layer: a value, and what the layer has then."""


def read(folder: Path, *lines: str) -> Config:
    path = folder / "x.cfg"
    path.write_text("[Common]\n" + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return load_config(path)


def fields(config: Config) -> dict[str, Any]:
    """All fields but those of layers, as section.field."""
    sections = {name: each for name, each in config.model_dump().items() if isinstance(each, dict)}
    return {f"{name}.{key}": value for name, each in sections.items() for key, value in each.items()}


def test_the_counts() -> None:
    assert (len(FORMS), sum(map(len, FORMS.values()))) == (51, 143)
    assert (len(BY_LAYER), len(EXCEPTIONS), len(SETTINGS)) == (16, 5, 13)
    text = f"{len(FORMS)} keys, {sum(map(len, FORMS.values()))} forms"
    assert text.replace(" keys, ", " keys\nwith ") in (__doc__ or "")


@pytest.mark.parametrize(("key", "form"), [(key, form) for key, forms in FORMS.items() for form in forms])
@pytest.mark.feature("CFG-01")
def test_a_form_sets_what_it_says_and_nothing_else(key: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text('{"fc": {"q_bits_weight": 16}}', encoding="utf-8")
    more = COMPANIONS.get(key, ())
    before, expected = read(tmp_path, *more), FORMS[key][form]
    for line in (f"{key} = {form}", f"{key}={form}   # a comment"):
        config = read(tmp_path, *more, line)
        found = fields(config)
        assert {name: found[name] for name in expected} == expected
        others = {name: value for name, value in fields(before).items() if name not in expected}
        assert {name: found[name] for name in others if name != "evaluate.dataset"} == {
            name: value for name, value in others.items() if name != "evaluate.dataset"
        }
        assert bool(config.layers) == (key == "opt_config")


@pytest.mark.parametrize("form", EXCEPTIONS)
@pytest.mark.parametrize("key", BY_LAYER)
@pytest.mark.feature("CFG-05")
def test_an_exception_holds_where_it_says(key: str, form: str, tmp_path: Path) -> None:
    general, local, expected = BY_LAYER[key]
    config = read(tmp_path, f"{key} = {general} & {form.format(local)}")
    assert fields(config) == fields(read(tmp_path))
    places = EXCEPTIONS[form] if expected else []
    found = [entry.model_dump(exclude_none=True, exclude_defaults=True) for entry in config.layers]
    assert found == [expected | place for place in places]


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.feature("CFG-08")
def test_a_setting_of_a_layer_holds(key: str, tmp_path: Path) -> None:
    value, expected = SETTINGS[key]
    (tmp_path / "layers.json").write_text(json.dumps({"fc2/MatMul": {key: value}}), encoding="utf-8")
    config = read(tmp_path, "opt_config = layers.json")
    found = [entry.model_dump(exclude_none=True, exclude_defaults=True) for entry in config.layers]
    assert found == ([{"names": ("fc2/MatMul",), **expected}] if expected else [])


OTHERS = {
    "__call__", "__getitem__", "__init__", "__len__", "_int_wht", "alpha", "batch_size", "batches", "beta",
    "beta_end", "beta_start", "biases_range", "cfg", "compute", "data_file", "epochs", "exp", "label_file",
    "layer_id", "layer_top_range", "layer_type", "log", "lr", "momentum", "ngroups", "nsteps", "pow",
    "reg_param", "report", "reset", "scale", "self", "warm_start", "weights_range",
}  # fmt: skip
"""What the manual sets in code besides keys and values: numbers of methods, fields of its graphs, Python."""


def test_the_tables_are_those_of_the_manual(shared: Path) -> None:
    text = document(shared, "cfg").replace("\\_", "_")
    example, block = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    keys = set(re.findall(r"^([a-z_]+) ?= ?", example, re.MULTILINE))
    keys |= {
        first or second
        for first, second in re.findall(r"`+([a-z_]+)(?: ?= ?[^`]*)?`+|'([a-z_]+)' option", text)
    }
    (listed,) = re.findall(r"Currently supported fields are: ([a-z_,\s]+), \.\.\.", text)
    assert {key.strip() for key in listed.split(",")} == set(BY_LAYER)
    values = {re.split(r"\[", form)[0] for forms in FORMS.values() for form in forms}
    assert (keys | set(BY_LAYER)) - OTHERS - set(SETTINGS) - values == set(FORMS) - set(SETTINGS)
    assert set(re.findall(r'^  "(\w+)":', block, re.MULTILINE)) == set(SETTINGS)
    (floats_listed,) = re.findall(r"configurable options is: (.*?)\. Where", text)
    kinds = {each.strip(" `") for each in floats_listed.split(",")}
    assert kinds == {form for form in FORMS["trigger_float_op"] if not form.endswith("!")}
    (local, whole), names = re.findall(r"\tValid Values\t.*?\n(.*?)\n\n", text, re.DOTALL), set(STRATEGIES)
    for cell in re.findall(r"`([^`]+)`", "".join(line.split("\t")[1] for line in local.splitlines())):
        assert re.sub(r"^\[[RN]\]|\[r1.*", "", cell) in names
    described = re.findall(r"`([^`]+)`", "".join(line.split("\t")[1] for line in whole.splitlines()))
    assert len(described) == len(GLOBAL)
    for cell, form in zip(described, GLOBAL, strict=True):
        assert cell.split("[")[0] == form.split("[")[0] and cell.count(",") == form.count(",")


@pytest.mark.feature("CFG-01")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("calibration_strategy_for_activation = meen", ('"meen" is not', 'did you mean "mean"?')),
        ("calibration_strategy_for_weight = 10kdl", ("choose one of extrema, mean", 'did you mean "kld"?')),
        ("global_calibration = adarond[1]", ('"adarond[1]" is not', 'did you mean "adaround"?')),
        ("trigger_float_op = float16_prefered", ('did you mean "float16_preferred"?',)),
        ("quantize_method_for_weight = per_tensor_asymetric", ('did you mean "per_tensor_asymmetric"?',)),
        ("remain_shift = 33", ("less than or equal to 32",)),
        ("weight_bits = 8 & [(0,3)]:16", ("write & <[(0,3)]:value>",)),
        ("activation_bit = 8", ('did you mean "activation_bits"?',)),
        ("featuremap_tiling_param = [(0,3,2)]", ("featuremap_tiling_param",)),
    ],
)
def test_an_error_names_file_line_key_and_what_may_stand_there(
    line: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "bias_bits = 32", "# a comment", "metric = TopKMetric", line)
    told = str(raised.value)
    assert told.startswith(f"{tmp_path / 'x.cfg'}:5: ")
    assert line.partition(" ")[0] in told and all(word in told for word in words)
