"""Execution: runs networks at any level: float models, integer graphs, programs on the simulated machine.

    levels.py       one interface for all of them: the user's arrays in, the user's arrays out
    simulation/     programs cycle by cycle: `simulate`
    debug/          inside a program: breakpoints, steps, memories, every instruction against its graph
    explanation.py  what limits each layer of a program, and what changes would save

Applications that only run programs use `tpuflow.runtime`.
"""
