"""Calibration strategies: from the statistics of one tensor to its range.

    fitting.py     one function per strategy, and the table of their names
    divergence.py  thresholds by divergence of distributions
    powers.py      thresholds by powers of errors

The configuration checks names against the table, and calibration calls its functions. This package depends on
neither: `Observed` and `Options` state what a strategy reads of statistics and configuration.
"""

from tpuflow.strategies.fitting import STRATEGIES, Moments, Strategy, extrema_of, moments_of

__all__ = ["STRATEGIES", "Moments", "Strategy", "extrema_of", "moments_of"]
