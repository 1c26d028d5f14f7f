"""Plugin files of the published optimizer: their names, and the modules that they import.

The modules are put in place only when files of plugins are there to be loaded, and never over a package of
that name that is really installed.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from tpuflow.plugins import logs, nodes, numbers, registry
from tpuflow.plugins.formats import PluginFormat

__all__ = ["FORMAT", "install"]

ROOT = "AIPUBuilder"


class OptBaseMetric:
    """What metrics of plugins derive from."""

    def __init__(self, *_words: str) -> None:
        pass

    def reset(self) -> None:
        """Forgets what was seen."""

    def report(self) -> str:
        """The result as a sentence."""
        return f"{type(self).__name__} is {self.compute()}"

    def compute(self) -> Any:
        """The result."""
        raise registry.PluginError(f"{type(self).__name__} computes nothing")


LOGGER = {name: getattr(logs, name) for name in logs.__all__}
FRAMEWORK = {
    "OpType": registry.OpType,
    "PluginType": registry.PluginType,
    "op_register": registry.op_register,
    "quant_register": registry.quant_register,
    "register_optype": registry.register_optype,
    "register_plugin": registry.register_plugin,
    "OptBaseMetric": OptBaseMetric,
    "OptMetric": OptBaseMetric,
    "PyNode": nodes.PyNode,
    "PyTensor": nodes.PyTensor,
    "Tensor": nodes.PyTensor,
    "Dtype": numbers.Dtype,
    **LOGGER,
}
UTILS = {name: getattr(numbers, name) for name in numbers.__all__} | LOGGER
MODULES = {
    ROOT: {},
    f"{ROOT}.Optimizer": {},
    f"{ROOT}.Optimizer.framework": FRAMEWORK,
    f"{ROOT}.Optimizer.utils": UTILS,
    f"{ROOT}.Optimizer.logger": LOGGER,
}


def install() -> None:
    """Makes the modules importable, unless the package itself is installed."""
    present = sys.modules.get(ROOT)
    if present is not None or importlib.util.find_spec(ROOT) is not None:
        return
    for name, content in MODULES.items():
        module = types.ModuleType(name, "Names that published plugins import, from tpuflow.plugins.")
        module.__dict__.update(content)
        if not content:
            module.__path__ = []
        # torch tensors are what such plugins calculate with; without torch they meet arrays.
        if content is FRAMEWORK or content is UTILS:
            module.__dict__["__all__"] = [*content, *_torch(module)]
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def _torch(module: types.ModuleType) -> list[str]:
    """Puts torch into a module where it is installed, as published files expect it there."""
    if importlib.util.find_spec("torch") is None:
        return []
    module.__dict__["torch"] = importlib.import_module("torch")
    return ["torch"]


KINDS = ("op", "dataset", "metric", "qconfig")
FORMAT = PluginFormat(
    path_variable="AIPUPLUGIN_PATH",
    prefixes=tuple(f"{start}{kind}_" for start in ("aipubt_opt_", "aipubt_") for kind in KINDS),
    install=install,
)
"""What `tpuflow` finds under the entry point `tpuflow.plugin_formats`."""
