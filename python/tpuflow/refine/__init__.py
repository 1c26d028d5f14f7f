"""Refinement: a calibrated float model becomes one whose quantised form is closer to it.

    refined = refine_weights(model, samples, config)

Stands between `calibrate` and `quantize`: what it gives is a float model again, whose weights lie on the
grids they will be stored on and whose biases make up for the mean of what that changes; `quantize` keeps such
weights as they are.
"""

from tpuflow.refine.search import Candidate, Searched, search
from tpuflow.refine.weights import RefinedLayer, refine_weights

__all__ = ["Candidate", "RefinedLayer", "Searched", "refine_weights", "search"]
