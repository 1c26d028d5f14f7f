"""The few names of torch that published plugins use, over NumPy, for machines without torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor that plugins call."""

    def cpu(self) -> Tensor:
        return self

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return np.asarray(self)

    def numel(self) -> int:
        return self.size


def from_numpy(array: Any) -> Tensor:
    return np.asarray(array).view(Tensor)


def topk(values: Any, count: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    plain = np.asarray(values)
    best = np.flip(np.argsort(plain, axis=dim, kind="stable"), axis=dim).take(range(count), axis=dim)
    return from_numpy(np.take_along_axis(plain, best, dim)), from_numpy(best)


@contextmanager
def torch() -> Iterator[None]:
    """Lets `import torch` give torch, or else these names."""
    if find_spec("torch") is not None:
        yield
        return
    made, utils, data = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data"))
    vars(data)["Dataset"] = object
    vars(utils)["data"] = data
    vars(made).update(
        Tensor=Tensor, from_numpy=from_numpy, topk=topk, zeros=lambda *s: from_numpy(np.zeros(s)), utils=utils
    )
    modules = {"torch": made, "torch.utils": utils, "torch.utils.data": data}
    made.__spec__ = types.SimpleNamespace(name="torch")  # type: ignore[assignment]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        for name in [each for each in sys.modules if each.split(".")[0] == "AIPUBuilder"]:
            del sys.modules[name]
