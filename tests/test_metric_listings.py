"""The similarity metrics of the published document, read from the shared material, against this package's."""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from listings import document
from tpuflow.evaluation.similarity import similarity


def functions(shared: Path) -> dict[str, Any]:
    """The document's functions, indented again, by name."""
    (block,) = re.findall(r"^```python\n(.*?)^```", document(shared, "metrics"), re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\d+ ?", "", block, flags=re.MULTILINE).replace("←\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    code, scope = [], {"sqrt": sqrt}
    for line in lines:
        if line.startswith("def "):
            code.append(line)
        elif code and line.startswith(("return", "numerator", "denominator")):
            code.append(f"    {line}")
    exec("\n".join(code), scope)
    return scope


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.5])
@pytest.mark.feature("CMP-01", "CMP-02")
def test_cosine_and_euclid_are_those_of_the_document(noise: float, shared: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = x + noise * rng.normal(size=200)
    theirs = functions(shared)

    class Owner:
        square_rooted = theirs["square_rooted"]

    ours = similarity(x, y)
    assert round(ours.cosine, 3) == theirs["cosine_similarity"](Owner(), x, y)
    distance = theirs["euclidean_distance"](x, y)
    assert ours.euclid == pytest.approx(1 - distance / Owner().square_rooted((x + y) / 2), abs=1e-9)
