"""Tokens a second of a decoder's integer graphs on the processor, beside onnxruntime-genai.

`python -m decoders.tokens_per_second BUNDLE GENAI_FOLDER --genai-python PYTHON`, in `benches`. The folder is
what the model builder of onnxruntime-genai makes of a network of the same shape (`-p int4 -e cpu
--extra_options int4_block_size=32`), PYTHON an interpreter of an environment that has onnxruntime-genai.
Both take turns, each with the processor to itself; loading, packing and the prompt are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

WARM = 16
"""Steps before those that are timed: weights are packed at the first, pages enlarged at the ninth."""

OWN = """
import sys, time
from pathlib import Path
from tpuflow.pipeline.decoders import open_decoder
decoder = open_decoder(Path(sys.argv[1]))
prompt, tokens, warm = map(int, sys.argv[2:])
decoder.generate(list(range(3, 3 + prompt)), warm)
start = time.perf_counter()
for token in range(tokens):
    decoder.step([token])
print((time.perf_counter() - start) / tokens)
"""

GENAI = """
import sys, time
import onnxruntime_genai
model = onnxruntime_genai.Model(sys.argv[1])
prompt, tokens, warm = map(int, sys.argv[2:])
parameters = onnxruntime_genai.GeneratorParams(model)
parameters.set_search_options(max_length=prompt + tokens + warm + 1, do_sample=False)
generator = onnxruntime_genai.Generator(model, parameters)
generator.append_tokens(list(range(3, 3 + prompt)))
for _ in range(warm):
    generator.generate_next_token()
start = time.perf_counter()
for _ in range(tokens):
    generator.generate_next_token()
print((time.perf_counter() - start) / tokens)
"""


def seconds(python: str, program: str, path: Path, prompt: int, tokens: int) -> float:
    """Seconds a token."""
    command = [python, "-c", program, str(path), str(prompt), str(tokens), str(WARM)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    """Prints tokens a second of both, and their ratio, by length of the prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("genai", type=Path)
    parser.add_argument("--genai-python", required=True)
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for prompt in given.prompts:
        pairs = [
            (
                seconds(sys.executable, OWN, given.bundle, prompt, given.tokens),
                seconds(given.genai_python, GENAI, given.genai, prompt, given.tokens),
            )
            for _ in range(given.rounds)
        ]
        own, other = (1 / statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        print(
            f"behind {prompt}: {own:.1f} tokens a second, onnxruntime-genai {other:.1f}, ratio {ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
