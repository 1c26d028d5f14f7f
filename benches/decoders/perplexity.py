"""Perplexity of a decoder's integer graphs beside float32, paired by token.

`python -m decoders.perplexity FOLDER`, in `benches` and at the lowest priority. FOLDER holds `model.onnx`,
`calib.npz` and `eval.npz`, rows of tokens. The first 64 tokens of a row are its prompt, the others are fed
one by one with the cache, and what follows each of them is scored.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tpuflow.config import Config
from tpuflow.evaluation.perplexity import losses, paired_perplexity
from tpuflow.execution.graph_decoder import graph_decoder
from tpuflow.execution.levels import graph_level
from tpuflow.pipeline import Request
from tpuflow.pipeline.decoders import build_decoder, float_decoder, phases_of, token_rows

PROMPT = 64
SETTINGS = {
    "w8a8": {},
    "w4a8": {"weight_bits": 4, "per_block": True, "weight_block_size": 32},
    "int16": {"dtype": "int16"},
}
"""Caches have the type of activations: int8, int8 and int16."""


def main(folder: Path, names: list[str]) -> None:
    """Prints one line for every setting."""
    model, rows = folder / "model.onnx", token_rows(folder / "eval.npz")
    context = rows.shape[1] - 1
    phases = phases_of(PROMPT, 1, [context])
    floats = losses(float_decoder(model, list(phases.values())), rows, PROMPT)
    for name in names or list(SETTINGS):
        config = Config.model_validate({"quantize": SETTINGS[name]})
        request = Request(model, calibration=folder / "calib.npz", config=config, verify=False)
        built = build_decoder(request, phases)
        graphs = [graph_level(part.graph) for part in built.parts.values()]
        found = paired_perplexity(losses(graph_decoder(graphs), rows, PROMPT), floats)
        print(
            f"{name:6} {found.value:.4f}, float32 {found.reference:.4f}: {found.change:+.3%}, standard error "
            f"{found.standard_error:.3%}, {found.tokens} tokens",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
