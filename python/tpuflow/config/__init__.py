"""Configuration: what can be chosen, and the forms in which it is written.

    [quantize]                      # defaults for the whole network
    dtype = "int8"
    activation_mode = "asymmetric"

    [calibrate]
    strategy = "mse"

    [preprocess]                    # the program takes raw images
    mean = [123.675, 116.28, 103.53]
    std = [58.395, 57.12, 57.375]

    [[layers]]                      # later entries win over earlier ones
    match = "*/attn/*"              # shell pattern on the names of nodes and tensors
    dtype = "int16"

`input`, `quantization`, `calibration`, `preprocess`, `schedule`, `evaluation` and `naming` declare each field
once, a section each, on what `section` knows of fields; all else follows from there. `models` is the whole,
and the entries of `layers`. `spellings` holds keys of other tools, `operators` names of operators, `cfg` the
text form, `published` what holds beneath it, `table` the table, `files` reads all forms, `registry` explains
the fields, `scope` looks up which layers an entry is for, `fingerprint` tells the networks apart that
configurations make.
"""

from tpuflow.config.calibration import CalibrationConfig
from tpuflow.config.evaluation import EvaluateConfig, parsed_search
from tpuflow.config.files import SHOWN, load_config
from tpuflow.config.fingerprint import fingerprint
from tpuflow.config.input import InputConfig
from tpuflow.config.models import SECTIONS, Config, LayerConfig
from tpuflow.config.naming import OutputConfig
from tpuflow.config.preprocess import PreprocessConfig
from tpuflow.config.quantization import FLOATS, DType, QuantizeConfig
from tpuflow.config.schedule import ScheduleConfig
from tpuflow.config.scope import layer_names, refuse_calibration, scoped
from tpuflow.config.section import ConfigError
from tpuflow.config.strategies import STRATEGIES
from tpuflow.config.table import table_text
from tpuflow.config.unify import UnifyRule

__all__ = [
    "FLOATS",
    "SECTIONS",
    "SHOWN",
    "STRATEGIES",
    "CalibrationConfig",
    "Config",
    "ConfigError",
    "DType",
    "EvaluateConfig",
    "InputConfig",
    "LayerConfig",
    "OutputConfig",
    "PreprocessConfig",
    "QuantizeConfig",
    "ScheduleConfig",
    "UnifyRule",
    "fingerprint",
    "layer_names",
    "load_config",
    "parsed_search",
    "refuse_calibration",
    "scoped",
    "table_text",
]
