"""The commands in groups, the main job first: names, summaries, and where each is implemented.

`tpuflow --help` is written from this table alone; the module of a command is imported when the command runs.
A command is listed here and defined in `commands/`, nowhere else. Its summary is the first line of its
docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMMANDS", "GROUPS", "RENAMED_COMMANDS", "RENAMED_OPTIONS", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A command, or a group of its own such as `machine`.

    Attributes:
        name: What users type.
        source: `module.attribute` in `tpuflow.cli.commands`.
        summary: One line.
    """

    name: str
    source: str
    summary: str


GROUPS: dict[str, tuple[Entry, ...]] = {
    "Build and simulate": (
        Entry("build", "build.build", "Turn a model into a checked program."),
        Entry("simulate", "simulate.simulate", "Simulate a program, bit-exact and cycle-exact."),
        Entry("generate", "decoders.generate", "Continue a text with a decoder, token by token."),
        Entry("explain", "explain.explain", "Show what limits each layer, and what would help."),
        Entry("report", "report.report", "Write an HTML page about a run, or two side by side."),
        Entry("check", "check.check", "Check a program, or a model before it is built."),
        Entry("example", "example.example", "Write a small network, samples and commands to try."),
    ),
    "Accuracy": (
        Entry("compare", "compare.compare", "Find the first tensor that differs, and why."),
        Entry("evaluate", "levels.evaluate", "Score a network on labelled data, compared with float."),
        Entry(
            "calibrate",
            "stages.calibrate",
            "Save the range of every tensor over samples.",
        ),
        Entry("quantize", "stages.quantize", "Turn a float network into a quantised graph."),
        Entry("search", "search.search", "Try quantisation methods; keep the most accurate."),
        Entry(
            "sensitivity",
            "precision.sensitivity",
            "Rank layers by the effect of another precision.",
        ),
        Entry("mixed", "precision.mixed", "Choose a precision for every layer within a budget."),
        Entry(
            "bisect",
            "precision.bisect",
            "Find the fewest layers that must stay in float.",
        ),
        Entry(
            "compare-statistics",
            "statistics.compare_statistics",
            "Compare statistics of tensors with their ranges.",
        ),
    ),
    "Inspect and debug": (
        Entry("inspect", "programs.inspect", "Show the contents of a model, ranges, graph or program."),
        Entry("run", "levels.run", "Run a model, graph or program on samples."),
        Entry("debug", "debug.debug", "Step through a program: breakpoints, memories, tokens."),
        Entry("golden", "golden.golden", "Write memories, codes and a trace of one layer for a testbench."),
        Entry("disasm", "programs.disasm", "Write a program as text, one line per instruction."),
        Entry("asm", "programs.asm", "Assemble the text of a program."),
    ),
    "Files and tools": (
        Entry("export", "export.export", "Write a quantised graph as ONNX with QDQ nodes."),
        Entry("npz", "npz.npz", "Inspect and edit files of tensors (.npz)."),
        Entry("bundle", "bundle.bundle", "Pack programs, or one with test data, in a file."),
        Entry("weights", "weights.weights", "Export and replace constants."),
        Entry("raw", "device.raw", "Write a program with raw cache words as inputs and outputs."),
        Entry("alloc", "alloc.alloc", "Place buffers with known lifetimes in a memory."),
        Entry("explore", "explore.explore", "Find Pareto-optimal machines for a network."),
        Entry(
            "tensor-parallel",
            "tensor_parallel.tensor_parallel",
            "Divide a network among devices; compare cycles and bits.",
        ),
        Entry("zoo", "zoo.zoo", "Run a folder of networks through every stage."),
        Entry("smoke", "device.smoke", "Try every stage on a tiny network."),
    ),
    "What there is": (
        Entry("machine", "listings.machine", "List and show machines."),
        Entry("ops", "listings.ops", "List the operators and their element types."),
        Entry("fields", "listings.fields", "List every configuration key and its meaning."),
        Entry("cuts", "listings.cuts", "List the named cuts of well-known networks."),
        Entry("plugins", "listings.plugins", "List the plugins that are found."),
        Entry("completion", "completion.completion", "Print the completion script of a shell."),
    ),
}

COMMANDS = {entry.name: entry for entries in GROUPS.values() for entry in entries}

RENAMED_COMMANDS = {("steps",): ("compare",), ("npz", "compare"): ("compare",)}
"""Old names, which work for one version with a note."""

RENAMED_OPTIONS = {
    "compare": {"--excepts": "--ignore-tensors", "--sample": "--tensors", "--dot": "--picture"},
    "build": {"--excepts": "--ignore-tensors"},
}
"""Old names of options by command, which work for one version with a note."""
