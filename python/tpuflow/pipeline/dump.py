"""Every tensor of a build as files, floats beside codes, as the cfg keys `dump` and `dump_dir` ask for.

dump_dir/float/NAME.npy        what the float model computes for the first samples
dump_dir/quantized/NAME.npy    what the integer graph computes for them, as real numbers
dump_dir/codes/NAME.npy        the same as it is stored
dump_dir/tensors.json          by name: its file, and the grid of its codes
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuflow.execution.levels import GraphLevel, graph_level
from tpuflow.frontend import FloatModel, FloatSession
from tpuflow.io.files import file_stem, make_folder, replace_atomically, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tpuflow.io.samples import Samples
    from tpuflow.partitioning.storage import AnyGraph

__all__ = ["dump_tensors"]

Arrays = dict[str, "NDArray[Any]"]


def dump_tensors(folder: Path, model: FloatModel, graph: AnyGraph, samples: Samples) -> int:
    """Writes every tensor of the first feed, and gives the number of files.

    Args:
        folder: Where to; it is made.
        model: The float model whose tensors the graph stands for.
        graph: What was made of it.
        samples: What both are shown.

    Raises:
        FileError: A file cannot be written.
    """
    (batch,) = islice(samples.batches(), 1)
    level = graph_level(graph)
    found: dict[str, Mapping[str, NDArray[Any]]] = {
        "float": {**batch.arrays, **FloatSession(model.model, "all").run(dict(batch.arrays))},
        "quantized": level.run(batch.arrays, all_tensors=True),
        "codes": {},
    }
    facts: dict[str, dict[str, Any]] = {}
    if isinstance(level, GraphLevel):
        found["codes"], facts = _codes(level, batch.arrays)
    taken: set[str] = set()
    stems: dict[str, str] = {}
    for kind, arrays in found.items():
        make_folder(folder / kind)
        for name, array in arrays.items():
            stem = stems.get(name) or stems.setdefault(name, file_stem(name, taken))
            with replace_atomically(folder / kind / f"{stem}.npy") as beside, beside.open("wb") as stream:
                np.save(stream, array.astype(str) if array.dtype == object else array, allow_pickle=False)
    listed = {name: {"file": f"{stem}.npy", **facts.get(name, {})} for name, stem in stems.items()}
    write_json(folder / "tensors.json", listed)
    return sum(map(len, found.values())) + 1


def _codes(level: GraphLevel, arrays: Mapping[str, NDArray[Any]]) -> tuple[Arrays, dict[str, dict[str, Any]]]:
    """Every tensor the graph can show as it is stored, by the model's name, and its grid."""
    tensors = level.graph.tensors
    inputs = {
        tensors[index].name: port.encode(arrays[port.name])
        for index, port in zip(level.graph.inputs, level.ports, strict=True)
    }
    stored = level.graph.run(inputs, all_tensors=True)
    codes = {level.shown[name].name: array for name, array in stored.items() if name in level.shown}
    grids = {
        level.shown[tensor.name].name: {
            "dtype": tensor.dtype,
            "scale": tensor.scale,
            "zero_point": tensor.zero_point,
        }
        for tensor in tensors
        if tensor.name in level.shown
    }
    return codes, grids
