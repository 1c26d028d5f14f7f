"""`tpuflow npz`: files of tensors: how alike they are, what is in them, and the small jobs around them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuflow.cli.commands import options, paths
from tpuflow.cli.commands.console import heading, say, table, write_figures
from tpuflow.cli.commands.progress import progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.evaluation.tensor_files import Row, Table

__all__ = ["npz"]

npz = typer.Typer(help="Look into and change files of tensors (.npz).", no_args_is_help=True)

MOST_EXPLAINED = 5
File = Annotated[Path, typer.Argument(metavar="FILE.npz", help="Arrays by name.", callback=paths.readable)]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FILE.npz", help="Where the result goes.", callback=paths.output),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of an array.")]


@npz.command("compare")
def compare(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE.npz", help="What should be.", callback=paths.readable)
    ],
    other: Annotated[Path, typer.Argument(metavar="OTHER.npz", help="What is.", callback=paths.readable)],
    stage: Annotated[
        str, typer.Option(metavar="NAME", help="Usual tolerance of import, quantize or program.")
    ] = "import",
    tolerance: Annotated[
        str | None, typer.Option(metavar="COS,EUCLID[,SQNR]", help="Another tolerance.")
    ] = None,
    excepts: Annotated[
        str | None, typer.Option(metavar="A,B*", help="Names, or patterns of names, to leave out.")
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Graph (.tpuq) or model: order, operators, the first failing tensor.",
            callback=paths.model_input,
        ),
    ] = None,
    axis: Annotated[
        int | None, typer.Option("--axis", metavar="N", help="Also measure every index of this axis.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Compare N tensors only, evenly chosen.")
    ] = None,
    failed_only: Annotated[bool, typer.Option("--failed-only", help="List failing tensors only.")] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write a line per tensor.", callback=paths.output)
    ] = None,
    dot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.dot", help="Draw the --network, failing tensors red.", callback=paths.output
        ),
    ] = None,
    json: options.JsonFile = None,
) -> None:
    """Compare two files, tensor by tensor, and explain what differs.

    Levels: EQUAL, CLOSE, SIMILAR pass; NOT_SIMILAR and NOT_MATCH fail. Exit status 3 if a tensor fails,
    1 if none could be compared.
    """
    from tpuflow.evaluation.comparison import ComparisonError, DifferenceError
    from tpuflow.evaluation.tensor_files import STAGES, Tolerance, compare_files, network_of, to_dot
    from tpuflow.io.files import write_text

    if stage not in STAGES:
        raise options.OptionError(f'--stage "{stage}" is unknown, there are {", ".join(STAGES)}')
    if dot is not None and network is None:
        raise options.OptionError("--dot draws a network: give it with --network")
    least = STAGES[stage] if tolerance is None else Tolerance.parse(tolerance)
    known = None if network is None else network_of(network)
    with progress("compare") as advance:
        found = compare_files(
            reference,
            other,
            least,
            excepts=options.names(excepts),
            network=known,
            axis=axis,
            sample=sample,
            progress=advance,
        )
    if csv is not None:
        write_text(csv, found.to_csv())
    write_figures(json, found.to_json())
    if dot is not None and known is not None:
        write_text(dot, to_dot(known, found, other.stem))
    _show(found, failed_only=failed_only)
    if not found.rows:
        raise ComparisonError(f"{reference} and {other} have no tensor in common")
    if found.failures:
        first = found.row(found.first_failing[0])
        raise DifferenceError(
            f"{other}: {len(found.failures)} of {len(found.rows)} tensors fail, first {_blame(first)}"
        )


def _show(found: Table, *, failed_only: bool) -> None:
    rows = found.failures if failed_only else found.rows
    cells = []
    for row in rows:
        measures = row.verdict.measures
        numbers = ["", "", "", ""]
        if measures is not None:
            numbers = [f"{value:.3f}" for value in (measures.cosine, measures.euclid)]
            numbers += [f"{measures.sqnr:.1f}", f"{measures.max_error:.3g}"]
        level = row.verdict.level.value
        if row.verdict.digits is not None and level == "CLOSE":
            level += f" ({row.verdict.digits} digits)"
        cells.append((row.name, row.op, row.quant, *numbers, level))
    table(
        [
            ("tensor", "left"),
            ("op", "left"),
            ("type", "left"),
            ("cos", "right"),
            ("euclid", "right"),
            ("SQNR dB", "right"),
            ("max error", "right"),
            ("level", "left"),
        ],
        cells,
    )
    for row in found.rows:
        if row.axis and row.worst is not None:
            worst = row.axis[row.worst]
            say(
                f'"{row.name}": worst index {row.worst}, cosine {worst.cosine:.3f}, euclid {worst.euclid:.3f}'
            )
    _explain(found)
    for what, names in (("only in the reference", found.missing), ("only in the other", found.extra)):
        if names:
            say(f"{what}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")
    if found.left_out:
        say(f"sampled: {found.left_out} more tensors were not compared")
    counts = dict.fromkeys(("EQUAL", "CLOSE", "SIMILAR", "NOT_SIMILAR", "NOT_MATCH"), 0)
    for row in found.rows:
        counts[row.verdict.level.value] += 1
    say(", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing compared")


def _explain(found: Table) -> None:
    """Bisection at length, and how many more tensors fail because of them."""
    if not found.failures:
        return
    heading("What fails first")
    for name in found.first_failing[:MOST_EXPLAINED]:
        row = found.row(name)
        verdict = row.verdict
        say(_blame(row))
        if row.ranges is not None:
            (a, b), (c, d) = row.ranges
            say(f"  reference {a:.6g} to {b:.6g}, other {c:.6g} to {d:.6g}")
        if verdict.saturated[1] is not None:
            say(f"  at the ends of {row.quant}: {verdict.saturated[1]:.2%} of its elements")
        if any(verdict.nan) or any(verdict.inf):
            say(
                f"  NaN {verdict.nan[0]} and {verdict.nan[1]}, infinite {verdict.inf[0]} and {verdict.inf[1]}"
            )
        if verdict.first is not None:
            say(f"  first difference at {list(verdict.first)}")


def _blame(row: Row) -> str:
    op = f" ({row.op})" if row.op else ""
    return f'"{row.name}"{op}: {row.verdict.level.value}, probably {row.cause}'


@npz.command("shape")
def shape(file: File) -> None:
    """List names, shapes and types."""
    from tpuflow.evaluation.tensor_files.tools import headers

    arrays = headers(file)
    table(
        [("name", "left"), ("shape", "left"), ("type", "left"), ("bytes", "right")],
        [(name, list(array.shape), array.dtype, f"{array.nbytes:,}") for name, array in arrays.items()],
    )


@npz.command("dump")
def dump(
    file: File,
    names: Annotated[str | None, typer.Argument(metavar="A,B", help="Only these arrays.")] = None,
    limit: Annotated[int, typer.Option("-k", min=1, metavar="N", help="Elements shown of each.")] = 16,
) -> None:
    """Show ranges and the first elements."""
    import numpy as np

    from tpuflow.evaluation.tensor_files.tools import extract, read

    arrays = read(file)
    for name, array in (extract(arrays, options.names(names)) if names else arrays).items():
        heading(f"{name} {list(array.shape)} {array.dtype}")
        if array.dtype.kind in "biuf" and array.size:
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            if finite.size:
                mean = float(finite.astype(np.float64).mean())
                say(f"from {finite.min()} to {finite.max()}, mean {mean:.6g}")
            if finite.size < array.size:
                say(f"{array.size - finite.size} NaN or infinite")
        more = " ..." if array.size > limit else ""
        say(" ".join(str(element) for element in array.ravel()[:limit].tolist()) + more)


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
        typer.Argument(metavar="FILE.npz...", help="Files to put together.", callback=paths.each_readable),
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
        Path, typer.Argument(metavar="ARRAY.npy", help="What it holds.", callback=paths.readable)
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
        typer.Option("-o", "--output", metavar="FILE.bin", help="Where the bytes go.", callback=paths.output),
    ],
) -> None:
    """Write the elements of an array as bytes, row-major and little-endian."""
    from tpuflow.evaluation.tensor_files import tools
    from tpuflow.io.files import replaced

    content = tools.to_bin(tools.pick(tools.read(file), name))
    with replaced(output) as beside:
        beside.write_bytes(content)
    say(f"{output}: {len(content):,} bytes")


@npz.command("unpack")
def unpack(
    file: File,
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.", callback=paths.folder)
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
