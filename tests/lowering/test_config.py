"""Configuration files: what they accept, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpuflow.config import Config, ConfigError, load_config
from tpuflow.strategies import STRATEGIES


def test_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        """
        [quantize]
        dtype = "int16"
        activation_mode = "symmetric_full"
        weight_bits = 8
        per_channel = false

        [calibrate]
        strategy = "percentile"
        percentile = 99.9

        [[layers]]
        match = "head/*"
        dtype = "int8"

        [[layers]]
        match = "head/last"
        weight_mode = "symmetric_full"
        """,
        encoding="utf-8",
    )
    config = load_config(path)
    assert (config.quantize.dtype, config.quantize.weight_bits, config.quantize.per_channel) == (
        "int16",
        8,
        False,
    )
    assert (config.calibrate.strategy, config.calibrate.percentile) == ("pct", 99.9)
    assert [entry.overrides() for entry in config.layers] == [
        {"dtype": "int8"},
        {"weight_mode": "symmetric_full"},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantise": {}}, 'x.toml: unknown key "quantise", did you mean "quantize"?'),
        ({"quantize": {"weight_bit": 8}}, 'unknown key "quantize.weight_bit", did you mean "weight_bits"?'),
        ({"calibrate": {"stratgy": "mse"}}, 'unknown key "calibrate.stratgy", did you mean "strategy"?'),
        ({"layers": [{"match": "a", "dtyp": 1}]}, 'unknown key "layers[0].dtyp", did you mean "dtype"?'),
        ({"quantize": {"zzz": 1}}, 'unknown key "quantize.zzz", known keys: dtype, '),
        (
            {"quantize": {"dtype": "int4"}},
            "quantize.dtype: input should be 'int8', 'int16', 'float16', 'bfloat16' or 'float32'",
        ),
        (
            {"quantize": {"weight_bits": 1}},
            "quantize.weight_bits: input should be greater than or equal to 2",
        ),
        ({"calibrate": {"strategy": "best"}}, 'calibrate.strategy: "best" is not a calibration strategy'),
        (
            {"layers": [{"dtype": "int8"}]},
            "layers[0]: one of match, names, operators, ids, regex says which layers",
        ),
        ({"layers": [{"match": "a"}]}, 'layers entry "a" sets nothing'),
        ({"quantize": {"dtype": "f4"}, "x": 1}, "; "),
    ],
)
def test_mistakes_are_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.parse(content, "x.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        load_config(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[quantize\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.toml: not a TOML file"):
        load_config(broken)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_can_be_named(name: str) -> None:
    strategy = STRATEGIES[name]
    written = {name, f"2{name}" if strategy.leading else name}
    written.add(f"{name}[{','.join(['1'] * strategy.numbers)}]" if strategy.numbers else name)
    for text in written:
        assert Config.parse({"calibrate": {"strategy": text}}).calibrate.strategy == text
    refused = {f"{name}[1,1,1,1,1]", f"-1{name}"}
    refused.add(name + "[1]" if strategy.leading else "2" + name)
    for text in refused:
        with pytest.raises(ConfigError, match=name):
            Config.parse({"calibrate": {"strategy": text}})


def test_a_number_beyond_all_floats_is_no_number_of_thresholds() -> None:
    with pytest.raises(ConfigError, match="the number of thresholds must be whole"):
        Config.parse({"calibrate": {"strategy": "9" * 400 + "kld"}})
