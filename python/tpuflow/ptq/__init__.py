"""Refinement: a calibrated float model becomes one whose quantised form is closer to it.

    graph = quantize(model, samples=samples)               # the whole recipe
    state = Recipe(config).calibrate(model, data)          # or its stages, to look at what they leave

`recipe.py` is the way through: every other module is a stage of it, a method that a stage tries, or what
methods rest on. What stages before lowering give is a float model again, whose weights lie on the grids they
will be stored on and whose biases make up for the mean of what that changes (`quantize` keeps such weights as
they are), or whose channels were scaled, which `quantize` notes on the tensors; and ranges that may have
moved.

    recipe.py      the stages in their order; listener.py: whom they tell what they do
    held_out.py    halves of the samples, each evaluating what is made of the other; intervals for outputs
    better.py      graphs of models, whole or in segments
    equalize.py    factors by channel, on the groups `channels.py` finds, by the noise `noise.py` predicts
    attention.py   the same inside attention, where factors cancel in scores
    weights.py     weights rounded together: gptq.py, adaround.py, on what `walk.py` shows them
    chain.py       the methods of `global_calibration` in a row: those above, easy_quant.py, auto_tune.py, ...
    pooling_commutation.py    averages behind the last layers that read them
    channel_splitting.py    channels stored twice, half a step apart
    outputs.py     what the network in integers adds to its outputs on average
    search.py      the best of whole configurations; validation.py: samples it does not choose by
"""

from tpuflow.ptq.bias_correction import correct_output_bias
from tpuflow.ptq.chain import refined
from tpuflow.ptq.equalization import better_equalized, noted_factors, with_factors
from tpuflow.ptq.held_out import Estimate, HeldOut, Interval
from tpuflow.ptq.listener import Listener
from tpuflow.ptq.range_tuning import better_tuned
from tpuflow.ptq.recipe import STAGES, CalibratedModel, CalibrationData, Recipe, quantize
from tpuflow.ptq.search import Candidate, SearchResult, search
from tpuflow.ptq.weights import RefinedLayer, refine_weights

__all__ = [
    "STAGES",
    "CalibratedModel",
    "CalibrationData",
    "Candidate",
    "Estimate",
    "HeldOut",
    "Interval",
    "Listener",
    "Recipe",
    "RefinedLayer",
    "SearchResult",
    "better_equalized",
    "better_tuned",
    "correct_output_bias",
    "noted_factors",
    "quantize",
    "refine_weights",
    "refined",
    "search",
    "with_factors",
]
