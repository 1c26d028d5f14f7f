"""Debugger of programs: state at a cycle, and the first instruction that writes a wrong element.

replay.py     a program between any two cycles: memories, tokens, instructions under way
debugger.py   commands over a replay: break, step, show, watch
written.py    which elements of its layer's tensor an instruction writes, and where
steps.py      every instruction against the integers of the graph: the first wrong layer
tensors.py    tensors of the graph from what instructions wrote of them
stepped.py    a program as a level that shows its tensors, programs with host segments
"""

from tpuflow.execution.debug.debugger import Debugger
from tpuflow.execution.debug.replay import Instruction, Replay
from tpuflow.execution.debug.stepped import SteppedLevel, check_program, stepped_level
from tpuflow.execution.debug.steps import LayerCheck, StepReport, check_steps
from tpuflow.execution.debug.tensors import TensorCheck

__all__ = [
    "Debugger",
    "Instruction",
    "LayerCheck",
    "Replay",
    "StepReport",
    "SteppedLevel",
    "TensorCheck",
    "check_program",
    "check_steps",
    "stepped_level",
]
