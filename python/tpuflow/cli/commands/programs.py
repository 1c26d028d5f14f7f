"""`tpuflow inspect`, `disasm` and `asm`: the contents of a file, and programs as text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import bytes_text, heading, say, table, write_figures
from tpuflow.cli.commands.simulate import interval_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuflow import _core
    from tpuflow.frontend import FloatModel
    from tpuflow.partitioning import Partitioned
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram

__all__ = ["asm", "disasm", "inspect", "show_segments"]


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Model, ranges (.json), graph (.tpuq) or program (.tpu).",
            callback=paths.model_input,
        ),
    ],
    input_shape: options.InputShapes = None,
    batch: options.Batch = None,
    json: options.JsonFile = None,
) -> None:
    """Show the contents of a model, ranges, graph or program."""
    from tpuflow.errors import FileError
    from tpuflow.frontend import is_model_file

    shown = {
        ".tpu": _inspect_program,
        ".tpuq": _inspect_graph,
        ".json": _inspect_ranges,
    }
    if is_model_file(file):
        write_figures(json, _inspect_model(file, options.shapes(input_shape), batch))
        return
    if input_shape or batch is not None:
        raise FileError(f"{file}: has the shapes it was made for: --input-shape and --batch are for models")
    if file.suffix not in shown:
        raise FileError(f'{file}: unknown kind of file "{file.suffix}": give .onnx, {", ".join(shown)}')
    write_figures(json, shown[file.suffix](file))


def _inspect_program(file: Path) -> dict[str, Any]:
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import load_program

    program = load_program(file)
    show_segments(program)
    return {"kind": "program", "programs": [_show_program(part) for part in device_networks(program)]}


def show_segments(network: AnyProgram | AnyGraph | Partitioned[FloatModel]) -> None:
    """Shows the segments, and why some run on the host; nothing of a network that is whole on the device."""
    from tpuflow.partitioning import HostSegment, Partitioned

    if not isinstance(network, Partitioned):
        return
    device, host = len(network.device), len(network.host)
    heading(f"network {network.name}: segments on the device {device}, on the host {host}")
    rows = []
    for part in network.segments:
        size = len(part.nodes) if isinstance(part, HostSegment) else ""
        why = part.reason if isinstance(part, HostSegment) else ""
        rows.append((part.name, size, ", ".join(part.inputs), ", ".join(part.outputs), why))
    table(
        [
            ("segment", "left"),
            ("nodes", "right"),
            ("inputs", "left"),
            ("outputs", "left"),
            ("reason", "left"),
        ],
        rows,
    )


def _show_program(program: _core.Program) -> dict[str, Any]:
    import json

    from tpuflow.compiler.peak import at_peak
    from tpuflow.execution.streams import stream_interval

    content = json.loads(program.metadata())
    machine = content["machine"]
    heading(f"program {content['name']}, batch {content['batch']}, -O{content['level']}, {machine['name']}")
    if content["fallback"]:
        say(f"fell back to -O1: {content['fallback']}")
    say(f"{len(program):,} instructions, {content['predicted_cycles']:,} cycles expected")
    interval = stream_interval(program)
    if interval is not None:
        say(f"stream: {interval_text(interval, machine['clock_hz'], content['batch'])}")
    spaces = (f"{space}: {bytes_text(size)}" for space, size in enumerate(content["ddr_bytes"]))
    peak, spilled = bytes_text(program.cache_in_use()), bytes_text(content["spill_bytes"])
    end = bytes_text(content["cache_peak_bytes"])
    say(f"cache: {peak} in use at the peak, below address {end}; spilled {spilled}; DDR {', '.join(spaces)}")
    say(f"digest {program.digest()} (instructions, addresses, constants, cycles; names left out)")
    heading("Inputs and outputs")
    rows = [(way, *_port_row(port)) for way in ("input", "output") for port in content[f"{way}s"]]
    table([(name, "left") for name in ("", "name", "shape", "stored as", "scale")], rows)
    heading("Layers")
    layers = [
        (
            *(layer[key] for key in ("name", "op", "dtype", "unit")),
            f"{layer['macs']:,}",
            f"{layer['bound']:,}",
        )
        for layer in content["layers"]
    ]
    table(
        [
            ("layer", "left"),
            ("op", "left"),
            ("type", "left"),
            ("unit", "left"),
            ("MAC", "right"),
            ("bound", "right"),
        ],
        layers,
    )
    together = at_peak(program)
    heading("In the shared cache at the peak")
    table([("size", "right"), ("tensor", "left")], [(bytes_text(e["bytes"]), e["name"]) for e in together])
    heading("Memory map of the shared cache")
    allocations = [
        (
            f"{entry['address']:#010x}",
            bytes_text(entry["bytes"]),
            f"{entry['first']} to {entry['last']}",
            entry["name"],
        )
        for entry in content["allocations"]
    ]
    table(
        [("address", "left"), ("size", "right"), ("instructions", "right"), ("tensor", "left")], allocations
    )
    return {**content, "instructions": len(program), "digest": program.digest(), "at_peak": together}


def _port_row(port: Mapping[str, Any]) -> tuple[str, str, str, str]:
    source = port["source"] or port
    scales = port["quant"]["scale"] if port["quant"] else []
    scale = "" if not scales else f"{scales[0]:.4g}" if len(scales) == 1 else f"{len(scales)} scales"
    return source["name"], str(list(source["shape"])), f"{port['dtype']} {list(port['shape'])}", scale


def _inspect_graph(file: Path) -> dict[str, Any]:
    from tpuflow.partitioning import device_networks
    from tpuflow.partitioning.storage import load_graph

    graph = load_graph(file)
    show_segments(graph)
    return {"kind": "graph", "graphs": [_show_graph(part) for part in device_networks(graph)]}


def _show_graph(graph: _core.Graph) -> dict[str, Any]:
    from tpuflow.pipeline import activation_bytes, bit_operations, graph_bytes

    tensors = graph.tensors
    heading(f"graph {graph.name}: {len(graph.layers)} layers, {graph.macs:,} multiply-accumulates")
    constants, activations = graph_bytes(graph), activation_bytes(graph)
    say(
        f"constants {bytes_text(constants)}, activations {bytes_text(activations)} at a time, "
        f"together {bytes_text(constants + activations)}; {bit_operations(graph):,} bit operations"
    )
    rows = []
    for layer in graph.layers:
        output = tensors[layer.output]
        scales = output.scale or []
        scale = f"{scales[0]:.4g}" if len(scales) == 1 else ""
        rows.append((layer.name, layer.op, output.dtype, str(output.shape), scale, output.zero_point))
    table(
        [
            ("layer", "left"),
            ("op", "left"),
            ("type", "left"),
            ("shape", "left"),
            ("scale", "right"),
            ("zero point", "right"),
        ],
        rows,
    )
    keys = ("name", "op", "dtype", "shape", "scale", "zero_point")
    outputs = [(layer, tensors[layer.output]) for layer in graph.layers]
    found = [(each.name, each.op, out.dtype, out.shape, out.scale, out.zero_point) for each, out in outputs]
    return {
        "name": graph.name,
        "macs": graph.macs,
        "constants_bytes": constants,
        "activations_bytes": activations,
        "bit_operations": bit_operations(graph),
        "layers": [dict(zip(keys, values, strict=True)) for values in found],
    }


def _inspect_model(file: Path, shapes: Mapping[str, Sequence[int]], batch: int | None) -> dict[str, Any]:
    from tpuflow.frontend import load
    from tpuflow.pipeline import float_bytes

    model = load(file, input_shapes=shapes, batch=batch, host=True)
    heading(f"model {file.name}, normalised: constants {bytes_text(float_bytes(model))}")
    rows = [
        (way, port.name, str(list(port.shape)), str(port.dtype))
        for way, ports in (("input", model.inputs), ("output", model.outputs))
        for port in ports
    ]
    table([("", "left"), ("name", "left"), ("shape", "left"), ("type", "left")], rows)
    heading("Operators")
    _show_counts(Counter(node.op_type for node in model.model.graph))
    if model.findings:
        heading("Unsupported operators")
        for finding in model.findings:
            say(str(finding))
    return {
        "kind": "model",
        "constants_bytes": float_bytes(model),
        "ports": [dict(zip(("way", "name", "shape", "type"), row, strict=True)) for row in rows],
        "operators": Counter(node.op_type for node in model.model.graph),
        "findings": [str(finding) for finding in model.findings],
    }


def _inspect_ranges(file: Path) -> dict[str, Any]:
    from tpuflow.calibration import Ranges

    ranges = Ranges.load(file)
    heading(f"ranges: {len(ranges.tensors)} tensors, {ranges.samples} samples, strategy {ranges.strategy}")
    rows = []
    for name, found in ranges.tensors.items():
        low, high = (f(pair[i] for pair in found.pairs) for i, f in enumerate((min, max)))
        rows.append((name, f"{low:.6g}", f"{high:.6g}", "" if found.axis is None else found.axis))
    table([("tensor", "left"), ("min", "right"), ("max", "right"), ("axis", "right")], rows)
    keys = ("tensor", "min", "max", "axis")
    listed = [(name, float(low), float(high), None if axis == "" else axis) for name, low, high, axis in rows]
    tensors = [dict(zip(keys, values, strict=True)) for values in listed]
    return {
        "kind": "ranges",
        "samples": ranges.samples,
        "strategy": ranges.strategy,
        "tensors": tensors,
    }


def _show_counts(counts: Counter[str]) -> None:
    rows: Sequence[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    table([("operator", "left"), ("nodes", "right")], rows)


def disasm(
    file: Annotated[Path, typer.Argument(metavar="FILE.tpu", help="Program.", callback=paths.program_input)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.tpuasm", help="[standard output]", callback=paths.output
        ),
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants/--no-constants", help="Include constants, which `asm` needs.")
    ] = True,
    segment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Segment, for networks of several. [the only one]"),
    ] = None,
) -> None:
    """Write a program as text, one line per instruction."""
    import sys

    from tpuflow.io.files import write_text
    from tpuflow.partitioning.storage import load_program

    text = _segment(file, load_program(file), segment).to_text(constants=constants)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


def _segment(file: Path, program: AnyProgram, name: str | None) -> _core.Program:
    from tpuflow.partitioning import Partitioned

    if not isinstance(program, Partitioned):
        if name is not None:
            raise options.OptionError(f"{file}: is one program, --segment would have no effect: leave it out")
        return program
    known = {part.name: part.network for part in program.device}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        raise options.OptionError(
            f"{file}: has device segments {', '.join(known)}: choose one with --segment"
        )
    return known[name]


def asm(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.tpuasm", help="Text of a program.", callback=paths.readable)
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.tpu", help="[FILE with .tpu]", callback=paths.output),
    ] = None,
) -> None:
    """Assemble the text of a program."""
    from tpuflow.partitioning.storage import parse_program

    target = file.with_suffix(".tpu") if output is None else output
    program = parse_program(file)
    program.save(target)
    say(f"{target}: {len(program):,} instructions")
