"""Programs of ten small networks as text, kept beside this file so that a change of the compiler can be read.

    PYTHONPATH=tests python -m programs.write_programs    # writes all of them anew: ./start programs

Ranges are rounded up to powers of two: the last bits of onnxruntime's sums, which differ from processor to
processor, must not show in a scale. Constants are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import tpuflow
from models.make_models import MODELS, samples
from tpuflow.calibration.ranges import Range, Ranges

__all__ = ["HERE", "LEVELS", "compiled", "program_text"]

HERE = Path(__file__).parent
LEVELS = {
    "plain": 1,
    "depthwise": 5,
    "residual": 5,
    "fire": 5,
    "attention": 5,
    "squeeze_excite": 5,
    "upsample": 5,
    "transposed": 5,
    "several": 5,
    "embedding": 5,
}
"""The networks, and the level each is compiled at."""


def compiled(name: str) -> tpuflow.Program:
    """A network's program as the compiler makes it now."""
    original = MODELS[name]()
    model = tpuflow.load(original)
    ranges = tpuflow.calibrate(model, samples(original, 4))
    graph = tpuflow.quantize(model, _rounded(ranges))
    return tpuflow.compile(graph, machine="128x128_asic", level=LEVELS[name])


def program_text(name: str) -> str:
    """The same as text, without its constants."""
    return compiled(name).to_text(constants=False)


def _rounded(ranges: Ranges) -> Ranges:
    tensors = {
        name: Range(min(map(_power, lows)), max(map(_power, highs)))
        for name, found in ranges.tensors.items()
        for lows, highs in (zip(*found.pairs, strict=True),)
    }
    return replace(ranges, tensors=tensors, means={}, errors={})


def _power(value: float) -> float:
    """The power of two at or beyond a number, on the same side of zero."""
    return math.copysign(2.0 ** math.ceil(math.log2(abs(value))), value) if value else 0.0


def main() -> None:
    """Writes every file."""
    for name in LEVELS:
        (HERE / f"{name}.tpuasm").write_text(program_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
