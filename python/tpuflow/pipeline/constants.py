"""Constants of graphs and programs: written out, and replaced without touching anything else.

    constants = weights_of(graph)                  # every constant by name
    newer = with_weights(program, retrained)       # the same instructions, other constants

A program's constants lie as its schedule wants them, so the new graph is scheduled for the program's machine
and level; the result is taken only if all but the constants is the same, bit for bit.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.program import machine_toml
from tpuflow.errors import ProgramError
from tpuflow.partitioning import Partitioned, device_networks
from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = ["weights_of", "with_weights"]


def weights_of(graph: AnyGraph) -> dict[str, NDArray[Any]]:
    """Every constant by its name; of a network in segments with the segment in front."""
    if isinstance(graph, Partitioned):
        return {
            f"{part.name}/{name}": array
            for part in graph.device
            for name, array in weights_of(part.network).items()
        }
    return {
        tensor.name: graph.constant(number)
        for number, tensor in enumerate(graph.tensors)
        if tensor.is_constant
    }


def with_weights(program: AnyProgram, graph: AnyGraph) -> AnyProgram:
    """A program with the constants of another graph.

    Args:
        program: The program.
        graph: The same network with other weights: the same layers, shapes, types, scales and zero points of
            activations.

    Raises:
        ProgramError: More than constants would change; the message says what.
    """
    if isinstance(program, Partitioned) != isinstance(graph, Partitioned):
        raise ProgramError("one is in segments of device and host, the other is not")
    programs, graphs = device_networks(program), device_networks(graph)
    if len(programs) != len(graphs):
        raise ProgramError(f"the program has {len(programs)} device segments, the graph {len(graphs)}")
    made = [_with_weights(old, new) for old, new in zip(programs, graphs, strict=True)]
    return program.with_networks(made) if isinstance(program, Partitioned) else made[0]


def _with_weights(program: Any, graph: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine.toml"
        machine.write_text(machine_toml(json.loads(program.metadata())["machine"]), encoding="utf-8")
        made = compile_graph(graph, machine, program.level)
    old, new = json.loads(program.to_json()), json.loads(made.to_json())
    different = [key for key in old if old[key] != new[key]]
    if different:
        raise ProgramError(
            f'program "{program.name}": with this graph its {", ".join(different)} would change, too: '
            "quantise the new weights with the ranges of the old ones, or compile anew"
        )
    return made
