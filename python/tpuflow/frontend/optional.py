"""Rewrites that are applied where asked for: the same function in floats, another one in integers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpuflow.errors import ModelError
from tpuflow.frontend.normalize import normalize
from tpuflow.frontend.rewrite import apply_rules
from tpuflow.frontend.rewrites import collapse, expand

if TYPE_CHECKING:
    import onnx_ir as ir

    from tpuflow.frontend.rewrite import Rules

__all__ = ["BRANCHES", "KNOWN", "OPTIONAL", "apply_optional"]

OPTIONAL: Mapping[str, Rules] = {
    "collapse_linear": collapse.LINEAR,
    "collapse_residual": collapse.RESIDUAL,
    "split_projections": expand.PROJECTIONS,
    "expand_powers": expand.POWERS,
    "resize_by_convolution": expand.RESIZING,
}
"""By the name they are asked for with."""

BRANCHES = "parallel_batch"
"""The samples of a batch become branches, which the loader makes of a network for one sample."""

KNOWN = (*OPTIONAL, BRANCHES)


def apply_optional(model: ir.Model, label: str, names: Sequence[str]) -> ir.Model:
    """Applies rewrites to a normalised model, in place and in their order, and normalises what they leave.

    Raises:
        ModelError: A name is unknown.
    """
    for name in names:
        if name == BRANCHES:
            continue
        if name not in OPTIONAL:
            near = difflib.get_close_matches(name, KNOWN, 1)
            hint = f', did you mean "{near[0]}"?' if near else f" (known: {', '.join(KNOWN)})"
            raise ModelError(f'{label}: unknown rewrite "{name}"{hint}')
        if apply_rules(model, OPTIONAL[name]):
            model = normalize(model)
    return model
