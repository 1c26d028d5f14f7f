"""The text form: its grammar, what wins over what, and what mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontend.graphs import array, graph
from tpuflow.config import Config, ConfigError, load_config, resolve_layers, table_text
from tpuflow.config.cfg import parse_cfg
from tpuflow.config.registry import registry
from tpuflow.frontend import FloatModel, load


def read(text: str) -> dict[str, Any]:
    return parse_cfg("[Common]\n" + text, "x.cfg")


@pytest.mark.feature("CFG-01")
def test_keys_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.cfg"
    path.write_text(
        "# made by hand\n\n[Common]\n; another remark\nweight_bits = 16  # wide\n"
        "calibration_strategy_for_activation=kld\nquantize.unsigned = TRUE\nmean = 1.5, 2.5\n"
        "quantize_method_for_weight = per_tensor_symmetric_full_range\n"
    )
    config = load_config(path)
    found = config.quantize
    assert (found.weight_bits, found.unsigned, found.per_channel, found.weight_mode) == (
        16,
        True,
        False,
        "symmetric_full",
    )
    assert config.calibrate.strategy == "kld"
    assert config.preprocess is not None and config.preprocess.mean == (1.5, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[Common]\ncalibration_strategy_for_activaton = mean",
            'x.cfg:2: unknown key "calibration_strategy_for_activaton", did you mean "calibration_',
        ),
        ("[Common]\nqqqqqq = 1", 'x.cfg:2: unknown key "qqqqqq", tpuflow fields lists all keys'),
        ("weight_bits = 8", "x.cfg:1: weight_bits stands before [Common]"),
        ("[Common]\n[Other]", "x.cfg:2: unknown section [Other]"),
        ("[Common]\nweight_bits", "x.cfg:2: write KEY = VALUE"),
        ("[Common]\nweight_bits =", "x.cfg:2: weight_bits has no value"),
        ("[Common]\nweight_bits = 8\n\nweight_bits = 16", "x.cfg:4: weight_bits is given in line 2 already"),
        ("[Common]\nunsigned = true", "write quantize.unsigned or calibrate.unsigned"),
        ("[Common]\nweight_bits = 8 & <[(0,3):16>", "write <[(0,3)]:value>"),
        ("[Common]\nweight_bits = 8 & <[Conv]:>", "[Conv] has no value"),
        ("[Common]\nweight_bits = 8 & <[(0,3) x]:8>", "is not a list of ranges"),
        ("[Common]\nweight_bits = 8 & <[Conv-1]:8>", "is not a list of operator types"),
        ("[Common]\ntarget = any & <[Conv]:int8>", "target holds for the whole network"),
    ],
)
@pytest.mark.feature("CFG-01", "CFG-04")
def test_mistakes_name_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cfg(text, "x.cfg")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.feature("CFG-04")
def test_exceptions_of_every_kind() -> None:
    found = read("weight_bits = 8 & <[(0, 3), (7,7)]:16> <[Conv,MatMul]:8> < {blocks\\.[0-9]{1,2}/.*} : 16 >")
    assert found == {
        "quantize": {"weight_bits": 8},
        "layers": [
            {"regex": "blocks\\.[0-9]{1,2}/.*", "weight_bits": 16},
            {"operators": ["Conv", "MatMul"], "weight_bits": 8},
            {"ids": [(0, 3), (7, 7)], "weight_bits": 16},
        ],
    }


def network() -> FloatModel:
    return load(
        graph(
            [("Conv", "x w", "a"), ("Relu", "a", "b"), ("Conv", "b w", "c"), ("Sigmoid", "c", "y")],
            {"x": [1, 3, 6, 6]},
            ["y"],
            {"w": array(3, 3, 1, 1)},
        )
    )


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("8", [8, 8]),
        ("8 & <{conv0}:10>", [10, 8]),
        ("8 & <[Conv]:12> <{conv0}:10>", [12, 12]),
        ("8 & <[(1,1)]:14> <[Conv]:12> <{conv.*}:10>", [14, 12]),
        ("8 & <[(1,1)]:14> <[(0,3)]:15>", [15, 15]),
        ("8 & <[(3,3)]:14>", [8, 14]),
    ],
)
@pytest.mark.feature("CFG-04")
def test_a_range_wins_over_a_type_over_a_name_over_the_network(text: str, bits: list[int]) -> None:
    model = network().model
    config = resolve_layers(Config.parse(read(f"multiplier_bits = {text}")), model)
    names = [node.name or "" for node in model.graph if node.op_type == "Conv"]
    found = []
    for name in names:
        value = config.quantize.multiplier_bits
        for entry in config.layers:
            if entry.fits(name):
                value = entry.overrides()["multiplier_bits"]
        found.append(value)
    assert found == bits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8 & <[Covn]:16>", 'the model has no operator "Covn", did you mean "Conv"?'),
        ("8 & <[(2,99)]:16>", "unknown layer 99 (layers: 0 to 4)"),
    ],
)
@pytest.mark.feature("CFG-17")
def test_what_the_model_lacks_is_an_error_or_a_warning(
    text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = network().model
    with pytest.raises(ConfigError) as caught:
        resolve_layers(Config.parse(read(f"weight_bits = {text}")), model)
    assert message in str(caught.value)
    kept = resolve_layers(Config.parse(read(f"weight_bits = {text}\nlenient = true")), model)
    assert kept.layers == ()
    assert message in caplog.text


SAMPLES: dict[str, Any] = {
    "true or false": True,
    "whole number": 12,
    "number": 1.5,
    "asymmetric": "asymmetric",
}


def other_value(name: str, kind: str) -> Any:
    """A value of a field that is not its default, and valid."""
    if name == "with_winograd":
        return False
    if name in {"strategy", "weight_strategy"}:
        return "kld"
    if name == "trim_infinity":
        return "clip(-5,5)"
    if name == "bins":
        return 4096
    if name == "momentum":
        return 0.5
    if name in {"bias_bits", "bias_effective_bits", "weight_bits"}:
        return 16
    if kind in SAMPLES:
        return SAMPLES[kind]
    last = kind.rsplit(" or ", maxsplit=1)[-1]
    return int(last) if last.isdecimal() else last


PER_LAYER = [entry for entry in registry() if entry.per_layer]


FIELDS = (
    "calibration_strategy_for_activation", "calibration_strategy_for_weight", "quantize_method_for_weight",
    "quantize_method_for_activation", "weight_bits", "activation_bits", "bias_bits", "lut_items_in_bits",
    "force_dtype_int", "force_shift_positive", "running_statistic_momentum", "histc_bins",
    "resize_degrade_to_nearest", "with_winograd", "trigger_float_op", "trim_infinity_before_statistic",
)  # fmt: skip
VALUES = {
    "calibration_strategy_for_activation": "3std",
    "calibration_strategy_for_weight": "mse",
    "quantize_method_for_weight": "per_tensor_symmetric_full_range",
    "quantize_method_for_activation": "per_tensor_asymmetric",
    "running_statistic_momentum": 0.5,
    "histc_bins": 1024,
    "trigger_float_op": "float16_preferred!",
    "trim_infinity_before_statistic": "second(-1,1)",
    "with_winograd": False,
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.feature("CFG-05")
def test_fields_that_may_differ_by_layer(name: str) -> None:
    value = VALUES.get(name, True if name.startswith(("force", "resize")) else 16)
    found = Config.parse(read(f"{name} = {value} & <[(0,2)]:{value}> <[Conv]:{value}>"))
    assert [entry.operators is None for entry in found.layers] == [False, True]
    assert all(entry.overrides() for entry in found.layers)
    assert found.layers[0].overrides() == found.layers[1].overrides()
    with pytest.raises(ConfigError, match=r"unify_scales_for_concat holds for the whole network"):
        read("unify_scales_for_concat = true & <[Conv]:false>")


@pytest.mark.parametrize("entry", PER_LAYER, ids=lambda entry: entry.name)
@pytest.mark.feature("CFG-05")
def test_layers_may_differ_in_every_field_marked_so(entry: Any) -> None:
    value = other_value(entry.name, entry.type)
    for spelling in (f"{entry.section}.{entry.name}", *entry.also):
        needed = ("weight_only", "per_block") if entry.name == "weight_block_size" else ("weight_only",)
        more = needed if entry.name in {"per_block", "weight_block_size"} else ()
        lines = [*(f"{key} = true" for key in more), f"{spelling} = {value} & <[Conv]:{value}>"]
        found = Config.parse(read("\n".join(lines)))
        assert found.layers[0].overrides()[entry.name] == value
        assert getattr(getattr(found, entry.section), entry.name) == value


@pytest.mark.parametrize(
    "entry",
    [entry for entry in registry() if not entry.per_layer and entry.section != "layers"],
    ids=lambda entry: entry.name,
)
def test_layers_cannot_differ_in_any_other_field(entry: Any) -> None:
    with pytest.raises(ConfigError, match="holds for the whole network"):
        read(f"{entry.section}.{entry.name} = 1 & <[Conv]:1>")


def test_a_list_of_one_number_is_a_list() -> None:
    assert read("std = 2")["preprocess"] == {"std": [2]}
    assert read("set_qinvariant_for_start_nodes = 0,2")["quantize"] == {"qinvariant": (0, 2)}
    assert read("qinvariant = a")["quantize"] == {"qinvariant": ["a"]}
    assert np.array(read("mean = [1, 2]")["preprocess"]["mean"]).tolist() == [1, 2]


@pytest.mark.feature("MIX-05")
def test_a_table_of_modes(tmp_path: Path) -> None:
    modes = {"/a": "INT16", "/b": "INT4", "/head/MatMul": "F32", "/c": "INT8", "/d": "BF16", "/e": "F16"}
    path = tmp_path / "x.table"
    path.write_text(table_text(modes) + "\n/a f32  # the last line holds\n", encoding="utf-8")
    layers = load_config(path).layers
    assert [entry.names for entry in layers] == [(name,) for name in (*modes, "/a")]
    assert [entry.overrides()["dtype"] for entry in layers] == [
        "int16", "int8", "float32", "int8", "bfloat16", "float16", "float32",
    ]  # fmt: skip
    assert layers[1].overrides()["weight_bits"] == 4


@pytest.mark.parametrize(
    ("line", "words"), [("/a", "x.table:2: write NAME MODE"), ("/a INT7", "INT7 is none of INT4")]
)
@pytest.mark.feature("MIX-05")
def test_what_is_no_table(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.table"
    path.write_text(f"# op_name quantize_mode\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        load_config(path)


@pytest.mark.feature("MIX-11", "MSC-12")
def test_widths_by_type_name_and_scope() -> None:
    """Of three rules that fit a layer the last one holds; the others keep what it leaves open."""
    rules = [
        {"operators": ["Conv"], "weight_bits": 4},
        {"match": "/block*/*", "weight_bits": 6, "dtype": "int16"},
        {"names": ["/block1/conv"], "weight_bits": 8},
    ]
    layers = Config.parse({"layers": [{"match": "/*conv", "weight_bits": 4}, *rules[1:]]}).layers
    said = {
        name: {key: value for entry in layers if entry.fits(name) for key, value in entry.overrides().items()}
        for name in ("/conv", "/block0/conv", "/block1/conv")
    }
    assert said == {
        "/conv": {"weight_bits": 4},
        "/block0/conv": {"weight_bits": 6, "dtype": "int16"},
        "/block1/conv": {"weight_bits": 8, "dtype": "int16"},
    }
    assert Config.parse({"layers": rules}).layers[0].operators == ("Conv",)
