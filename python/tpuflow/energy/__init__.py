"""Energy and area: what a simulated run counted times what published tables say of a process.

    table.py   rows with value, interval and source; tables/ holds the two that come with the package
    model.py   the laws: counters of a run to joules, parameters of a machine to square millimetres

It knows runs by their reports and machines by their parameters, and computes neither.
"""

from tpuflow.energy.model import Energy, area, energy, least_energy
from tpuflow.energy.table import EnergyTable, Interval, load_table

__all__ = ["Energy", "EnergyTable", "Interval", "area", "energy", "least_energy", "load_table"]
