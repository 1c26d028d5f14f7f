"""Which nodes entries by operator type and by number are for: looked up once, in the whole model.

Layers are numbered as the normalised model has them: its inputs first, then its nodes in order.
"""

from __future__ import annotations

import difflib
import logging
from typing import TYPE_CHECKING

from tpuflow.config.calibration import CalibrationConfig
from tpuflow.config.models import Config, LayerConfig
from tpuflow.config.operators import types_of
from tpuflow.config.section import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

__all__ = ["layer_names", "refuse_calibration", "resolve_layers"]

logger = logging.getLogger(__name__)


def refuse_calibration(config: Config, source: str, keys: Collection[str] | None = None) -> None:
    """Says that entries of layers set what is too late where ranges or statistics come from a file.

    Args:
        config: With its entries; what it says of the whole network is a default and no wish.
        source: What the file holds and its name, for the message.
        keys: What is too late; everything calibration goes by if not given.

    Raises:
        ConfigError: An entry does, unless the configuration is lenient: then it is warned about.
    """
    for entry in config.layers:
        late = sorted(entry.overrides(CalibrationConfig).keys() & (keys or CalibrationConfig.model_fields))
        late = [key for key in late if key in entry.explicit_fields()]
        if not late:
            continue
        message = (
            f'layers: "{entry.where}" sets {", ".join(late)}, but {source}: leave it out, or calibrate anew'
        )
        if not config.quantize.lenient:
            raise ConfigError(message)
        logger.warning("%s", message)


def layer_names(model: ir.Model) -> list[str]:
    """The name of every layer by its number."""
    inputs = [value.name or "" for value in model.graph.inputs]
    return [*inputs, *(node.name or "" for node in model.graph)]


def resolve_layers(config: Config, model: ir.Model) -> Config:
    """The configuration with entries by operator and number turned into entries by name; inputs likewise.

    What is to run in floats for debugging becomes entries, too.

    Raises:
        ConfigError: An entry fits nothing, unless the configuration is lenient: then it is left out.
    """
    config = _with_floats(_ports_by_name(config, model))
    if all(entry.operators is None and entry.ids is None for entry in config.layers):
        return config
    entries = []
    for entry in config.layers:
        try:
            named = _by_names(entry, model)
            if named is not None:
                entries.append(named)
        except ConfigError as error:
            if not config.quantize.lenient:
                raise
            logger.warning("%s", error)
    return config.model_copy(update={"layers": tuple(entries)})


def _ports_by_name(config: Config, model: ir.Model) -> Config:
    """Inputs and outputs that keys list by number, by their names."""
    quantize, inputs, outputs = config.quantize, model.graph.inputs, model.graph.outputs
    found = {}
    for key, what, values in (
        ("qinvariant", "input", inputs),
        ("quant_inputs", "input", inputs),
        ("quant_outputs", "output", outputs),
    ):
        names = [value.name or "" for value in values]
        wanted = getattr(quantize, key)
        unknown = [each for each in wanted if each not in names and each not in range(len(names))]
        if unknown:
            listed = ", ".join(f'{number} "{name}"' for number, name in enumerate(names))
            raise ConfigError(f"{key}: unknown {what} {unknown[0]} ({what}s: {listed})")
        if wanted:
            found[key] = tuple(names[each] if isinstance(each, int) else each for each in wanted)
    return config.model_copy(update={"quantize": quantize.model_copy(update=found)}) if found else config


def _with_floats(config: Config) -> Config:
    """Entries, after all others, that make layers run in floats for debugging."""
    chosen = config.quantize
    wanted: list[dict[str, object]] = []
    if chosen.bypass:
        wanted.append({"match": "*", "dtype": "float32"})
    if chosen.fake_quant_operators:
        wanted.append({"operators": chosen.fake_quant_operators, "dtype": "float32"})
    if chosen.fake_quant_scopes:
        wanted.append({"ids": chosen.fake_quant_scopes, "dtype": "float32"})
    if not wanted:
        return config
    entries = Config.parse({"layers": wanted}, "fake_quant").layers
    done = {"bypass": False, "fake_quant_operators": (), "fake_quant_scopes": ()}
    asked = chosen.model_copy(update=done)
    return config.model_copy(update={"quantize": asked, "layers": (*config.layers, *entries)})


def _by_names(entry: LayerConfig, model: ir.Model) -> LayerConfig | None:
    """The entry by names of layers; None where no layer is of its types."""
    names: list[str] = []
    if entry.operators is not None:
        there = {node.op_type for node in model.graph}
        meant = {operator: types_of(operator) for operator in entry.operators}
        for operator, types in meant.items():
            if types & there:
                continue
            if not types:
                near = difflib.get_close_matches(operator, there, n=1, cutoff=0.5)
                hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(sorted(there))}"
                raise ConfigError(f'layers: the model has no operator "{operator}", {hint}')
            told = ", ".join(sorted(there))
            logger.warning('layers: no layer is of the type "%s": the model has %s', operator, told)
        wanted = set().union(*meant.values())
        names = [node.name or "" for node in model.graph if node.op_type in wanted]
        if not names:
            return None
    elif entry.ids is not None:
        known = layer_names(model)
        last = max(high for _, high in entry.ids)
        if last >= len(known):
            raise ConfigError(f"layers: unknown layer {last} (layers: 0 to {len(known) - 1})")
        names = [name for low, high in entry.ids for name in known[low : high + 1]]
    else:
        return entry
    return entry.model_copy(update={"operators": None, "ids": None, "names": tuple(filter(None, names))})
