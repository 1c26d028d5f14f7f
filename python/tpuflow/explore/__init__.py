"""Design space exploration: machines for networks, by cycles, energy and area of checked programs.

    space.py       parameters with their values, constraints; a point assigns a value to each
    settings.py    a study: networks, space, objectives, strategy; read from TOML or made in Python
    measure.py     evaluates a point: lower bounds without a program, figures with one; runs in workers
    objectives.py  objective vectors, which are minimised; Pareto dominance
    strategies.py  choice of the next points: grid, random, samplers of Optuna
    driver.py      waves of trials, pruning by bounds, rising levels; recorded in the journal
    results.py     results of a study: rows, Pareto front, CSV and Parquet
    merging.py     several studies as one, and what each contributes
    page.py        the same as one HTML file

It receives graphs and machines, and depends on neither ONNX nor calibration.
"""

from tpuflow.explore.driver import explore
from tpuflow.explore.measure import Workload
from tpuflow.explore.merging import MergedResults, merge_results
from tpuflow.explore.results import Results, load_results
from tpuflow.explore.settings import Settings, load_settings
from tpuflow.explore.space import ExploreError, Space

__all__ = [
    "ExploreError",
    "MergedResults",
    "Results",
    "Settings",
    "Space",
    "Workload",
    "explore",
    "load_results",
    "load_settings",
    "merge_results",
]
