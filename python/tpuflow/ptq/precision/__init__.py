"""Mixed precision: sensitivity of layers, their cost, and searches over both.

    trials = Trials(model, config, calibrated, evaluator)
    found = raised_from_the_end(trials, rule)      # the suffix that needs more bits
    rows = sensitivity(trials, "16")               # every layer alone
    found = within_budget(trials, budget)          # the best choice that costs no more
    names = bisect_layers(trials, allowed)              # the fewest layers to blame

All of them change the precision of single layers and measure the effect: `trials` builds the graph of an
assignment and computes its cycles and bytes, and an `Evaluator` (`tpuflow.evaluation.fidelity`) compares its
outputs with float. The result of a search is an assignment, a configuration by layer.
"""

from tpuflow.ptq.precision.automatic import Rule, parsed_rule, raised_from_the_end
from tpuflow.ptq.precision.bisection import Bisection, bisect_layers, smallest
from tpuflow.ptq.precision.budget import Budget, BudgetResult, parsed_budget, within_budget
from tpuflow.ptq.precision.limits import Limits
from tpuflow.ptq.precision.sensitivity import Row, sensitivity
from tpuflow.ptq.precision.trials import PRECISIONS, Cost, Layer, PrecisionError, Trials

__all__ = [
    "PRECISIONS",
    "Bisection",
    "Budget",
    "BudgetResult",
    "Cost",
    "Layer",
    "Limits",
    "PrecisionError",
    "Row",
    "Rule",
    "Trials",
    "bisect_layers",
    "parsed_budget",
    "parsed_rule",
    "raised_from_the_end",
    "sensitivity",
    "smallest",
    "within_budget",
]
