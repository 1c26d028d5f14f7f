"""Which configuration holds for which layer, and whether every entry of a configuration has an effect."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tpuflow.config import FLOATS, Config, ConfigError, LayerConfig, QuantizeConfig, UnifyRule
from tpuflow.lowering.target import load_target

__all__ = [
    "BIASES",
    "BLOCKS",
    "FLOAT_WEIGHTS",
    "GRID",
    "NEEDS",
    "OF_CODES",
    "RANGE",
    "REQUANT",
    "SCALE",
    "WEIGHTS",
    "WIDE_SUMS",
    "WIDE_TABLE",
    "Settings",
    "without_effect",
]

logger = logging.getLogger(__name__)

WEIGHTS, BIASES, WIDE_SUMS = "weights in codes", "biases in codes", "sums of 16-bit operands"
GRID, RANGE, SCALE = "a grid of its own", "a calibrated range in use", "a scale of its own"
FLOAT_WEIGHTS, BLOCKS = "weights in codes under floats", "a matrix of weights in codes"
REQUANT, WIDE_TABLE = "a requantisation", "a table of a 16-bit operand"

OF_CODES = (WEIGHTS, BIASES, WIDE_SUMS, GRID, RANGE, SCALE, REQUANT, WIDE_TABLE)
"""Settings that layers in floats do not have."""

NEEDS: Mapping[str, str] = {
    "activation_bits": GRID,
    "activation_mode": GRID,
    "unsigned": GRID,
    "force_dtype_int": GRID,
    "power_of_two": SCALE,
    "strategy": RANGE,
    "percentile": RANGE,
    "momentum": RANGE,
    "trim_infinity": RANGE,
    "z_threshold": RANGE,
    "bins": RANGE,
    "clip_weight": RANGE,
    "headroom": RANGE,
    "weight_only": FLOAT_WEIGHTS,
    "per_block": BLOCKS,
    "weight_block_size": BLOCKS,
    "weight_bits": WEIGHTS,
    "weight_clusters": WEIGHTS,
    "weight_mode": WEIGHTS,
    "weight_strategy": WEIGHTS,
    "per_channel": WEIGHTS,
    "bias_correction": BIASES,
    "bias_bits": BIASES,
    "bias_effective_bits": BIASES,
    "remain_shift": WIDE_SUMS,
    "multiplier_bits": REQUANT,
    "unify_shifts": REQUANT,
    "force_shift_positive": REQUANT,
    "table_bits": WIDE_TABLE,
    "resize_degrade_to_nearest": "to resize",
}
"""Keys that only some layers can honour, and what those have."""


class Settings:
    """Resolves names to configurations; later entries win over earlier ones."""

    def __init__(self, config: Config) -> None:
        self.defaults = config.quantize
        self.target = load_target(config.quantize.target)
        self.entries = config.layers
        said = self.defaults.model_dump(exclude_unset=True)
        if self.defaults.dtype == "int16" and said.get("activation_mode") == "asymmetric":
            logger.info(
                "16-bit activations with both signs are symmetric: activation_mode = asymmetric is for 8 bits"
            )
        self.met: set[UnifyRule] = set()
        """Rules of unified scales that some operator is under."""
        self._honored: dict[int, set[str]] = {}
        self._resolved: dict[tuple[str, ...], QuantizeConfig] = {}

    def of(self, names: Sequence[str]) -> QuantizeConfig:
        """The configuration of a layer known by `names` (its nodes and tensors)."""
        key = tuple(names)
        if key not in self._resolved:
            changes: dict[str, Any] = {}
            for entry in self.entries:
                if any(entry.fits(name) for name in names):
                    changes |= entry.overrides(QuantizeConfig)
            self._resolved[key] = self.defaults.model_copy(update=changes)
        return self._resolved[key]

    def within_target(self, names: Sequence[str], operator: str) -> QuantizeConfig:
        """The configuration of a layer within what the target allows.

        Raises:
            ConfigError: If it asks for more.
        """
        return self.target.adapt(operator, names[0] if names else "", self.of(names))

    def explicit(self, names: Sequence[str], key: str) -> Any:
        """The value of `key` in the last entry that sets it for a layer, None where none does."""
        found = None
        for entry in self.entries:
            if any(entry.fits(name) for name in names):
                found = entry.overrides().get(key, found)
        return found

    def explicit_only(self, names: Sequence[str], key: str) -> Any:
        """As `explicit`, but for what is set by itself and not by a preset."""
        found = None
        for entry in self.entries:
            if any(entry.fits(name) for name in names):
                found = entry.explicit_fields().get(key, found)
        return found

    def honors(self, names: Sequence[str], *needs: str) -> None:
        """Notes that a layer has what some keys are about, such as weights."""
        for index, entry in enumerate(self.entries):
            if any(map(entry.fits, names)):
                self._honored.setdefault(index, set()).update(needs)

    def note_overridden(self, names: Sequence[str], *needs: str) -> None:
        """Notes that a layer in floats would have had these but for a later entry that made it so."""
        fitting = [index for index, entry in enumerate(self.entries) if any(map(entry.fits, names))]
        typed = [index for index in fitting if self.entries[index].overrides().get("dtype") in FLOATS]
        for index in fitting:
            if typed and index < typed[-1]:
                self._honored.setdefault(index, set()).update(needs)

    def check_matches(self, names: Iterable[str]) -> None:
        """Every entry must fit a name.

        Raises:
            ConfigError: Naming the entries that fit none.
        """
        known = list(names)
        idle = [entry.where for entry in self.entries if not any(map(entry.fits, known))]
        if idle:
            quoted = ", ".join(f'"{where}"' for where in idle)
            self.refuse(f"layers: {quoted} matches no node and no tensor of the model")

    def idle(self) -> list[tuple[LayerConfig, str]]:
        """Entries and their keys that no layer they fit could honour."""
        return [
            (entry, key)
            for index, entry in enumerate(self.entries)
            for key in entry.explicit_fields()
            if key in NEEDS and NEEDS[key] not in self._honored.get(index, ())
        ]

    def check_effects(self) -> None:
        """Every key of every entry must have met a layer that has what it is about, every rule an operator.

        Raises:
            ConfigError: Naming the entry and the key.
        """
        for entry, key in self.idle():
            self.refuse(without_effect(entry, key))
        self.check_rules(self.met)

    def check_rules(self, met: Collection[UnifyRule]) -> None:
        """Every rule of unified scales must be for some operator.

        Raises:
            ConfigError: Naming its operator.
        """
        for rule in self.defaults.unify_rules:
            if rule not in met:
                self.refuse(
                    "unify_scales_for_multi_inputs_operators: there is no "
                    f"{rule.operator} of several computed operands"
                )

    def refuse(self, message: str) -> None:
        """Says that an entry has no effect: an error, or a warning where the configuration is lenient.

        Raises:
            ConfigError: Unless it is.
        """
        if not self.defaults.lenient:
            raise ConfigError(message)
        logger.warning("%s", message)


def without_effect(entry: LayerConfig, key: str) -> str:
    """The message about an entry whose key has no effect."""
    return f'layers: "{entry.where}" sets {key}, but no layer it matches has {NEEDS[key]}'
