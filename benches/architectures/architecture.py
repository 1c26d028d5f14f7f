"""What an export is made of: a network from another package or of our own, and the shapes of its inputs."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Architecture:
    """How to make a network and what to feed it.

    Attributes:
        make: Makes it.
        shapes: Shapes of its inputs, each with a batch axis of 1.
        ids: Inputs are token numbers below this; 0 if they are real.
    """

    make: Callable[[], nn.Module]
    shapes: Shapes = ((1, 3, 224, 224),)
    ids: int = 0


class Named(nn.Module):
    """Picks tensors out of what a module returns in a dictionary or an object."""

    def __init__(self, module: nn.Module, *keys: str) -> None:
        super().__init__()
        self.module = module
        self.keys = keys

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The tensors named."""
        found = self.module(*inputs)
        picked = [found[key] if isinstance(found, dict) else getattr(found, key) for key in self.keys]
        return picked[0] if len(picked) == 1 else tuple(picked)


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of torchvision."""

    def make() -> nn.Module:
        return torchvision.models.get_model(name, weights=None, **options)

    return make


def dense(name: str) -> Callable[[], nn.Module]:
    """A segmentation model of torchvision, its main output."""
    return lambda: Named(vision(name, weights_backbone=None)(), "out")


def image(name: str) -> Callable[[], nn.Module]:
    """A model of timm."""

    def make() -> nn.Module:
        return timm.create_model(name, pretrained=False)

    return make


def language(kind: str, output: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers by its kind, small unless `options` say otherwise."""

    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **options)
        config._attn_implementation = "eager"  # noqa: SLF001 - the documented way is a download
        config.use_cache = False
        return Named(transformers.AutoModel.from_config(config), output)

    return make


def encoder(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """The encoder of a model of transformers that has two halves."""

    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **options)
        config._attn_implementation = "eager"  # noqa: SLF001 - as above
        return Named(transformers.AutoModel.from_config(config).get_encoder(), "last_hidden_state")

    return make
