"""Configuration: what can be chosen, and the forms in which it is written.

`models` holds every field as frozen pydantic models with default, limits and meaning.
"""

from tpuflow.config.models import (
    FLOATS,
    SECTIONS,
    STRATEGIES,
    CalibrationConfig,
    Config,
    ConfigError,
    DType,
    LayerConfig,
    PreprocessConfig,
    QuantizeConfig,
    load_config,
)

__all__ = [
    "FLOATS",
    "SECTIONS",
    "STRATEGIES",
    "CalibrationConfig",
    "Config",
    "ConfigError",
    "DType",
    "LayerConfig",
    "PreprocessConfig",
    "QuantizeConfig",
    "load_config",
]
