"""The registry: everything follows from the declarations, in every form alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from config.test_text import other_value
from conftest import REPOSITORY
from tpuflow.config import SECTIONS, Config, ConfigError, LayerConfig, load_config
from tpuflow.config.registry import page, registry
from tpuflow.config.section import also
from tpuflow.config.spellings import COMPOUNDS, PRESETS, QUANT_TYPES

LIMITED = [entry for entry in registry() if entry.limits]
SIMPLE = [entry for entry in registry() if entry.section in {"quantize", "calibrate"}]


@pytest.mark.feature("MSC-20")
def test_the_page_of_the_documentation_is_fresh() -> None:
    shown = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert shown == page(), "write it again: tpuflow fields --markdown > docs/configuration.md"


@pytest.mark.feature("CFG-03")
def test_every_field_is_told_with_all_that_is_known() -> None:
    for entry in registry():
        assert entry.meaning and entry.type and entry.default, entry.name
        assert "typing" not in entry.type and "<" not in entry.type, entry.type
    assert len(registry()) >= 120
    assert len({(entry.section, entry.name) for entry in registry()}) == len(registry())


def refusal(entry: Any, value: float) -> str:
    """What is said of a value; empty if it is taken."""
    try:
        Config.parse({entry.section: {entry.name: value}})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("entry", LIMITED, ids=lambda entry: f"{entry.section}.{entry.name}")
@pytest.mark.feature("CFG-03")
def test_limits_that_are_told_are_those_that_hold(entry: Any) -> None:
    for sign, told in re.findall(r"(>=|<=|<|>) (\S+?)(?:,|$)", entry.limits):
        limit = float(told) if entry.type == "number" else int(told)
        beyond = {">=": limit - 1, "<=": limit + 1}.get(sign, limit)
        assert re.search(rf"{entry.name}: input should be (greater|less) than", refusal(entry, beyond))
        if sign in {">=", "<="}:
            # It may need another field beside it.
            assert "input should be" not in refusal(entry, limit)


def test_names_are_unique_where_they_meet() -> None:
    names = [name for entry in registry() if entry.per_layer for name in (entry.name, *entry.also)]
    assert len(set(names)) == len(names)
    assert not set(names) & (COMPOUNDS.keys() | PRESETS.keys() | LayerConfig.model_fields.keys() - set(names))
    for model in SECTIONS.values():
        for field in model.model_fields.values():
            assert not set(also(field)) & model.model_fields.keys()


@pytest.mark.parametrize("entry", SIMPLE, ids=lambda entry: f"{entry.section}.{entry.name}")
@pytest.mark.feature("CFG-16")
def test_python_toml_and_text_are_alike(entry: Any, tmp_path: Path) -> None:
    special = {
        "qinvariant": [0],
        "quant_inputs": [0],
        "quant_outputs": [0],
        "fake_quant_operators": ["Conv"],
        "cast_dtypes": ["Conv"],
        "fake_quant_scopes": [(0, 3)],
        "target": "int8",
        "bins": 4096,
        "global_calibration": "gptq",
        "trim_infinity": "clip(-9,9)",
        "bias_bits": 20,
        "bias_effective_bits": 20,
        "unify_scales_for_concat_threshold": 2.0,
        "unify_scales_for_multi_inputs_operators": "[(Concat, 20, 1.05, min), (Eltwise, 0, 2, out)]",
    }
    value = special.get(entry.name, other_value(entry.name, entry.type))
    more = {"unify_scales_for_concat": True} if entry.name.startswith("unify_scales_for_concat_") else {}
    if entry.name in {"per_block", "weight_block_size"}:
        more = dict.fromkeys(("weight_only", "per_block")[: 1 + (entry.name != "per_block")], True)
    section = SECTIONS[entry.section]
    direct = section(**{entry.name: value, **more})
    text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    extra = "".join(f"{key} = true\n" for key in more)
    forms = {
        "x.toml": f"[{entry.section}]\n{extra}{entry.name} = {json.dumps(value)}\n",
        "x.cfg": f"[Common]\n{extra}{entry.section}.{entry.name} = {text}\n",
    }
    for name, content in forms.items():
        (tmp_path / name).write_text(content)
        found = getattr(load_config(tmp_path / name), entry.section)
        if name.endswith(".toml"):
            assert found == direct
        # Beneath a text file lie other defaults; what it says itself is the same.
        assert getattr(found, entry.name) == getattr(direct, entry.name), name
    assert getattr(direct, entry.name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("entry", SIMPLE, ids=lambda entry: f"{entry.section}.{entry.name}")
@pytest.mark.feature("CFG-16")
def test_limits_hold_in_every_form(entry: Any, tmp_path: Path) -> None:
    for limit in entry.limits.split(", ") if entry.limits else ():
        sign, number = limit.split()
        wrong = float(number) + {">=": -1, ">": -1, "<=": 1, "<": 1}[sign]
        wrong = int(wrong) if wrong == int(wrong) else wrong
        path = tmp_path / "x.cfg"
        needed = "unify_scales_for_concat = true\n" if entry.name.startswith("unify_scales_") else ""
        path.write_text(f"[Common]\n{needed}{entry.section}.{entry.name} = {wrong}\n")
        with pytest.raises(ConfigError, match=entry.name):
            load_config(path)
        with pytest.raises(ConfigError, match=entry.name):
            Config.parse({entry.section: {entry.name: wrong}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantize": {"weight_bits": 8, "q_bits_weight": 16}}, "weight_bits and q_bits_weight contradict"),
        (
            {
                "quantize": {
                    "per_channel": True,
                    "quantize_method_for_weight": "per_tensor_symmetric_full_range",
                }
            },
            "per_channel and quantize_method_for_weight contradict each other",
        ),
        (
            {"quantize": {"dtype": "int8", "activation_bits": 9}},
            "bits = 9 contradicts dtype = int8",
        ),
        ({"quantize": {"dtype": "float16", "activation_bits": 8}}, "has no meaning for float16"),
        (
            {"quantize": {"unify_scales_for_concat_threshold": 2}},
            "has no effect without unify_scales_for_concat = true",
        ),
        ({"layers": [{"match": "a", "names": ["b"], "dtype": "int8"}]}, "there is match and names"),
        ({"layers": [{"regex": "(", "dtype": "int8"}]}, "is not a regular expression"),
        ({"layers": [{"ids": [[3, 1]], "dtype": "int8"}]}, "ids 3 to 1 are not a range"),
        ({"quantize": {"with_winograd": True}}, "the machine has no Winograd convolution"),
        ({"preprocess": {"std": [1.0], "scale": [2.0]}}, "scale and std are given"),
    ],
)
@pytest.mark.feature("CFG-10")
def test_fields_are_checked_against_each_other(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.parse(content)
    assert message in str(caught.value)


@pytest.mark.feature("CFG-17")
def test_later_files_and_settings_by_layer_win(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'opt_config = "layers.json"\n[quantize]\nweight_bits = 8\nmultiplier_bits = 9\n'
        '[[layers]]\nmatch = "a"\nweight_bits = 8\n'
    )
    (tmp_path / "two.cfg").write_text("[Common]\nweight_bits = 16 & <{b}:8>\n")
    shown = {"q_bits_weight": 16, "table_bits": None, "just_for_display": {"q_bits_weight": 8}}
    (tmp_path / "layers.json").write_text(json.dumps({"a": shown, "c": {"just_for_display": {}}}))
    config = load_config(tmp_path / "one.toml", tmp_path / "two.cfg")
    assert (config.quantize.weight_bits, config.quantize.multiplier_bits) == (16, 9)
    entries = [(entry.where, entry.overrides()) for entry in config.layers]
    assert entries == [("a", {"weight_bits": 8}), ("a", {"weight_bits": 16}), ("b", {"weight_bits": 8})]


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "one object of settings per layer"), ("{", "not a JSON file")]
)
def test_settings_by_layer_that_are_none(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize("name", QUANT_TYPES)
@pytest.mark.feature("QMO-26")
def test_presets_set_all_widths(name: str) -> None:
    found = Config.parse({"quantize": {"quant_type": name}}).quantize
    assert {key: getattr(found, key) for key in QUANT_TYPES[name]} == QUANT_TYPES[name]
    if name == "w8a8":
        assert (found.activation_bits, found.weight_bits, found.bias_bits, found.table_bits) == (8, 8, 32, 8)
    if name == "w16a16":
        assert (found.activation_bits, found.weight_bits, found.bias_bits, found.table_bits) == (
            16,
            16,
            48,
            10,
        )
    # What is said singly wins, before the preset or after it.
    single = Config.parse({"quantize": {"multiplier_bits": 9, "quant_type": name, "table_bits": 12}}).quantize
    assert (single.table_bits, single.multiplier_bits) == (12, 9)


@pytest.mark.feature("QMO-26")
def test_unknown_presets_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="choose one of disable, w8a8"):
        Config.parse({"quantize": {"quant_type": "w8a9"}})


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("disable", "int8"),
        ("float16_preferred", "float16"),
        ("bfloat16_preferred!", "bfloat16"),
        ("float32_preferred", "float32"),
        ("float16_act_int_wht", "float16"),
        ("bfloat16_act_int_wht!", "bfloat16"),
        ("float32_act_int_wht", "float32"),
    ],
)
@pytest.mark.feature("LOW-08")
def test_layers_in_floats(value: str, dtype: str) -> None:
    found = Config.parse({"quantize": {"trigger_float_op": value}}).quantize
    assert (found.dtype, found.weight_only) == (dtype, "act_int_wht" in value)
    with pytest.raises(ConfigError, match="choose one of disable"):
        Config.parse({"quantize": {"trigger_float_op": value + "x"}})


def test_names_of_the_version_before_are_read_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    found = Config.parse({"quantize": {"wide_tails": False, "wide_sums": True}}).quantize
    assert (found.int16_heads, found.int16_residual_additions) == (False, True)
    assert "wide_tails is now called int16_heads" in caplog.text
    with pytest.raises(ConfigError, match="contradict"):
        Config.parse({"quantize": {"wide_tails": False, "int16_heads": True}})
