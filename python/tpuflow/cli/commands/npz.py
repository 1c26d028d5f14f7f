"""`tpuflow npz`: files of tensors: what is in them, and the small jobs around them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.app import typer_app
from tpuflow.cli.commands.console import heading, say, table, write_figures

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["npz"]

npz = typer_app(help="Inspect and edit files of tensors (.npz).", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE.npz", help="Arrays by name.", callback=paths.readable)]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FILE.npz", help="Output file.", callback=paths.output),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of an array.")]


@npz.command("shape")
def shape(file: File, json: options.JsonFile = None) -> None:
    """List names, shapes and types."""
    from tpuflow.evaluation.tensor_files.tools import headers

    arrays = headers(file)
    rows = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": array.nbytes}
        for name, array in arrays.items()
    }
    write_figures(json, {"file": str(file), "arrays": rows})
    table(
        [("name", "left"), ("shape", "left"), ("type", "left"), ("bytes", "right")],
        [(name, list(array.shape), array.dtype, f"{array.nbytes:,}") for name, array in arrays.items()],
    )


@npz.command("dump")
def dump(
    file: File,
    names: Annotated[str | None, typer.Argument(metavar="A,B", help="Only these arrays.")] = None,
    limit: Annotated[int, typer.Option("-k", min=1, metavar="N", help="Elements shown per array.")] = 16,
    json: options.JsonFile = None,
) -> None:
    """Show ranges and the first elements."""
    import numpy as np

    from tpuflow.evaluation.tensor_files.tools import extract, read

    arrays = read(file)
    rows: dict[str, dict[str, Any]] = {}
    for name, array in (extract(arrays, options.names(names)) if names else arrays).items():
        heading(f"{name} {list(array.shape)} {array.dtype}")
        row = rows[name] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if array.dtype.kind in "biuf" and array.size:
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            if finite.size:
                mean = float(finite.astype(np.float64).mean())
                row |= {"min": finite.min().item(), "max": finite.max().item(), "mean": mean}
                say(f"from {finite.min()} to {finite.max()}, mean {mean:.6g}")
            if finite.size < array.size:
                say(f"{array.size - finite.size} NaN or infinite")
            row["not_finite"] = array.size - finite.size
        more = " ..." if array.size > limit else ""
        say(" ".join(str(element) for element in array.ravel()[:limit].tolist()) + more)
    write_figures(json, {"file": str(file), "arrays": rows})


@npz.command("extract")
def extract(file: File, names: Annotated[str, typer.Argument(metavar="A,B")], output: Output) -> None:
    """Keep only these arrays."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.extract(tools.read(file), options.names(names)))


@npz.command("remove")
def remove(file: File, names: Annotated[str, typer.Argument(metavar="A,B")], output: Output) -> None:
    """Keep all but these arrays."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.remove(tools.read(file), options.names(names)))


@npz.command("rename")
def rename(
    file: File,
    names: Annotated[list[str], typer.Argument(metavar="OLD=NEW...", help="New names; repeatable.")],
    output: Output,
) -> None:
    """Give arrays other names."""
    from tpuflow.evaluation.tensor_files import tools

    pairs = [word.rpartition("=") for word in names]
    for old, equals, new in pairs:
        if not equals or not old or not new:
            raise options.OptionError(f'"{old}{equals}{new}": write OLD=NEW')
    _write(output, tools.rename(tools.read(file), {old: new for old, _, new in pairs}))


@npz.command("merge")
def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE.npz...", help="Files to merge.", callback=paths.each_readable),
    ],
    output: Output,
) -> None:
    """Put the arrays of several files into one."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.merge([tools.read(file) for file in files]))


@npz.command("insert")
def insert(
    file: File,
    name: Name,
    array: Annotated[
        Path, typer.Argument(metavar="ARRAY.npy", help="Its contents.", callback=paths.readable)
    ],
    output: Output,
) -> None:
    """Add an array, or replace one."""
    from tpuflow.evaluation.tensor_files import tools

    (given,) = tools.read(array).values()
    _write(output, tools.insert(tools.read(file), name, given))


@npz.command("transpose")
def transpose(
    file: File,
    name: Name,
    order: Annotated[str, typer.Argument(metavar="0,2,3,1", help="Axes in their new order.")],
    output: Output,
) -> None:
    """Put the axes of an array in another order."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.permute(tools.read(file), name, _numbers(order)))


@npz.command("reshape")
def reshape(
    file: File,
    name: Name,
    shape: Annotated[str, typer.Argument(metavar="1,64,-1", help="The new shape.")],
    output: Output,
) -> None:
    """Read an array in another shape."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.reshape(tools.read(file), name, _numbers(shape)))


@npz.command("dequantize")
def dequantize(
    file: File,
    name: Name,
    scale: Annotated[float, typer.Argument(metavar="SCALE")],
    output: Output,
    zero_point: Annotated[int, typer.Option(metavar="N", help="Code of real zero.")] = 0,
) -> None:
    """Turn codes into what they stand for, scale * (code - zero point), as float32."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.dequantize(tools.read(file), name, scale, zero_point))


@npz.command("bf16")
def bf16(file: File, name: Name, output: Output) -> None:
    """Turn the bits of bfloat16 (uint16) into float32."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.bits_to_float(tools.read(file), name))


@npz.command("to-bin")
def to_bin(
    file: File,
    name: Name,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE.bin", help="Output file.", callback=paths.output),
    ],
) -> None:
    """Write the elements of an array as bytes, row-major and little-endian."""
    from tpuflow.evaluation.tensor_files import tools
    from tpuflow.io.files import replace_atomically

    content = tools.to_bin(tools.pick(tools.read(file), name))
    with replace_atomically(output) as beside:
        beside.write_bytes(content)
    say(f"{output}: {len(content):,} bytes")


@npz.command("unpack")
def unpack(
    file: File,
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Output directory.", callback=paths.folder)
    ],
) -> None:
    """Write every array as an .npy file of its own."""
    from tpuflow.evaluation.tensor_files import tools

    say(f"{folder}: {len(tools.unpack(tools.read(file), folder))} files")


@npz.command("diff")
def diff(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE.npz", callback=paths.readable)],
    other: Annotated[Path, typer.Argument(metavar="OTHER.npz", callback=paths.readable)],
    output: Output,
) -> None:
    """Write |x - y| of every array the files share."""
    from tpuflow.evaluation.tensor_files import tools

    _write(output, tools.difference(tools.read(reference), tools.read(other)))


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise options.OptionError(f'"{text}": write whole numbers with commas between them') from None


def _write(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    from tpuflow.io.files import write_arrays

    write_arrays(path, arrays)
    say(f"{path}: {len(arrays)} arrays")
