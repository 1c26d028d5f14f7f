"""Files of tensors (`.npz`): comparison tensor by tensor, and editing.

    table = compare_files("float.npz", "quantised.npz", Tolerance(0.8, 0.5))
    table.failures, table.to_csv(), table.to_json()

levels.py    similarity levels: EQUAL, CLOSE, SIMILAR, NOT_SIMILAR, NOT_MATCH
causes.py    causes of differences: range, saturation, layout, dtype
network.py   dependencies of tensors, from a graph or a model
table.py     two files, row by row; the first failing tensor
picture.py   the network as a picture, failing tensors red
tools.py     dump, rename, extract, transpose, ...
"""

from tpuflow.evaluation.tensor_files.causes import Cause, cause
from tpuflow.evaluation.tensor_files.levels import STAGES, Level, Tolerance, Verdict, classify
from tpuflow.evaluation.tensor_files.network import Network, Step, network_of
from tpuflow.evaluation.tensor_files.picture import to_dot
from tpuflow.evaluation.tensor_files.table import Row, Scope, Table, compare_arrays, compare_files

__all__ = [
    "STAGES",
    "Cause",
    "Level",
    "Network",
    "Row",
    "Scope",
    "Step",
    "Table",
    "Tolerance",
    "Verdict",
    "cause",
    "classify",
    "compare_arrays",
    "compare_files",
    "network_of",
    "to_dot",
]
