"""Energy and area: counters of a simulated run times published figures of a process.

    table.py   rows with value, interval and source; tables/ holds the two that come with the package
    model.py   counters of a run -> joules, parameters of a machine -> square millimetres

It reads reports of runs and parameters of machines, and computes neither.
"""

from tpuflow.energy.model import Energy, area, energy
from tpuflow.energy.table import EnergyTable, Interval, load_table

__all__ = ["Energy", "EnergyTable", "Interval", "area", "energy", "load_table"]
