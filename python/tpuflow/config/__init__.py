"""Configuration: its fields, and the file formats they are read from.

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

`input`, `quantization`, `calibration`, `preprocess`, `schedule`, `evaluation` and `naming` declare each
field once, a section per module, with the base class of `section`; parsing, help and documentation derive
from these declarations. `models` joins the sections and the entries of `layers`. `spellings` maps keys of
other tools, `operators` lists names of operators, `cfg` parses the text format with the defaults of
`published`, `table` the table format, `files` detects the format, `registry` describes the fields, `scope`
matches entries with layers, `fingerprint` hashes what decides about the resulting network.
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
from tpuflow.config.scope import layer_names, refuse_calibration, resolve_layers
from tpuflow.config.section import ConfigError
from tpuflow.config.table import table_text
from tpuflow.config.unify import UnifyRule

__all__ = [
    "FLOATS",
    "SECTIONS",
    "SHOWN",
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
    "resolve_layers",
    "table_text",
]
