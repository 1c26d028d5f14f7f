"""Post-training quantisation: the recipe, its methods, and searches over configurations and precisions.

    graph = quantize(model, samples=samples)               # the whole recipe
    state = Recipe(config).calibrate(model, data)          # or single stages, to inspect their results

`recipe.py` is the entry point: every other module is a stage, a method of a stage, or shared by methods.
Stages before lowering return a float model and ranges: its weights may already be rounded to their grids
with corrected biases (`quantize` then keeps them), and its channels may be rescaled, with the factors
recorded on the tensors.

    recipe.py      the stages in order; listener.py: callbacks for progress and results
    held_out.py    two-fold evaluation on halves of the samples; confidence intervals
    kept_statistics.py    calibration statistics reused by further strategies
    confirmation.py    candidate models, whole or segmented
    equalization.py    cross-layer equalization of the groups of `channels.py`, by the noise of `noise.py`
    attention.py   the same inside attention, where factors cancel in scores
    weights.py     weight rounding: gptq.py, adaround.py, on the operands of `walk.py`
    chain.py       the methods of `global_calibration` in sequence: these, easy_quant.py, range_tuning.py, ...
    pooling_commutation.py    pooling commuted behind the classifier
    channel_splitting.py    outlier channel splitting
    bias_correction.py    output bias correction
    search.py      search over configurations; folds.py, validation.py: held-out samples
"""

from tpuflow.ptq.bias_correction import correct_output_bias
from tpuflow.ptq.chain import apply_chain
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
    "apply_chain",
    "better_equalized",
    "better_tuned",
    "correct_output_bias",
    "noted_factors",
    "quantize",
    "refine_weights",
    "search",
    "with_factors",
]
