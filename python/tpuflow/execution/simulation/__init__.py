"""A program on the simulated machine, fed and read as the original model is.

run = simulate(program, {"input": images})
run.outputs["logits"], run.cycles, run.time_us

ports.py    the model's arrays to stored codes and back
program.py  feeds programs, and networks in segments, batch by batch
joined.py   the figures of several programs that run one after another, as one report
run.py      what a run leaves behind
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
