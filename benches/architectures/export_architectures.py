"""Networks nobody listed: exports architectures of other packages with random weights, for `tpuflow zoo`.

    python benches/architectures/export_architectures.py DIR [NAME ...] [--list]
    tpuflow zoo DIR --dtypes int8,int16

Needs torch, torchvision, timm and transformers, which the package itself does not; nothing is downloaded.
Weights are those of the architectures' own initialisation, drawn from a fixed seed, and the statistics of
normalisation layers are measured on noise, so that activations keep their scale as in trained ones.
`torch.onnx.export` writes every file as it does by default; one it cannot export does not stop the
others.
"""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import torch
from architecture import Architecture
from images import IMAGES
from sequences import SEQUENCES
from torch import nn

ARCHITECTURES = IMAGES | SEQUENCES


def inputs(architecture: Architecture) -> tuple[torch.Tensor, ...]:
    """One sample."""
    if architecture.ids:
        return tuple(torch.randint(architecture.ids, shape) for shape in architecture.shapes)
    return tuple(torch.randn(shape) for shape in architecture.shapes)


@torch.no_grad()
def settle(model: nn.Module, architecture: Architecture) -> None:
    """Measures the statistics of batch normalisation on noise."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
    if not layers:
        return
    for layer in layers:
        layer.momentum = None
        layer.train()
    try:
        pairs = zip(inputs(architecture), inputs(architecture), strict=True)
        model(*(torch.cat(pair) for pair in pairs))
    except (RuntimeError, ValueError, TypeError):
        pass  # a model that takes no batch of two keeps the statistics it was made with
    model.eval()


def export(name: str, folder: Path) -> None:
    """Writes `folder/name.onnx`."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = architecture.make().eval()
    settle(model, architecture)
    path = folder / f"{name}.onnx"
    torch.onnx.export(model, inputs(architecture), str(path), external_data=False)


def main() -> None:
    """Exports what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures, all by default")
    parser.add_argument("--list", action="store_true", help="print their names and do nothing")
    asked = parser.parse_args()
    names = asked.names or list(ARCHITECTURES)
    if asked.list:
        print(*names, sep="\n")
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        try:
            export(name, asked.folder)
            print(f"{name}: written", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever an exporter does not manage
            failed += 1
            reason = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
            print(f"{name}: not exported: {reason[:300]}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
