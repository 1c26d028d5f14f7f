"""A small decoder with a mixture of experts, trained on the text of Python's standard library.

`python -m decoders.mixture FOLDER`, in `benches`, in an environment with torch, onnx and onnxscript; about
15 minutes on two cores. It writes `model.onnx` (dynamic sequence and past, experts picked by `W[indices]`,
which becomes GatherND), `calib.npz` and `eval.npz`, rows of bytes as `decoders.perplexity` reads them.
"""

# mypy: disable-error-code="misc, no-any-return"

from __future__ import annotations

import math
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, HEADS, SHARED, SIZE = 128, 128, 4, 2, 32
LAYERS, EXPERTS, CHOSEN, INNER = 3, 8, 2, 192
CONTEXT, BATCH, STEPS = 256, 16, 1500
THETA = 10_000.0
INPUTS = ("input_ids", "position_ids", "attention_mask")


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Rotary positions of `[batch, heads, sequence, size]`."""
    rates = THETA ** (-torch.arange(0, SIZE, 2, dtype=torch.float32) / SIZE)
    angles = places[:, :, None].to(torch.float32) * rates
    cosines, sines = (torch.cat([f(angles), f(angles)], -1)[:, None] for f in (torch.cos, torch.sin))
    half = torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
    return x * cosines + half * sines


class Experts(nn.Module):
    """Gated layers, of which each token goes through those with the largest of its router's shares."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.first = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / math.sqrt(WIDTH))
        self.second = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / math.sqrt(INNER))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, sequence, WIDTH]` to the same."""
        rows = x.reshape(-1, WIDTH)
        shares, chosen = torch.topk(torch.softmax(self.router(rows), -1), CHOSEN, dim=-1)
        shares = shares / shares.sum(-1, keepdim=True)
        if self.training:  # every expert for every row, most of them times zero: quicker on a CPU
            inner = torch.einsum("rw,eiw->rei", rows, self.first)
            gate, up = inner.chunk(2, -1)
            made = torch.einsum("rei,ewi->rew", functional.silu(gate) * up, self.second)
            weights = torch.zeros_like(made[..., 0]).scatter(1, chosen, shares)
            return (made * weights[..., None]).sum(1).reshape(x.shape)
        repeated = rows.repeat_interleave(CHOSEN, 0)[..., None]
        gate, up = torch.bmm(self.first[chosen.reshape(-1)], repeated)[..., 0].chunk(2, -1)
        made = torch.bmm(self.second[chosen.reshape(-1)], (functional.silu(gate) * up)[..., None])[..., 0]
        return (made.reshape(-1, CHOSEN, WIDTH) * shares[..., None]).sum(1).reshape(x.shape)


class Layer(nn.Module):
    """Attention with grouped queries, then experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, SHARED * SIZE, bias=False) for _ in range(2))
        self.joined = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.experts = Experts()

    def forward(
        self, x: Tensor, places: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        """The stream behind the layer, and the keys and values of past and new rows."""
        batch, rows, _ = x.shape
        read = self.norms[0](x)

        def by_head(y: Tensor, heads: int) -> Tensor:
            return y.reshape(batch, rows, heads, SIZE).transpose(1, 2)

        query = turned(by_head(self.query(read), HEADS), places)
        key = torch.cat([past[0], turned(by_head(self.key(read), SHARED), places)], 2)
        value = torch.cat([past[1], by_head(self.value(read), SHARED)], 2)
        wide_key, wide_value = (each.repeat_interleave(HEADS // SHARED, 1) for each in (key, value))
        scores = query @ wide_key.transpose(2, 3) / math.sqrt(SIZE) + mask
        mixed = (torch.softmax(scores, -1) @ wide_value).transpose(1, 2).reshape(batch, rows, HEADS * SIZE)
        x = x + self.joined(mixed)
        return x + self.experts(self.norms[1](x)), key, value


class Decoder(nn.Module):
    """Tokens, positions, a mask of tokens and the caches of all layers to logits and caches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Logits `[batch, sequence, TOKENS]`, then keys and values by layer."""
        x, present = self.table(input_ids), []
        total = attention_mask.shape[1]
        later = torch.arange(total)[None, None] > position_ids[:, :, None]
        hidden = later | (attention_mask[:, None] == 0)
        mask = torch.where(hidden[:, None], torch.tensor(-1e9), torch.tensor(0.0))
        for at, layer in enumerate(self.layers):
            x, *caches = layer(x, position_ids, mask, (past[2 * at], past[2 * at + 1]))
            present += caches
        return self.head(self.norm(x)), *present


def standard_library() -> np.ndarray:
    """Bytes of the modules of Python's standard library, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)
    found = np.frombuffer(text, np.uint8)
    return found[found < TOKENS]


def no_past(rows: int) -> list[Tensor]:
    """Caches without rows."""
    return [torch.zeros(rows, SHARED, 0, SIZE) for _ in range(2 * LAYERS)]


def trained(text: np.ndarray) -> Decoder:
    """The decoder behind all steps of its training."""
    torch.manual_seed(0)
    random, model = np.random.default_rng(0), Decoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    places = torch.arange(CONTEXT)[None].expand(BATCH, -1)
    for step in range(STEPS):
        firsts = random.integers(0, len(text) - CONTEXT - 1, BATCH)
        rows = torch.from_numpy(np.stack([text[at : at + CONTEXT + 1] for at in firsts]).astype(np.int64))
        logits, *_ = model(
            rows[:, :-1], places, torch.ones(BATCH, CONTEXT, dtype=torch.int64), *no_past(BATCH)
        )
        loss = functional.cross_entropy(logits.reshape(-1, TOKENS), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f} nats a byte", flush=True)
    return model.eval()


def export(model: Decoder, file: Path) -> None:
    """Writes the model with a dynamic sequence and past."""
    rows, before = (
        torch.export.Dim("sequence", min=1, max=CONTEXT),
        torch.export.Dim("past", min=1, max=CONTEXT),
    )
    past = [torch.zeros(1, SHARED, 3, SIZE) for _ in range(2 * LAYERS)]
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    sample = (tokens, torch.arange(3, 8)[None], torch.ones(1, 8, dtype=torch.int64), *past)
    pairs = [f"{{}}.{layer}.{what}" for layer in range(LAYERS) for what in ("key", "value")]
    torch.onnx.export(
        model, sample, str(file), dynamo=True, opset_version=20, external_data=False,
        input_names=[*INPUTS, *(pair.format("past_key_values") for pair in pairs)],
        output_names=["logits", *(pair.format("present") for pair in pairs)],
        dynamic_shapes=({1: rows}, {1: rows}, {1: torch.export.Dim.AUTO}, tuple({2: before} for _ in past)),
    )  # fmt: skip


def main(folder: Path) -> None:
    """Trains, exports, and writes rows of the text: calibration from its front, evaluation from its end."""
    folder.mkdir(parents=True, exist_ok=True)
    text = standard_library()
    split = len(text) * 9 // 10
    seen, kept = text[:split], text[split:]
    random = np.random.default_rng(1)

    def rows(of: np.ndarray, count: int, length: int) -> np.ndarray:
        return np.stack([of[at : at + length] for at in random.integers(0, len(of) - length, count)])

    np.savez(folder / "calib.npz", ids=rows(seen, 64, CONTEXT))
    np.savez(folder / "eval.npz", ids=rows(kept, 40, CONTEXT + 1))
    export(trained(seen), folder / "model.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
