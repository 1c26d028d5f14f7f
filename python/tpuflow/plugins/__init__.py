"""Plugins: datasets, metrics, operators and settings by layer from user files and packages.

`load` finds and imports them, `registry` stores what they register, `use` looks it up; `datasets` are built
in. Operator plugins are functions on the nodes and tensors of `nodes`, with the helpers of `numbers` and
the logging functions of `logs`. Plugin files of other tools are read where a distribution says how
(`formats`).
"""

from tpuflow.plugins.load import load_plugins
from tpuflow.plugins.nodes import PyNode, PyTensor, run_operator
from tpuflow.plugins.registry import (
    OpType,
    PluginError,
    PluginType,
    Registry,
    op_register,
    quant_register,
    register_optype,
    register_plugin,
)
from tpuflow.plugins.use import (
    configure_layers,
    dataset_samples,
    is_dataset,
    operators_of,
    plugin_metrics,
    unused_operators,
    with_input_scales,
    with_operator_scales,
)

__all__ = [
    "OpType",
    "PluginError",
    "PluginType",
    "PyNode",
    "PyTensor",
    "Registry",
    "configure_layers",
    "dataset_samples",
    "is_dataset",
    "load_plugins",
    "op_register",
    "operators_of",
    "plugin_metrics",
    "quant_register",
    "register_optype",
    "register_plugin",
    "run_operator",
    "unused_operators",
    "with_input_scales",
    "with_operator_scales",
]
