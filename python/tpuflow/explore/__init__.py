"""Design space exploration: machines for networks, by cycles, energy and area of checked programs.

    space.py       fields and what they may be, constraints; a point is one choice of them all
    settings.py    a study: networks, space, objectives, strategy; read from TOML or made in Python
    measure.py     one point: lower bounds without a program, figures with one; runs in workers
    objectives.py  figures to vectors that are minimised; dominance
    strategies.py  which points come next: grid, random, samplers of Optuna
    driver.py      waves of trials, pruning by bounds, rising levels; everything noted in the journal
    results.py     what a study's file says: rows, front, CSV and Parquet
    page.py        the same as one HTML file

It knows graphs and machines, and neither ONNX nor calibration: who stands above makes the graphs.
"""

from tpuflow.explore.driver import explore
from tpuflow.explore.measure import Workload
from tpuflow.explore.results import Results, load_results
from tpuflow.explore.settings import Settings, load_settings
from tpuflow.explore.space import ExploreError, Space

__all__ = [
    "ExploreError",
    "Results",
    "Settings",
    "Space",
    "Workload",
    "explore",
    "load_results",
    "load_settings",
]
