"""A network as Graphviz text: failing tensors red, with their similarity; first_failing outlined."""

from __future__ import annotations

from tpuflow.evaluation.tensor_files.network import Network
from tpuflow.evaluation.tensor_files.table import Table

__all__ = ["to_dot"]

FAILED, PASSED, UNKNOWN = "#e5484d", "#d3e9d7", "#eeeeee"


def to_dot(network: Network, table: Table, name: str = "network") -> str:
    """The network with what a comparison found, for `dot -Tsvg`.

    Args:
        network: Steps and what they read.
        table: The comparison; tensors that were not compared are grey.
        name: Of the picture.
    """
    rows = {row.name: row for row in table.rows}
    numbers = {output: number for number, output in enumerate(network.steps)}
    lines = [
        f"digraph {_quote(name)} {{",
        '  node [shape=box style="filled,rounded" fontname="sans-serif" fontsize=10];',
    ]
    sources = {
        tensor: f"i{number}"
        for number, tensor in enumerate(
            dict.fromkeys(
                tensor for step in network.steps.values() for tensor in step.inputs if tensor not in numbers
            )
        )
    }
    lines += [f"  {key} [label={_quote(tensor)} shape=ellipse];" for tensor, key in sources.items()]
    for output, step in network.steps.items():
        row = rows.get(output)
        label, color = f"{step.op}\n{output}", UNKNOWN
        if row is not None:
            color = PASSED if row.passed else FAILED
            found = row.verdict.measures
            if found is not None:
                label += f"\n{row.verdict.level.value} {found.cosine:.3f} {found.euclid:.3f}"
        width = " penwidth=3" if output in table.first_failing else ""
        lines.append(f'  n{numbers[output]} [label={_quote(label)} fillcolor="{color}"{width}];')
        for tensor in dict.fromkeys(step.inputs):
            lines.append(f"  {sources.get(tensor) or f'n{numbers[tensor]}'} -> n{numbers[output]};")
    return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
