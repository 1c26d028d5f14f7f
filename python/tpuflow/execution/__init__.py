"""Execution: runs networks at any level: float models, integer graphs, programs on the simulated machine.

    levels.py       one interface for all of them, on arrays as the model has them
    simulation/     programs cycle by cycle: `simulate`
    debug/          debugger: breakpoints, steps, memories; every instruction compared with the graph
    explanation.py  bottlenecks of each layer, and the cycles that changes would save

Applications that only run programs use `tpuflow.runtime`.
"""
