"""Files of what lies between the stages."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.io.files import replaced

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.pipeline.request import Request

__all__ = ["save_stages"]


def save_stages(request: Request, model: FloatModel, ranges: Ranges | None, graph: AnyGraph) -> None:
    """Writes what lies between the stages to the folder of a request, if it names one."""
    if request.stages is None:
        return
    request.stages.mkdir(parents=True, exist_ok=True)
    _save_origin(model, request.stages)
    _save_model(model.model, request.stages / "canonical.onnx")
    if ranges is not None:
        ranges.save(request.stages / "ranges.json")
    graph.save(request.stages / "model.tpuq")


def _save_origin(model: FloatModel, folder: Path) -> None:
    """The model as it was imported, node by node, its weights in a file beside it."""
    import onnx  # noqa: PLC0415 - only here

    proto, weights = model.original, "origin.data"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        onnx.save_model(proto, f"{made}/origin.onnx", save_as_external_data=True, location=weights)
        for name in (weights, "origin.onnx"):
            if (Path(made) / name).exists():
                (Path(made) / name).replace(folder / name)


def _save_model(model: ir.Model, path: Path) -> None:
    import onnx_ir  # noqa: PLC0415 - only here

    with replaced(path) as beside:
        onnx_ir.save(model, str(beside))
