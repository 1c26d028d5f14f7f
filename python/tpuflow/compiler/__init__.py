"""Compilation: a quantised graph and a machine become a checked program.

program.py     `compile`, the entry: graph -> program, by the scheduler in `crates/scheduler`
machine.py     machines as objects, presets and files
parameters.py  compile parameters; levels 1 and 5 are two presets
units.py       the functional units: names, colors, order
schedule.py    what a user decides about a schedule: parameters, tiling, groups of layers, memory of inputs
tiling.py      tilings of layers that a user prescribes
allocation.py  the stand-alone allocator for a file of buffers
"""

from tpuflow.compiler.machine import Machine, machine_text, machine_toml, machines, require_machine
from tpuflow.compiler.program import LEVELS, compile  # noqa: A004 - the step's name
from tpuflow.compiler.schedule import Schedule

__all__ = [
    "LEVELS",
    "Machine",
    "Schedule",
    "compile",
    "machine_text",
    "machine_toml",
    "machines",
    "require_machine",
]
