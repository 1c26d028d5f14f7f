"""Names and meanings of units, bounds and stall causes, wherever people read them."""

from __future__ import annotations

from tpuflow.compiler.units import REPORTED

__all__ = ["BOUNDS", "BOUND_KEYS", "BOUND_NAMES", "PHASES", "STALLS", "UNITS", "verdict"]

UNITS = {unit.name: (unit.short, unit.title) for unit in REPORTED}
"""Short and long name, in the order of pages and tables."""

BOUND_NAMES = {
    "array": "array throughput",
    "ddr": "DDR bandwidth",
    "ewp": "elementwise throughput",
    "pdp": "pooling throughput",
    "ports": "cache port throughput",
    "flow": "array throughput after the first weights",
    "segment": "unit throughput after its earliest start",
    "path": "critical path",
}
"""Names of bounds, by the key that reports use."""

BOUNDS = {
    "array": "every row of activations must pass the systolic array",
    "ddr": "every constant, input and output must cross the DDR channels, equal constants once",
    "ewp": "every element of an elementwise operator must pass the elementwise unit",
    "pdp": "every word of a pooling or depthwise convolution must pass the pooling unit",
    "ports": "every word must pass a port of a cache bank, and every weight the weight port",
    "flow": "the array cannot start before its first weights have been loaded, and then needs its full time",
    "segment": "some of a unit's work cannot start before what it depends on, and then needs its full time",
    "path": "the longest chain of dependent layers cannot be shortened",
}
"""Why no program can be faster."""

BOUND_KEYS = {key: name.lower().replace(" ", "_") for key, name in BOUND_NAMES.items()}
"""Their names in JSON, beside the keys of format 1."""

STALLS = {
    "dependency": "waits for another unit's result",
    "ddr": "waits for external memory",
    "bank_conflict": "waits for a bank of the cache",
    "weight_load": "waits for the weights of the next tile",
    "issue": "starts an instruction",
    "unit_busy": "waits for room in its own pipe",
}
"""Why a unit that has begun and not finished does no work in a cycle."""

PHASES = ("issue", "execute", "drain")


def verdict(gap: float) -> str:
    """A gap to the lower bound in words: `1.6% above the bound`."""
    return "at the bound" if gap < 0.0005 else f"{gap:.1%} above the bound"
