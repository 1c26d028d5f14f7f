"""Simulation of programs, with inputs and outputs as the original model has them.

run = simulate(program, {"input": images})
run.outputs["logits"], run.cycles, run.time_us

ports.py    the model's arrays to stored codes and back
program.py  runs programs, also segmented ones, batch by batch
joined.py   the figures of several programs that run one after another, as one report
run.py      results of a run
"""

from tpuflow.execution.simulation.ports import ProgramPort
from tpuflow.execution.simulation.program import (
    Executable,
    dynamic_outputs,
    network_inputs,
    program_ports,
    random_feed,
    simulate,
)
from tpuflow.execution.simulation.run import Run

__all__ = [
    "Executable",
    "ProgramPort",
    "Run",
    "dynamic_outputs",
    "network_inputs",
    "program_ports",
    "random_feed",
    "simulate",
]
