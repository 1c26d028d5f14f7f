"""Whole small networks: close to float, and the integers of the NumPy twin."""

from __future__ import annotations

import pytest

from conftest import slow_except
from lowering.quantized import lowered, normal
from models.make_models import MODELS, random_model

DECIBELS = {"int8": 12.0, "int16": 50.0}


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", MODELS)
def test_small_networks(name: str, dtype: str) -> None:
    proto = MODELS[name]()
    feeds = normal(proto)
    network = lowered(proto, feeds, {"quantize": {"dtype": dtype}})
    for output, found in network.compare(feeds[0]).items():
        assert found.sqnr > DECIBELS[dtype], output
    network.equals_reference(feeds[1])


@pytest.mark.parametrize("seed", slow_except(range(10), range(40)))
def test_random_networks(seed: int) -> None:
    proto = random_model(seed)
    feeds = normal(proto, seed=seed)
    dtype = "int16" if seed % 2 else "int8"
    network = lowered(proto, feeds, {"quantize": {"dtype": dtype}})
    for output, found in network.compare(feeds[0]).items():
        assert found.sqnr > DECIBELS[dtype], output
    network.equals_reference(feeds[1])
