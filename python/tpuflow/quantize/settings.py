"""Which configuration holds for which layer, and whether every entry of a configuration has an effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tpuflow.config import Config, ConfigError, LayerConfig, QuantizeConfig
from tpuflow.quantize.target import load_target

__all__ = ["Settings", "without_effect"]

WEIGHT_KEYS = frozenset({"weight_bits", "weight_mode", "per_channel"})
"""Keys that only a layer with weights can honour."""


class Settings:
    """Resolves names to configurations; later entries win over earlier ones."""

    def __init__(self, config: Config) -> None:
        self.defaults = config.quantize
        self.target = load_target(config.quantize.target)
        self._entries = config.layers
        self._weighted: set[int] = set()
        self._resolved: dict[tuple[str, ...], QuantizeConfig] = {}

    def of(self, names: Sequence[str]) -> QuantizeConfig:
        """The configuration of a layer known by `names` (its nodes and tensors)."""
        key = tuple(names)
        if key not in self._resolved:
            changes: dict[str, Any] = {}
            for entry in self._entries:
                if any(entry.fits(name) for name in names):
                    changes |= entry.overrides()
            self._resolved[key] = self.defaults.model_copy(update=changes)
        return self._resolved[key]

    def allowed(self, names: Sequence[str], operator: str) -> QuantizeConfig:
        """The configuration of a layer within what the target allows.

        Raises:
            ConfigError: If it asks for more.
        """
        return self.target.adapted(operator, names[0] if names else "", self.of(names))

    def explicit(self, names: Sequence[str], key: str) -> Any:
        """What an entry says about `key` for a layer, None where none does."""
        found = None
        for entry in self._entries:
            if any(entry.fits(name) for name in names):
                found = entry.overrides().get(key, found)
        return found

    def has_weights(self, names: Sequence[str]) -> None:
        """Notes that entries about weights are honoured by this layer."""
        self._weighted.update(i for i, entry in enumerate(self._entries) if any(map(entry.fits, names)))

    def check_matches(self, names: Iterable[str]) -> None:
        """Every entry must fit a name.

        Raises:
            ConfigError: Naming the entries that fit none.
        """
        known = list(names)
        idle = [entry.match for entry in self._entries if not any(map(entry.fits, known))]
        if idle:
            quoted = ", ".join(f'"{match}"' for match in idle)
            raise ConfigError(f"layers: {quoted} matches no node and no tensor of the model")

    def idle(self) -> list[LayerConfig]:
        """Entries about weights that have met no layer with weights."""
        return [
            entry
            for index, entry in enumerate(self._entries)
            if WEIGHT_KEYS & entry.overrides().keys() and index not in self._weighted
        ]

    def honours(self, entry: LayerConfig) -> bool:
        """Whether an entry has met a layer with weights."""
        return entry in self._entries and self._entries.index(entry) in self._weighted

    def check_effects(self) -> None:
        """Entries about weights must have met a layer with weights.

        Raises:
            ConfigError: Naming the entry and the key.
        """
        for entry in self.idle():
            raise without_effect(entry)


def without_effect(entry: LayerConfig) -> ConfigError:
    """The error about an entry that is idle."""
    key = min(WEIGHT_KEYS & entry.overrides().keys())
    return ConfigError(f'layers: "{entry.match}" sets {key}, but no layer it matches has weights')
