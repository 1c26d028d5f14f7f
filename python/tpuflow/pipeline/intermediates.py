"""Files of what lies between the stages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tpuflow.io.files import make_folder, publication, temporary_folder

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.frontend import FloatModel
    from tpuflow.io.files import Publication
    from tpuflow.partitioning.storage import AnyGraph
    from tpuflow.pipeline.request import Request

__all__ = ["save_stages"]


def save_stages(request: Request, model: FloatModel, ranges: Ranges | None, graph: AnyGraph) -> None:
    """Writes what lies between the stages to the folder of a request, if it names one: all files or none.

    Raises:
        FileError: One cannot be written; those of an earlier build are then left as they are.
    """
    if request.stages is None:
        return
    make_folder(request.stages)
    with publication() as files:
        _save_origin(model, request.stages, files)
        _save_model(model.model, files.staged(request.stages / "canonical.onnx"))
        if ranges is not None:
            ranges.save(files.staged(request.stages / "ranges.json"))
        graph.save(files.staged(request.stages / "model.tpuq"))


def _save_origin(model: FloatModel, folder: Path, files: Publication) -> None:
    """The model as it was imported, node by node, its weights in a file beside it."""
    import onnx  # noqa: PLC0415 - only here

    proto, weights = model.original, "origin.data"
    with temporary_folder() as made:
        onnx.save_model(proto, f"{made}/origin.onnx", save_as_external_data=True, location=weights)
        for name in (weights, "origin.onnx"):
            if (Path(made) / name).exists():
                shutil.copyfile(Path(made) / name, files.staged(folder / name))


def _save_model(model: ir.Model, path: Path) -> None:
    import onnx_ir  # noqa: PLC0415 - only here

    onnx_ir.save(model, str(path))
