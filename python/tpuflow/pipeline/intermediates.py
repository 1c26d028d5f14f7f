"""Files of what lies between the stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuflow.io.files import make_folder, publication, temporary_folder, write_json
from tpuflow.partitioning import device_networks

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.calibration import Ranges
    from tpuflow.frontend import FloatModel
    from tpuflow.io.files import Publication
    from tpuflow.lowering import Graph
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram
    from tpuflow.pipeline.request import Request

__all__ = ["save_schedule", "save_stages"]


def save_stages(
    request: Request, original: FloatModel, model: FloatModel, ranges: Ranges | None, graph: AnyGraph
) -> None:
    """Writes what lies between the stages to the folder of a request, if it names one: all files or none.

    Args:
        request: Names the folder.
        original: The model as it was imported and normalised.
        model: The same as it was quantised: its channels may be scaled, its weights may lie on grids.
        ranges: Of its values, None in floats.
        graph: What it became.

    Raises:
        FileError: One cannot be written; those of an earlier build are then left as they are.
    """
    if request.stages is None:
        return
    make_folder(request.stages)
    with publication() as files:
        _save_origin(original, request.stages, files)
        _save_model(original.model, files.stage(request.stages / "canonical.onnx"))
        if ranges is not None:
            _save_model(model.model, files.stage(request.stages / "calibrated.onnx"))
            ranges.save(files.stage(request.stages / "ranges.json"))
        graph.save(files.stage(request.stages / "model.tpuq"))


def save_schedule(request: Request, graph: AnyGraph, program: AnyProgram) -> None:
    """Writes the decisions of the schedule beside them: groups of layers, and addresses.

    Raises:
        FileError: One cannot be written.
    """
    if request.stages is None:
        return
    make_folder(request.stages)
    groups, addresses = [], []
    for network, made in zip(device_networks(graph), device_networks(program), strict=True):
        content = json.loads(made.metadata())
        groups.append({"program": content["name"], "groups": _groups(network, content.get("tilings", []))})
        ports = [
            {
                "name": port["name"],
                "space": port["view"]["space"],
                "address": port["view"]["address"],
                "parts": port.get("parts", []),
            }
            for way in ("inputs", "outputs")
            for port in content[way]
        ]
        kept = {key: content[key] for key in ("ddr_bytes", "spill_bytes", "cache_peak_bytes")}
        addresses.append(
            {"program": content["name"], "cache": content["allocations"], "ports": ports, **kept}
        )
    write_json(request.stages / "groups.json", groups)
    write_json(request.stages / "addresses.json", addresses)


def _groups(graph: Graph, tilings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every layer once, in order: alone, or with those it is computed with part by part."""
    names = [layer.name for layer in graph.layers]
    found: list[dict[str, Any]] = []
    first = 0
    for tiling in sorted(tilings, key=lambda each: int(each["first"])):
        found += [{"layers": [name], "parts": None} for name in names[first : tiling["first"]]]
        first = tiling["last"] + 1
        found.append({"layers": names[tiling["first"] : first], "parts": tiling["parts"]})
    return found + [{"layers": [name], "parts": None} for name in names[first:]]


def _save_origin(model: FloatModel, folder: Path, files: Publication) -> None:
    """The model as it was imported, node by node, its weights in a file beside it."""
    import onnx  # noqa: PLC0415 - only here

    proto, weights = model.original, "origin.data"
    with temporary_folder() as made:
        onnx.save_model(proto, f"{made}/origin.onnx", save_as_external_data=True, location=weights)
        for name in (weights, "origin.onnx"):
            if (Path(made) / name).exists():
                shutil.copyfile(Path(made) / name, files.stage(folder / name))


def _save_model(model: ir.Model, path: Path) -> None:
    import onnx_ir  # noqa: PLC0415 - only here

    onnx_ir.save(model, str(path))
