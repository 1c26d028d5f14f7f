"""Small decoders of every family that `transformers` has, exported with their caches, beside float32.

`python -m decoders.families export FOLDER`, in `benches`, in an environment with torch, transformers, onnx
and onnxscript, writes a model of two layers with seeded random weights for each family.
`python -m decoders.families check FOLDER [int8|int16]` builds a prompt of 32 tokens and single steps in a
context of 96, feeds 90 tokens and prints how far the logits of the integer graphs lie from onnxruntime's.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

TOKENS, PROMPT, CONTEXT, FED, LAYERS = 128, 32, 96, 90, 2
SIZES = {
    "vocab_size": TOKENS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
OLD_SIZES = {"vocab_size": TOKENS, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 256}
HEADS = {**SIZES, "head_dim": 16}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
WINDOW = {"sliding_window": 32, "query_pre_attn_scalar": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES, "mistral": SIZES | {"sliding_window": 32}, "qwen2": SIZES, "qwen3": HEADS,
    "gemma": HEADS, "gemma2": HEADS | WINDOW, "gemma3_text": HEADS | WINDOW, "phi": SIZES,
    "phi3": SIZES | {"pad_token_id": 0},
    "gpt2": OLD_SIZES, "gptj": OLD_SIZES | {"rotary_dim": 16}, "codegen": OLD_SIZES | {"rotary_dim": 16},
    "gpt_neox": SIZES, "bloom": {"vocab_size": TOKENS, "hidden_size": 64, "n_layer": LAYERS, "n_head": 4},
    "opt": SIZES | {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "falcon": SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "olmo2": SIZES, "granite": SIZES, "stablelm": SIZES, "starcoder2": SIZES, "cohere": SIZES,
    "nemotron": SIZES, "ernie4_5": HEADS, "mixtral": SIZES | EXPERTS | {"sliding_window": None},
    "granitemoe": SIZES | EXPERTS, "olmoe": SIZES | {"num_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": HEADS | EXPERTS | {"sliding_window": 32},
    "qwen3_moe": HEADS | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "deepseek_v3": SIZES | {
        "num_key_value_heads": 4, "moe_intermediate_size": 64, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "kv_lora_rank": 32, "q_lora_rank": 32,
        "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    },
}  # fmt: skip
SHARPER = 3.0
"""Factor of all matrices: with the usual ones of an untrained network every share would be the same."""


def export(folder: Path) -> None:
    """Writes a model for each family."""
    import torch  # noqa: PLC0415 - of another environment than the check's
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache  # noqa: PLC0415

    class Steps(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.takes_places = "position_ids" in inspect.signature(model.forward).parameters

        def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            places = {"position_ids": position_ids} if self.takes_places else {}
            given = {"attention_mask": attention_mask, "past_key_values": cache, "use_cache": True, **places}
            found = self.model(input_ids=input_ids, **given)
            rows = [each for layer in found.past_key_values.layers for each in (layer.keys, layer.values)]
            return found.logits, *rows

    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{{}}.{layer}.{what}" for layer in range(LAYERS) for what in ("key", "value")]
    sequence, rows = (torch.export.Dim(name, min=1, max=200) for name in ("sequence", "past"))
    for family, sizes in FAMILIES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **sizes)
        config._attn_implementation = "eager"  # noqa: SLF001 - as its users set it
        model = AutoModelForCausalLM.from_config(config).eval()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data *= SHARPER
        with torch.no_grad():
            cache = model(input_ids=torch.zeros(1, 3, dtype=torch.int64), use_cache=True).past_key_values
        past = [torch.zeros(*each.shape[:2], 3, each.shape[3]) for layer in cache.layers
                for each in (layer.keys, layer.values)]  # fmt: skip
        tokens = torch.zeros(1, 5, dtype=torch.int64)
        sample = (tokens, torch.arange(3, 8)[None], torch.ones(1, 8, dtype=torch.int64), *past)
        torch.onnx.export(
            Steps(model), sample, str(folder / f"{family}.onnx"), dynamo=True, opset_version=20,
            external_data=False,
            input_names=["input_ids", "position_ids", "attention_mask",
                         *(name.format("past_key_values") for name in names)],
            output_names=["logits", *(name.format("present") for name in names)],
            dynamic_shapes=(
                {1: sequence}, {1: sequence}, {1: torch.export.Dim.AUTO}, tuple({2: rows} for _ in past)
            ),
        )  # fmt: skip
        print(family, flush=True)


def check(folder: Path, dtype: str) -> None:
    """Prints a line for each model of a folder."""
    from tpuflow.config import Config  # noqa: PLC0415 - of another environment than the export's
    from tpuflow.execution.graph_decoder import graph_decoder  # noqa: PLC0415
    from tpuflow.execution.levels import graph_level  # noqa: PLC0415
    from tpuflow.pipeline import Request  # noqa: PLC0415
    from tpuflow.pipeline.decoders import build_decoder, float_decoder, phases_of  # noqa: PLC0415

    random = np.random.default_rng(0)
    tokens = random.integers(1, TOKENS, FED)  # padding has no row of its own

    def logits(decoder: Any) -> np.ndarray:
        decoder.reset()
        found = [decoder.step(tokens[:PROMPT])[-1]]
        found += [decoder.step(tokens[at : at + 1])[-1] for at in range(PROMPT, FED)]
        return np.asarray(found, np.float64)

    with tempfile.TemporaryDirectory() as made:
        rows = Path(made) / "calib.npz"
        np.savez(rows, ids=random.integers(0, TOKENS, (16, CONTEXT)))
        for model in sorted(folder.glob("*.onnx")):
            phases = phases_of(PROMPT, 1, [CONTEXT])
            exact = logits(float_decoder(model, list(phases.values())))
            config = Config.model_validate({"quantize": {"dtype": dtype}})
            built = build_decoder(Request(model, calibration=rows, config=config), phases)
            parts = built.parts.values()
            found = logits(graph_decoder([graph_level(part.graph) for part in parts]))
            noise = np.square(found - exact).sum(1)
            steps = 10 * np.log10(np.square(exact).sum(1) / np.maximum(noise, 1e-30) + 1e-9)
            whole = all(type(part.graph).__name__ == "Graph" for part in parts)
            cycles = " + ".join(f"{part.report['cycles']:,}" for part in parts)
            shown = [f"{each:.1f}" for each in (steps[0], np.median(steps[1:]), steps[1:].min())]
            place = "device" if whole else "device and host"
            print(f"| {model.stem} | {' | '.join(shown)} | {cycles} | {place} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(Path(sys.argv[2]))
    else:
        check(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "int8")
