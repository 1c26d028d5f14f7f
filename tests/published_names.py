"""The table of every name of the published framework's manual, with the tests that use it.

    python tests/published_names.py     # writes compat/NAMES.md again

`CALLS` lists what the manual's chapters on the API and on the end-to-end script call, with the parameters
they give; `VALUES` what they name without calling it. A test uses a parameter if it passes it, by its keyword
or at its place; tests are found by reading their sources.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "compat" / "NAMES.md"
FILES = ("test_compat.py", "test_compat_graphs.py", "test_published_names.py")

CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnx_to_tf": (
        "tpu_framework",
        ("onnx_model", "input_shape", "try_simplify", "onnxsim_fixed_point_iters", "keep_arrangement"),
    ),
    "QuantizedModel.as_graph": ("tpu_framework", ("batch_size", "cache_word_length")),
    "QuantizedModel.load": ("tpu_framework", ("file_name",)),
    "QuantizedModel.rescale": ("tpu_framework", ("data", "direction")),
    "QuantizedModel.save": ("tpu_framework", ("file_dir", "file_name", "io_params_name")),
    "RegularModel": (
        "tpu_framework",
        (
            "original_graph_def", "input_shapes", "output_nodes", "anchors_mapping", "percentile",
            "operation_cfg", "swish_layer_mode",
        ),
    ),
    "RegularModel.calibrate": (
        "tpu_framework",
        (
            "calibration_data", "save_output_histograms", "debug_sample_number", "save_dir",
            "original_model_statistic_filename",
        ),
    ),
    "RegularModel.dump_thresholds": ("tpu_framework", ("file_name", "thresholds")),
    "RegularModel.fine_tune": (
        "tpu_framework", ("thresholds", "fine_tuning_data", "fine_tuning_epochs", "working_dir"),
    ),
    "RegularModel.load_thresholds": ("tpu_framework", ("file_name",)),
    "RegularModel.quantize": ("tpu_framework", ("thresholds",)),
    "compile_": (
        "tpu_framework.compiler", ("hardware_parameters", "network", "parameters", "slicing_scheme"),
    ),
    "get_hw_params": ("tpu_framework", ("tpu_type",)),
    "CompileParameters": (
        "tpu_framework",
        (
            "action_graph_data_transfer_optimization", "dependency_resolution_algorithm", "ram_io_balancing",
            "shared_cache_schedule_optimizations", "ewp_cache_schedule_optimizations", "slicer",
            "layer_fusion",
        ),
    ),
    "ScheduleOptimization": (
        "tpu_framework", ("configurations", "round_robin", "fallthrough_patch"),
    ),
    "IntermediateInsertion": ("tpu_framework", ("depth", "time_limit_seconds")),
    "BiasScaleNegativeScaleAggressiveGrouping": ("tpu_framework", ("depth", "time_limit_seconds")),
    "SubgraphSlicerParameters": (
        "tpu_framework",
        ("analysis_depth", "analysis_depth_branch", "spatial_limit", "max_cache_utilization"),
    ),
    "Network.from_quantized_model": ("tpu_framework", ("quantized_model",)),
    "Network.set_batch": ("tpu_framework", ("batch",)),
    "TpuProgram.from_executable": ("tpu_framework", ("executable", "tensor_descriptions")),
    "TpuProgram.to_file": ("tpu_framework", ("path",)),
    "TfGraph.as_graph_def": ("tpu_framework", ()),
    "model_execute": (
        "tpu_compiler_tests.tools.py_model_wrapper", ("executable", "tensor_descriptions", "input_data"),
    ),
    "Device.list_devices": ("pytpu", ()),
    "Device.open": ("pytpu", ("device",)),
    "Device.load": ("pytpu", ("program",)),
    "LoadedProgram.inference": ("tpuflow.runtime.device", ()),
    "Inference.sync": ("tpuflow.runtime.inference", ("arrays",)),
    "convert_to_raw": ("pytpu", ("program", "raw")),
    "Codec.encode": ("tpuflow.runtime", ("arrays",)),
    "Codec.decode": ("tpuflow.runtime", ("words",)),
    "graph_util.import_graph_def": ("tpu_framework.tensorflow", ("graph_def",)),
    "io.write_graph": (
        "tpu_framework.tensorflow", ("graph_or_graph_def", "logdir", "name", "as_text"),
    ),
    "compat.v1.Session": ("tpu_framework.tensorflow", ("graph",)),
    "compat.v1.Session.run": ("tpu_framework.tensorflow", ("fetches", "feed_dict")),
    "compat.v1.reset_default_graph": ("tpu_framework.tensorflow", ()),
    "compat.v1.GraphDef": ("tpu_framework.tensorflow", ()),
    "compat.v1.GraphDef.ParseFromString": ("tpu_framework.tensorflow", ("content",)),
    "compat.v1.io.gfile.GFile": ("tpu_framework.tensorflow", ("name", "mode")),
}  # fmt: skip

VALUES = {
    "O1": "tpu_compiler.compiler.presets._o1",
    "O5": "tpu_compiler.compiler.presets._o5",
    "DEFAULT": "tpu_framework",
    "TPU_128x128_PARAMS": "tpu_framework",
    "ModelParameters": "tpu_framework",
    "TpuParameters.cache_word_length": "tpu_framework",
    "DependencyResolutionAlgorithm.SEQUENTIAL": "tpu_framework",
    "DependencyResolutionAlgorithm.PARALLEL": "tpu_framework",
    "BalancingMode.NONE": "tpu_framework",
    "BalancingMode.MIRROR": "tpu_framework",
    "TpuDtype": "tpu_framework",
    "TensorAxis": "tpu_framework",
    "Segment": "tpu_framework",
    "Executable": "tpu_framework",
    "TensorDescription": "tpu_framework",
    "InMemoryQuantizedModel": "tpu_framework",
    "ExecutionResult.execution_time_us": "tpu_framework",
    "ExecutionResult.output_data": "tpu_framework",
    "OFFSET": "dnn_quant_tests.api_tests.torch_resnet50_quantization",
    "_FileSystemMappedQuantizedModel": "tpu_framework.models",
}


def resolved(module: str, name: str) -> Any:
    """The object of a name.

    Raises:
        AttributeError: There is none.
    """
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        own = getattr(found, "__dataclass_fields__", {})
        found = own[part] if part in own else getattr(found, part)
    return found


def takes(module: str, name: str) -> list[str]:
    """The parameters of what a name calls, without the first of a method."""
    called = resolved(module, name)
    names = list(inspect.signature(called).parameters)
    return names[1:] if names[:1] == ["self"] else names


def used(tree: ast.AST) -> Iterator[tuple[str, ast.Call | None]]:
    """Dotted names that stand in a piece of code, each with its call where it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node
        elif isinstance(node, ast.Name | ast.Attribute):
            yield ast.unparse(node), None


def fits(name: str, dotted: str) -> bool:
    """Whether code that says `dotted` may mean a published name: a method stands behind any object."""
    owner, _, last = name.rpartition(".")
    is_static = last in ("load", "open", "list_devices") or last.startswith(("from_", "load_", "dump_"))
    if is_static and owner == "Device" and last == "load":
        return dotted.endswith("device.load")
    if is_static or not owner or owner.split(".")[0] in ("graph_util", "io"):
        return f".{dotted}".endswith(f".{name}")
    return dotted.rpartition(".")[2] == last


def passes(call: ast.Call, parameter: str, parameters: list[str]) -> bool:
    """Whether a call gives a parameter."""
    by_keyword = any(each.arg == parameter for each in call.keywords)
    return by_keyword or (parameter in parameters and parameters.index(parameter) < len(call.args))


def rows() -> list[tuple[str, str, str]]:
    """Name, parameter ("" for the name itself) and the first test that uses it ("" where none does)."""
    uses: list[tuple[str, str, ast.Call | None]] = []
    for file in FILES:
        for node in ast.parse((REPOSITORY / "tests" / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                uses += [(f"{file}::{node.name}", dotted, call) for dotted, call in used(node)]
    found = []
    for name, (module, parameters) in CALLS.items():
        order = takes(module, name)
        calls = [(test, call) for test, dotted, call in uses if call and fits(name, dotted)]
        found.append((name, "", next((test for test, _ in calls), "")))
        for parameter in parameters:
            test = next((test for test, call in calls if passes(call, parameter, order)), "")
            found.append((name, parameter, test))
    for name in VALUES:
        test = next((test for test, dotted, _ in uses if fits(name, dotted)), "")
        found += [(name, "", test)]
    return found


def page() -> str:
    """The table as Markdown."""
    lines = [
        "# Published names and their tests",
        "",
        "Every name and parameter of the framework that these packages stand in for, and a test that passes",
        "it; made by `python tests/published_names.py`.",
        "",
        "| name | parameter | test |",
        "|---|---|---|",
    ]
    for name, parameter, test in rows():
        file, _, function = test.partition("::")
        words = function.removeprefix("test_").replace("_", " ")
        cell = f"`{parameter}`" if parameter else ""
        lines.append(f"| `{name}` | {cell} | [{words}](../tests/{file}) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
